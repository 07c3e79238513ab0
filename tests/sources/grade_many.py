"""A program for a sandbox: grades many designs with their harness's own runner, in one container.

Reads a JSON list of file trees from stdin, each a harness and a design, and prints a JSON list of verdicts.
"""

import json
import os
import shutil
import sys
import tempfile
from multiprocessing import Pool
from pathlib import Path

import cocotb_tools.runner  # type: ignore[import-not-found]  # noqa: F401  (loaded once, before the forks)


def passes(files: dict[str, str]) -> bool:
    folder = Path(tempfile.mkdtemp())
    try:
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        for line in (folder / "src" / ".env").read_text().splitlines():
            key, _, value = line.partition("=")
            os.environ[key.strip()] = value.strip().replace("/code", str(folder))
        os.environ["PYTEST_CURRENT_TEST"] = "test_runner.py::test_design (call)"  # the runner raises for a failed test
        os.chdir(folder)
        sys.path.insert(0, str(folder / "src"))
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        __import__("test_runner").test_design()
    except (Exception, SystemExit):
        return False
    else:
        return True
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    with Pool(2, maxtasksperchild=1) as pool:
        verdicts = pool.map(passes, json.load(sys.stdin), chunksize=1)
    print(json.dumps(verdicts))

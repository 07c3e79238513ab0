"""The bounds of pyproject.toml and the pinned versions: they agree, and what is behind the index is listed.

pytest tests/test_bounds.py -m ecosystem    # prints the list
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "tests" / "integrations" / "requirements"


def declared() -> Iterator[tuple[str, Requirement]]:
    """Each requirement of the package, with the extra that has it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra, lines in {"": project["dependencies"], **project["optional-dependencies"]}.items():
        for line in lines:
            yield extra, Requirement(line)


def pins(path: Path) -> dict[str, Version]:
    """The versions in a list, by name."""
    lines = [line for line in path.read_text().splitlines() if "==" in line and not line.startswith("#")]
    return {canonicalize_name(name): Version(version) for name, _, version in (line.partition("==") for line in lines)}


def pinned(extra: str) -> dict[str, Version]:
    """The versions with which an extra is tested: in its own list, and otherwise in constraints.txt."""
    own = REQUIREMENTS / f"{extra}.txt"
    return pins(ROOT / "constraints.txt") | (pins(own) if own.is_file() else {})


def test_every_pin_is_within_its_bounds() -> None:
    for path in [ROOT / "constraints.txt", *REQUIREMENTS.glob("*.txt")]:
        found = pins(path)
        for extra, requirement in declared():
            version = found.get(canonicalize_name(requirement.name))
            if version is not None and extra in ("", "train", "local", path.stem):
                assert version in requirement.specifier, (
                    f"{path.name}: {requirement.name} {version} is not {requirement}"
                )


@pytest.mark.ecosystem
@pytest.mark.timeout(900)
def test_what_is_behind_the_index_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """No release of another project makes this fail: it fails only if pip's answer cannot be read."""
    names = sorted({requirement.name for _, requirement in declared()})
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps"]
    command += ["--ignore-requires-python", "--quiet", "--report", "-", *names]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=800)
    except subprocess.TimeoutExpired:
        pytest.skip("the package index is too slow")
    if done.returncode != 0:
        pytest.skip(f"no package index answers for all of them: {done.stderr.strip().splitlines()[-1]}")
    newest = {
        canonicalize_name(item["metadata"]["name"]): Version(item["metadata"]["version"])
        for item in json.loads(done.stdout)["install"]
    }
    assert newest.keys() == {canonicalize_name(name) for name in names}
    rows = []
    for extra, requirement in declared():
        name = canonicalize_name(requirement.name)
        version = pinned(extra)[name]
        if version < newest[name]:
            allowed = "" if newest[name] in requirement.specifier else f"excluded by {requirement.specifier}"
            rows.append(f"{name:20} {extra or 'base':10} {version!s:16} {newest[name]!s:16} {allowed}".rstrip())
    with capsys.disabled():
        print("\n" + "\n".join(["package              extra      pinned           newest", *rows]))

"""Sources by name. The Hub stands in for itself: its own client talks to a small server on the loopback."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar, NoReturn

import pytest

from rtl_agent_gym.errors import ProblemError, UsageError
from rtl_agent_gym.problems import load_problems
from tests.problems.conftest import Row
from tests.problems.conftest import WriteRows as Write

Load = Callable[..., list[str]]

OFFICIAL = "nvidia/cvdp-benchmark-dataset"
OLD_FILE = "cvdp_v1.0.2_agentic_code_generation_no_commercial.jsonl"
OTHER_REVISION = "3" * 40

LOAD = """
import sys
from rtl_agent_gym.errors import RTLGymError
from rtl_agent_gym.problems import load_problems
for source in sys.argv[1:]:
    try:
        print("loaded", [problem.id for problem in load_problems(source)])
    except RTLGymError as error:
        print(type(error).__name__, error)
"""


class Hub(BaseHTTPRequestHandler):
    """The answers of the Hub that a download asks for, and the list of a data set's files."""

    files: ClassVar[dict[str, bytes]] = {}
    requests: ClassVar[list[str]] = []
    refusals: ClassVar[dict[str, tuple[int, str]]] = {
        "nobody/nothing": (404, "RepoNotFound"),
        "somebody/gated": (403, "GatedRepo"),
    }
    broken = 0
    """The status of every answer; 0 for the right ones."""

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        self.requests.append(self.path)
        if f"/api/datasets/{OFFICIAL}/tree/" in self.path and not self.broken:
            self.list_files()
            return
        path = self.path.removeprefix("/datasets/").replace(f"/resolve/{OTHER_REVISION}/", "/resolve/main/")
        repo, _, name = path.partition("/resolve/main/")
        data = self.files.get(name) if repo == OFFICIAL and not self.broken else None
        if data is not None:
            self.send_response(200)
            self.send_header("X-Repo-Commit", "1" * 40)
            self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        elif self.broken:
            self.send_response(self.broken)
        else:
            status, code = (404, "EntryNotFound") if repo == OFFICIAL else self.refusals[repo]
            self.send_response(status)
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", str(len(data or b"")))
        self.end_headers()
        if body and data:
            self.wfile.write(data)

    def list_files(self) -> None:
        listed = [{"type": "file", "path": name, "oid": "2", "size": len(data)} for name, data in self.files.items()]
        text = json.dumps(listed).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[tuple[type[Hub], str]]:
    """A fresh Hub and its address."""
    handler = type("FreshHub", (Hub,), {"files": {}, "requests": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield handler, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """A line for each source, loaded in a process of its own: the client reads its settings when it is imported."""
    pytest.importorskip("huggingface_hub")

    def run(*sources: str, **settings: str) -> list[str]:
        env = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        env |= {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1"}
        env |= {"PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", LOAD, *sources], env=env | settings, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert len(lines) == len(sources), lines
        return lines

    return run


def test_a_file_of_a_data_set_is_downloaded_once(hub: tuple[type[Hub], str], load: Load, agentic_row: Row) -> None:
    server, address = hub
    server.files |= {"my.jsonl": json.dumps(agentic_row).encode(), "bad.jsonl": b"{\n"}
    loaded, bad = load(f"{OFFICIAL}:my.jsonl", f"{OFFICIAL}:bad.jsonl", HF_ENDPOINT=address)
    assert loaded == "loaded ['cvdp_agentic_tiny_0001']"
    assert bad.startswith(f"ProblemError {OFFICIAL}:bad.jsonl:1: not JSON")
    assert server.requests
    server.requests.clear()
    assert load(f"{OFFICIAL}:my.jsonl", HF_ENDPOINT=address, HF_HUB_OFFLINE="1") == [loaded]
    assert server.requests == []


def test_the_short_name_means_the_newest_agentic_file(hub: tuple[type[Hub], str], load: Load, agentic_row: Row) -> None:
    server, address = hub
    for release in ("1.0.2", "1.9.0", "1.10.0", "1.10.0_example"):
        row = agentic_row | {"id": f"cvdp_agentic_v{release.replace('.', '_')}_0001"}
        server.files[OLD_FILE.replace("1.0.2", release)] = json.dumps(row).encode()
    newest = "loaded ['cvdp_agentic_v1_10_0_0001']"
    assert load(f"cvdp@{OTHER_REVISION}", HF_ENDPOINT=address) == [newest]
    assert all(OTHER_REVISION in path for path in server.requests if "/tree/" in path or "/resolve/" in path)
    old = "loaded ['cvdp_agentic_v1_0_2_0001']"
    assert load("cvdp", OFFICIAL, f"cvdp:{OLD_FILE}", HF_ENDPOINT=address) == [newest, newest, old]


def test_without_the_hub_the_short_name_means_what_is_in_the_cache(
    hub: tuple[type[Hub], str], load: Load, agentic_row: Row
) -> None:
    """Where the client is in offline mode, where no Hub answers, and where it is busy."""
    server, address = hub
    server.files[OLD_FILE] = json.dumps(agentic_row).encode()
    expected = ["loaded ['cvdp_agentic_tiny_0001']"]
    assert load("cvdp", HF_ENDPOINT=address) == expected
    assert load("cvdp", HF_ENDPOINT=address, HF_HUB_OFFLINE="1") == expected
    assert load("cvdp", HF_ENDPOINT="http://127.0.0.1:9") == expected
    for status in (429, 503):
        server.broken = status
        assert load("cvdp", HF_ENDPOINT=address) == expected


@pytest.mark.slow
def test_each_failure_of_a_download_has_its_own_words(hub: tuple[type[Hub], str], load: Load) -> None:
    server, address = hub
    named = (f"{OFFICIAL}:my.jsonl", "nobody/nothing:my.jsonl", "somebody/gated:my.jsonl")
    no_file, no_set, gated = load(*named, HF_ENDPOINT=address)
    assert no_file.startswith(f"ProblemError {OFFICIAL}:my.jsonl: the data set has no file my.jsonl; ")
    assert "there is no data set nobody/nothing, or it is private" in no_set
    assert "the data set is gated; accept its terms" in gated
    [offline] = load(f"{OFFICIAL}:my.jsonl", HF_ENDPOINT=address, HF_HUB_OFFLINE="1")
    assert "the client is in offline mode and the file is not in the local cache" in offline
    assert f"hf download --repo-type dataset {OFFICIAL} my.jsonl" in offline
    server.broken = 418
    [broken] = load(f"{OFFICIAL}:my.jsonl", HF_ENDPOINT=address)
    assert broken.startswith(f"ProblemError {OFFICIAL}:my.jsonl: ")
    assert "then give the file's path" in broken


@pytest.mark.slow  # the client itself tries again for twenty seconds
def test_no_network(load: Load) -> None:
    [message] = load(OFFICIAL, HF_ENDPOINT="http://127.0.0.1:9")
    assert "the Hugging Face Hub does not answer and the file is not in the local cache" in message
    assert "then give the file's path" in message


def test_without_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ProblemError, match=r"huggingface_hub is not installed; .*rtl-agent-gym\[hub\]"):
        load_problems(OFFICIAL)


def test_a_client_with_another_http_library(
    write_rows: Write, agentic_row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    """huggingface_hub 2 has httpx2, and httpx may be absent."""
    pytest.importorskip("huggingface_hub")
    file = write_rows(agentic_row)

    class NewError(Exception):
        """Raised where no Hub answers."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise NewError("no route to host")

    def download(filename: str, local_files_only: bool, **_: object) -> str:
        return str(file) if local_files_only else refuse()

    monkeypatch.setattr("huggingface_hub.errors.HTTPError", NewError)
    monkeypatch.setattr("huggingface_hub.HfApi.list_repo_files", refuse)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setitem(sys.modules, "httpx", None)
    assert [problem.id for problem in load_problems("cvdp")] == ["cvdp_agentic_tiny_0001"]
    with pytest.raises(ProblemError, match="the Hugging Face Hub does not answer and the file is not in the local"):
        load_problems(f"{OFFICIAL}:my.jsonl")


def test_a_data_set_whose_files_are_not_known_needs_a_file_name() -> None:
    with pytest.raises(UsageError, match="somebody/problems:FILE"):
        load_problems("somebody/problems")


def test_a_folder_of_the_data_sets_name_comes_first(
    write_rows: Write, agentic_row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(agentic_row, name=f"{OFFICIAL}/a.jsonl")
    monkeypatch.chdir(tmp_path)
    assert [problem.id for problem in load_problems(OFFICIAL)] == ["cvdp_agentic_tiny_0001"]


def test_the_home_folder_may_be_written_as_a_tilde(
    write_rows: Write, agentic_row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(agentic_row)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(load_problems("~/rows.jsonl")) == 1


@pytest.mark.parametrize("prefix", ["", "rtllm:", "notsotiny:"])
def test_a_user_that_does_not_exist_is_wrong_usage(prefix: str) -> None:
    with pytest.raises(UsageError, match=r"^~no-such-user/problems"):
        load_problems(f"{prefix}~no-such-user/problems")


def test_a_file_that_is_not_there_names_its_neighbours(write_rows: Write, agentic_row: Row) -> None:
    path = write_rows(agentic_row)
    with pytest.raises(UsageError, match=r"row\.jsonl.*rows\.jsonl"):
        load_problems(path.with_name("row.jsonl"))
    with pytest.raises(UsageError, match="there is no file or folder"):
        load_problems("no/such.jsonl")
    with pytest.raises(UsageError, match="there is no file or folder"):
        load_problems(f"./{'long' * 100}.jsonl")


def test_a_folder_without_problem_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"contains no file that ends in \.jsonl"):
        load_problems(tmp_path)


def test_a_folder_that_cannot_be_read_is_wrong_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> Iterator[Path]:  # as for a folder of mode 000; root would read that
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(UsageError, match=f"the folder {tmp_path} cannot be read: Permission denied"):
        load_problems(tmp_path)
    with pytest.raises(UsageError, match=f"there is no file or folder {tmp_path}/x.jsonl$"):
        load_problems(tmp_path / "x.jsonl")


def test_an_empty_name_is_not_the_current_folder() -> None:
    with pytest.raises(UsageError, match="the source of problems is empty; expected 'bundled', a path"):
        load_problems("")


def test_an_unknown_word() -> None:
    with pytest.raises(UsageError, match=r"unknown source of problems 'bundle'.*did you mean bundled"):
        load_problems("bundle")

"""Heavy rows: the files of a commit in a git bundle, read with limits and without running anything of it."""

from __future__ import annotations

import logging
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.errors import ProblemError, UsageError
from rtl_agent_gym.problems import checkouts, editable, load_problems, rows
from rtl_agent_gym.problems.checkouts import BUNDLES, read_checkout
from tests.problems.conftest import Row, WriteRows
from tests.problems.repositories import Repository

FILES = {
    "src/core.sv": b"module core(input a, output y);\n  assign y = a;\nendmodule\n",
    "docs/core.md": b"# Core\n",
    "Makefile": b"all:\n",
}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def heavy(row: Row, commit: str, body: str = "", **more: Any) -> Row:
    """A row that starts from a commit of the repository ``core``, with this change of its design."""
    return row | {"context": {"repo": "core", "commit": commit}, "patch": {"src/core.sv": body}} | more


def test_the_files_of_a_commit(repository: Repository, tmp_path: Path) -> None:
    old = repository.commit(FILES)
    new = repository.commit({**FILES, "src/more.sv": b"// gr\xfcn\n"})
    bundle = repository.bundle(tmp_path / "core.bundle")
    assert read_checkout(bundle, old) == {path: content.decode() for path, content in FILES.items()}
    assert read_checkout(bundle, new[:10])["src/more.sv"] == "// grün\n"
    assert list(read_checkout(bundle, old, "docs")) == ["core.md"]
    assert len(read_checkout(bundle, old, "nowhere")) == 3


def test_nothing_escapes_and_nothing_runs(
    repository: Repository, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Links that leave the repository, submodules, odd names and binary files are left out; hooks and filters never
    run."""
    marker = tmp_path / "ran"
    attributes = b"* filter=evil\n"
    links = {"link.md": "docs/core.md", "chain.md": "link.md", "out.md": "../../../etc/passwd", "abs": "/etc/passwd"}
    links |= {"loop-a": "loop-b", "loop-b": "loop-a", "folder": "src"}
    files = {
        **FILES,
        ".gitattributes": attributes,
        "a.bin": b"\0\1",
        "rundir/x.sv": b"x\n",
        "hooks/post-checkout": b"x",
    }
    submodule = f"160000 {'1' * 40}\tsub"
    commit = repository.commit(files, links, submodule)
    # A path that git itself would refuse to check out.
    tree = repository.git("mktree", "--missing", stdin=_listing(repository, commit) + _evil(repository))
    commit = repository.of_tree(tree)
    bundle = repository.bundle(tmp_path / "evil.bundle")
    home = tmp_path / "home"
    home.mkdir()
    config = f'[core]\n\thooksPath = {tmp_path}\n[filter "evil"]\n\tsmudge = touch {marker}\n'
    (home / ".gitconfig").write_text(config, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setenv("HOME", str(home))
        found = read_checkout(bundle, commit)
    assert sorted(found) == sorted([*FILES, ".gitattributes", "chain.md", "hooks/post-checkout", "link.md"])
    assert found["chain.md"] == found["link.md"] == found["docs/core.md"]
    assert not marker.exists()
    assert "files are left out" in caplog.text


def _listing(repository: Repository, commit: str) -> bytes:
    return repository.git("ls-tree", commit).encode() + b"\n"


def _evil(repository: Repository) -> bytes:
    blob = repository.blob(b"[core]\n")
    git = repository.git("mktree", stdin=f"100644 blob {blob}\tconfig\n".encode())
    return f"040000 tree {git}\t.GIT\n040000 tree {git}\t..\n".encode()


def test_limits(repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = repository.commit({f"rtl/{number}.sv": b"x" * 2000 for number in range(8)})
    bundle = repository.bundle(tmp_path / "core.bundle")

    def refused(name: str, limit: int, words: str) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(checkouts, name, limit)
            with pytest.raises(ProblemError, match=words):
                read_checkout(bundle, commit)

    refused("MAX_ENTRIES", 8, "has 9 files and folders; at most 8")
    refused("MAX_FILE", 1999, "has a file of 2000 bytes")
    refused("MAX_TOTAL", 15_999, "has 16000 bytes of files")
    refused("MAX_BUNDLE", 100, "is larger than")
    refused("_LISTING", 100, "the repository is too large")
    refused("MAX_UNPACKED", 512, "cannot be unpacked")
    assert len(read_checkout(bundle, commit)) == 8


def test_a_repository_of_endless_folders_ends(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten trees of ten trees each, ten deep: ten thousand million files in a few hundred bytes."""
    line = f"100644 blob {repository.blob(b'x')}\tfile{{}}\n"
    for _ in range(10):
        tree = repository.git("mktree", stdin="".join(line.format(number) for number in range(10)).encode())
        line = f"040000 tree {tree}\tfolder{{}}\n"
    commit = repository.of_tree(tree)
    bundle = repository.bundle(tmp_path / "bomb.bundle")
    with pytest.raises(ProblemError, match="the repository is too large"):
        read_checkout(bundle, commit)


def test_deep_folders_are_refused(repository: Repository, tmp_path: Path) -> None:
    """Before they are counted: the paths of a thousand folders in each other, for a thousand files, take gigabytes."""
    commit = repository.commit({"a/" * 65 + "b.sv": b"x"})
    with pytest.raises(ProblemError, match="has a file in 65 nested folders; at most 64"):
        read_checkout(repository.bundle(tmp_path / "deep.bundle"), commit)


def test_a_link_to_a_large_file_counts_as_its_copy(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = repository.commit({"big.md": b"x" * 5000}, {f"link{number}": "big.md" for number in range(9)})
    bundle = repository.bundle(tmp_path / "core.bundle")
    monkeypatch.setattr(checkouts, "MAX_TOTAL", 40_000)
    with pytest.raises(ProblemError, match="too many links to large files"):
        read_checkout(bundle, commit)


def test_a_commit_that_is_not_there(repository: Repository, tmp_path: Path) -> None:
    repository.commit(FILES)
    bundle = repository.bundle(tmp_path / "core.bundle")
    for commit in ("--help", "HEAD", "abc"):
        with pytest.raises(ProblemError, match="is not a commit"):
            read_checkout(bundle, commit)
    with pytest.raises(ProblemError, match="has no commit"):
        read_checkout(bundle, "0" * 40)


def test_what_is_no_bundle(repository: Repository, tmp_path: Path) -> None:
    commit = repository.commit(FILES)
    bundle = repository.bundle(tmp_path / "core.bundle")
    other = tmp_path / "other.bundle"
    other.write_bytes(b"PK\3\4")
    with pytest.raises(ProblemError, match="is not a git bundle"):
        read_checkout(other, commit)
    other.write_bytes(bundle.read_bytes()[:-40])
    with pytest.raises(ProblemError, match="cannot be unpacked"):
        read_checkout(other, commit)


def test_the_bundle_is_found_beside_the_rows(
    agentic_row: Row, write_rows: WriteRows, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"external/{path}": content for path, content in FILES.items()}
    commit = repository.commit({**files, "hidden.md": b"not for the agent\n"})
    name = "cvdp_agentic_heavy_core"
    row: dict[str, Any] = agentic_row | {
        "id": f"{name}_0001",
        "context": {"repo": name, "commit": commit},
        "patch": {"src/core.sv": "@@ -2,1 +2,1 @@\n-  assign y = a;\n+  assign y = ~a;\n"},
    }
    path = write_rows(row)
    missing = load_problems(path)[0]
    assert f"put its bundle {name}.bundle beside the file of the rows" in str(missing.unscorable)
    (tmp_path / "public").mkdir()
    bundle = repository.bundle(tmp_path / "public" / f"{name}.bundle")
    (problem,) = load_problems(path)
    assert problem.unscorable is None
    assert problem.context == {path: content.decode() for path, content in FILES.items()}
    assert problem.golden == {"src/core.sv": FILES["src/core.sv"].decode().replace("= a", "= ~a")}
    assert problem.checkout == f"{name}@{commit}"
    assert editable(problem, "src/new.sv")
    assert editable(problem, "top.sv")
    assert not editable(problem, "rundir/x.sv")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    bundle.rename(elsewhere / bundle.name)
    monkeypatch.setenv(BUNDLES, str(elsewhere))
    assert load_problems(path)[0].digest == problem.digest
    monkeypatch.setenv(BUNDLES, "~no-such-user/bundles")
    with pytest.raises(UsageError, match="there is no home folder for ~no-such-user"):
        load_problems(path)


def test_the_patch_of_a_heavy_row_is_warned_of_once(
    agentic_row: Row, write_rows: WriteRows, repository: Repository, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    rows._warn_of_patches.cache_clear()
    commit = repository.commit(FILES)
    repository.bundle(tmp_path / "core.bundle")
    change = "@@ -2,1 +2,1 @@\n-  assign y = a;\n+  assign y = ~a;\n"
    plain, *patched = (
        heavy(agentic_row, commit, body, id=f"r{number}") for number, body in enumerate(("", change, change))
    )
    load_problems(write_rows(plain))
    assert not caplog.records
    load_problems(write_rows(*patched))
    (line,) = [record.getMessage() for record in caplog.records]
    assert "the official runner applies it before the agent starts" in line


def test_a_patch_that_does_not_apply_is_an_error(
    agentic_row: Row, write_rows: WriteRows, repository: Repository, tmp_path: Path
) -> None:
    commit = repository.commit(FILES)
    repository.bundle(tmp_path / "core.bundle")
    with pytest.raises(ProblemError, match=r"patch\.src/core\.sv"):
        load_problems(write_rows(heavy(agentic_row, commit, "@@ -1 +1 @@\n-x\n+y\n")))
    with pytest.raises(ProblemError, match="has no commit"):
        load_problems(write_rows(heavy(agentic_row, "f" * 40)))


def test_a_folder_that_cannot_be_listed_may_have_the_bundle_itself(
    agentic_row: Row, write_rows: WriteRows, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_: Path) -> None:
        raise PermissionError("not yours")

    path = write_rows(heavy(agentic_row, repository.commit(FILES)))
    monkeypatch.setattr(Path, "iterdir", denied)
    (problem,) = load_problems(path)
    assert "put its bundle core.bundle beside the file" in str(problem.unscorable)
    repository.bundle(path.parent / "core.bundle")
    (problem,) = load_problems(path)
    assert problem.context.keys() == FILES.keys()


def test_an_address_is_never_cloned(agentic_row: Row, write_rows: WriteRows, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a program was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    for repo in ("https://example.org/core.git", "ext::sh -c id", "../core", "/etc/passwd"):
        row = agentic_row | {"context": {"repo": repo, "commit": "f" * 40}}
        (problem,) = load_problems(write_rows(row))
        assert "is not downloaded" in str(problem.unscorable)

"""Git bundles made for tests, from files and from raw git objects."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

_IDENTITY = ["-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]


class Repository:
    """A bare repository in which trees are written entry by entry, so that they can hold what no checkout would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.last = ""
        folder.mkdir(parents=True)
        self.git("init", "--quiet", "--bare", "--template=")

    def git(self, *words: str, stdin: bytes = b"") -> str:
        done = subprocess.run(
            ["git", *_IDENTITY, *words], cwd=self.folder, input=stdin, capture_output=True, check=True
        )
        return done.stdout.decode().strip()

    def blob(self, content: bytes) -> str:
        return self.git("hash-object", "-w", "--stdin", stdin=content)

    def commit(self, files: Mapping[str, bytes], links: Mapping[str, str] | None = None, *odd: str) -> str:
        """A commit of files and links; `odd` are lines of ``git update-index --index-info``."""
        lines = [f"100644 {self.blob(content)}\t{path}" for path, content in files.items()]
        lines += [f"120000 {self.blob(target.encode())}\t{path}" for path, target in (links or {}).items()]
        self.git("read-tree", "--empty")
        self.git("update-index", "--index-info", stdin="\n".join([*lines, *odd]).encode() + b"\n")
        return self.of_tree(self.git("write-tree"))

    def of_tree(self, tree: str) -> str:
        """A commit of a tree, on top of the last one."""
        before = ["-p", self.last] if self.last else []
        commit = self.last = self.git("commit-tree", tree, "-m", "test", *before)
        self.git("update-ref", "refs/heads/main", commit)
        return commit

    def bundle(self, path: Path) -> Path:
        """All commits as a bundle."""
        self.git("bundle", "create", "--quiet", str(path.resolve()), "refs/heads/main")
        return path

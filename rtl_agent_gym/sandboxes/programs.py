"""Programs of third-party agents that work inside sandboxes: folders on this machine, mounted read-only in sandboxes.

Each is installed by npm from a list of packages with digests (``program_lists/``), without running any script of the
packages. A folder's name contains the digest of its list, so a changed list gets a new folder.
"""

from __future__ import annotations

import hashlib
import re
from importlib import resources
from pathlib import Path

from ..errors import ImageError
from ..files import cache_folder, keep_folder
from .daemon import Progress, find_program, run_program

PLACE = "/mnt"
"""The folder where a sandbox has them."""
PROGRAMS = ("opencode", "claude-code", "codex", "qwen-code", "pi")
"""The agents whose programs can be installed."""
_FILES = ("package.json", "package-lock.json")


def programs_id(agent: str) -> str:
    """The id of an agent's programs, for `SandboxSpec.programs`: the agent's name and the digest of its list."""
    digest = hashlib.sha256(repr([_list_of(agent)[name] for name in _FILES]).encode()).hexdigest()
    return f"{agent}-{digest[:12]}"


def programs_folder(wanted: str) -> Path:
    """The folder of the programs with an id of `programs_id`. Raises `ImageError` if they are not installed here."""
    folder = cache_folder("programs") / wanted
    if not re.fullmatch(r"[a-z-]+-[0-9a-f]{12}", wanted) or not folder.is_dir():
        agent = wanted.rpartition("-")[0]
        raise ImageError(
            f"the programs {wanted} of an agent are not on this machine; install them with: rtl-agent-gym image build "
            f"--agents {agent}"
        )
    return folder


def install_programs(agent: str, progress: Progress) -> Path:
    """Install the programs of an agent, one of `PROGRAMS`, unless they are installed; returns their folder.

    Raises `ImageError` if npm is missing, or fails; the message ends with its last lines.
    """

    def install(made: Path) -> None:
        if (npm := find_program("npm")) is None:
            raise ImageError(
                "the programs of agents are packages of npm, which is not installed; install Node.js with npm"
            )
        progress(f"installing the programs of {agent} with npm")
        for name, text in _list_of(agent).items():
            (made / name).write_text(text, encoding="utf-8")
        options = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-progress")
        run_program([npm, "install", "--prefix", str(made), *options], error=ImageError)
        for path in (made, *made.rglob("*")):  # a sandbox runs as another user
            if not path.is_symlink():
                runs = path.is_dir() or _is_program(path)  # usually done by a script of the package
                path.chmod(path.stat().st_mode | (0o555 if runs else 0o444))

    return keep_folder(cache_folder("programs") / programs_id(agent), install, progress)


def _is_program(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _list_of(agent: str) -> dict[str, str]:
    folder = resources.files(__package__) / "program_lists" / agent
    return {name: (folder / name).read_text(encoding="utf-8") for name in _FILES}

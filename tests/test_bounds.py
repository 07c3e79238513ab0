"""The bounds of pyproject.toml and the pinned versions: they agree, and what is behind the index is listed.

pytest tests/test_bounds.py -m ecosystem    # prints the list
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
            shared = path.stem == "constraints" and not (REQUIREMENTS / f"{extra}.txt").is_file()
            if version is not None and (shared or extra in ("", "train", "local", path.stem)):
                assert version in requirement.specifier, (
                    f"{path.name}: {requirement.name} {version} is not {requirement}"
                )


def test_every_list_has_what_the_package_itself_requires() -> None:
    base = {canonicalize_name(requirement.name) for extra, requirement in declared() if not extra}
    without_it = REQUIREMENTS / "servers.txt"  # there is only the code of vLLM and SGLang
    for path in {*REQUIREMENTS.glob("*.txt")} - {without_it}:
        assert base <= pins(path).keys(), path.name


@dataclass(frozen=True)
class Behind:
    """A requirement whose pin is older than what the index offers."""

    name: str
    extra: str
    pinned: Version
    newest: Version
    excluded: bool
    """Whether the bound in pyproject.toml does not allow the newest."""

    def __str__(self) -> str:
        allowed = "excluded by its bound" if self.excluded else ""
        return f"{self.name:20} {self.extra or 'base':10} {self.pinned!s:16} {self.newest!s:16} {allowed}".rstrip()


def behind(
    requirements: Iterable[tuple[str, Requirement]],
    pinned: Callable[[str], Mapping[str, Version]],
    newest: Mapping[str, Version],
) -> list[Behind]:
    """The requirements whose pins are behind `newest`."""
    found = []
    for extra, requirement in requirements:
        name = canonicalize_name(requirement.name)
        old, new = pinned(extra)[name], newest[name]
        if old < new:
            found.append(Behind(name, extra, old, new, new not in requirement.specifier))
    return found


def test_what_is_behind_is_found_with_its_extra_and_its_bound() -> None:
    requirements = [
        ("", Requirement("numpy>=1.26")),
        ("local", Requirement("torch>=2.6")),
        ("trl", Requirement("trl>=1.16,<1.17")),
        ("harbor", Requirement("harbor>=0.25,<0.26; python_version >= '3.12'")),
    ]
    lists = {"harbor": {"harbor": "0.25.0"}}
    default = {"numpy": "2.4.6", "torch": "2.13.0", "trl": "1.16.0"}
    newest = {"numpy": "2.4.6", "torch": "2.14.1", "trl": "1.16.0", "harbor": "0.26.0"}

    def pinned(extra: str) -> dict[str, Version]:
        return {name: Version(version) for name, version in (default | lists.get(extra, {})).items()}

    found = behind(requirements, pinned, {name: Version(version) for name, version in newest.items()})
    assert [(row.name, row.extra, str(row.newest), row.excluded) for row in found] == [
        ("torch", "local", "2.14.1", False),
        ("harbor", "harbor", "0.26.0", True),
    ]
    assert "0.26.0" in str(found[1])
    assert "excluded" in str(found[1])


def test_what_is_held_back_is_documented_with_its_pin() -> None:
    """The table in docs/integrations.md; a pin that was renewed and is still in it makes this fail."""
    text = (ROOT / "docs" / "integrations.md").read_text()
    table = text.partition("### Newer versions that are held back")[2].partition("\n### ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("| ")][
        1:
    ]
    assert rows
    for names, versions, newer, reason in rows:
        for name, version, new in zip(*(cell.split(", ") for cell in (names, versions, newer)), strict=True):
            found = pinned(name).get(canonicalize_name(name))
            assert str(found) == version, f"{name} is pinned to {found}"
            assert Version(version) < Version(new)
        assert reason


def newest_of(name: str, every_python: bool) -> Version | None:
    """The newest release for this Python, or for any; None where no index answers."""
    command = [sys.executable, "-m", "pip", "index", "versions", name, "--disable-pip-version-check"]
    command += ["--ignore-requires-python"] if every_python else []
    done = subprocess.run(command, capture_output=True, text=True)
    found = re.match(r"\S+ \((\S+)\)", done.stdout)
    return Version(found[1]) if found is not None else None


@pytest.mark.ecosystem
@pytest.mark.timeout(1800)
def test_what_is_behind_the_index_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """No release of another project makes this fail: it fails only if pip's answer cannot be read."""
    wanted = {canonicalize_name(requirement.name): requirement.marker is not None for _, requirement in declared()}
    with ThreadPoolExecutor(4) as pool:
        found = dict(zip(wanted, pool.map(newest_of, wanted.keys(), wanted.values()), strict=True))
    if None in found.values():
        pytest.skip(f"no package index has {', '.join(name for name, version in found.items() if version is None)}")
    rows = behind(declared(), pinned, {name: version for name, version in found.items() if version is not None})
    with capsys.disabled():
        print("\n" + "\n".join(["package              extra      pinned           newest", *map(str, rows)]))

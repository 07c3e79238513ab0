"""The versions that docs/integrations.md says were tested are those that the tests install."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integrations.ecosystem import REQUIREMENTS, ROOT

TEXT = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
CONSTRAINTS = ROOT / "constraints.txt"
PINNED: dict[str, tuple[Path, str]] = {
    "verifiers, prime-rl": (REQUIREMENTS / "verifiers.txt", "verifiers"),
    "TRL": (CONSTRAINTS, "trl"),
    "Harbor": (REQUIREMENTS / "harbor.txt", "harbor"),
    "OpenEnv": (REQUIREMENTS / "openenv.txt", "openenv"),
    "SkyRL-gym": (REQUIREMENTS / "skyrl.txt", "skyrl-gym"),
    "inspect_ai": (REQUIREMENTS / "inspect.txt", "inspect_ai"),
}
"""Where the version of each framework is pinned, and under which name."""


def pinned(framework: str) -> str:
    """The version that the tests install."""
    path, package = PINNED[framework]
    (version,) = re.findall(rf"^{re.escape(package)}==(\S+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return str(version)


def test_the_table_has_the_versions_that_are_tested() -> None:
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in TEXT.splitlines() if line.startswith("| ")]
    start = next(number for number, row in enumerate(rows) if row[:2] == ["framework", "version tested"])
    table = {name: version for name, version, *_ in rows[start + 1 : start + 2 + len(PINNED)]}
    assert table.pop("Gymnasium, tinker-cookbook") == "in `constraints.txt`"
    assert table.keys() == PINNED.keys()
    for name, version in table.items():
        assert f"{pinned(name)}.".startswith(f"{version}."), name
    assert {path for path, _ in PINNED.values()} - {CONSTRAINTS} == set(REQUIREMENTS.glob("*.txt"))


@pytest.mark.parametrize(
    ("framework", "wording"),
    [
        ("TRL", r"Tested with TRL (\d[\d.]*\d)"),
        ("Harbor", r"pip install harbor==(\S+)"),
        ("OpenEnv", r"Tested with OpenEnv (\d[\d.]*\d)"),
        ("SkyRL-gym", r"Tested with SkyRL-gym (\d[\d.]*\d)"),
    ],
)
def test_the_text_has_them_too(framework: str, wording: str) -> None:
    (version,) = re.findall(wording, TEXT)
    assert f"{pinned(framework)}.".startswith(f"{version}.")

"""What docs/integrations.md says was tested, is tested: the versions, the installation, the table of the scripts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rtl_agent_gym.policies.harness import AGENTS
from tests.integrations import ecosystem
from tests.integrations.conformance import EXPECTED
from tests.integrations.table import CONSTRAINTS, DOCS, IMPOSSIBLE, PINNED, WITH_TOKENS, pinned, read, table, with_table
from tests.policies import agents_table

TEXT = DOCS.read_text(encoding="utf-8")


def test_the_table_has_the_versions_that_are_tested() -> None:
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in TEXT.splitlines() if line.startswith("| ")]
    start = next(number for number, row in enumerate(rows) if row[:2] == ["framework", "version tested"])
    versions = {name: version for name, version, *_ in rows[start + 1 : start + len(PINNED)]}
    assert versions.pop("Gymnasium, tinker-cookbook") == "in `constraints.txt`"
    versions["verifiers"] = versions.pop("verifiers, prime-rl")
    assert versions.keys() == PINNED.keys() - {"Gymnasium", "tinker-cookbook"}
    for name, version in versions.items():
        assert f"{pinned(name)}.".startswith(f"{version}."), name
    others = {
        ecosystem.REQUIREMENTS / "prime.txt",
        ecosystem.REQUIREMENTS / "train.txt",
        ecosystem.REQUIREMENTS / "servers.txt",
    }
    lists = {*ecosystem.REQUIREMENTS.glob("*.txt")} - others
    assert {path for path, _ in PINNED.values()} - {CONSTRAINTS} == lists


@pytest.mark.parametrize(
    ("framework", "wording"),
    [
        ("TRL", r"Tested with TRL (\d[\d.]*\d)"),
        ("Harbor", r"\[Harbor\]\(\S+\) (\d[\d.]*\d) runs"),
        ("OpenEnv", r"Tested with OpenEnv (\d[\d.]*\d)"),
        ("SkyRL-gym", r"Tested with SkyRL-gym (\d[\d.]*\d)"),
    ],
)
def test_the_text_has_them_too(framework: str, wording: str) -> None:
    (version,) = re.findall(wording, TEXT)
    assert f"{pinned(framework)}.".startswith(f"{version}.")


def test_the_text_installs_as_the_tests_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each environment of its own is named with its list, and its commands are those that make one here."""
    block = next(block for block in re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL) if "-m venv" in block)
    documented = [line.split("#")[0].split() for line in block.splitlines()]
    for name in ("harbor", "openenv", "inspect"):
        assert f"`tests/integrations/requirements/{name}.txt`" in TEXT
    assert not re.search(r"pip install \S*(?:harbor==|\[(?:harbor|openenv|inspect)\])", TEXT)
    ran: list[list[str]] = []
    monkeypatch.setattr(ecosystem, "_run", lambda *command: ran.append(list(command)))
    monkeypatch.setattr(ecosystem, "_interpreter", lambda text: Path("python3.12"))
    ecosystem._make(tmp_path, ecosystem.REQUIREMENTS / "harbor.txt")
    root = str(ecosystem.ROOT)
    here = [[word.replace(f"{root}/", "").replace(root, ".") for word in command] for command in ran]
    assert [_installed(command) for command in here] == [_installed(command) for command in documented]
    assert here[0][:3] == documented[0][:3] == ["python3.12", "-m", "venv"]


def _installed(command: list[str]) -> list[str]:
    """What a command of pip installs, and how, without the options that change what pip says or how often it tries."""
    quiet = ("--quiet", "--disable-pip-version-check", "--retries", "2")
    return [word for word in command[command.index("install") :] if word not in quiet] if "install" in command else []


class TestScripts:
    def test_the_table_is_what_the_tests_have_noted(self) -> None:
        assert with_table(TEXT, table(read())) == TEXT, "python -m tests.integrations.table writes it"

    def test_the_table_of_agents_is_what_their_tests_have_noted(self) -> None:
        record = agents_table.read()
        assert record.keys() == set(AGENTS)
        for agent, noted in record.items():
            assert noted["version"] == agents_table.version(agent), "play them again; see docs/integrations.md"
            impossible = {name for one, name in agents_table.IMPOSSIBLE if one == agent}
            assert noted["scripts"].keys() == set(agents_table.SCRIPTS) - impossible
            assert {one["reward"] for one in noted["scripts"].values()} == {1.4}
        assert with_table(TEXT, agents_table.table(record), *agents_table.MARKS) == TEXT

    def test_what_was_noted_is_of_these_versions_and_scripts(self) -> None:
        record = read()
        assert record.keys() <= PINNED.keys()
        for framework, noted in record.items():
            assert noted["version"] == pinned(framework), "play the scripts again; see docs/integrations.md"
            assert noted["scripts"].keys() <= EXPECTED.keys() - {name for one, name in IMPOSSIBLE if one == framework}
            for name, found in noted["scripts"].items():
                assert found["passed"] is EXPECTED[name]
                assert (found["reward"] is None) == (found["passed"] is None)
                assert not found["tokens"] or framework in WITH_TOKENS

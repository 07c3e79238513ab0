"""Commands that the documents only show: their options are there, so that what a reader copies is understood."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from pathlib import Path

import pytest
import typer

from rtl_agent_gym.cli import app
from rtl_agent_gym.training.options import SftOptions, TrainOptions, split_arguments
from tests.conftest import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def commands(page: Path) -> list[list[str]]:
    """The words of each command in a page's blocks of shell, continued lines joined, comments left out."""
    text = page.read_text(encoding="utf-8")
    found = []
    for body in re.findall(r"^```(?:bash|sh|console|)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        for line in body.replace("\\\n", " ").splitlines():
            if re.match(
                r"(\$ )?(rtl-agent-gym|\S*scripts/train_\w+\.py|\.venv/bin/python scripts/train_|\./run_)", line
            ):
                found.append(shlex.split(line.removeprefix("$ "), comments=True))
    return found


def options_of(words: list[str]) -> type[TrainOptions] | None:
    """The options of a training command; None for another command."""
    if words[0] == "rtl-agent-gym" and words[1] != "train":
        return None
    return SftOptions if words[1:3] == ["train", "sft"] else TrainOptions


def unknown(words: list[str]) -> list[str]:
    """The options that a command does not have."""
    options = options_of(words)
    if options is None:
        command = typer.main.get_command(app)
        names = words[1:]
        while hasattr(command, "commands"):
            command = command.commands[names.pop(0)]
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        given = [word.partition("=")[0] for word in names if re.match(r"--?[a-z]", word)]
    else:
        known = {*options.names(), "name", "--help", "--options"}
        given = [word.partition("=")[0] for word in words if "=" in word or word.startswith("--")]
    return [option for option in given if option not in known]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_options_of_commands_are_there_and_the_values_of_trainings_accepted(page: Path) -> None:
    for words in commands(page):
        assert (words, unknown(words)) == (words, [])
        given = [word for word in words if re.fullmatch(r"[a-z_]+=[^…]+", word) and not word.startswith("name=")]
        if (options := options_of(words)) is not None:
            options.build(split_arguments(given))


def test_a_run_folder_belongs_to_one_set_of_options() -> None:
    """With other options in the same folder, a command is refused, or adds its episodes to those of another one."""
    users = defaultdict[str, set[frozenset[str]]](set)
    for page in [*PAGES, *(ROOT / "examples" / "runs").glob("*.sh")]:
        for line in page.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
            words = re.split(r" +#", line)[0].removeprefix("$ ").split()
            for folder in re.findall(r"(?:--out[ =]|log_path\??=)(runs/\S+)", line):
                users[folder].add(frozenset(words))
    assert len(users) > 20
    assert {folder for folder, commands in users.items() if len(commands) > 1} == set()


def test_commands_are_found() -> None:
    assert sum(len(commands(page)) for page in PAGES) > 40
    assert unknown(["rtl-agent-gym", "eval", "--polcy", "x", "-n", "2"]) == ["--polcy"]
    assert unknown(["scripts/train_rl.py", "learning=1"]) == ["learning"]
    assert unknown(["rtl-agent-gym", "train", "sft", "epochs=2", "teacher_model=x"]) == ["teacher_model"]

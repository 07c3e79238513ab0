"""Commands that the documents only show: their options are there, so that what a reader copies is understood."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from rtl_agent_gym.cli import app
from rtl_agent_gym.training.options import SftOptions, TrainOptions, split_arguments

ROOT = Path(__file__).resolve().parents[2]
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


def unknown(words: list[str]) -> list[str]:
    """The options that a command does not have."""
    if words[0] == "rtl-agent-gym" and words[1] != "train":
        command = typer.main.get_command(app)
        names = words[1:]
        while hasattr(command, "commands"):
            command = command.commands[names.pop(0)]
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        given = [word.partition("=")[0] for word in names if re.match(r"--?[a-z]", word)]
    else:
        options = SftOptions if words[1:3] == ["train", "sft"] else TrainOptions
        known = {*options.names(), "name", "--help", "--options"}
        given = [word.partition("=")[0] for word in words if "=" in word or word.startswith("--")]
    return [option for option in given if option not in known]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_options_of_commands_are_there(page: Path) -> None:
    wrong = [f"{' '.join(words)}: {option}" for words in commands(page) for option in unknown(words)]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_values_of_a_trainings_options_are_accepted(page: Path) -> None:
    for words in commands(page):
        given = [word for word in words if re.fullmatch(r"[a-z_]+=[^…]+", word) and not word.startswith("name=")]
        if words[0] != "rtl-agent-gym" or words[1] == "train":
            options = SftOptions if words[1:3] == ["train", "sft"] else TrainOptions
            options.build(split_arguments(given))


def test_commands_are_found() -> None:
    assert sum(len(commands(page)) for page in PAGES) > 40
    assert unknown(["rtl-agent-gym", "eval", "--polcy", "x", "-n", "2"]) == ["--polcy"]
    assert unknown(["scripts/train_rl.py", "learning=1"]) == ["learning"]
    assert unknown(["rtl-agent-gym", "train", "sft", "epochs=2", "teacher_model=x"]) == ["teacher_model"]

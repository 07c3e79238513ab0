"""Policies of chance and of people."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.policies import HumanPolicy, ModelOptions, Player, RandomPolicy
from rtl_agent_gym.policies.human import is_complete
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.renderers import get_renderer

PROBLEM = load_problems("bundled")[0]


async def texts(player: Player, turns: int) -> list[str]:
    said = [await player.act([]) for _ in range(turns)]
    return [completion.text for completion in said if completion is not None]


async def test_random_episodes_follow_from_their_seed() -> None:
    renderer = get_renderer("qwen3")
    one, same, other = [await texts(RandomPolicy().player(PROBLEM, renderer, seed), 9) for seed in (3, 3, 4)]
    assert one == same
    assert one != other
    kinds = [renderer.parse_text(text).kind for text in one]
    assert kinds[-1] == "final"
    assert "command" in kinds


@pytest.mark.parametrize(
    ("command", "complete"),
    [
        ("ls", True),
        ("for x in 1 2; do", False),
        ("for x in 1 2; do echo $x; done", True),
        ("echo 'open", False),
        ("cat <<EOF\nx", False),
        ("cat <<EOF\nx\nEOF", True),
        ("echo a \\", False),
        ("echo )", True),  # wrong, and no further line would mend it
    ],
)
def test_a_command_is_read_on_where_bash_would(command: str, complete: bool) -> None:
    assert is_complete(command) is complete


async def test_a_person_types_commands_and_ends() -> None:
    lines: Iterator[str] = iter(["", "for x in 1 2; do", "echo $x; done", "/done"])
    prompts: list[str] = []

    def read(prompt: str) -> str:
        prompts.append(prompt)
        return next(lines)

    renderer = get_renderer("qwen3")
    player = HumanPolicy(read).player(PROBLEM, renderer)
    first, last = [renderer.parse_text(text) for text in await texts(player, 2)]
    assert first.commands == ("for x in 1 2; do\necho $x; done",)
    assert last.kind == "final"
    assert prompts == ["agent$ ", "agent$ ", "     > ", "agent$ "]


async def test_the_end_of_input_ends_the_episode() -> None:
    def read(prompt: str) -> str:
        raise EOFError

    renderer = get_renderer("qwen3")
    (text,) = await texts(HumanPolicy(read).player(PROBLEM, renderer), 1)
    assert renderer.parse_text(text).kind == "final"


@pytest.mark.parametrize("values", [{"temperature": -1.0}, {"top_p": 0.0}, {"max_tokens": 0}, {"attempts": 0}])
def test_impossible_options_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="must be"):
        ModelOptions(**values)  # type: ignore[arg-type]

"""Policies without a service, their names, and the options of those with a model."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rtl_agent_gym.episodes.workspaces import read_completion
from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.evaluation import EvaluationConfig
from rtl_agent_gym.policies import (
    GoldenPolicy,
    HumanPolicy,
    ModelOptions,
    Player,
    RandomPolicy,
    ScriptedPolicy,
    heredoc,
    make_policy,
    with_address,
    write_turn,
)
from rtl_agent_gym.policies.chat import ChatPolicy
from rtl_agent_gym.policies.human import is_complete
from rtl_agent_gym.policies.judge import read_judge
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.transcripts import Header, TranscriptWriter, TurnRecord


@pytest.mark.parametrize("name", ["qwen3", "qwen3_instruct", "gpt_oss"])
def test_a_written_turn_is_read_back(name: str) -> None:
    renderer = get_renderer(name)
    command = "cat > x <<'EOF'\nmodule \"x\" é \\n;\nEOF"
    action = renderer.parse_text(write_turn(renderer, "I think.", [command]))
    assert (action.kind, action.commands) == ("command", (command,))
    final = renderer.parse_text(write_turn(renderer, "Finished."))
    assert (final.kind, final.text.strip()) == ("final", "Finished.")


@given(st.text(alphabet=st.characters(exclude_characters="\0\r", exclude_categories=["Cs"])))
@example("EOF\nEOF_\n$x `y` \\\n")
def test_heredoc_writes_byte_for_byte(tmp_path_factory: pytest.TempPathFactory, content: str) -> None:
    folder = tmp_path_factory.mktemp("heredoc")
    subprocess.run(["bash", "-c", heredoc("a b/c.sv", content)], cwd=folder, check=True)
    assert (folder / "a b" / "c.sv").read_bytes() == content.encode()


async def test_golden_needs_a_solution() -> None:
    problem = load_problems("bundled")[0].model_copy(update={"golden": None})
    with pytest.raises(UsageError, match="has no reference solution"):
        GoldenPolicy().player(problem, get_renderer("qwen3"))


async def test_a_script_plays_its_turns_and_then_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "script.yaml").write_text("- {say: hello, run: ls}\n- {run: [pwd, id]}\n- {completion: raw}\n")
    renderer = get_renderer("qwen3")
    player = ScriptedPolicy("~/script.yaml").player(load_problems("bundled")[0], renderer)
    texts = [(await player.act([])).text for _ in range(4)]
    actions = [renderer.parse_text(text) for text in texts]
    assert [action.commands for action in actions] == [("ls",), ("pwd", "id"), (), ()]
    assert texts[2:] == ["raw", "Done."]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- {says: x}", "turn 0.says"),
        ("a: [", "not YAML"),
        ("text", "a script is a list"),
        ("- {run: {a: b}}", "turn 0.run"),
    ],
)
def test_a_bad_script_is_said(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "script.yaml"
    path.write_text(content)
    with pytest.raises(UsageError, match=message):
        make_policy(f"scripted {path}")


async def test_turns_of_a_transcript_that_were_cut_off_stay_so(tmp_path: Path) -> None:
    writer = TranscriptWriter.in_folder(tmp_path, "p")
    writer.write(Header(problem_id="p", problem_digest="d", renderer="qwen3"))
    writer.write(TurnRecord(turn=1, completion="First I will", cut_off=True, action="malformed"))
    writer.close()
    played = await ScriptedPolicy(writer.path).player(PROBLEM, get_renderer("qwen3")).act([])
    assert read_completion(played, get_renderer("qwen3")).kind == "malformed"  # and not the end of the episode


@pytest.mark.parametrize("name", ["", "gold", "golden_x"])
def test_an_unknown_policy_is_said(name: str) -> None:
    with pytest.raises(UsageError, match="choose one of: golden, scripted FILE"):
        make_policy(name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("scripted", "'scripted' needs a file: --policy \"scripted FILE\""),
        ("chat:", "'chat' needs a model: --policy \"chat:MODEL[@URL]\""),
        ("chat:@http://127.0.0.1:1/v1", "'chat' needs a model: --policy \"chat:MODEL[@URL]\""),
        ("tinker", "'tinker' needs a model or checkpoint"),
        ("golden x", "'golden' takes nothing after its name, got 'x'"),
    ],
)
def test_a_policy_without_its_argument_is_told_how_it_is_written(name: str, words: str) -> None:
    with pytest.raises(UsageError) as raised:
        make_policy(name)
    assert words in str(raised.value)


@pytest.mark.parametrize("model", ["m", "org/m", "openai/m@001", "@cf/m"])
def test_a_chat_policy_has_its_address_like_a_judge(model: str) -> None:
    address = "http://user:pass@[::1]:8000/v1"
    name, options = with_address(f"chat:{model}@{address}", ModelOptions(top_p=0.5))
    assert (name, options) == (f"chat:{model}", ModelOptions(top_p=0.5, base_url=address))
    assert read_judge(f"chat:{model}@{address}") == (model, address)
    config = EvaluationConfig(policy=f"chat:{model}@{address}", model=ModelOptions(top_p=0.5))
    assert config == EvaluationConfig(policy=f"chat:{model}", model=options)
    policy = make_policy(f"chat:{model}@{address}")
    assert isinstance(policy, ChatPolicy)
    assert (policy.name, policy.options.base_url) == (f"chat:{model}", address)


def test_only_a_chat_policy_has_an_address_and_only_one() -> None:
    options = ModelOptions(base_url="http://127.0.0.1:1/v1")
    assert with_address("chat:m", options) == ("chat:m", options)
    assert with_address("scripted a@http", options) == ("scripted a@http", options)
    assert with_address("chat:m@http://127.0.0.1:1/v1", options) == ("chat:m", options)
    with pytest.raises(UsageError, match="'chat:m' has an address after its @"):
        with_address("chat:m@http://127.0.0.1:2/v1", options)
    with pytest.raises(UsageError, match="is not the address of a service"):
        make_policy("chat:m@http:8000")


@pytest.mark.parametrize("form", ["scripted {}", "scripted:{}", "  scripted   {} "])
def test_a_path_may_hold_colons_and_blanks(form: str, tmp_path: Path) -> None:
    path = tmp_path / "a:b c" / "s.yaml"
    path.parent.mkdir()
    path.write_text("- {say: hello}\n")
    policy = make_policy(form.format(path))
    assert isinstance(policy, ScriptedPolicy)
    assert policy.path == path


WRONG_OPTIONS: list[tuple[dict[str, Any], str]] = [
    *(({"temperature": value}, "temperature must be") for value in (-1.0, float("nan"), float("inf"))),
    *(({"top_p": value}, "top_p must be") for value in (0.0, float("nan"))),
    *(({name: 0}, f"{name} must be at least 1") for name in ("max_tokens", "attempts")),
    ({"price_input": 1.0}, "price"),
    ({"price_cached": 1.0}, "price"),
    ({"price_input": -1.0, "price_output": 1.0}, "price"),
    *(
        ({"base_url": address}, "is not the address of a service")
        for address in ("notaurl", "127.0.0.1:8000/v1", "ftp://x/y", "http://", "http://a b/v1", "http://[::1")
    ),
    ({"base_url": "http://h:99999/"}, "is not the address of a service"),
]


@pytest.mark.parametrize(("options", "words"), WRONG_OPTIONS)
def test_impossible_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ModelOptions(**options)


# ---- chance and people

PROBLEM = load_problems("bundled")[0]


async def texts(player: Player, turns: int) -> list[str]:
    played = [await player.act([]) for _ in range(turns)]
    return [completion.text for completion in played if completion is not None]


async def test_random_episodes_follow_from_their_seed() -> None:
    renderer = get_renderer("qwen3")
    first, same, other = [await texts(RandomPolicy().player(PROBLEM, renderer, seed), 9) for seed in (3, 3, 4)]
    assert first == same
    assert first != other
    kinds = [renderer.parse_text(text).kind for text in first]
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
        pytest.param("echo " + "x" * 200_000, True, id="longer than an argument"),
    ],
)
def test_a_command_is_read_on_where_bash_would(
    command: str, complete: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bash = tmp_path / "bash"  # like one whose messages are translated
    bash.write_text(f"""#!/bin/sh\n[ "$LC_ALL" = C ] || exec 2> /dev/null\nexec {shutil.which("bash")} "$@"\n""")
    bash.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
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

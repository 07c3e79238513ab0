"""Recorded episodes, run again in fresh containers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from data.bundled import wrong_designs
from rtl_agent_gym.episodes.episode import Episode, EpisodeConfig
from rtl_agent_gym.errors import TranscriptError, UsageError
from rtl_agent_gym.evaluation import Replay, play, replay
from rtl_agent_gym.evaluation.recorded import read_action
from rtl_agent_gym.evaluation.replay import recorded_weights, replayed_to
from rtl_agent_gym.policies import Completion, GoldenPolicy, ModelOptions, Policy, RandomPolicy, ScriptedPolicy, heredoc
from rtl_agent_gym.policies.chat import ChatPolicy
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.renderers import ModelTurn, ToolCall, get_renderer
from rtl_agent_gym.renderers.vocabularies import Control, qwen3_tokenizer
from rtl_agent_gym.sandboxes import DockerSandboxes
from rtl_agent_gym.scoring import RewardWeights, Scorer
from rtl_agent_gym.transcripts import read_transcript
from tests.policies.stub_server import ChatServer, call
from tests.sandboxes.one_liners import ONE_LINERS

pytestmark = pytest.mark.docker

PROBLEMS = {problem.id: problem for problem in load_problems("bundled")}
ARBITER = next(problem for problem in PROBLEMS.values() if "arbiter" in problem.id)


@pytest.fixture
async def scorer(provider: DockerSandboxes, gradings: Path) -> AsyncIterator[Scorer]:
    async with Scorer(provider, cache=gradings) as made:
        yield made


@pytest.fixture
async def static(provider: DockerSandboxes) -> AsyncIterator[Scorer]:
    async with Scorer(provider, weights=RewardWeights.preset("proxy")) as made:
        yield made


async def record(
    folder: Path,
    problem: Problem,
    policy: Policy,
    provider: DockerSandboxes,
    scorer: Scorer,
    *,
    renderer: str = "qwen3",
    seed: int = 0,
    **rules: Any,
) -> Path:
    episode = Episode(
        problem,
        provider=provider,
        grader=scorer,
        renderer=get_renderer(renderer),
        config=EpisodeConfig(transcript_dir=folder, **rules),
        seed=seed,
    )
    played = await play(episode, policy, seed=seed)
    assert played.transcript is not None
    return Path(played.transcript)


def scripted(folder: Path, *turns: str | list[str]) -> ScriptedPolicy:
    """A policy whose turns run these commands."""
    script = folder / "script.yaml"
    script.write_text(json.dumps([{"run": commands} for commands in turns]))
    return ScriptedPolicy(script)


async def again(path: Path, provider: DockerSandboxes, scorer: Scorer, problem: Problem | None = None) -> Replay:
    transcript = read_transcript(path)
    renderer = get_renderer(transcript.header.renderer)
    chosen = problem or PROBLEMS[transcript.header.problem_id]
    return await replay(transcript, chosen, provider=provider, grader=scorer, renderer=renderer)


def rewrite(path: Path, change: Callable[[list[dict[str, Any]]], None]) -> Path:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    other = path.with_name(f"changed-{path.name}")
    other.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return other


@pytest.mark.parametrize("renderer", ["qwen3", pytest.param("gpt_oss", marks=pytest.mark.slow)])  # below in both
async def test_a_golden_episode_is_identical(
    tmp_path: Path, provider: DockerSandboxes, scorer: Scorer, renderer: str
) -> None:
    path = await record(tmp_path, ARBITER, GoldenPolicy(), provider, scorer, renderer=renderer)
    report = await again(path, provider, scorer)
    assert report.identical, report.divergence
    assert (report.compared_turns, report.score_compared, report.notes) == (4, True, [])


async def test_golden_episodes_get_the_same_answers(tmp_path: Path, provider: DockerSandboxes, static: Scorer) -> None:
    few = asyncio.Semaphore(4)

    async def one(problem: Problem) -> None:
        async with few:
            path = await record(tmp_path / problem.id, problem, GoldenPolicy(), provider, static)
            report = await again(path, provider, static)
            assert report.identical, (problem.id, report.divergence)

    # Two of different categories; the slow test below has all, and their gradings.
    chosen = {problem.category: problem for problem in PROBLEMS.values()}
    await asyncio.gather(*(one(problem) for problem in [*chosen.values()][:2]))


@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
async def test_every_bundled_golden_episode_is_identical(
    tmp_path: Path, provider: DockerSandboxes, problem: Problem
) -> None:
    async with Scorer(provider) as scorer:  # both are graded for themselves, with no cache
        path = await record(tmp_path, problem, GoldenPolicy(), provider, scorer)
        report = await again(path, provider, scorer)
    assert report.identical, report.divergence


@pytest.mark.parametrize("renderer", ["qwen3", "gpt_oss"])
@pytest.mark.slow
async def test_a_chat_models_own_calls_are_replayed_as_they_were(
    tmp_path: Path, provider: DockerSandboxes, static: Scorer, renderer: str
) -> None:
    quoted = "Done. Run it with:\n```bash\ntouch rtl/never\n```"
    with ChatServer([call("cd rtl", "pwd"), {"content": quoted}]) as server:
        policy = ChatPolicy("org/model", ModelOptions(base_url=server.url))
        path = await record(tmp_path, ARBITER, policy, provider, static, renderer=renderer)
        await policy.close()
    transcript = read_transcript(path)
    assert [turn.action for turn in transcript.turns] == ["command", "final"]
    assert [command.command for command in transcript.turns[0].commands] == ["cd rtl", "pwd"]
    found = await again(path, provider, static)
    assert found.identical, found.divergence
    assert read_action(transcript.turns[1], get_renderer(renderer)).text == quoted
    said = ScriptedPolicy(path).player(ARBITER, get_renderer(renderer))
    assert [(await said.act([])).native for _ in range(2)] == [turn.native for turn in transcript.turns]


async def test_sampled_tokens_are_replayed_as_they_were_read(
    tmp_path: Path, provider: DockerSandboxes, static: Scorer
) -> None:
    """A spelled stop token is text there, ids without one are cut off, and half a character makes a call malformed."""
    renderer = get_renderer("qwen3", qwen3_tokenizer())
    ask = renderer.turn_text(ModelTurn(calls=(ToolCall.of("ls rtl"),)))
    turns = [
        ["Not <|im_end|> yet.\n" + ask, Control("<|im_end|>")],
        ["Soon.", Control("<|im_end|>"), ask],
        [ask, Control("<|endoftext|>")],
        ["All done.", Control("<|endoftext|>")],
        ["Now <|im_end|> it is.", Control("<|im_end|>")],
    ]
    sampled = [renderer.codec.encode(pieces) for pieces in turns]
    half = next(id_ for id_ in range(256) if renderer.codec.token_bytes(id_) == b"\xc3")
    place = next(place for place, id_ in enumerate(sampled[2]) if renderer.codec.token_bytes(id_) == b" rtl")
    sampled.append([*sampled[2][:place], half, *sampled[2][place:-1], *sampled[0][-1:]])
    config = EpisodeConfig(transcript_dir=tmp_path)
    for of_one, kinds in (
        ([0, 2, 3, 1], ["command", "command", "malformed", "final"]),
        ([5, 4], ["malformed", "final"]),
    ):
        actions = []
        async with Episode(ARBITER, provider=provider, grader=static, renderer=renderer, config=config) as episode:
            await episode.start()
            for ids in map(sampled.__getitem__, of_one):
                actions.append((await episode.step(Completion(renderer.decode(ids), token_ids=ids))).action)
            path = episode.transcript_path
            assert path is not None
        assert [action.kind for action in actions] == kinds
        found = await again(path, provider, static)
        assert found.identical, found.divergence
        for recorded, action in zip(read_transcript(path).turns, actions, strict=True):
            read = read_action(recorded, get_renderer("qwen3"))
            assert (read.kind, read.commands, read.text) == (action.kind, action.commands, action.text)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
async def test_random_episodes_are_identical(
    tmp_path: Path, provider: DockerSandboxes, static: Scorer, seed: int
) -> None:
    problem = list(PROBLEMS.values())[seed]
    path = await record(tmp_path, problem, RandomPolicy(turns=10), provider, static, seed=seed, command_timeout=5.0)
    report = await again(path, provider, static)
    assert report.identical, report.divergence
    assert report.compared_turns >= 1
    assert report.score_compared


NAMED_AT_RANDOM = (
    "iverilog -V | head -1",
    "mktemp; mktemp -d; ls /tmp | grep tmp[.]",
    "python3 -c 'import tempfile; print(tempfile.mkdtemp())'",
    "echo 'int x;' > x.c; gcc -v -c x.c 2>&1 | grep -o '/tmp/cc[^ ]*'",
    "bash -c 'sh -c \"kill -SEGV \\$\\$\"; true'",
)


async def test_everyday_commands_are_identical(tmp_path: Path, provider: DockerSandboxes, static: Scorer) -> None:
    turns = [*(turn for turns in ONE_LINERS for turn in turns), *NAMED_AT_RANDOM]
    rules: dict[str, Any] = {"max_turns": 2 * len(turns), "command_timeout": 5.0}
    path = await record(tmp_path, ARBITER, scripted(tmp_path, *turns), provider, static, **rules)
    report = await again(path, provider, static)
    assert report.identical, report.divergence
    assert report.compared_turns == len(turns) + 1


async def test_limits_end_a_replay_where_they_ended_the_episode(
    tmp_path: Path, provider: DockerSandboxes, static: Scorer
) -> None:
    policy = scripted(tmp_path, "sleep 60", "ls", "ls")
    path = await record(tmp_path, ARBITER, policy, provider, static, max_turns=2, command_timeout=2.0)
    report = await again(path, provider, static)
    assert (report.identical, report.compared_turns, report.score_compared) == (True, 2, True)


async def test_the_first_divergence_is_shown_as_a_diff(
    tmp_path: Path, provider: DockerSandboxes, static: Scorer
) -> None:
    policy = scripted(tmp_path, "echo one; date", "echo two; echo 2.5; false", "echo three")
    path = await record(tmp_path, ARBITER, policy, provider, static)

    def other_words(lines: list[dict[str, Any]]) -> None:
        lines[2]["observation"] = lines[2]["observation"].replace("2.5", "3.5")
        lines[3]["observation"] = "never reached"

    report = await again(rewrite(path, other_words), provider, static)
    assert report.divergence is not None
    assert (report.divergence.turn, report.divergence.what, report.compared_turns) == (2, "observation", 2)
    assert "--- recorded\n+++ replayed" in report.divergence.diff
    assert "\n-3.5\n+2.5\n" in report.divergence.diff

    def other_code(lines: list[dict[str, Any]]) -> None:
        lines[2]["commands"][0]["exit_code"] = 0

    report = await again(rewrite(path, other_code), provider, static)
    assert report.divergence is not None
    assert report.divergence.what == "exit"
    assert '-  "exit_code": 0,\n+  "exit_code": 1,' in report.divergence.diff

    def other_score(lines: list[dict[str, Any]]) -> None:
        next(line for line in lines if line["event"] == "score")["score"]["syntax"] = 0.25

    report = await again(rewrite(path, other_score), provider, static)
    assert report.divergence is not None
    assert (report.divergence.turn, report.divergence.what) == (None, "score")
    assert '- "syntax": 0.25' in report.divergence.diff


@pytest.mark.slow
async def test_a_cut_off_file_is_compared_as_far_as_it_goes(
    tmp_path: Path, provider: DockerSandboxes, static: Scorer
) -> None:
    path = await record(tmp_path, ARBITER, RandomPolicy(turns=3), provider, static, seed=5)
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join(lines[:3]) + b"\n" + lines[3][:40])
    report = await again(path, provider, static)
    assert (report.identical, report.compared_turns, report.score_compared) == (True, 2, False)
    assert "cut off after turn 2" in report.notes[0]


async def test_another_image_another_grader_and_a_changed_problem_are_said(
    tmp_path: Path, provider: DockerSandboxes, static: Scorer
) -> None:
    path = await record(tmp_path, ARBITER, RandomPolicy(turns=1), provider, static)

    def other_image(lines: list[dict[str, Any]]) -> None:
        lines[0] |= {"image_digest": "sha256:" + "0" * 64, "rules_digest": "0" * 64}

    changed = ARBITER.model_copy(update={"prompt": ARBITER.prompt + " Now."})
    report = await again(rewrite(path, other_image), provider, static, changed)
    assert report.identical
    assert "has changed since the recording" in report.notes[0]
    assert "the grader has changed since the recording" in report.notes[1]
    assert "recorded on image sha256:000000000000" in report.notes[2]
    with pytest.raises(UsageError, match="is an episode of"):
        await again(path, provider, static, next(p for p in PROBLEMS.values() if p.id != ARBITER.id))


async def test_the_sandbox_is_handed_over_before_a_turn(
    tmp_path: Path, provider: DockerSandboxes, static: Scorer
) -> None:
    policy = scripted(tmp_path, "cd rtl; N=1", "N=2", "N=3")
    transcript = read_transcript(await record(tmp_path, ARBITER, policy, provider, static))
    parts: Any = {"provider": provider, "grader": static}
    for turn, expected in ((1, "/code "), (3, "/code/rtl 2"), (5, "/code/rtl 3")):
        async with replayed_to(transcript, ARBITER, turn, **parts) as (report, sandbox):
            assert report.identical
            assert (await sandbox.run('echo "$PWD $N"')).output == f"{expected}\n"
    with pytest.raises(UsageError, match="give 1 to 5"):
        async with replayed_to(transcript, ARBITER, 6, **parts):
            pass
    transcript.score = transcript.end = None  # killed while it was graded
    async with replayed_to(transcript, ARBITER, 5, **parts) as (_, sandbox):
        assert (await sandbox.run('echo "$PWD $N"')).output == "/code/rtl 3\n"


async def test_a_single_turn_episode_is_replayed_too(tmp_path: Path, provider: DockerSandboxes, static: Scorer) -> None:
    renderer = get_renderer("qwen3")
    rules = EpisodeConfig(workspace="answer", transcript_dir=tmp_path / "one")
    episode = Episode(ARBITER, grader=static, renderer=renderer, config=rules)
    await episode.start()
    await episode.step("```systemverilog\nmodule fixed_priority_arbiter(input logic clk);\nendmodule\n```\n")
    (path,) = (tmp_path / "one").iterdir()
    report = await again(path, provider, static)
    assert (report.identical, report.compared_turns, report.score_compared) == (True, 1, True)
    assert recorded_weights(read_transcript(path)) == RewardWeights.preset("proxy")
    assert report.notes == []

    # Graded by other weights, or by nobody knows which: the reward alone is not compared.
    heavier = RewardWeights.preset("proxy").model_copy(update={"syntax": 0.7})
    async with Scorer(provider, weights=heavier) as other:
        report = await again(path, provider, other)
    assert (report.identical, report.notes) == (
        True,
        ["the recorded rewards were computed with other weights, so rewards are not compared"],
    )

    def of_an_older_version(lines: list[dict[str, Any]]) -> None:
        del lines[0]["options"]["weights"]
        next(line for line in lines if line["event"] == "score")["score"]["reward"] = 77.0

    report = await again(rewrite(path, of_an_older_version), provider, static)
    assert report.identical
    assert "computed with weights that were not recorded" in report.notes[0]

    def of_no_weights(lines: list[dict[str, Any]]) -> None:
        lines[0]["options"]["weights"] = {"syntax": "much"}

    with pytest.raises(TranscriptError, match="the recorded weights cannot be used"):
        await again(rewrite(path, of_no_weights), provider, static)

    def other_score(lines: list[dict[str, Any]]) -> None:
        next(line for line in lines if line["event"] == "score")["score"]["syntax"] = 0.25

    report = await again(rewrite(path, other_score), provider, static)
    assert report.divergence is not None
    parts: Any = {"provider": provider, "grader": static}
    with pytest.raises(UsageError, match="no shell to open"):
        async with replayed_to(read_transcript(path), ARBITER, 1, **parts):
            pass


@pytest.mark.slow  # ten gradings
async def test_submissions_are_graded_again_and_compared(tmp_path: Path, provider: DockerSandboxes) -> None:
    wrong = wrong_designs(ARBITER.id)["rst_n_for_reset"]
    assert ARBITER.golden is not None
    turns = [
        ["\n".join(heredoc(path, text) for path, text in files.items()), "submit"] for files in (wrong, ARBITER.golden)
    ]
    policy = scripted(tmp_path, *turns, "submit", "submit; date")
    rules: dict[str, Any] = {"harness_feedback": 2, "progress_coef": 0.25}
    async with Scorer(provider) as recording, Scorer(provider, cache=tmp_path / "cache") as scorer:
        path = await record(tmp_path, ARBITER, policy, provider, recording, **rules)
        transcript = read_transcript(path)
        assert {name: transcript.header.options[name] for name in rules} == rules
        report = await again(path, provider, scorer)
        assert report.identical, report.divergence
        assert (report.compared_turns, report.score_compared) == (5, True)

        def other_reward(lines: list[dict[str, Any]]) -> None:
            lines[2]["commands"][1]["submission"]["score"]["tests_passed"] = 6

        report = await again(rewrite(path, other_reward), provider, scorer)
        assert report.divergence is not None
        assert (report.divergence.turn, report.divergence.what) == (2, "submission")
        assert '-   "tests_passed": 6,\n+   "tests_passed": 7,' in report.divergence.diff


@pytest.mark.slow
async def test_rewards_of_submissions_are_compared_under_the_same_weights_only(
    tmp_path: Path, provider: DockerSandboxes, static: Scorer
) -> None:
    assert ARBITER.golden is not None
    policy = scripted(tmp_path, [*(heredoc(*file) for file in ARBITER.golden.items()), "submit"])
    path = await record(tmp_path, ARBITER, policy, provider, static, harness_feedback=1)

    def of_an_older_version(lines: list[dict[str, Any]]) -> None:
        del lines[0]["options"]["weights"]

    def other_reward(lines: list[dict[str, Any]]) -> None:
        lines[1]["commands"][-1]["submission"]["score"]["reward"] = 77.0

    heavier = RewardWeights.preset("proxy").model_copy(update={"syntax": 0.7})
    async with Scorer(provider, weights=heavier) as other:
        for recorded in (path, rewrite(path, of_an_older_version)):
            report = await again(recorded, provider, other)
            assert report.identical, report.divergence
            assert "so rewards are not compared" in report.notes[0]
        parts: Any = {"provider": provider, "grader": other}
        async with replayed_to(read_transcript(path), ARBITER, 2, **parts) as (report, _):
            assert report.identical, report.divergence
    report = await again(rewrite(path, other_reward), provider, static)
    assert report.divergence is not None
    assert report.divergence.what == "submission"


async def test_a_submission_in_the_last_turn_is_not_sent_to_the_shell(
    tmp_path: Path, provider: DockerSandboxes, static: Scorer
) -> None:
    rules: dict[str, Any] = {"harness_feedback": 1, "max_turns": 1}
    policy = scripted(tmp_path, ["N=1", "submit", "N=2$?"])
    transcript = read_transcript(await record(tmp_path, ARBITER, policy, provider, static, **rules))
    parts: Any = {"provider": provider, "grader": static}
    async with replayed_to(transcript, ARBITER, 2, **parts) as (_, sandbox):
        assert (await sandbox.run('echo "$N"')).output == "20\n"

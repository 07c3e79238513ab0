"""Evaluations on real containers: resuming, machine faults, a model behind a service."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, cast

import pytest

from rtl_agent_gym.episodes.episode import Episode, EpisodeConfig
from rtl_agent_gym.episodes.prompt import PromptTooLong
from rtl_agent_gym.errors import DaemonError, RequestRefused, SandboxError, UsageError
from rtl_agent_gym.evaluation import EvaluationConfig, Observer, evaluate, read_config, summarise
from rtl_agent_gym.evaluation.evaluate import FAULTS_IN_A_ROW, _Run, scorable_problems
from rtl_agent_gym.evaluation.outcome import EpisodeResult, episode_seed
from rtl_agent_gym.evaluation.play import play as play_episode
from rtl_agent_gym.evaluation.results import read_results
from rtl_agent_gym.files import cache_folder
from rtl_agent_gym.policies import Completion, GoldenPolicy, ModelOptions, Policy, RandomPolicy, heredoc
from rtl_agent_gym.policies.chat import ChatPolicy
from rtl_agent_gym.policies.harness import HarnessPolicy
from rtl_agent_gym.policies.sampler import TokenSamplerPolicy, files_digest
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.renderers.vocabularies import qwen3_tokenizer
from rtl_agent_gym.sandboxes import DockerSandboxes, Sandbox, SandboxSpec
from rtl_agent_gym.scoring import RewardWeights, Score
from rtl_agent_gym.transcripts import read_transcript
from tests.arbiter import ARBITER
from tests.policies.stub_server import ChatServer, call
from tests.sandboxes.providers import ProviderAround, kill

pytestmark = pytest.mark.docker

STATIC = RewardWeights.preset("proxy")
"""Scores without a simulation, where a test is not about scores."""
ANSWER = EpisodeConfig(workspace="answer")
"""Without a sandbox, where a test is not about episodes."""


def problems(count: int) -> list[Problem]:
    return load_problems("bundled")[:count]


async def play(
    folder: Path,
    chosen: list[Problem],
    policy: Policy,
    provider: Any,
    *,
    weights: RewardWeights = STATIC,
    observer: Observer | None = None,
    **options: Any,
) -> list[EpisodeResult]:
    rules = EpisodeConfig(max_turns=20, start_attempts=1)
    config = EvaluationConfig(
        **{"problems": chosen, "folder": folder, "reward": weights, "episode": rules, "cache": False, **options}
    )
    return (await evaluate(config, policy, observer=observer, provider=provider)).results


def outcome(results: list[EpisodeResult]) -> list[tuple[Any, ...]]:
    """What two runs of one evaluation must agree in."""
    found = []
    for result in sorted(results, key=lambda result: result.key):
        assert result.score is not None
        score = result.score.model_dump(exclude={"seconds", "cached", "retries"})
        found.append((result.key, result.seed, result.turns, result.malformed, result.stop_reason, score))
    return found


async def test_an_interrupted_run_goes_on_to_the_same_results(tmp_path: Path, provider: DockerSandboxes) -> None:
    chosen, samples = problems(2), 2

    async def run(name: str, **more: Any) -> list[EpisodeResult]:
        return await play(tmp_path / name, chosen, RandomPolicy(turns=2), provider, samples=samples, **more)

    whole = await run("whole")
    kept = asyncio.Event()
    cut = asyncio.ensure_future(run("cut", concurrency=2, observer=Observer(finished=lambda result: kept.set())))
    await kept.wait()
    cut.cancel()
    await asyncio.gather(cut, return_exceptions=True)
    before = read_results(tmp_path / "cut")
    assert 1 <= len(before) < len(whole)
    played: list[tuple[str, int]] = []
    resumed = await run("cut", observer=Observer(begun=lambda problem, sample: played.append((problem.id, sample))))
    assert not set(played) & {result.key for result in before}
    assert outcome(resumed) == outcome(whole)
    assert {result.seed for result in whole} == {episode_seed(0, p.id, n) for p in chosen for n in range(samples)}


class Flaky(ProviderAround):
    """A provider whose machine fails at first: no daemon, then a container that dies in use."""

    def __init__(self, provider: DockerSandboxes, faults: list[str]) -> None:
        super().__init__(provider)
        self.faults = faults

    async def create(self, spec: SandboxSpec | None = None) -> Sandbox:
        agents = spec is not None and spec.role == "agent"
        fault = self.faults.pop(0) if agents and self.faults else "fine"
        if fault == "daemon":
            raise DaemonError("no daemon answers")
        sandbox: Any = await self.provider.create(spec)
        real = sandbox.run

        async def run(command: str, **options: Any) -> Any:
            if command.startswith("ls -R"):
                kill(sandbox)
            return await real(command, **options)

        if fault == "killed":
            sandbox.run = run
        return cast(Sandbox, sandbox)

    async def close(self) -> None:
        await self.provider.close()


async def test_a_machine_that_recovers_costs_retries_and_no_score(tmp_path: Path, provider: DockerSandboxes) -> None:
    faults: list[SandboxError] = []
    (result,) = await play(
        tmp_path,
        problems(1),
        GoldenPolicy(),
        Flaky(provider, ["daemon", "killed"]),
        attempts=3,
        longest_pause=0.1,
        observer=Observer(faulted=lambda problem, sample, error: faults.append(error)),
    )
    assert [type(fault).__name__ for fault in faults] == ["DaemonError", "SandboxLost"]
    assert (result.retries, result.fault) == (2, None)
    assert result.score is not None
    assert result.score.syntax == 1.0


async def test_a_machine_that_does_not_is_reported_apart_and_tried_again_later(
    tmp_path: Path, provider: DockerSandboxes
) -> None:
    limits: dict[str, Any] = {"concurrency": 1, "attempts": 2, "longest_pause": 0.1}
    chosen = problems(2)
    results = await play(tmp_path, chosen, GoldenPolicy(), Flaky(provider, ["daemon"] * 2), **limits)
    summary = summarise(results)
    assert (summary.faults, summary.finished) == (1, 1)
    faulted = next(result for result in results if result.score is None)
    assert (faulted.cause, faulted.retries) == ("machine", 1)
    assert "no daemon answers" in str(faulted.fault)
    later = await play(tmp_path, chosen, GoldenPolicy(), provider, **limits)
    assert summarise(later).faults == 0


async def test_a_dead_machine_ends_the_run(tmp_path: Path, provider: DockerSandboxes) -> None:
    limits: dict[str, Any] = {"concurrency": 2, "attempts": 1}
    with pytest.raises(DaemonError, match=r"episodes in a row failed by a machine fault.*the same command continues"):
        await play(tmp_path, problems(14), GoldenPolicy(), Flaky(provider, ["daemon"] * 99), **limits)
    assert len(read_results(tmp_path)) == FAULTS_IN_A_ROW - 1


@pytest.mark.parametrize(
    ("outage", "faults", "retries"), [(600.0, 0, 5), pytest.param(0.0, 2, 3, marks=pytest.mark.slow)]
)
async def test_an_outage_between_results_counts_against_no_episode(
    tmp_path: Path, provider: DockerSandboxes, outage: float, faults: int, retries: int
) -> None:
    flaky = Flaky(provider, ["fine", *["daemon"] * 5])
    limits: dict[str, Any] = {"concurrency": 1, "attempts": 2, "longest_pause": 0.1, "longest_outage": outage}
    summary = summarise(await play(tmp_path, problems(1), GoldenPolicy(), flaky, samples=4, **limits))
    assert (summary.faults, summary.finished, summary.retries) == (faults, 4 - faults, retries)


def test_an_outage_is_measured_from_its_beginning_and_not_from_the_last_result() -> None:
    """Results of long episodes may be further apart than an outage may last."""
    nothing: Any = None
    run, now = _Run(EvaluationConfig(longest_outage=600.0), *[nothing] * 9), time.monotonic()
    run.last_result = now - 2400.0
    assert not run._is_outage(RequestRefused("no"), now)
    assert run._is_outage(DaemonError("away"), now)
    assert run._is_outage(DaemonError("away"), now)
    run.away_since = now - 600.0
    assert not run._is_outage(DaemonError("away"), now)


def test_what_ends_an_attempt_longer_than_an_outage_begins_another_one_a_few_times() -> None:
    nothing: Any = None
    run, now = _Run(EvaluationConfig(longest_outage=600.0, attempts=3), *[nothing] * 9), time.monotonic()
    run.last_result = now - 2400.0
    found = []
    for begun in (now, *[now - 1950.0] * 4):
        run.away_since = now - 2000.0
        found.append(run._is_outage(DaemonError("away"), begun))
    assert found == [False, True, True, True, False]
    run.away_since = now - 2000.0
    run.outages = 0
    assert run._is_outage(DaemonError("away"), now - 1950.0)
    assert run._is_outage(DaemonError("away"), now), "the same outage"


class FailsLater(GoldenPolicy):
    """Solves the first episode; another policy plays the others."""

    def __init__(self, later: Any) -> None:
        super().__init__()
        self.later, self.players = later, 0

    def player(self, problem: Problem, renderer: Any, seed: int | None = None) -> Any:
        self.players += 1  # the first is made before anything is played
        if self.players <= 2:
            return super().player(problem, renderer, seed)
        return self.later.player(problem, renderer, seed)


@pytest.mark.parametrize("what", ["refused request", "agent"])
async def test_what_fails_by_itself_is_no_outage(what: str, tmp_path: Path, provider: DockerSandboxes) -> None:
    async def refused(_: object) -> None:
        raise RequestRefused("this conversation is against the rules")

    later: Any = Wrong(refused)
    if what == "agent":
        pytest.importorskip("aiohttp", reason="the extra `agents` is not installed")
        sampler: Any = None
        model = TokenSamplerPolicy(sampler, name="m", tokenizer=qwen3_tokenizer())
        later = HarnessPolicy({"name": "wrong", "argv": ["false"]}, model)  # its program ends at once
    limits: dict[str, Any] = {"concurrency": 1, "attempts": 2, "longest_pause": 0.1, "longest_outage": 5.0}
    summary = summarise(await play(tmp_path, problems(1), FailsLater(later), provider, samples=2, **limits))
    if what == "agent":
        await later.close()
    assert (summary.faults, summary.finished, summary.retries) == (1, 1, 1)


async def test_a_policy_that_cannot_play_is_said_before_anything_runs(
    tmp_path: Path, provider: DockerSandboxes
) -> None:
    first, second = problems(2)
    with pytest.raises(UsageError, match="has no reference solution"):
        await play(tmp_path, [first, second.model_copy(update={"golden": None})], GoldenPolicy(), provider, samples=1)
    assert not list(tmp_path.iterdir())


async def test_a_prompt_that_does_not_fit_is_said_before_anything_runs(
    tmp_path: Path, provider: DockerSandboxes
) -> None:
    first, second = problems(2)
    listed = second.model_copy(update={"context": {f"docs/{number}.md": "" for number in range(2000)}})
    begun: list[str] = []
    with pytest.raises(PromptTooLong, match=f"the prompt of {second.id} does not fit into 5000 tokens"):
        await play(
            tmp_path,
            [first, listed],
            GoldenPolicy(),
            provider,
            renderer=get_renderer("qwen3", qwen3_tokenizer()),
            episode=EpisodeConfig(max_prompt_tokens=5000),
            observer=Observer(begun=lambda problem, sample: begun.append(problem.id)),
        )
    assert begun == []
    assert not list(tmp_path.rglob("config.json"))  # so another limit is no other evaluation


class Wrong:
    """A policy of a user's, whose player returns something else than a completion."""

    name = "wrong"

    def __init__(self, turn: Any) -> None:
        self.act = turn

    def player(self, *_: object) -> Any:
        return self


async def returns_text(_: object) -> str:
    return "done"


@pytest.mark.parametrize(
    ("turn", "got"), [(returns_text, "str"), (lambda _: "done", "str"), (lambda _: Completion("done"), "Completion")]
)
async def test_a_player_that_returns_something_else_is_wrong_usage(turn: Any, got: str, tmp_path: Path) -> None:
    policy: Policy = Wrong(turn)
    rules = EpisodeConfig(workspace="answer", transcript_dir=tmp_path)
    episode = Episode(problems(1)[0], grader=cast(Any, None), renderer=get_renderer("qwen3"), config=rules)
    with pytest.raises(UsageError, match=f"Wrong.act returned {got}; expected an async function that returns a Comp"):
        await play_episode(episode, policy)
    assert episode.over


async def test_a_chat_model_solves_a_problem(tmp_path: Path, provider: DockerSandboxes, arbiter: Problem) -> None:
    assert arbiter.golden is not None
    writes = [heredoc(path, text) for path, text in arbiter.golden.items()]
    script = [
        {"content": "", "calls": [("execute_bash", '{"command": ')]},  # broken: it is told, and mends it
        call("cd rtl", "pwd"),
        call("cd /code; " + "\n".join(writes)),
        {"content": "The arbiter is written."},
    ]
    with ChatServer(script, refusals=1) as server:
        policy = ChatPolicy("local/model", ModelOptions(base_url=server.url))
        try:
            (result,) = await play(tmp_path, [arbiter], policy, provider, weights=RewardWeights())
        finally:
            await policy.close()
    assert result.passed, result.score
    assert (result.turns, result.malformed, result.output_tokens, result.prompt_tokens) == (4, 1, 80, 400)
    assert server.refused == 4
    transcript = read_transcript(tmp_path / str(result.transcript))
    assert [turn.action for turn in transcript.turns] == ["malformed", "command", "command", "final"]
    assert [command.command for command in transcript.turns[1].commands] == ["cd rtl", "pwd"]
    answers = [message for message in server.requests[2]["messages"] if message["role"] == "tool"]
    assert "/code/rtl" in answers[-1]["content"]


async def test_a_full_context_ends_the_episode_with_a_grade(tmp_path: Path, provider: DockerSandboxes) -> None:
    full = "The input (40970 tokens) is longer than the model's context length (40960 tokens)."  # as SGLang says it
    script = [call("ls"), {"status": 400, "error": {"message": full, "type": "BadRequestError"}}]
    with ChatServer(script, faults=[{"status": 502, "body": "<html>Bad Gateway</html>"}, {"drop": True}]) as server:
        policy = ChatPolicy("local/model", ModelOptions(base_url=server.url))
        try:
            (result,) = await play(tmp_path, problems(1), policy, provider)
        finally:
            await policy.close()
    assert (result.stop_reason, result.cause, result.turns) == ("max_tokens", "out of turns or tokens", 1)
    assert (result.retries, result.fault, len(server.requests)) == (0, None, 2)


async def evaluate_local(
    path: Path, folder: Path, provider: DockerSandboxes, *, turns: int, reward: str, **options: Any
) -> EpisodeResult:
    from rtl_agent_gym.demo.shipped import RENDERER, SYSTEM_PROMPT

    config = EvaluationConfig(
        ids=(ARBITER,),
        policy=f"local:{path}",
        model=ModelOptions(max_tokens=600, **options),
        renderer=RENDERER,
        folder=folder,
        episode=EpisodeConfig(max_turns=turns, system_prompt=SYSTEM_PROMPT),
        reward=reward,
        cache=False,
    )
    (result,) = (await evaluate(config, provider=provider)).results
    return result


async def test_local_weights_play_token_by_token(tmp_path: Path, provider: DockerSandboxes) -> None:
    from rtl_agent_gym.demo.shipped import shipped

    result = await evaluate_local(shipped("student"), tmp_path, provider, turns=2, reward="proxy", max_context=1500)
    assert read_config(tmp_path).model_files == files_digest(shipped("student"))
    transcript = read_transcript(tmp_path / str(result.transcript))
    assert transcript.turns
    for turn in transcript.turns:
        assert turn.token_ids
        assert len(turn.token_ids) == len(turn.logprobs or [])
    assert result.output_tokens == sum(len(turn.token_ids or []) for turn in transcript.turns)


@pytest.mark.slow
async def test_the_shipped_teacher_solves_the_arbiter(tmp_path: Path, provider: DockerSandboxes) -> None:
    from rtl_agent_gym.demo.shipped import shipped

    result = await evaluate_local(shipped("teacher"), tmp_path, provider, turns=6, reward="default", temperature=0.0)
    assert result.passed, result


async def test_a_model_service_that_goes_away_is_named_in_the_transcript(
    tmp_path: Path, provider: DockerSandboxes
) -> None:
    away = {"status": 503, "error": {"message": "overloaded", "type": "server_error"}}
    with ChatServer([call("ls"), away]) as server:
        policy = ChatPolicy("local/model", ModelOptions(base_url=server.url, attempts=1))
        try:
            (result,) = await play(tmp_path, problems(1), policy, provider, attempts=1)
        finally:
            await policy.close()
    assert (result.cause, result.score) == ("machine", None)
    assert "overloaded" in str(result.fault)
    (path,) = (tmp_path / "transcripts").iterdir()
    end = read_transcript(path).end
    assert end is not None
    assert end.stop_reason == "error"
    assert "overloaded" in str(end.error)


async def test_a_single_turn_evaluation_is_graded_and_kept_in_memory(provider: DockerSandboxes, tmp_path: Path) -> None:
    rules = EpisodeConfig(workspace="answer", transcript_dir=tmp_path)
    config = EvaluationConfig(problems=problems(1), policy="golden", episode=rules, keep=False, cache=False)
    found = await evaluate(config, provider=provider)
    (result,) = found.results
    assert (result.passed, result.turns, found.folder, found.summary.passed) == (True, 1, None, 1)
    transcript = read_transcript(Path(str(result.transcript)))
    assert transcript.header.options["single_turn"] is True
    assert "execute_bash" not in transcript.header.system
    assert found.record.rules == {"single_turn": True}


async def test_the_folder_may_begin_with_the_home_folder(
    provider: DockerSandboxes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_folder().parent))
    monkeypatch.setenv("HOME", str(tmp_path))
    (result,) = await play(Path("~/run"), problems(1), GoldenPolicy(), provider, episode=ANSWER)
    assert result.score is not None
    assert [found.key for found in read_results(tmp_path / "run")] == [result.key]
    assert (tmp_path / "run" / str(result.transcript)).is_file()


async def test_a_reward_function_and_a_folder_that_is_not_resumed(provider: DockerSandboxes, tmp_path: Path) -> None:
    def by_syntax(score: Score) -> float:
        return 7 * score.syntax

    config = EvaluationConfig(problems=problems(1), folder=tmp_path, reward=by_syntax, episode=ANSWER, cache=False)
    (result,) = (await evaluate(config, provider=provider)).results
    assert result.score is not None
    assert result.score.reward == 7
    assert read_config(tmp_path).weights.endswith("by_syntax")
    assert (tmp_path / "summary.json").is_file()
    with pytest.raises(UsageError, match="already contains results"):
        await evaluate(config.with_options(resume=False), provider=provider)
    with pytest.raises(UsageError, match=r"results of another evaluation, which differs in .*reward_digest"):
        await evaluate(config.with_options(reward=lambda score: 8 * score.syntax), provider=provider)


def test_given_problems_are_filtered() -> None:
    given = problems(3)
    assert scorable_problems(EvaluationConfig(problems=given, ids=(given[1].id,)), Observer()) == [given[1]]


@pytest.mark.parametrize("name", ["samples", "concurrency", "attempts"])
def test_numbers_out_of_range_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} must be at least 1, got 0"):
        EvaluationConfig(**{name: 0})  # type: ignore[arg-type]


async def test_no_sandbox_waits_for_a_grading_that_never_comes(tmp_path: Path, provider: DockerSandboxes) -> None:
    roles: list[str] = []

    class Counted(ProviderAround):
        """The provider, which records the sandboxes that it creates."""

        async def create(self, spec: SandboxSpec | None = None) -> Sandbox:
            roles.append((spec or SandboxSpec()).role)
            return await super().create(spec)

    (result,) = await play(tmp_path, problems(1), GoldenPolicy(), Counted(provider), weights=RewardWeights())
    assert result.score is not None
    assert result.score.passed
    assert sorted(roles) == ["agent", "scoring"]


async def test_a_dialect_that_the_model_was_not_trained_on_is_refused() -> None:
    """A model of another family would write calls that the dialect does not read, and score 0 each time."""
    sampler: Any = object()
    policy = TokenSamplerPolicy(sampler, name="tinker:Qwen/Qwen3.5-9B", tokenizer="no", base_model="Qwen/Qwen3.5-9B")
    with pytest.raises(UsageError, match=r"^renderer: qwen3 does not fit Qwen/Qwen3\.5-9B; choose qwen3_5 or"):
        await evaluate(EvaluationConfig(problems=problems(1)), policy)

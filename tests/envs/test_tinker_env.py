"""The tinker-cookbook face: real containers, the real vocabulary, the cookbook's own rollouts, a scripted policy."""

from __future__ import annotations

import asyncio
import itertools
import json
import pickle
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

tinker = pytest.importorskip("tinker")
from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs  # noqa: E402
from tinker_cookbook.rl.data_processing import trajectory_to_data  # noqa: E402
from tinker_cookbook.rl.rollout_runner import TRUNCATION_METRIC_KEY  # noqa: E402
from tinker_cookbook.rl.rollout_strategy import FailFast, MinViableGroup, RetryOnFailure  # noqa: E402
from tinker_cookbook.rl.rollouts import do_group_rollout  # noqa: E402
from tinker_cookbook.rl.types import Trajectory, TrajectoryGroup  # noqa: E402

from data.bundled import wrong_designs  # noqa: E402
from rtl_agent_gym.envs import EpisodeConfig  # noqa: E402
from rtl_agent_gym.envs.tinker_config import TinkerEnvConfig, load_renderer  # noqa: E402
from rtl_agent_gym.envs.tinker_env import CVDPEnv, CVDPEnvGroupBuilder  # noqa: E402
from rtl_agent_gym.episodes.runtime import acquire  # noqa: E402
from rtl_agent_gym.errors import SandboxError, SandboxLost, UsageError  # noqa: E402
from rtl_agent_gym.policies import ModelOptions, heredoc, write_turn  # noqa: E402
from rtl_agent_gym.policies.sampler import TokenSamplerPolicy  # noqa: E402
from rtl_agent_gym.problems import Problem  # noqa: E402
from rtl_agent_gym.renderers import get_renderer  # noqa: E402
from rtl_agent_gym.renderers.vocabularies import harmony_encoding  # noqa: E402
from rtl_agent_gym.sandboxes import SandboxSpec  # noqa: E402
from rtl_agent_gym.sandboxes.client import finished  # noqa: E402
from rtl_agent_gym.scoring import RewardWeights  # noqa: E402
from rtl_agent_gym.training.rollouts import EpisodePlayer, Rollout  # noqa: E402
from rtl_agent_gym.transcripts import read_transcript  # noqa: E402
from tests.envs.scripted_tinker import END, Script, call, decode, encode, solution  # noqa: E402
from tests.sandboxes.providers import kill, owned  # noqa: E402

STATIC = RewardWeights(simulate=False)
"""No hidden tests: quick, where the verdict is not the point."""


@pytest.fixture
def quick() -> TinkerEnvConfig:
    return TinkerEnvConfig(model_name="Qwen/Qwen3-8B", reward=STATIC, episode=EpisodeConfig(command_timeout=5.0))


def with_rules(config: TinkerEnvConfig, **rules: Any) -> TinkerEnvConfig:
    """The configuration with other rules of an episode."""
    return replace(config, episode=config.episode.with_options(**rules))


def only(group: TrajectoryGroup) -> Trajectory:
    (trajectory,) = group.trajectories_G
    return trajectory


@pytest.mark.docker
async def test_an_episode_is_one_datum_of_exactly_the_sampled_ids(arbiter: Problem, tmp_path: Path) -> None:
    config = TinkerEnvConfig(model_name="Qwen/Qwen3-8B", episode=EpisodeConfig(transcript_dir=tmp_path))
    odd = (
        "<think>\nhm\n</think>\n<tool_call>\n"
        '{"name":"execute_bash",  "arguments":{"command":"echo \\u00e9 é"}}\n</tool_call>' + END
    )
    script = Script([odd, f"<tool_call>\n{{{END}", call("echo one", "echo two"), solution(arbiter), f"Done.{END}"])
    group = await do_group_rollout(CVDPEnvGroupBuilder(arbiter, config), script)
    assert group.get_total_rewards() == [pytest.approx(1.4)]
    trajectory = only(group)
    assert trajectory.stop_reason == "completed"
    said = [transition.ac.tokens for transition in trajectory.transitions]
    assert said == [encode(text) for text in script.texts]
    for before, after in itertools.pairwise(trajectory.transitions):
        whole = before.ob.to_ints() + before.ac.tokens
        assert after.ob.to_ints()[: len(whole)] == whole
    (datum,) = trajectory_to_data(trajectory, 2.0)
    assert sampled(datum) == list(itertools.chain(*said))
    mask, logprobs = (datum.loss_fn_inputs[name].to_torch().tolist() for name in ("mask", "logprobs"))
    assert all((value == -0.5) == bool(one) for value, one in zip(logprobs, mask, strict=True))
    seen = decode(trajectory.transitions[-1].ob.to_ints())
    assert "é é" in seen
    assert seen.count("<tool_response>") == 5

    metrics = trajectory.transitions[-1].metrics
    assert {key: metrics[key] for key in ("format_valid", "syntax_valid", "tests_passed", "stop/completed")} == {
        "format_valid": 1.0,
        "syntax_valid": 1.0,
        "tests_passed": 1.0,
        "stop/completed": 1.0,
    }
    assert (metrics["commands"], metrics["malformed_turns"], metrics.get("oom_kills", 0)) == (4, 1, 0)
    assert all(not transition.metrics for transition in trajectory.transitions[:-1])
    logs = trajectory.transitions[-1].logs
    assert (logs["problem_id"], logs["stop_reason"]) == (arbiter.id, "completed")
    recorded = read_transcript(str(logs["transcript"]))
    assert recorded.complete
    assert [turn.token_ids for turn in recorded.turns] == said
    assert recorded.turns[0].completion == odd
    assert owned() == set()


@pytest.mark.docker
@pytest.mark.slow
async def test_submissions_are_paid_in_their_own_step(arbiter: Problem, tmp_path: Path) -> None:
    wrong = wrong_designs(arbiter.id)["rst_n_for_reset"]
    rules = EpisodeConfig(harness_feedback=3, progress_coef=0.7, transcript_dir=tmp_path)
    texts = [
        call("\n".join(heredoc(path, text) for path, text in wrong.items())),
        call("submit"),
        solution(arbiter),
        call("submit", "submit"),
        f"Done.{END}",
    ]
    group = await do_group_rollout(
        CVDPEnvGroupBuilder(arbiter, TinkerEnvConfig(model_name="Qwen/Qwen3-8B", episode=rules)), Script(texts)
    )
    trajectory = only(group)
    rewards = [transition.reward for transition in trajectory.transitions]
    assert rewards == [0.0, pytest.approx(0.1), 0.0, pytest.approx(0.6), pytest.approx(1.4)]
    assert group.get_total_rewards() == [pytest.approx(2.1)]
    metrics = trajectory.transitions[-1].metrics
    assert metrics["submissions"] == 3
    assert metrics["progress_reward"] == pytest.approx(0.7)
    assert "submission 1, 2 left: 1/7 tests, reward +0.100" in str(trajectory.transitions[1].logs["submissions"])
    prompt = decode(trajectory.transitions[0].ob.to_ints())
    assert "You may submit 3 times." in prompt
    assert "- test_reset_clears" in decode(trajectory.transitions[2].ob.to_ints())
    (datum,) = trajectory_to_data(trajectory, 1.0)
    assert sampled(datum) == [id_ for text in texts for id_ in encode(text)]
    (path,) = tmp_path.iterdir()
    found = [command.submission for turn in read_transcript(path).turns for command in turn.commands]
    assert [one and (one.number, one.left, one.fraction) for one in found] == [
        None, (1, 2, pytest.approx(1 / 7)), None, (2, 1, 1.0), (3, 0, 1.0),
    ]  # fmt: skip
    assert owned() == set()


@pytest.mark.docker
@pytest.mark.slow
async def test_a_submission_counts_when_the_budget_ends_the_episode_behind_it(arbiter: Problem) -> None:
    config = TinkerEnvConfig(model_name="Qwen/Qwen3-8B", episode=EpisodeConfig(harness_feedback=1))
    script = Script([solution(arbiter), call("submit", "seq 1 300"), f"Done.{END}"])
    free = only(await do_group_rollout(CVDPEnvGroupBuilder(arbiter, config), script))
    config = with_rules(config, max_trajectory_tokens=free.transitions[2].ob.length + 10)
    trajectory = only(await do_group_rollout(CVDPEnvGroupBuilder(arbiter, config), script))
    assert trajectory.stop_reason == "max_tokens"
    assert [transition.reward for transition in trajectory.transitions] == [0.0, pytest.approx(1.9)]


class HarmonyScript(TokenCompleter):
    """Says one text a turn in gpt-oss's vocabulary."""

    def __init__(self, texts: list[str]) -> None:
        self.said = [list(harmony_encoding().encode(text, allowed_special="all")) for text in texts]
        self.turn = -1

    async def __call__(self, model_input: Any, stop: Any, *, max_tokens: int | None = None) -> TokensWithLogprobs:
        assert stop == [200012, 200002]
        self.turn += 1
        return TokensWithLogprobs(self.said[self.turn], [-0.5] * len(self.said[self.turn]))


def sampled(datum: Any) -> list[int]:
    """The ids on which a datum is trained."""
    targets, mask = (datum.loss_fn_inputs[name].to_torch().tolist() for name in ("target_tokens", "mask"))
    assert set(mask) == {0.0, 1.0}
    return [id_ for id_, one in zip(targets, mask, strict=True) if one]


@pytest.mark.docker
async def test_gpt_oss_too_is_one_datum(arbiter: Problem, quick: TinkerEnvConfig, tmp_path: Path) -> None:
    config = replace(quick, model_name="openai/gpt-oss-20b", episode=EpisodeConfig(transcript_dir=tmp_path))
    gpt_oss = get_renderer("gpt_oss")
    odd = 'to=functions.execute_bash<|channel|>commentary json<|message|>{"command":  "echo \\u00e9"}<|call|>'
    script = HarmonyScript([odd, "no header at all", write_turn(gpt_oss, "hm", ["pwd"]), write_turn(gpt_oss, "Done.")])
    trajectory = only(await do_group_rollout(CVDPEnvGroupBuilder(arbiter, config), script))
    assert (trajectory.stop_reason, len(trajectory.transitions)) == ("completed", 4)
    (datum,) = trajectory_to_data(trajectory, 1.0)
    assert sampled(datum) == list(itertools.chain(*script.said))
    recorded = read_transcript(str(trajectory.transitions[-1].logs["transcript"]))
    assert [turn.action for turn in recorded.turns] == ["command", "malformed", "command", "final"]
    assert recorded.turns[0].completion == odd


@pytest.mark.docker
async def test_a_group_starts_together_and_shares_one_provider(arbiter: Problem, quick: TinkerEnvConfig) -> None:
    builders = [CVDPEnvGroupBuilder(arbiter, quick, group_size=3) for _ in range(2)]
    envs = list(itertools.chain(*await asyncio.gather(*(builder.make_envs() for builder in builders))))
    try:
        assert len({id(builder._lease.runtime.provider) for builder in builders if builder._lease}) == 1
        assert owned() == set()  # an environment that nobody rolls out costs nothing
        openings: list[Any] = await asyncio.gather(*(env.initial_observation() for env in envs))
        assert len(owned()) == 6
        assert len({tuple(prompt.to_ints()) for prompt, _ in openings}) == 1
    finally:
        await asyncio.gather(*(builder.cleanup() for builder in builders))
    assert owned() == set()
    await builders[0].cleanup()  # idempotent
    with pytest.raises(SandboxLost, match="closed"):
        await envs[0].step(encode(call("true")))


def test_with_submissions_each_environment_draws_its_own_seed(arbiter: Problem, quick: TinkerEnvConfig) -> None:
    def seeds(config: TinkerEnvConfig) -> list[int]:
        parts: Any = {"renderer": get_renderer("qwen3"), "provider": object(), "grader": None}
        return [CVDPEnv(arbiter, config, seed=3, **parts).episode.seed for _ in range(2)]

    assert seeds(quick) == [3, 3]
    assert len({3, *seeds(with_rules(quick, harness_feedback=1))}) == 3


@pytest.mark.docker
async def test_a_pickled_builder_works_as_the_one_it_came_from(arbiter: Problem, quick: TinkerEnvConfig) -> None:
    builder = CVDPEnvGroupBuilder(arbiter, quick, group_size=2, seed=3)
    await builder.make_envs()
    try:
        copy = pickle.loads(pickle.dumps(builder))
    finally:
        await builder.cleanup()
    assert (copy.problem, copy.config, copy.group_size, copy.seed) == (arbiter, quick, 2, 3)
    group = await do_group_rollout(copy, Script([f"Nothing.{END}"]))
    assert len(group.trajectories_G) == 2
    assert group.get_total_rewards() == [0.0, 0.0]
    assert "submissions" not in group.trajectories_G[0].transitions[-1].metrics, "the rules allow none"


@pytest.mark.docker
@pytest.mark.parametrize(
    ("texts", "changes", "stop"),
    [
        ([call("true")], {"max_turns": 2}, "max_turns"),
        ([f"<tool_call>{END}"], {}, "parse_error"),
    ],
)
async def test_stop_reasons(
    arbiter: Problem, quick: TinkerEnvConfig, texts: list[str], changes: dict[str, Any], stop: str
) -> None:
    config = with_rules(quick, **changes)
    trajectory = only(await do_group_rollout(CVDPEnvGroupBuilder(arbiter, config), Script(texts)))
    assert trajectory.stop_reason == stop
    last = trajectory.transitions[-1].metrics
    assert [key for key in last if key.startswith("stop/")] == [f"stop/{stop}"]
    assert last["tests_passed"] == 0.0


@pytest.mark.docker
async def test_the_budget_of_a_turn_cuts_it_and_the_model_is_told(arbiter: Problem, quick: TinkerEnvConfig) -> None:
    script = Script([call("echo " + "many words " * 60), f"Done.{END}"])
    trajectory = only(await do_group_rollout(CVDPEnvGroupBuilder(arbiter, with_rules(quick, max_tokens=40)), script))
    assert script.limits == [40, 40]
    assert len(trajectory.transitions[0].ac.tokens) == 40
    told = decode(trajectory.transitions[1].ob.to_ints()[trajectory.transitions[0].ob.length :])
    assert "cut off by the token limit" in told
    assert trajectory.stop_reason == "completed"
    assert len(trajectory_to_data(trajectory, 1.0)) == 1


@pytest.mark.docker
async def test_the_budget_of_an_episode_ends_it_graded(arbiter: Problem, quick: TinkerEnvConfig) -> None:
    script = Script([solution(arbiter), call("seq 1 200 # " + "word " * 300), f"Done.{END}"])
    free = only(await do_group_rollout(CVDPEnvGroupBuilder(arbiter, quick), script)).transitions
    said, answered = free[1].ob.length + len(free[1].ac.tokens), free[2].ob.length
    for most in (said + 10, answered + 10):  # the second turn leaves no room for another, or what came back does
        config = with_rules(quick, max_trajectory_tokens=most)
        group = await do_group_rollout(CVDPEnvGroupBuilder(arbiter, config), script)
        trajectory = only(group)
        assert trajectory.stop_reason == "max_tokens"
        assert len(trajectory.transitions) == 2
        assert group.get_total_rewards() == [pytest.approx(0.4)]
        assert all(t.ob.length + len(t.ac.tokens) <= most for t in trajectory.transitions)
        assert len(trajectory_to_data(trajectory, 1.0)) == 1
    assert script.limits[-1] == answered + 10 - free[1].ob.length  # the sampler is told what is left


@dataclass
class Said:
    """A `Sampler` that says what a script says."""

    script: Script

    async def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
        said = await self.script(prompt, sampling_params.stop, max_tokens=sampling_params.max_tokens)
        sequence = SimpleNamespace(tokens=said.tokens, logprobs=said.logprobs, stop_reason=said.stop_reason)
        return SimpleNamespace(sequences=[sequence])


@pytest.mark.docker
@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"max_trajectory_tokens": 3000},
        *(pytest.param(limit, marks=pytest.mark.slow) for limit in ({"max_tokens": 80}, {"max_turns": 2})),
    ],
)
async def test_the_cookbooks_rollout_and_this_packages_own_give_equal_data(
    arbiter: Problem, quick: TinkerEnvConfig, limits: dict[str, int]
) -> None:
    config = with_rules(quick, **limits, harness_feedback=1)
    texts = [f"<tool_call>\n{{{END}", solution(arbiter), call("seq 1 300"), call("submit"), f"Done.{END}"]
    trajectory = only(await do_group_rollout(CVDPEnvGroupBuilder(arbiter, config), Script(texts)))
    (theirs,) = trajectory_to_data(trajectory, 0.0)

    async with acquire() as lease:
        most = config.episode.max_trajectory_tokens or 32_768
        options = ModelOptions(max_tokens=config.episode.max_tokens or 4096, max_context=most)
        policy = TokenSamplerPolicy(Said(Script(texts)), name="scripted", options=options)  # type: ignore[arg-type]
        rollout = await EpisodePlayer(config, load_renderer(config), lease.runtime, 0)(arbiter, policy)
    ours = rollout.streams[0].to_datum()
    assert ours.model_input.to_ints() == theirs.model_input.to_ints()
    assert ours.loss_fn_inputs.keys() == theirs.loss_fn_inputs.keys()
    for name, tensor in theirs.loss_fn_inputs.items():
        assert ours.loss_fn_inputs[name].to_torch().tolist() == tensor.to_torch().tolist(), name
    assert rollout.reward == sum(transition.reward for transition in trajectory.transitions)
    apart = {"score_seconds", TRUNCATION_METRIC_KEY}  # one is measured, one counted by the cookbook's rollout alone
    metrics = trajectory.transitions[-1].metrics
    assert {name: rollout.numbers[name] for name in metrics.keys() - apart} == {
        name: metrics[name] for name in rollout.numbers.keys() - apart
    }
    kept = Rollout.from_json(json.loads(json.dumps(rollout.to_json()))).trajectory()
    assert [(step.ob.to_ints(), step.ac.tokens, step.ac.logprobs) for step in kept.transitions] == [
        (step.ob.to_ints(), step.ac.tokens, step.ac.logprobs) for step in trajectory.transitions
    ]


async def opened(problem: Problem, config: TinkerEnvConfig) -> tuple[Any, Any]:
    builder = CVDPEnvGroupBuilder(problem, config)
    (env,) = await builder.make_envs()
    try:
        result = await env.initial_observation()
    finally:
        await builder.cleanup()
    assert isinstance(result, tuple)
    return result


@pytest.mark.docker
@pytest.mark.slow
async def test_a_prompt_over_its_budget_is_shortened_and_says_so(arbiter: Problem, quick: TinkerEnvConfig) -> None:
    filler = "\n\n".join(f"Remark {n}: nothing that matters." for n in range(400))
    task = f"Design it.\n\n## Background\n\n{filler}\n\n## Interface\n\n- `clk`: the clock\n\n- `grant`: 8 bits\n"
    problem = arbiter.model_copy(update={"prompt": task})
    full = (await opened(problem, quick))[0].length
    prompt = (await opened(problem, with_rules(quick, max_prompt_tokens=full - 2_000)))[0]
    text = decode(prompt.to_ints())
    assert full - 2_100 < prompt.length <= full - 2_000
    assert "Design it." in text
    assert "`clk`: the clock" in text
    assert "`grant`: 8 bits" in text
    assert "characters of 'Background' left out to fit the prompt]" in text
    assert "Remark 0:" in text
    assert "Remark 399:" not in text


async def test_a_prompt_that_cannot_fit_is_the_cookbooks_overflow(arbiter: Problem, quick: TinkerEnvConfig) -> None:
    config = replace(with_rules(quick, max_prompt_tokens=100), overflow_reward=-0.1)
    script = Script([f"Done.{END}"])
    group = await do_group_rollout(CVDPEnvGroupBuilder(arbiter, config, group_size=2), script)
    assert script.prompts == []
    assert group.get_total_rewards() == [-0.1, -0.1]
    trajectory = group.trajectories_G[0]
    assert trajectory.stop_reason == "max_tokens"
    assert trajectory_to_data(trajectory, 1.0) == []
    assert "does not fit into 100 tokens" in str(trajectory.transitions[0].logs["initial_observation_overflow"])


class Breaking(Script):
    """Kills the episode's container before some of its turns."""

    def __init__(self, texts: list[str], times: int) -> None:
        super().__init__(texts)
        self.times = times

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        said = await super().__call__(*args, **kwargs)
        if self.times > 0:
            self.times -= 1
            kill(*owned())
        return said


@pytest.mark.docker
async def test_a_machines_fault_is_raised_and_is_no_reward(arbiter: Problem, quick: TinkerEnvConfig) -> None:
    builder = CVDPEnvGroupBuilder(arbiter, quick)
    with pytest.raises(SandboxError):
        await do_group_rollout(builder, Breaking([call("true")], 1), FailFast())
    assert owned() == set()


@pytest.mark.docker
@pytest.mark.parametrize(
    "strategy",
    [
        RetryOnFailure(max_retries=2),
        pytest.param(MinViableGroup(min_successful=1, max_retries=2), marks=pytest.mark.slow),
    ],
)
async def test_the_cookbooks_strategies_retry_it(arbiter: Problem, quick: TinkerEnvConfig, strategy: Any) -> None:
    script = Breaking([call("true"), solution(arbiter), f"Done.{END}"], 1)
    group = await do_group_rollout(CVDPEnvGroupBuilder(arbiter, quick), script, strategy)
    assert group.get_total_rewards() == [pytest.approx(0.4)]
    assert [error.error_type for error in group.rollout_errors] == ["SandboxLost"]
    assert owned() == set()


@pytest.mark.docker
async def test_a_fault_of_one_ends_the_others_of_its_group(arbiter: Problem, quick: TinkerEnvConfig) -> None:
    """Fail fast leaves the other rollouts running; `cleanup` must end them, in the middle of a command too."""

    class OneFails(Script):
        failed = False

        async def __call__(self, *args: Any, **kwargs: Any) -> Any:
            said = await super().__call__(*args, **kwargs)
            if not self.failed:
                self.failed = True
                await asyncio.sleep(1.5)
                raise SandboxError("the sampler's machine broke")
            return said

    config = replace(quick, episode=EpisodeConfig(command_timeout=60.0))
    begun = time.monotonic()
    with pytest.raises(SandboxError, match="the sampler's machine"):
        await do_group_rollout(CVDPEnvGroupBuilder(arbiter, config, group_size=3), OneFails([call("sleep 50")]))
    assert time.monotonic() - begun < 45
    assert owned() == set()


@pytest.mark.docker
@pytest.mark.parametrize("after", [0.05, pytest.param(0.4, marks=pytest.mark.slow), 1.5])
async def test_a_cancelled_rollout_leaves_nothing(arbiter: Problem, quick: TinkerEnvConfig, after: float) -> None:
    builder = CVDPEnvGroupBuilder(arbiter, quick, group_size=2)
    rollout = asyncio.ensure_future(do_group_rollout(builder, Script([call("sleep 4")])))
    await asyncio.sleep(after)
    rollout.cancel()
    await asyncio.sleep(0.01)
    rollout.cancel()  # impatient: the second one hits the cleaning up
    with pytest.raises(asyncio.CancelledError):
        await rollout
    assert owned() == set()


@pytest.mark.docker
@pytest.mark.slow
async def test_the_time_limit_of_a_rollout_frees_its_container(arbiter: Problem, quick: TinkerEnvConfig) -> None:
    seen: list[int] = []

    class Watching(Script):
        async def __call__(self, *args: Any, **kwargs: Any) -> Any:
            seen.append(len(await asyncio.to_thread(owned)))
            return await super().__call__(*args, **kwargs)

    strategy = RetryOnFailure(max_retries=1, per_rollout_timeout=5.0)
    with pytest.raises(TimeoutError):
        await do_group_rollout(CVDPEnvGroupBuilder(arbiter, quick), Watching([call("sleep 30")]), strategy)
    assert seen == [1, 1]
    assert owned() == set()


async def test_cleaning_up_is_finished_when_it_is_cancelled() -> None:
    steps: list[str] = []

    async def work() -> None:
        steps.append("begun")
        await asyncio.sleep(0.1)
        steps.append("done")

    task = asyncio.ensure_future(finished(work()))
    for _ in range(3):
        await asyncio.sleep(0.01)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == ["begun", "done"]


@pytest.mark.docker
async def test_a_failed_start_is_raised(arbiter: Problem, quick: TinkerEnvConfig) -> None:
    episode = EpisodeConfig(start_attempts=1, sandbox=SandboxSpec(image="no-such-image:anywhere"))
    builder = CVDPEnvGroupBuilder(arbiter, replace(quick, episode=episode))
    with pytest.raises(SandboxError):
        await do_group_rollout(builder, Script(["x"]))
    assert owned() == set()


def test_a_builder_refuses_what_cannot_be_scored(arbiter: Problem) -> None:
    with pytest.raises(UsageError, match="needs a judge"):
        CVDPEnvGroupBuilder(arbiter.model_copy(update={"unscorable": "needs a judge"}))
    with pytest.raises(UsageError, match="group_size"):
        CVDPEnvGroupBuilder(arbiter, group_size=0)
    with pytest.raises(UsageError, match="turn_rewards must be 'none', not 'files'"):
        CVDPEnvGroupBuilder(arbiter, TinkerEnvConfig(turn_rewards="files"))


def test_tags_are_the_category_and_the_difficulty(arbiter: Problem) -> None:
    assert CVDPEnvGroupBuilder(arbiter).logging_tags() == ["cvdp", "cid003", "easy"]


async def test_an_environment_serves_one_rollout(arbiter: Problem, quick: TinkerEnvConfig) -> None:
    builder = CVDPEnvGroupBuilder(arbiter, quick)
    (env,) = await builder.make_envs()
    assert isinstance(env, CVDPEnv)
    with pytest.raises(UsageError, match="call initial_observation"):
        await env.step(encode("x"))
    await builder.cleanup()

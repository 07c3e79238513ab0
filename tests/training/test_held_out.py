"""Held-out problems: chosen by a fraction, ids or a source; never trained on; evaluated in real containers."""

from __future__ import annotations

import json
import random
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

pytest.importorskip("torch")
pytest.importorskip("tinker")

from rtl_agent_gym.demo.shipped import SMALL
from rtl_agent_gym.errors import RequestRefused, ServiceError, UsageError
from rtl_agent_gym.evaluation import read_config
from rtl_agent_gym.evaluation.results import read_results
from rtl_agent_gym.problems import Problem, load_problems, loading
from rtl_agent_gym.problems.loading import BUNDLED_PROBLEMS
from rtl_agent_gym.problems.notes import Rows
from rtl_agent_gym.retries import STEP_EPISODES
from rtl_agent_gym.training import rollouts
from rtl_agent_gym.training.evaluator import Evaluator
from rtl_agent_gym.training.plan import Plan, plan_run
from rtl_agent_gym.training.progress import Progress
from rtl_agent_gym.training.run_folder import RunFolder
from rtl_agent_gym.transcripts import read_transcript
from tests.cli.in_process import call as call_command
from tests.envs.scripted_tinker import END, call, decode, solution
from tests.training.scripted_run import STEPS, Scripted, make_plan, run

PROBLEMS = load_problems("bundled")
IDS = [problem.id for problem in PROBLEMS]


def planned(**options: Any) -> Plan:
    return plan_run({"engine": "local", "problem_ids": ",".join(IDS)} | options, recipes=[SMALL])


def ids(plan: Plan) -> tuple[list[str], list[str]]:
    return [problem.id for problem in plan.problems], [problem.id for problem in plan.held_out]


def test_a_share_is_held_out_by_the_seed() -> None:
    train, held_out = ids(planned(held_out="0.4", seed="1"))
    assert held_out
    assert train
    assert sorted(train + held_out) == sorted(IDS)
    assert ids(planned(held_out="0.4", seed="1")) == (train, held_out)
    assert ids(planned(held_out="0.4", seed="2")) != (train, held_out)


def test_rows_that_are_not_fair_are_not_trained_on(cvdp_data: Path) -> None:
    source = cvdp_data / "cvdp_v1.0.2_agentic_code_generation_no_commercial.jsonl"
    names = ("monte_carlo_0006", "cont_adder_0001", "gcd_0007", "DES_0001")  # unfair, weak, partial, sound
    wanted = ",".join(f"cvdp_agentic_{row}" for row in names)
    options = {"cvdp_jsonl_path": str(source), "problem_ids": wanted, "engine": "local"}
    kept = {
        rows: [problem.id for problem in plan_run(options | {"rows": rows}, recipes=[SMALL]).problems]
        for rows in get_args(Rows)
    }
    assert {rows: len(ids) for rows, ids in kept.items()} == {"all": 4, "fair": 3, "partial": 2, "sound": 1}
    assert kept["sound"] == ["cvdp_agentic_DES_0001"]
    with pytest.raises(UsageError, match=r"^cvdp_jsonl_path=bundled: .*fair"):
        planned(rows="fair")
    with pytest.raises(UsageError, match="rows must be 'all', 'fair', 'partial' or 'sound'"):
        planned(rows="good")


def test_ids_are_held_out() -> None:
    assert ids(planned(held_out=f"{IDS[1]}, {IDS[3]}")) == (
        [name for name in IDS if name not in (IDS[1], IDS[3])],
        [IDS[1], IDS[3]],
    )


def test_a_source_is_held_out_with_what_it_shares_with_the_training_problems(tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    lines = BUNDLED_PROBLEMS.read_text().splitlines(keepends=True)
    source.write_text(lines[0] + lines[1].replace(IDS[1], "cvdp_agentic_rtlgym_another_0001"))
    assert ids(planned(held_out=str(source))) == (IDS[1:], [IDS[0], "cvdp_agentic_rtlgym_another_0001"])
    with pytest.raises(UsageError, match=r"^held_out: bundled"):
        planned(held_out="bundled")


def test_every_kind_of_source_can_be_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    train, held_out = ids(planned(held_out="family:registers?count=3&seed=5&split=combinations"))
    assert (train, len(held_out)) == (IDS, 3)
    assert all("registers_combinations" in name for name in held_out)
    train, held_out = ids(planned(cvdp_jsonl_path="family:registers?count=3", problem_ids="", held_out="bundled"))
    assert (len(train), held_out) == (3, IDS)
    monkeypatch.setattr(loading, "_download", lambda repo, file, revision: BUNDLED_PROBLEMS)
    assert (
        ids(planned(cvdp_jsonl_path="family:timers?count=1", problem_ids="", held_out="owner/name:rows.jsonl"))[1]
        == IDS
    )


def test_extra_sources_are_held_out_too() -> None:
    names = "family:timers?count=2&split=names"
    plan = planned(held_out=IDS[1], extra_held_out=json.dumps({"names": names, "family": "family:timers?count=3"}))
    assert {name: len(found) for name, found in plan.evaluated().items()} == {
        "test": 1, "test/names": 2, "test/family": 3, "train": 0,
    }  # fmt: skip
    again = planned(cvdp_jsonl_path="family:timers?count=5", problem_ids="", extra_held_out=json.dumps({"a": names}))
    assert len(again.problems) == 5
    again = planned(
        cvdp_jsonl_path="family:timers?count=5", problem_ids="", extra_held_out='{"a": "family:timers?count=3"}'
    )
    assert len(again.problems) == 2  # without the three that are tested on
    for wrong, says in (('{"a/b": "bundled"}', "'a/b' is not a valid name"), ('{"a": "bundled"}', "leaves no problem")):
        with pytest.raises(UsageError, match=f"extra_held_out.*{says}"):
            planned(extra_held_out=wrong)


@pytest.mark.parametrize(
    ("held_out", "says"),
    [
        ("1.5", "held_out: .*between 0 and 1"),
        ("1.0", "held_out: 1.0 leaves no problem to train on"),
        ("0.0", "held_out: 0.0 holds out none"),
        ("nowhere.jsonl", "held_out.*nowhere.jsonl"),
        (f"{IDS[0]},typo", "held_out"),
    ],
)
def test_what_cannot_be_held_out_is_refused(held_out: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        planned(held_out=held_out)


def test_the_command_of_a_run_evaluates_as_it_does(tmp_path: Path) -> None:
    """As somebody would paste it; the shipped student stands for what was trained."""
    plan = SMALL.make(planned(held_out="family:registers?count=2&split=combinations"))
    words = shlex.split(plan.evaluation_command(plan.student))
    assert words[:2] == ["rtl-agent-gym", "eval"]
    done = call_command(*words[1:], "--out", str(tmp_path / "run"), XDG_CACHE_HOME=str(tmp_path))
    assert done.stderr == ""
    assert {result.problem_id for result in read_results(tmp_path / "run")} == set(ids(plan)[1])
    rules, sampling = plan.env_config(tmp_path).episode, read_config(tmp_path / "run").sampling
    assert (sampling["max_tokens"], sampling["max_context"]) == (rules.max_tokens, rules.max_trajectory_tokens)
    for path in (tmp_path / "run" / "transcripts").iterdir():
        header = read_transcript(path).header
        assert (header.system, header.options["max_turns"]) == ("", rules.max_turns)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"problem_ids": ""}, []),
        ({"held_out": f"{IDS[1]}, {IDS[3]}"}, ["--problem", IDS[1], "--problem", IDS[3]]),
        ({"env": "single_turn"}, ["--env", "single-turn"]),
        ({"judge": "chat:some-model"}, ["--judge", "chat:some-model"]),
        ({"eval_temperature": "0"}, ["--temperature", "0.0"]),
        ({"system_prompt": "@/dev/null", "user_prompt": "two words"}, ["@/dev/null", "--user-prompt", "two words"]),
        ({"agent": "mini-swe-agent"}, ["--policy", "harness:mini-swe-agent local:runs/final"]),
    ],
)
def test_the_command_of_a_run_names_what_is_not_usual(options: dict[str, str], words: list[str]) -> None:
    plan = planned(**options)
    said = shlex.split(plan.evaluation_command("runs/final"))
    assert "local:runs/final" in said[3]
    assert "--problems" not in said
    assert [word for word in said if word in words] == words
    assert ("--problem" in said) == ("problem_ids" not in options)
    assert ("--system-prompt" in said) == ("system_prompt" in options)


@pytest.mark.parametrize(
    "options",
    [
        {"problem_ids": f"{IDS[0]},{IDS[2]}"},
        {"problem_ids": "", "difficulties": "easy"},
        {"held_out": "0.4"},
        {"cvdp_jsonl_path": "family:timers?count=2", "problem_ids": "", "held_out": "bundled", "difficulties": "easy"},
    ],
)
def test_the_command_of_a_run_names_the_problems_that_it_chose_of_a_source(options: dict[str, str]) -> None:
    """Without their ids, it would evaluate those that were trained on, too, or that the filters leave out."""
    plan = planned(**options)
    chosen = ids(plan)["held_out" in options]
    assert 0 < len(chosen) < len(PROBLEMS)
    said = shlex.split(plan.evaluation_command("runs/final"))
    assert [said[place + 1] for place, word in enumerate(said) if word == "--problem"] == chosen


class GivesUp(Scripted):
    """Follows the scripts in training, and gives up at once in all other episodes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.training = set(self.texts)
        self.temperatures: dict[bool, set[float]] = {True: set(), False: set()}
        """The temperatures of requests, by whether they are of training."""

    async def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
        self.temperatures[sampling_params.seed in self.training].add(sampling_params.temperature)
        self.texts.setdefault(sampling_params.seed, f"Done.{END}")
        return await super().sample(prompt, num_samples, sampling_params)


@pytest.mark.docker
async def test_held_out_problems_are_evaluated_before_and_after(tmp_path: Path) -> None:
    trained, held_out = PROBLEMS[:1], PROBLEMS[1:3]
    service = GivesUp([[call("ls"), f"Done.{END}"]])
    plan = make_plan(
        tmp_path, trained, f"num_steps={STEPS}", "kl_penalty_coef=0", "teacher_model=none", "baseline=none",
        "eval_temperature=0", "eval_episodes=8",
        held_out=held_out, extra_held_out={"other": PROBLEMS[3:4]},
    )  # fmt: skip
    folder = await run(plan, service)
    first, last = folder.metrics()
    for row, when in ((first, "_before"), (last, "")):
        for name in (f"test{when}", f"test{when}/other", f"train{when}"):
            assert (row[f"{name}/pass_rate"], row[f"{name}/pass_rate_low"]) == (0.0, 0.0)
            assert 0.5 < row[f"{name}/pass_rate_high"] < 1  # of one or two episodes
        assert (row[f"test{when}/episodes"], row[f"test{when}/other/episodes"]) == (2.0, 1.0)
        assert row[f"test{when}/reward"] == 0.0
    assert "test/pass_rate" not in first  # eval_every=0: at the end alone
    assert first["train_before/episodes"] == 1.0  # at temperature 0 all episodes of a problem are equal
    for version in (0, STEPS):
        results = read_results(tmp_path / "evaluations" / f"{version:06d}-test")
        assert {result.problem_id for result in results} == {problem.id for problem in held_out}
    played = [read_transcript(path).header.problem_id for path in RunFolder(tmp_path).transcripts.glob("*.jsonl")]
    assert played == [trained[0].id] * STEPS
    assert len(service.data) == STEPS
    assert service.temperatures == {True: {1.0}, False: {0.0}}


@pytest.mark.docker
async def test_an_interrupted_evaluation_is_continued_or_set_aside(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, PROBLEMS[:1], "env=single_turn", "max_concurrent=1")
    evaluator = Evaluator(plan.options, {}, plan.env_config(tmp_path), tmp_path, Progress(1))
    folder, service = tmp_path / "000001-test", GivesUp([])
    results, config = folder / "results.jsonl", folder / "config.json"

    async def played() -> int:
        """How many transcripts there are once both episodes are played."""
        model: Any = service
        assert len(await evaluator.play(PROBLEMS[:1], model, 2, folder)) == 2
        return len(list((folder / "transcripts").glob("*.jsonl")))

    assert await played() == 2
    results.write_text(results.read_text().splitlines(keepends=True)[0])
    changes: list[dict[str, str]] = [{}, {"prompts": "0"}, {"of": "another format"}]
    for changed in changes:
        config.write_text(json.dumps(json.loads(config.read_text()) | changed))
        assert await played() == (2 if changed else 3)
        assert folder.with_name("000001-test.old").exists() == bool(changed)
    results.write_text("".join(reversed(results.read_text().splitlines(keepends=True))))
    model: Any = service
    [result] = await evaluator.play(PROBLEMS[:1], model, 1, folder)  # `eval_episodes` was lowered
    assert result.sample == 0
    assert len(results.read_text().splitlines()) == 2


async def test_the_order_in_which_episodes_end_changes_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(tmp_path, PROBLEMS[:1])
    evaluator = Evaluator(plan.options, {"test": PROBLEMS}, plan.env_config(tmp_path), tmp_path, Progress(1))
    passed = [(f"{problem}", (3 * problem) % 7 < sample + 2) for problem in range(40) for sample in range(2)]
    results = [SimpleNamespace(problem_id=id, passed=ok, score=SimpleNamespace(reward=0.0)) for id, ok in passed]
    found = []
    for seed in range(8):
        order = random.Random(seed).sample(results, len(results))

        async def play(*_: Any, order: list[Any] = order) -> list[Any]:
            return order

        monkeypatch.setattr(Evaluator, "play", play)
        model: Any = None
        figures = await evaluator(model, 1)
        found.append([figures[f"test/{name}"] for name in ("pass_rate", "pass_rate_low", "pass_rate_high")])
    assert found == found[:1] * 8


class Away(GivesUp):
    """Does not answer the first `failures` requests of evaluations, or refuses them (None: every second one)."""

    failures: int = 2
    refuses: bool | None = False

    async def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
        if sampling_params.seed not in self.training and self.failures:
            self.failures -= 1
            refuses = self.failures % 2 == 0 if self.refuses is None else self.refuses
            raise RequestRefused("no") if refuses else ServiceError("away")
        return await super().sample(prompt, num_samples, sampling_params)


@pytest.mark.docker
async def test_an_evaluation_without_any_verdict_is_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollouts, "STEP_EPISODES", STEP_EPISODES._replace(attempts=2, first=0.0))
    options = ("num_steps=1", "kl_penalty_coef=0", "teacher_model=none", "baseline=none", "rollout_retries=0")

    def planned_in(folder: str) -> Plan:
        return make_plan(tmp_path / folder, PROBLEMS[:1], *options, held_out=PROBLEMS[1:3])

    service = Away([[f"Done.{END}"]])
    [row] = (await run(planned_in("once"), service)).metrics()
    assert (row["test_before/episodes"], row["test/episodes"]) == (2.0, 2.0)
    for refuses, asked in ((False, 4), (True, 2), (None, 4)):
        service = Away([[f"Done.{END}"]])
        service.failures, service.refuses = 100, refuses
        with pytest.raises(ServiceError, match=r"no episode of the evaluation has a verdict; .*: (away|no)") as raised:
            await run(planned_in(str(refuses)), service)
        assert 100 - service.failures == asked
        assert isinstance(raised.value, RequestRefused) == (refuses is True)


class Solves(Scripted):
    """Writes the reference solution of one problem in every episode."""

    def __init__(self, problem: Problem) -> None:
        super().__init__([[solution(problem)]])
        self.written = self.texts[next(iter(self.texts))]

    async def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
        done = self.written in decode(prompt.to_ints())
        self.texts[sampling_params.seed] = f"Done.{END}" if done else self.written
        return await super().sample(prompt, num_samples, sampling_params)


@pytest.mark.docker
async def test_without_hidden_tests_in_training_evaluations_have_official_verdicts(tmp_path: Path) -> None:
    solved, other = PROBLEMS[:2]
    options = (f"num_steps={STEPS}", "kl_penalty_coef=0", "teacher_model=none", "baseline=none", "reward=proxy")
    plan = make_plan(tmp_path, [other], *options, held_out=[solved])
    first, last = (await run(plan, Solves(solved))).metrics()
    assert "pass_rate" not in first  # nothing was tested, which is not the same as that nothing passed
    assert last["env/all/reward/total"] < 1
    assert (first["test_before/pass_rate"], last["test/pass_rate"], last["test/reward"]) == (1.0, 1.0, 1.4)
    with pytest.raises(UsageError, match=r"curriculum: pass_rate needs the verdicts"):
        make_plan(tmp_path, [other], *options, "curriculum=pass_rate")

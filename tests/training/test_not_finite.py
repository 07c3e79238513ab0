"""Numbers that are NaN or infinite: unknown where they come in, and never trained on, sampled from or saved."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.errors import NotFinite, UsageError, exit_code
from rtl_agent_gym.evaluation.export import ExportConfig, export_rows
from rtl_agent_gym.training import launch
from rtl_agent_gym.training.advantages import token_advantages
from rtl_agent_gym.training.launch import cause_of
from rtl_agent_gym.training.options import SftOptions, TrainOptions
from rtl_agent_gym.training.run_folder import RunFolder
from rtl_agent_gym.training.sft.data import read_demonstrations
from rtl_agent_gym.training.teachers import Judgement, SameTokens, Sampled
from rtl_agent_gym.training.teachers.cross import Group, ImplicitAnswer
from rtl_agent_gym.transcripts import read_transcript
from tests.cli.in_process import call
from tests.evaluation.recording import final_turn, record, score
from tests.training.common import differs, weights_of

torch = pytest.importorskip("torch")
tinker = pytest.importorskip("tinker")
pytest.importorskip("tinker_cookbook")

NAN, INF = math.nan, math.inf
BAD = [NAN, INF, -INF]


def strict(text: str) -> Any:
    """The value of a text that is JSON by the standard, which has no NaN."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in {text[:200]}")

    return json.loads(text, parse_constant=refuse)


# The teacher


@pytest.mark.parametrize("bad", BAD)
def test_an_unknown_kl_is_like_none(bad: float) -> None:
    for more in ({}, {"kl_clip": 3.0}, {"kl_budget": 4.0}, {"kl_discount_factor": 0.5}, {"control": "negated_kl"}):
        options = TrainOptions(reward_coef=0.0, kl_penalty_coef=1.0, **more)
        known, unknown = [1.0, 0.0, 2.0, 5.0, 7.0], [1.0, bad, 2.0, 5.0, 7.0]
        assert token_advantages([0.0] * 5, unknown, [1] * 5, options) == token_advantages(
            [0.0] * 5, known, [1] * 5, options
        )


@pytest.mark.parametrize("bad", BAD)
async def test_no_token_is_covered_whose_log_probability_is_not_finite(bad: float) -> None:
    class Sampler:
        async def compute_logprobs(self, prompt: Any) -> list[float | None]:
            return [None, -1.0, bad, None, -2.0]

    teacher = SameTokens(Sampler())  # type: ignore[arg-type]
    judged = await teacher.judge(Sampled("p", [1, 2, 3, 4, 5], [0, 1, 1, 1, 1], [0.0, -0.5, -0.5, -0.5, bad]))
    assert judged.kl == [0.0, 0.5, 0.0, 0.0, 0.0]
    assert judged.covered == [0.0, 1.0, 0.0, 0.0, 0.0]
    assert judged.not_finite == 2  # one by the teacher, one by the student; one is beyond the teacher's context


@pytest.mark.parametrize("bad", BAD)
async def test_no_token_of_a_teacher_is_learnt_where_one_of_them_is_not_finite(bad: float) -> None:
    class Sampler:
        context = 5

        async def sample(self, prompt: Any, *_: Any) -> Any:
            top = [None, [(8, -1.0), (9, -2.0)], [(8, -1.0), (9, bad)], None]
            values = [None, -1.0, -1.5, None]
            assert prompt.length == len(top), "one token less than the context, since one is sampled after it"
            return tinker.SampleResponse(
                sequences=[], _prompt_logprobs_list=values, _topk_prompt_logprobs_list=top,
            )  # fmt: skip

    teacher = SameTokens(Sampler(), top=2)  # type: ignore[arg-type]
    judged = await teacher.judge(Sampled("p", [1, 2, 3, 4, 5], [0, 1, 1, 1, 1], [0.0, -0.5, -0.5, -0.5, -0.5]))
    assert judged.top == [[], [(8, -1.0), (9, -2.0)], [], [], []]
    assert judged.covered == [0.0, 1.0, 1.0, 0.0, 0.0]


async def test_a_service_that_names_no_likely_tokens_is_refused() -> None:
    class Sampler:
        async def sample(self, *_: Any) -> Any:
            return tinker.SampleResponse(sequences=[], _prompt_logprobs_list=[None, -1.0])

    teacher = SameTokens(Sampler(), top=2)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"kl_top_k: .*use kl_top_k=0"):
        await teacher.judge(Sampled("p", [1, 2], [0, 1], [0.0, -0.5]))


def test_an_unknown_alternative_leaves_a_decision_unknown() -> None:
    answer = ImplicitAnswer(Group((0, 1), (0, 0)), Group((1, 2), (3, 4)), (7, 8))
    assert math.isnan(answer.logprob(-3.0, [NAN, -1.0]))
    assert math.isnan(answer.logprob(NAN, [-1.0, -2.0]))
    assert answer.logprob(-3.0, [-INF, math.log(0.25)]) == pytest.approx(math.log(0.75))  # impossible is no unknown


def damage(home: Path, row: int, *, tied: bool = True) -> None:
    """Set one weight of the teacher to NaN: of the embedding of a token."""
    import transformers

    model: Any = transformers.AutoModelForCausalLM.from_pretrained(home / "teacher")
    if not tied:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.model.embed_tokens.weight.detach().clone())
    with torch.no_grad():
        model.model.embed_tokens.weight[row, 0] = NAN
    model.save_pretrained(home / "teacher")


def finite(weights: dict[str, Any]) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in weights.values())


async def test_a_teacher_with_one_nan_teaches_only_what_it_knows(
    toy: Any, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = home / "played.log"
    await toy.run(home, "num_steps=1", f"log_path={home / 'before'}", faults=toy.Faults(log=log))
    firsts = [int(line.split()[0]) for line in log.read_text().splitlines()]
    damage(home, row=next(id_ for id_ in firsts if firsts.count(id_) == 1), tied=False)  # one episode has it
    capsys.readouterr()
    ran = await toy.run(home, "num_steps=3", "kl_clip=3", "kl_discount_factor=0.9", "kl_budget=50")
    assert finite(ran.weights)
    rows = [strict(line) for line in (ran.folder.path / "metrics.jsonl").read_text().splitlines()]
    assert (rows[0]["teacher_kl/covered"], rows[0]["teacher_kl/not_finite"]) == (0.75, 2)  # of four episodes of two
    assert all(math.isfinite(row["teacher_kl"]) for row in rows if row["teacher_kl/covered"])
    shown = " ".join(capsys.readouterr().err.split())
    assert "warning: step 1: the KL of 2 tokens is NaN or infinite, so it is unknown and left out step" in shown


async def test_a_teacher_that_knows_nothing_changes_nothing(
    toy: Any, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(home, row=7)  # which is also a row of the output layer, so that every probability is NaN
    ran = await toy.run(home, "num_steps=2", "reward_coef=0", "kl_clip=3")
    assert differs(ran.weights, weights_of(home / "student")) == 0
    for row in ran.folder.metrics():
        assert (row["teacher_kl/covered"], row["teacher_kl/not_finite"]) == (0.0, 8.0)
        assert "teacher_kl" not in row  # unknown is not 0
    assert "no token of this step has a KL" in " ".join(capsys.readouterr().err.split())


# What is sampled


@pytest.mark.sampled(1)
@pytest.mark.parametrize("bad", [NAN, -INF])
async def test_a_token_whose_log_probability_is_unknown_is_not_trained_on(
    toy: Any, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bad: float
) -> None:
    from rtl_agent_gym.policies.sampler import TokenSamplerPlayer
    from rtl_agent_gym.training import checkpointer

    sample, optimize, sent = TokenSamplerPlayer.sample, checkpointer.optimize, list[Any]()

    async def spoiled(self: Any, tokens: Any) -> Any:
        turn = await sample(self, tokens)
        assert turn is not None
        return replace(turn, logprobs=[bad]) if len(tokens) == len(toy.PROMPT) else turn

    async def recorded(trainer: Any, data: Any, *rest: Any) -> Any:
        sent.extend(data)
        return await optimize(trainer, data, *rest)

    monkeypatch.setattr(TokenSamplerPlayer, "sample", spoiled)
    monkeypatch.setattr(checkpointer, "optimize", recorded)
    ran = await toy.run(home, "num_steps=1", "group_size=2", "baseline=none")
    inputs = sent[0].loss_fn_inputs
    assert [value != 0 for value in inputs["advantages"].to_torch()] == [False, False, False, False, True]
    assert inputs["mask"].to_torch().tolist() == [0, 0, 0, 0, 1]
    assert inputs["logprobs"].to_torch()[2] == 0  # a service would compute NaN · 0
    assert finite(ran.weights)
    [row] = ran.folder.metrics()
    assert (row["rollouts/not_finite"], row["teacher_kl/not_finite"], row["teacher_kl/covered"]) == (2, 2, 0.5)
    assert math.isfinite(row["optim/entropy"])
    assert "2 sampled log-probabilities are NaN or infinite" in " ".join(capsys.readouterr().err.split())


# Rewards


@pytest.mark.sampled(1)
@pytest.mark.parametrize("bad", BAD)
async def test_a_reward_that_is_not_finite_ends_the_run_and_is_not_kept(
    toy: Any, home: Path, monkeypatch: pytest.MonkeyPatch, bad: float
) -> None:
    graded, number = toy.ToyEpisodes.graded, [0]

    def spoiled(self: Any, *rest: Any) -> Any:
        rollout = graded(self, *rest)
        number[0] += 1
        return replace(rollout, reward=bad) if number[0] == 3 else rollout

    with monkeypatch.context() as patch:
        patch.setattr(toy.ToyEpisodes, "graded", spoiled)
        with pytest.raises(ExceptionGroup) as raised:
            await toy.run(home, "num_steps=1")
    error = cause_of(raised.value)
    assert isinstance(error, UsageError)
    assert f"its reward is {bad}; it must be a finite number" in str(error)
    kept = (home / "run" / "episodes").glob("*.json")
    assert all(math.isfinite(json.loads(path.read_text())["reward"]) for path in kept)
    ran = await toy.run(home, "num_steps=1")  # mended, the same command goes on
    assert len(ran.folder.metrics()) == 1


async def test_a_step_whose_rewards_are_all_equal_is_told(
    toy: Any, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    graded, words = toy.ToyEpisodes.graded, "no episode's reward differs from its baseline"
    alone = ("num_steps=1", "group_size=6", "teacher_model=none", "kl_penalty_coef=0")
    with monkeypatch.context() as patch:  # the mean of six times 0.4 is not quite 0.4
        patch.setattr(toy.ToyEpisodes, "graded", lambda *given: replace(graded(*given), reward=0.4))
        await toy.run(home, *alone, f"log_path={home / 'equal'}")
    assert words in " ".join(capsys.readouterr().err.split())
    await toy.run(home, *alone, f"log_path={home / 'different'}")
    assert words not in " ".join(capsys.readouterr().err.split())


# Results: the loss, the gradient, the weights


async def test_a_gradient_that_is_not_finite_ends_the_run_at_its_last_checkpoint(
    toy: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rtl_agent_gym.engines.training import Training

    whole = await toy.run(home, "num_steps=4", f"log_path={home / 'whole'}")
    forward, calls = Training.forward, [0]

    def spoiled(self: Any, *rest: Any, **named: Any) -> Any:
        output = forward(self, *rest, **named)
        calls[0] += 1
        if calls[0] == 3:
            next(iter(self.gradients().values()))[0, 0] = NAN
        return output

    with monkeypatch.context() as patch:
        patch.setattr(Training, "forward", spoiled)
        with pytest.raises(ExceptionGroup) as raised:
            await toy.run(home, "num_steps=4")
    error = cause_of(raised.value)
    assert isinstance(error, NotFinite)
    folder = RunFolder(home / "run")
    last = folder.checkpoints()[-1]
    assert last["batch"] == 2
    assert str(error).startswith("step 3: the gradient is not finite (in model.embed_tokens.weight)")
    assert "the last checkpoint is of step 2. The same command may end here again; start another run" in str(error)
    assert str(error).endswith(f"from load_checkpoint_path={last['state_path']}")
    again = await toy.run(home, "num_steps=4")  # the cause is gone here: the checkpoint is as good as any
    assert differs(again.weights, whole.weights) < 1e-6
    assert [row["step"] for row in again.folder.metrics()] == [0, 1, 2, 3]


async def test_supervised_training_ends_at_its_last_checkpoint_too(
    toy: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rtl_agent_gym.engines.training import Training
    from tests.training.test_sft import train

    forward, calls = Training.forward, [0]

    def spoiled(self: Any, *rest: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == 3:
            next(self.module.parameters()).data[1, 0] = INF
        return forward(self, *rest, **named)

    monkeypatch.setattr(Training, "forward", spoiled)
    with pytest.raises(NotFinite, match=r"step 3: loss:sum is nan\. .* last checkpoint is of step 2\."):
        await train(home, home / "sft", toy)
    folder = RunFolder(home / "sft")
    assert len(folder.metrics()) == 2
    assert finite(weights_of(folder.checkpoints()[-1]["state_path"]))


async def test_validation_counts_only_tokens_whose_probability_is_known(
    toy: Any, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rtl_agent_gym.engines.requests import GuardedSampler
    from tests.training.test_sft import train

    once = {"epochs": 1, "batch_size": 20}
    compute, first = GuardedSampler.compute_logprobs, (await train(home, home / "whole", toy, **once)).metrics()[0]

    class Scored:
        def __init__(self, below: Any) -> None:
            self._below = below

        def __await__(self) -> Any:
            found = yield from self._below.__await__()
            return [NAN if place == 2 else None if place == 4 else value for place, value in enumerate(found)]

    monkeypatch.setattr(GuardedSampler, "compute_logprobs", lambda *given: Scored(compute(*given)))
    capsys.readouterr()
    row = (await train(home, home / "unknown", toy, **once)).metrics()[0]
    assert 0.5 * first["sft/val_nll_before"] < row["sft/val_nll_before"] < 2 * first["sft/val_nll_before"]
    assert "a token, without 6 of 18 tokens, whose probability is unknown" in " ".join(capsys.readouterr().err.split())


def datum(advantages: list[float], logprobs: list[float]) -> Any:
    size = len(advantages)
    inputs = {
        "target_tokens": torch.arange(size), "logprobs": torch.tensor(logprobs),
        "advantages": torch.tensor(advantages), "mask": torch.ones(size),
    }  # fmt: skip
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(list(range(1, size + 1))),
        loss_fn_inputs={name: tinker.TensorData.from_torch(values) for name, values in inputs.items()},
    )


@pytest.mark.parametrize("where", ["loss", "optimizer", "logprobs"])
async def test_a_services_loss_and_metrics_must_be_finite(where: str) -> None:
    from rtl_agent_gym.training.checkpointer import step_and_save

    def done(value: Any) -> Any:
        future = asyncio.get_running_loop().create_future()
        future.set_result(value)
        return future

    class Service:
        saved = 0

        def forward_backward(self, data: list[Any], loss_fn: str) -> Any:
            values = torch.tensor([NAN if where == "logprobs" else -1.0, -1.0])
            outputs = [{"logprobs": tinker.TensorData.from_torch(values)} for _ in data]
            metrics = {"loss:sum": NAN if where == "loss" else 1.0}
            return done(tinker.ForwardBackwardOutput(loss_fn_output_type="x", loss_fn_outputs=outputs, metrics=metrics))

        def optim_step(self, params: Any) -> Any:
            return done(tinker.types.OptimStepResponse(metrics={"norm": INF if where == "optimizer" else 1.0}))

        async def save_weights_and_get_sampling_client(self) -> Any:
            self.saved += 1

    service: Any = Service()
    named = {"loss": "loss:sum is nan", "optimizer": "optim/norm is inf", "logprobs": "optim/kl_sample_train_v1 is nan"}
    with pytest.raises(NotFinite, match=named[where]):
        await step_and_save(service, [datum([1.0, 1.0], [-1.0, -1.0])], TrainOptions(), 0)
    assert service.saved == 0


async def test_nothing_is_sent_whose_inputs_are_not_finite() -> None:
    from rtl_agent_gym.training.checkpointer import optimize

    with pytest.raises(NotFinite, match="an episode's advantages are not finite"):
        await optimize(None, [datum([1.0, INF], [-1.0, -1.0])], 1e-3, TrainOptions())  # type: ignore[arg-type]


def test_the_exit_code_is_that_of_work_that_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def diverged(*_: Any, **__: Any) -> Any:
        raise NotFinite("step 3: the gradient is not finite")

    assert exit_code(NotFinite("x")) == 1
    monkeypatch.setattr(launch, "train", diverged)
    assert launch.main([]) == 1
    assert capsys.readouterr().err == "error: step 3: the gradient is not finite\n"


# What is written


def test_metrics_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.add_checkpoint({"batch": 1, "state_path": "x"}, [{"step": 0, "good": 1.5, "nan": NAN, "inf": -INF}])
    for name in ("metrics.jsonl", "checkpoints.jsonl"):
        strict((tmp_path / name).read_text())
    assert folder.metrics() == [{"step": 0, "good": 1.5}]
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "good": 1.5, "old": NaN}\n')  # of an earlier version
    folder.repair()
    assert strict((tmp_path / "metrics.jsonl").read_text()) == {"step": 0, "good": 1.5}


def test_an_unknown_reward_is_not_enough(tmp_path: Path) -> None:
    turns = [final_turn(1, "Done.", token_ids=[5, 6], logprobs=[NAN, -0.2])]
    transcript = read_transcript(record(tmp_path, turns, graded=score(True, reward=NAN)))
    assert list(export_rows("tokens", [transcript], ExportConfig(min_reward=0.0))) == []
    [row] = export_rows("tokens", [transcript])
    assert row["turns"][0]["logprobs"] == [None, -0.2]
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"turns": [], "metadata": {"passed": True, "reward": NAN}}) + "\n")
    left: Any = {"too little reward": 0}
    options = SftOptions(episodes=(str(file),), min_reward=0.0, student_model="x")
    assert list(read_demonstrations(options, left)) == []
    assert left == {"too little reward": 1}


# Options


@pytest.mark.parametrize(
    "option",
    [
        "export . --min-reward=nan", "score --files . --timeout=inf", "eval --max-cost=-inf", "eval --max-cost=nan",
        "eval --canary-seconds=inf", "eval --temperature=nan", "eval --top-p=-inf", "eval --price-input=inf",
        "run --command-timeout=nan", "serve --idle-seconds=inf",
    ],
)  # fmt: skip
def test_a_commands_numbers_are_finite(option: str) -> None:
    done = call(*option.split(), COLUMNS="200")
    assert done.returncode == 2, done.stderr
    assert f"Invalid value for '{option.split()[-1].partition('=')[0]}'" in done.stderr


@pytest.mark.parametrize("bad", ["nan", "inf", "-inf"])
def test_a_runs_numbers_are_finite(bad: str) -> None:
    for options, given in ((TrainOptions, {}), (SftOptions, {"episodes": "x"})):
        fields = {field.alias or name: field for name, field in options.model_fields.items()}
        for name in options.names():
            if "float" in str(fields[name].annotation):
                with pytest.raises(UsageError, match=name):
                    options.build({**given, name: bad})
    value = bad.replace("nan", "NaN").replace("inf", "Infinity")
    with pytest.raises(UsageError, match=r"reward_weights.*finite number"):
        TrainOptions.build({"reward_weights": f'{{"tests": {value}}}'})


def test_other_numbers_are_finite() -> None:
    from rtl_agent_gym.envs.tinker_config import TinkerEnvConfig

    made: list[Callable[[float], Any]] = [
        lambda bad: ExportConfig(min_reward=bad),
        lambda bad: TinkerEnvConfig(overflow_reward=bad),
    ]
    for make in made:
        for bad in BAD:
            with pytest.raises(UsageError, match="must be a finite number"):
                make(bad)


@pytest.mark.parametrize("bad", BAD)
def test_a_token_whose_kl_is_unknown_has_no_targets(bad: float) -> None:
    """Its own probability would be missing among them."""
    judged = Judgement([0.5, bad], [1.0, 1.0], [[(1, -1.0)], [(2, -1.0)]])
    assert judged.top == [[(1, -1.0)], []]

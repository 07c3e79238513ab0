"""Supervised training: which tokens are trained on, from which recordings, and that a resumed run is the same run."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from rtl_agent_gym.demo.shipped import SMALL, shipped
from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.evaluation.export import ExportConfig, export_rows
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.renderers import ModelTurn, Renderer, ToolCall, get_renderer
from rtl_agent_gym.renderers.vocabularies import qwen3_tokenizer
from rtl_agent_gym.sandboxes.container import DockerSandboxes
from rtl_agent_gym.sandboxes.namespaces import NamespaceSandboxes
from rtl_agent_gym.training.launch import launch
from rtl_agent_gym.training.options import SftOptions
from rtl_agent_gym.training.plan import load_data, plan_sft
from rtl_agent_gym.training.run_folder import METRICS, RunFolder
from rtl_agent_gym.training.sft.data import (
    DemonstratedTurn,
    Demonstration,
    EncodedEpisode,
    SupervisedData,
    encode,
    read_demonstrations,
)
from rtl_agent_gym.transcripts import CommandRecord, TurnRecord, read_transcript
from tests.arbiter import ARBITER
from tests.evaluation.recording import record, score
from tests.training.common import begun, weights_of

torch = pytest.importorskip("torch")
pytest.importorskip("tinker_cookbook")

COMMANDS = (["ls rtl", "cat docs/a.md"], ["echo 'module a; endmodule' > rtl/a.sv"])
OUTPUTS = (["a.sv\n", "<|im_end|> is text here\n"], ["[no output, exit code 0]"])
MESSAGES = [
    {"role": "user", "content": "Count."},
    {"role": "assistant", "tool_calls": [{"function": {"name": "execute_bash", "arguments": '{"command": "ls"}'}}]},
    {"role": "tool", "content": "a"},
    {"role": "assistant", "content": "Done."},
]
"""An episode as `export` writes it."""


def sampled(renderer: Renderer) -> list[list[int]]:
    """The ids of three turns that a model sampled: they decode to its text, but are not how the text is encoded."""
    say = [*renderer.codec.encode(["I lo"]), *renderer.codec.encode(["ok."])]
    assert say != renderer.codec.encode(["I look."])
    calls = [renderer.turn_ids(ModelTurn("hm", "", tuple(map(ToolCall.of, commands)))) for commands in COMMANDS]
    return [say + calls[0], calls[1], renderer.turn_ids(ModelTurn("", "Done."))]


def recorded(folder: Path, renderer: Renderer, *, passed: bool = True, tokens: bool = True, **more: Any) -> Path:
    """A transcript with those turns."""
    turns = []
    for number, ids in enumerate(sampled(renderer), 1):
        commands, outputs = (COMMANDS[number - 1], OUTPUTS[number - 1]) if number <= len(COMMANDS) else ([], [])
        turns.append(
            TurnRecord(
                turn=number,
                completion=renderer.decode(ids),
                token_ids=ids if tokens else None,
                action="command" if commands else "final",
                commands=[
                    CommandRecord(command=command, exit_code=0, output=output)
                    for command, output in zip(commands, outputs, strict=True)
                ],
                observation=renderer.observation_text(outputs) if outputs else "",
            )
        )
    return record(folder, turns, graded=score(passed), system="You design.", **more)


def options(*episodes: Path, **more: Any) -> SftOptions:
    return SftOptions(episodes=tuple(map(str, episodes)), **more)


def read(*episodes: Path, **more: Any) -> tuple[list[Demonstration], Counter[str]]:
    left_out = Counter[str]()
    return list(read_demonstrations(options(*episodes, **more), left_out)), left_out


def exported(path: Path, transcript: Path, format: str, **config: Any) -> Path:
    rows = export_rows(format, [read_transcript(transcript)], ExportConfig(**config))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def trained_text(one: EncodedEpisode, renderer: Renderer) -> str:
    return renderer.decode([token for token, kept in zip(one.tokens, one.mask, strict=True) if kept])


@pytest.mark.parametrize("format", ["transcript", "tokens"])
def test_the_sampled_ids_are_trained_on_and_nothing_else(tmp_path: Path, qwen: Renderer, format: str) -> None:
    path = recorded(tmp_path, qwen)
    [one], left_out = read(path if format == "transcript" else exported(tmp_path / "e.jsonl", path, "tokens"))
    assert not left_out
    found = encode(one, qwen)
    assert found is not None
    assert found.exact
    first, second, last = sampled(qwen)
    prompt = qwen.initial_ids("You design.", "Count.")
    between = [qwen.observation_ids(OUTPUTS[0], first), qwen.observation_ids(OUTPUTS[1], second)]
    assert found.tokens == [*prompt, *first, *between[0], *second, *between[1], *last]
    runs = [(prompt, 0), (first, 1), (between[0], 0), (second, 1), (between[1], 0), (last, 1)]
    assert found.mask == [weight for ids, weight in runs for _ in ids]


def test_a_turn_that_spells_its_stop_token_is_trained_on(tmp_path: Path, qwen: Renderer) -> None:
    """Its text alone would be read as another turn, so a recording has the turn, too."""
    turns = read_transcript(recorded(tmp_path / "a", qwen)).turns
    turn = ModelTurn("hm", "No <|im_end|> yet.", tuple(map(ToolCall.of, COMMANDS[0])))
    ids = qwen.turn_ids(turn)
    turns[0] = turns[0].model_copy(update={"token_ids": ids, "completion": qwen.decode(ids), "native": turn})
    path = record(tmp_path / "b", turns, graded=score(True), system="You design.")
    [one], [same] = read(path)[0], read(exported(tmp_path / "e.jsonl", path, "tokens"))[0]
    found = [encode(one, qwen), encode(same, qwen)]
    assert found[0] is not None
    assert found[0].exact
    assert found == found[:1] * 2


def test_what_is_not_utf8_is_exported_as_it_was_recorded(tmp_path: Path, qwen: Renderer) -> None:
    """As lone surrogates: a call with them is malformed, and one with U+FFFD in their place would not be."""
    text = qwen.turn_text(ModelTurn(calls=(ToolCall.of("cat \udcf0"),)))
    turns = [
        TurnRecord(turn=1, completion=text, token_ids=[1], action="malformed", observation="Not valid UTF-8."),
        TurnRecord(turn=2, completion="Done \ud83d", token_ids=[2], action="final"),
    ]
    for some, problems, left in ((turns, 0, Counter({"malformed turns": 1})), (turns[1:], 1, Counter[str]())):
        path = record(tmp_path, some, graded=score(True))
        found, left_out = read(exported(tmp_path / "e.jsonl", path, "tokens"))
        assert (len(found), left_out) == (problems, left)


def test_an_export_for_chat_templates_is_read_as_one_for_openais_format(tmp_path: Path, qwen: Renderer) -> None:
    path = recorded(tmp_path, qwen)
    [one], [same] = (
        read(exported(tmp_path / f"{style}.jsonl", path, "sft", style=style))[0] for style in ("tools", "transformers")
    )
    assert one == same
    assert one.turns[0].turn.calls[0] == ToolCall.of(COMMANDS[0][0])


def test_the_loss_has_weight_on_the_sampled_targets_only(tmp_path: Path, qwen: Renderer) -> None:
    from rtl_agent_gym.training.loop import as_datum

    [one], _ = read(recorded(tmp_path, qwen))
    found = encode(one, qwen)
    assert found is not None
    inputs = as_datum(found).loss_fn_inputs
    targets, weights = inputs["target_tokens"].to_torch().tolist(), inputs["weights"].to_torch().tolist()
    assert [token for token, weight in zip(targets, weights, strict=True) if weight == 1] == [
        token for ids in sampled(qwen) for token in ids
    ]
    assert set(weights) == {0.0, 1.0}
    assert as_datum(found).model_input.to_ints() == found.tokens[:-1]


def test_text_is_rendered_in_the_students_dialect(tmp_path: Path, qwen: Renderer) -> None:
    [one], _ = read(exported(tmp_path / "e.jsonl", recorded(tmp_path, qwen), "sft"))
    found = encode(one, qwen)
    assert found is not None
    assert not found.exact
    assert "I look." in trained_text(found, qwen)
    assert found.tokens != encode(read(recorded(tmp_path, qwen))[0][0], qwen).tokens  # type: ignore[union-attr]
    ids = qwen.codec.control("<|im_end|>")
    assert sum(token == ids and kept for token, kept in zip(found.tokens, found.mask, strict=True)) == 3
    plain = get_renderer("qwen3_instruct", qwen3_tokenizer())
    for episode in (one, read(recorded(tmp_path, qwen))[0][0]):  # without the sampled ids, and with them
        without = encode(episode, plain)
        assert without is not None
        assert not without.exact
        assert "hm" not in trained_text(without, plain)


def test_a_dialect_with_one_call_a_turn_gets_one_output(tmp_path: Path, qwen: Renderer) -> None:
    harmony = get_renderer("gpt_oss")
    [one], _ = read(recorded(tmp_path, qwen))
    found = encode(one, harmony)
    assert found is not None
    assert not found.exact
    assert trained_text(found, harmony).count("<|call|>") == 2
    rest = harmony.decode([token for token, kept in zip(found.tokens, found.mask, strict=True) if not kept])
    assert rest.count("to=assistant") == 2
    assert "a.sv\n\n<|im_end|> is text here" in rest


def test_the_students_prompts_replace_the_recorded_ones(tmp_path: Path, qwen: Renderer) -> None:
    [one], _ = read(recorded(tmp_path, qwen))
    found = encode(one, qwen, "", "Short.")
    assert found is not None
    assert found.exact
    prompt = qwen.initial_ids("", "Short.")
    assert found.tokens[: len(prompt)] == prompt
    assert sum(found.mask) == sum(map(len, sampled(qwen)))


def test_ids_of_another_vocabulary_are_not_used(tmp_path: Path, qwen: Renderer) -> None:
    path = recorded(tmp_path, qwen)
    text = path.read_text().replace('"token_ids": [40', '"token_ids": [41')
    assert text != path.read_text()
    path.write_text(text)
    [one], _ = read(path)
    found = encode(one, qwen)
    assert found is not None
    assert not found.exact


def test_what_is_left_out_is_counted(tmp_path: Path, qwen: Renderer) -> None:
    good, failed = tmp_path / "good", tmp_path / "failed"
    recorded(good, qwen)
    recorded(failed, qwen, passed=False)
    (failed / "broken.jsonl").write_text('{"event": "header"}\n')
    found, left_out = read(good, failed)
    assert len(found) == 1
    assert left_out == {"did not pass": 1, "cannot be read": 1}
    assert len(read(good, failed, passed_only=False)[0]) == 2
    assert read(good, failed, passed_only=False, min_reward=1.0)[1]["too little reward"] == 1

    def data(*held_out: str, **more: Any) -> SupervisedData:
        return SupervisedData.read(options(good, **more), qwen, (None, None), held_out)

    assert data(max_trajectory_tokens=200).left_out == {"longer than 200 tokens": 1}
    assert not data(max_trajectory_tokens=data().longest).left_out
    assert data(env="single_turn").left_out == {"of another env": 1}
    [validation] = data(found[0].problem).validation
    assert validation.problem == found[0].problem
    assert not data(found[0].problem).train


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"messages": [{"role": "user", "content": "x"}], "tools": []}', "e.jsonl:1: has no message with the role"),
        ('{"messages": [{"role": "user"}, {"role": "assistant", "content": "x"}]}', "--style tools"),
        ('{"messages": 3, "tools": []}', "e.jsonl:1: messages: Input should be a valid list"),
        ('{"prompt": [], "chosen": [], "rejected": []}', "neither messages nor turns"),
        ('{"id": "x"}', "not a transcript"),
    ],
)
def test_a_file_that_is_something_else(tmp_path: Path, line: str, says: str) -> None:
    (tmp_path / "e.jsonl").write_text(line + "\n")
    with pytest.raises(UsageError, match=r"^episodes: ") as caught:
        read(tmp_path / "e.jsonl")
    assert says in str(caught.value)


def test_wrong_options(tmp_path: Path, qwen: Renderer, home: Path) -> None:
    student = {"engine": "local", "student_model": str(home / "student"), "renderer_name": "qwen3_instruct"}
    with pytest.raises(UsageError, match=r"^episodes: "):
        plan_sft(student)
    with pytest.raises(UsageError, match=r"^episodes: .*nowhere"):
        plan_sft({**student, "episodes": str(tmp_path / "nowhere")})
    with pytest.raises(UsageError, match=r"^teacher_model: "):
        plan_sft({**student, "teacher_model": "x"})
    failed = recorded(tmp_path / "f", qwen, passed=False)
    with pytest.raises(UsageError, match=r"^episodes: .*1 did not pass"):
        plan_sft({**student, "episodes": str(failed)})
    right = {**student, "episodes": str(recorded(tmp_path / "p", qwen))}
    assert plan_sft(right).warnings == ()
    [warning] = plan_sft({**right, "warmup_steps": "1"}).warnings
    assert warning == "warmup_steps: the run ends after 1 step, before the full learning_rate"


@pytest.mark.parametrize("evaluated", ["0", "2"])
def test_the_command_of_a_run_evaluates_the_problems_that_it_selects(
    tmp_path: Path, qwen: Renderer, home: Path, evaluated: str
) -> None:
    """Also without evaluations during the run, whose prompts therefore need not fit into its limits."""
    student = {"engine": "local", "student_model": str(home / "student"), "renderer_name": "qwen3_instruct"}
    source = {"episodes": str(recorded(tmp_path / "p", qwen)), "problem_ids": ARBITER, "eval_episodes": evaluated}
    plan = plan_sft({**student, **source})
    assert plan.evaluation_command("runs/final").endswith(f" --problem {ARBITER}")
    assert [problem.id for problem in plan.played()] == ([] if evaluated == "0" else [ARBITER])


def episodes(count: int) -> list[EncodedEpisode]:
    """Episodes in which the token after 3, 4 or 5 is always 10 more, with masks."""
    rng, found = random.Random(0), []
    for number in range(count):
        asked = [rng.choice([3, 4, 5]) for _ in range(6)]
        tokens = [1] + [token for one in asked for token in (one, one + 10)]
        found.append(EncodedEpisode(f"p{number}", tokens, [0] + [0, 1] * 6, exact=True))
    return found


class Stop(Exception):
    pass


async def train(
    home: Path, folder: Path, toy: Any, *, stop_after: int | None = None, service: Any = None, **more: Any
) -> RunFolder:
    """A supervised run of the toy student; with `stop_after`, it ends in the step after that one."""
    from rtl_agent_gym.envs.tinker_config import TinkerEnvConfig
    from rtl_agent_gym.training.loop import SupervisedLoop

    data = SupervisedData(episodes(20), episodes(23)[20:])
    made = SftOptions(
        **{"epochs": 2, "batch_size": 4, "learning_rate": 0.02, "eval_every": 4, "save_every": 0, **more},
        lora_rank=0, log_path=str(folder),
    )  # fmt: skip
    made = made.model_copy(update={"num_steps": data.steps(made.batch_size, made.epochs)})

    def on_metrics(_: dict[str, Any], step: int) -> None:
        if step == stop_after:
            raise Stop

    held_out = {"held_out": load_problems("bundled")[:1]}
    async with toy.opened(home, made, replaced=service) as checkpointer:
        evaluator = toy.ToyEvaluator(made, held_out, TinkerEnvConfig(), folder / "evaluations", checkpointer.progress)
        await SupervisedLoop(made, data, checkpointer, evaluator, checkpointer.progress, on_metrics).run()
    return RunFolder(folder)


async def test_it_learns_and_a_resumed_run_ends_with_the_same_weights(toy: Any, home: Path) -> None:
    complete = await train(home, home / "complete", toy)
    rows = complete.metrics()
    assert [row["step"] for row in rows] == list(range(10))
    assert rows[-1]["sft/nll"] < 0.5 * rows[0]["sft/nll"]
    assert rows[-1]["sft/val_nll"] < 0.5 * rows[0]["sft/val_nll_before"]
    assert [row["step"] for row in rows if "sft/val_nll" in row] == [3, 7, 9]
    assert [row["sft/epoch"] for row in rows[4::5]] == [1, 2]
    assert sum(name.endswith("pass_rate") for name in rows[0]) == 1  # before the first step
    assert sum(name.endswith("pass_rate") for name in rows[9]) == 1
    with pytest.raises(Stop):
        await train(home, home / "stopped", toy, stop_after=6)
    resumed = await train(home, home / "stopped", toy)
    expected, found = (weights_of(folder.checkpoints()[-1]["state_path"]) for folder in (complete, resumed))
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert [row["sft/nll"] for row in resumed.metrics()] == [row["sft/nll"] for row in rows]


async def test_every_episode_is_trained_on_once_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    shuffles, shuffle = list[int](), random.Random.shuffle

    def counted(self: random.Random, order: list[int]) -> None:
        shuffles.append(len(order))
        shuffle(self, order)

    monkeypatch.setattr(random.Random, "shuffle", counted)
    data = SupervisedData(episodes(7))
    assert data.steps(3, 2) == 5
    batches = [data.batch(step, 3, 2, seed=1) for step in range(5)]
    assert shuffles == [7, 7]  # one for each epoch, not for each episode
    assert [len(batch) for batch in batches] == [3, 3, 3, 3, 2]
    played = [one.problem for batch in batches for one in batch]
    assert set(Counter(played[:7]).values()) == set(Counter(played[7:]).values()) == {1}
    assert played[:7] != played[7:]
    orders = [list(range(7)), list(range(7))]
    for epoch, order in enumerate(orders):
        random.Random(f"1/{epoch}").shuffle(order)
    assert played == [f"p{number}" for order in orders for number in order]  # so a run of an earlier version goes on
    assert played != [one.problem for step in range(5) for one in data.batch(step, 3, 2, seed=2)]


async def test_the_service_gets_cross_entropy_with_the_mean_over_tokens(toy: Any, home: Path) -> None:
    from tests.training.scripted_run import Scripted

    class Service(Scripted):
        async def forward_backward(self, data: list[Any], loss_fn: str) -> Any:
            import tinker

            assert loss_fn == "cross_entropy"
            assert all(set(datum.loss_fn_inputs) == {"target_tokens", "weights"} for datum in data)
            self.data.append(data)
            outputs = [{"logprobs": tinker.TensorData(data=[-2.0] * 12, dtype="float32", shape=[12])} for _ in data]
            return tinker.ForwardBackwardOutput(loss_fn_output_type="x", loss_fn_outputs=outputs, metrics={})

        async def compute_logprobs(self, prompt: Any) -> list[float | None]:
            return [None] + [-1.0] * 12

    service = Service([])
    folder = await train(home, home / "run", toy, service=service, epochs=1, batch_size=10)
    for data in service.data:
        assert sum(float(one.loss_fn_inputs["weights"].to_torch().sum()) for one in data) == pytest.approx(1)
    rows = folder.metrics()
    assert [row["sft/nll"] for row in rows] == [2, 2]
    assert rows[-1]["sft/val_nll"] == 1


def test_a_digest_is_that_of_tokens_masks_and_their_use() -> None:
    some = [EncodedEpisode("p", [1, 2, token], [0, 1, kept], exact=True) for token in (3, 4) for kept in (0, 1)]
    lists = [([one], ()) for one in some] + [((), [some[0]]), (some[:2], ()), (some[:1], some[1:2])]
    assert len({SupervisedData(train, validation).digest for train, validation in lists}) == len(lists)


async def test_a_run_is_not_resumed_with_other_episodes(home: Path, qwen: Renderer, tmp_path: Path) -> None:
    student = {"engine": "local", "student_model": str(home / "student"), "renderer_name": "qwen3_instruct"}
    recorded(tmp_path / "e", qwen)
    given = {**student, "episodes": str(tmp_path / "e"), "log_path": str(tmp_path / "run")}
    for _ in range(2):
        begun(tmp_path / "run", plan_sft(given).record())
    (tmp_path / "run" / METRICS).touch()
    begun(tmp_path / "run", plan_sft(given | {"eval_episodes": 1}).record())
    recorded(tmp_path / "e", qwen)
    with pytest.raises(UsageError, match=r"^episodes_digest: "):
        begun(tmp_path / "run", plan_sft(given).record())


def test_episodes_longer_than_the_students_context_cost_no_earlier_run(
    tmp_path: Path, home: Path, qwen: Renderer
) -> None:
    recorded(tmp_path / "e", qwen)
    folder = begun(tmp_path / "run", steps=7)
    given = {"engine": "local", "student_model": str(home / "student"), "renderer_name": "qwen3_instruct"}
    given |= {"episodes": str(tmp_path / "e"), "log_path": str(folder.path), "behavior_if_log_dir_exists": "delete"}
    with pytest.raises(UsageError, match=r"^max_trajectory_tokens: an episode has \d+ tokens, and .* context is 64; "):
        launch(plan_sft(given))
    assert [record["batch"] for record in folder.checkpoints()] == [7]


def test_evaluations_without_a_sandbox_cost_no_earlier_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (DockerSandboxes, NamespaceSandboxes):
        monkeypatch.setattr(kind, "budget", AsyncMock(side_effect=UsageError("no sandbox here")))
    (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": MESSAGES, "tools": []}) + "\n")
    folder = begun(tmp_path / "run", steps=7)
    given = {"engine": "local", "episodes": str(tmp_path / "rows.jsonl"), "held_out": "family:registers?count=1"}
    given |= {"log_path": str(folder.path), "behavior_if_log_dir_exists": "delete"}
    with pytest.raises(UsageError, match="no sandbox here"):
        launch(plan_sft(given, recipes=[SMALL]))
    assert [record["batch"] for record in folder.checkpoints()] == [7]


def test_no_held_out_problem_is_trained_on(tmp_path: Path) -> None:
    """Of either option: those of `extra_held_out` are evaluated, too."""
    problems, path = load_problems("family:registers?count=6&seed=3"), tmp_path / "rows.jsonl"
    common = {"messages": MESSAGES, "tools": []}
    rows = [common | {"metadata": {"problem_id": problem.id, "passed": True}} for problem in problems]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = SftOptions(episodes=(str(path),), max_trajectory_tokens=4000)
    plan: Any = SimpleNamespace(
        student=str(shipped("student")), renderer="qwen3", system_prompt="", user_prompt=None,
        held_out=problems[:1], extra_held_out={"names": problems[1:3]},
    )  # fmt: skip
    trained = {episode.problem for episode in load_data(plan, options).train}
    assert trained == {problem.id for problem in problems[3:]}


@pytest.mark.parametrize(
    "turns",
    [
        [(ModelTurn("hm"), ())],  # says nothing
        [(ModelTurn(calls=(ToolCall("browse", '{"command": "ls"}'),)), ("a",)), (ModelTurn("", "Done."), ())],
        [(ModelTurn(calls=(ToolCall.of("ls"),)), ()), (ModelTurn("", "Done."), ())],  # its output is missing
    ],
)
def test_turns_that_an_episode_would_not_take_are_not_imitated(qwen: Renderer, turns: list[Any]) -> None:
    played = tuple(DemonstratedTurn(*turn) for turn in turns)
    assert encode(Demonstration("p", "", "s", "u", played), qwen) is None

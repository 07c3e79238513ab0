"""TRL: the environment and its reward function as the trainer calls them, and a step of GRPO."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import pickle
import subprocess
import sys
import time
from argparse import Namespace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("datasets")
from rtl_agent_gym.episodes.runtime import background_loop
from rtl_agent_gym.episodes.tools import tool_opening
from rtl_agent_gym.errors import SandboxError, UsageError
from rtl_agent_gym.integrations import trl as adapter
from rtl_agent_gym.integrations.session import OVER, ToolSession
from rtl_agent_gym.integrations.trl import FAULT, RTLEnvironment, make_dataset
from rtl_agent_gym.renderers import ModelTurn, ToolCall, get_renderer
from rtl_agent_gym.renderers.protocol import TOOL
from rtl_agent_gym.sandboxes import DockerSandboxes, budget
from rtl_agent_gym.sandboxes.client import OWNER_LABEL
from rtl_agent_gym.sandboxes.daemon import connect
from tests.integrations import drive
from tests.integrations.conformance import EXPECTED, RULES, gray, kill, scripts, solution
from tests.integrations.players import SessionPlayer
from tests.integrations.players_trl import TrlPlayer, call_tool, grade, sandbox_of

ROOT = Path(__file__).resolve().parents[2]
QUICK = {"machine fault"}
DONE = [{"role": "assistant", "content": "Done."}]


def containers(name: str) -> list[str]:
    """Containers whose name or owner has this text."""
    client = connect()
    try:
        found = client.containers.list(all=True, ignore_removed=True)
        return [str(one.name) for one in found if name in str(one.name) or name in one.labels.get(OWNER_LABEL, "")]
    finally:
        client.close()


@pytest.mark.docker
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in EXPECTED]
)
async def test_each_script_gets_the_verdict_of_a_session(name: str, tmp_path: Path) -> None:
    script = next(script for script in scripts() if script.name == name)
    before, played = drive.containers(), []
    for player in (SessionPlayer(), TrlPlayer()):
        (tmp_path / player.name).mkdir()
        played.append(await player.play(script, tmp_path / player.name))
    direct, there = played
    assert there == direct
    assert there.passed is EXPECTED[name]
    assert set(drive.containers()) <= set(before)


class TestDataset:
    def test_a_row_has_the_prompt_of_declared_tools(self) -> None:
        environment = partial(RTLEnvironment, [gray()], config=RULES)
        (row,) = make_dataset(environment)
        assert row == {"prompt": tool_opening(gray(), RULES).messages, "problem_id": gray().id}
        assert len(make_dataset()) > 10

    def test_a_source_is_loaded_by_its_name(self) -> None:
        (row,) = make_dataset(partial(RTLEnvironment, "family:registers?count=1&seed=3"))
        assert row["problem_id"]

    def test_rows_whose_answer_is_text_are_left_out(self) -> None:
        text = gray().model_copy(update={"id": "cvdp_agentic_text_0001", "category": 6, "harness": {}})
        with pytest.warns(UserWarning, match="1 of 2 problems cannot be scored here"):
            (row,) = make_dataset(partial(RTLEnvironment, [text, gray()]))
        assert row["problem_id"] == gray().id


class TestTool:
    def test_it_is_declared_as_everywhere(self) -> None:
        from transformers.utils import get_json_schema

        declared = get_json_schema(RTLEnvironment().execute_bash)
        del declared["function"]["return"]
        assert declared == TOOL

    def test_nothing_else_is_a_tool(self) -> None:
        methods = inspect.getmembers(RTLEnvironment, predicate=inspect.isfunction)
        assert {name for name, _ in methods if not name.startswith("_")} == {"reset", "execute_bash"}

    def test_it_travels_to_a_worker_and_opens_nothing(self) -> None:
        made = pickle.loads(pickle.dumps(partial(RTLEnvironment, [gray()], config=RULES)))()
        assert made.execute_bash(command="ls") == OVER


@pytest.mark.docker
class TestEpisodes:
    @pytest.mark.slow
    async def test_a_batch_starts_and_is_graded_in_parallel(self) -> None:
        environments = [RTLEnvironment([gray()], config=RULES) for _ in range(3)]
        for environment in environments:
            await asyncio.to_thread(environment.reset, problem_id=gray().id)
        assert not any(environment._started.done() for environment in environments)  # reset does not wait
        replies = [await asyncio.to_thread(call_tool, one, ToolCall.of("ls rtl")) for one in environments]
        assert len(set(replies)) == 1
        sandboxes = [sandbox_of(environment) for environment in environments]
        for call in solution():
            await asyncio.to_thread(call_tool, environments[0], call)
        kill(sandboxes[1])
        assert call_tool(environments[1], ToolCall.of("ls")) == FAULT
        assert call_tool(environments[1], ToolCall.of("ls")) == OVER
        numbers: dict[str, float] = {}
        begun = time.monotonic()
        completions = [DONE, DONE, [{"role": "assistant", "content": "", "tool_calls": [1]}]]
        rewards = await grade(environments, completions, log_metric=numbers.__setitem__)
        wall = time.monotonic() - begun
        assert rewards == [1.4, None, 0.4]
        assert (numbers["rtl/reward"], numbers["rtl/tests_passed"]) == (pytest.approx(0.9), 0.5)
        assert (numbers["rtl/faults"], numbers["rtl/stop/completed"]) == (pytest.approx(1 / 3), 0.5)
        assert wall < 2 * numbers["rtl/score_seconds"]
        client = connect()
        try:
            assert not {one.id for one in client.containers.list(all=True, ignore_removed=True)} & set(sandboxes)
        finally:
            client.close()
        with pytest.raises(UsageError, match="once, after reset"):
            await grade(environments, [DONE] * 3)

    async def test_a_sandbox_that_does_not_start_is_no_grade(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def fail(self: ToolSession) -> None:
            raise SandboxError("no sandbox starts")

        monkeypatch.setattr(ToolSession, "start", fail)
        environment = RTLEnvironment([gray()])
        await asyncio.to_thread(environment.reset, problem_id=gray().id)
        assert await asyncio.to_thread(call_tool, environment, ToolCall.of("ls")) == FAULT
        assert await grade([environment], [DONE]) == [None]

    async def test_a_batch_without_memory_for_its_sandboxes_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(adapter, "usage", lambda: {"agent/capacity": 1.0 * adapter.RESERVED["agent"]})
        first, second = RTLEnvironment([gray()]), RTLEnvironment([gray()])
        await asyncio.to_thread(first.reset, problem_id=gray().id)
        with pytest.raises(UsageError, match="there is memory for 1: lower"):
            await asyncio.to_thread(second.reset, problem_id=gray().id)
        await asyncio.to_thread(first.reset, problem_id=gray().id)  # its own sandbox is not another one
        await asyncio.to_thread(adapter.run_sync, first._end())

    async def test_the_memory_is_known_before_the_first_sandbox(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def unconnected() -> dict[str, float]:
            return budget.usage() if connected else {}

        async def known(provider: DockerSandboxes) -> budget.Budget:
            connected.append(provider)
            return await ask(provider)

        connected: list[DockerSandboxes] = []
        ask = DockerSandboxes.budget
        monkeypatch.setattr(DockerSandboxes, "budget", known)
        monkeypatch.setattr(adapter, "usage", unconnected)
        monkeypatch.setattr(adapter, "_open", set(range(1 << 16)))  # as if so many were open
        with pytest.raises(UsageError, match=r"there is memory for \d+: lower"):
            await asyncio.to_thread(RTLEnvironment([gray()]).reset, problem_id=gray().id)

    async def test_the_start_outlives_a_tool_that_is_cancelled(self) -> None:
        environment = RTLEnvironment([gray()], config=RULES)
        await asyncio.to_thread(environment.reset, problem_id=gray().id)
        call = asyncio.run_coroutine_threadsafe(environment._play({"command": "ls"}), background_loop())
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.to_thread(environment.reset, problem_id=gray().id)
        assert "rtl" in await asyncio.to_thread(call_tool, environment, ToolCall.of("ls"))
        await asyncio.to_thread(adapter.run_sync, environment._end())

    def test_wrong_rows_end_training(self) -> None:
        with pytest.raises(UsageError, match="no problem 'nosuch'"):
            RTLEnvironment([gray()]).reset(problem_id="nosuch")

    def test_no_container_outlives_the_process(self) -> None:
        program = (
            "from rtl_agent_gym.integrations.trl import RTLEnvironment; import os\n"
            f"one = RTLEnvironment(); one.reset(problem_id={gray().id!r})\n"
            "print(os.getpid(), one.execute_bash(command='echo begun'))"
        )
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        number, begun = done.stdout.split()
        assert begun == "begun"
        for _ in range(60):
            if not containers(f"-{number}-"):
                break
            time.sleep(1)
        assert not containers(f"-{number}-")


END = "<|im_end|>"


def tiny() -> tuple[Any, Any]:
    """A random Qwen3 of a few thousand weights, and the shipped tokenizer with Qwen3's own chat template."""
    import torch
    import transformers

    from rtl_agent_gym.demo.shipped import shipped

    library: Any = transformers
    tokenizer = library.AutoTokenizer.from_pretrained(shipped("student"))
    spec = importlib.util.find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    tokenizer.chat_template = (Path(spec.origin).parent / "chat_templates" / "qwen3.jinja").read_text()
    torch.manual_seed(0)
    config = library.Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=32768, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    return library.Qwen3ForCausalLM(config), tokenizer


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_step_of_grpo_trains_on_the_ids_that_were_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    spec = importlib.util.spec_from_file_location("grpo_trl", ROOT / "examples" / "grpo_trl.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    model, tokenizer = tiny()
    renderer = get_renderer("qwen3_disable_thinking")
    look, other, solve = (ToolCall.of("ls rtl docs"),), (ToolCall.of("ls docs"),), solution()
    played = [[look, solve, "The first."], ["The second."], [other, look, "The third."], [solve, "The fourth."]]
    fault_in = 2
    texts = [
        [said if isinstance(said, str) else renderer.turn_text(ModelTurn(calls=said)) for said in one] for one in played
    ]
    scripted = [[tokenizer.encode(text + END, add_special_tokens=False) for text in one] for one in texts]

    class Scripted(example.GRPOTrainer):  # type: ignore[misc, name-defined]
        """Samples what is scripted, and ends a container before the third episode's second turn."""

        def _generate_single_turn(self, prompt_ids: list[list[int]], *_: Any, **__: Any) -> tuple[Any, None]:
            if not hasattr(self, "texts"):
                self.texts = [(list(prompt), list[int]()) for prompt in prompt_ids]
                self.turns, live = [0] * len(prompt_ids), range(len(prompt_ids))
            else:
                live = [self._row(prompt) for prompt in prompt_ids]
            sampled = []
            for row, prompt in zip(live, prompt_ids, strict=True):
                ids = scripted[row][self.turns[row]]
                if row == fault_in and self.turns[row] == 1:
                    kill(sandbox_of(self.environments[row]))
                self.turns[row] += 1
                _, positions = self.texts[row]
                positions += range(len(prompt), len(prompt) + len(ids))
                self.texts[row] = ([*prompt, *ids], positions)
                sampled.append(ids)
            return sampled, None

        def _row(self, prompt: list[int]) -> int:
            """The episode whose prompt and sampled ids are the beginning of this prompt."""
            (row,) = [
                row
                for row, (ids, _) in enumerate(self.texts)
                if prompt[: len(ids)] == ids and len(prompt) > len(ids) and self.turns[row] < len(scripted[row])
            ] or [None]
            assert row is not None, "a prompt is not the one before, the sampled ids, and more"
            return row

        def _generate(self, prompts: Any) -> Any:
            self.made = super()._generate(prompts)
            return self.made

        def _calculate_rewards(self, *arguments: Any) -> Any:
            self.rewards = super()._calculate_rewards(*arguments)
            return self.rewards

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            self.scored = super()._generate_and_score_completions(inputs)
            return self.scored

    options = Namespace(
        model=model, problems=[gray()], group=4, max_turns=6, max_tokens=20000, steps=1, learning_rate=1e-2,
        out=str(tmp_path),
    )  # fmt: skip
    trainer = example.make_trainer(
        options, Scripted, processing_class=tokenizer, use_cpu=True, bf16=False, save_strategy="no", disable_tqdm=True
    )
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    trainer.train()

    prompt_ids, completion_ids, mask, completions, *_ = trainer.made
    for row in range(4):
        ids, positions = trainer.texts[row]
        assert prompt_ids[row] + completion_ids[row] == ids
        offset = len(prompt_ids[row])
        assert [offset + place for place, one in enumerate(mask[row]) if one] == positions
        assert [ids[place] for place in positions] == list(chain.from_iterable(scripted[row]))
    outputs = [message["content"] for message in completions[0] if message["role"] == "tool"]
    assert len(outputs) == 1 + len(solve)
    assert "rtl:" in outputs[0]
    assert completions[fault_in][3]["content"] == FAULT
    rewards = trainer.rewards[:, 0].tolist()
    assert rewards[:2] + rewards[3:] == [pytest.approx(1.4), pytest.approx(0.4), pytest.approx(1.4)]
    assert rewards[fault_in] != rewards[fault_in]  # not a number: left out
    advantages = trainer.scored["advantages"].flatten().tolist()
    assert advantages[fault_in] == 0.0
    assert advantages[0] > 0 > advantages[1]
    log = next(entry for entry in trainer.state.log_history if "reward" in entry)
    assert log["reward"] == pytest.approx((1.4 + 0.4 + 1.4) / 3)
    assert (log["rtl/faults"], log["rtl/tests_passed"]) == (0.25, pytest.approx(2 / 3))
    assert log["tools/failure_frequency"] == 0.0
    assert log["grad_norm"] > 0
    assert any((weight != before[name]).any() for name, weight in model.named_parameters())

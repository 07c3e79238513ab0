"""TRL: the environment and its reward function as the trainer calls them, and a step of GRPO."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import pickle
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from rtl_agent_gym.episodes.episode import Episode
from rtl_agent_gym.episodes.prompt import tool_opening
from rtl_agent_gym.episodes.rules import EpisodeConfig
from rtl_agent_gym.episodes.runtime import background_loop, run_sync
from rtl_agent_gym.errors import SandboxError, UsageError
from rtl_agent_gym.integrations import session as shared
from rtl_agent_gym.integrations import trl as adapter
from rtl_agent_gym.integrations.session import FAULT, OVER, Result, ToolSession
from rtl_agent_gym.integrations.trl import RTLEnvironment, hidden_tests, make_dataset
from rtl_agent_gym.renderers import ToolCall
from rtl_agent_gym.renderers.protocol import TOOL
from rtl_agent_gym.sandboxes import admission
from rtl_agent_gym.sandboxes.choice import make_provider
from rtl_agent_gym.scoring import Score
from tests.integrations.conformance import EXPECTED, RULES, Script, gray, scripts, solution
from tests.integrations.ecosystem import ROOT, importable
from tests.integrations.players import SessionPlayer, check_equal
from tests.integrations.players_trl import TrlPlayer
from tests.integrations.table import recorded
from tests.sandboxes.providers import containers, kill, owned, running
from tests.waiting import until

importable("trl", "datasets")
QUICK = {"machine fault"}
DONE = [{"role": "assistant", "content": "Done."}]


def call_tool(environment: RTLEnvironment, call: ToolCall) -> str:
    """Call the tool as TRL does, which has read the call's arguments."""
    return str(getattr(environment, call.name)(**json.loads(call.arguments)))


def sandbox_of(environment: RTLEnvironment) -> str:
    """The container of an environment whose sandbox has started."""
    assert environment._session is not None
    return environment._session.episode.sandbox.id


async def grade(environments: Sequence[RTLEnvironment], completions: Sequence[Any], **more: Any) -> list[float | None]:
    """What the reward function returns in a loop of its own, as TRL has one."""
    rewards = hidden_tests(completions=completions, environments=environments, problem_id=[], **more)
    return await asyncio.to_thread(asyncio.run, rewards)


@pytest.mark.docker
@pytest.mark.slow  # the same scripts are played with Gymnasium and the cookbook by test_conformance
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("names", [QUICK, EXPECTED.keys() - QUICK])
async def test_scripts_get_the_verdicts_of_a_session(names: Collection[str], tmp_path: Path) -> None:
    chosen, before = [script for script in scripts() if script.name in names], owned(every=True)
    with recorded("TRL", names) as notes:
        played = await TrlPlayer().play_all(chosen, tmp_path / "there")
        for script in chosen:
            (tmp_path / script.name).mkdir()
            direct = await SessionPlayer().play(script, tmp_path / script.name)
            check_equal(script.name, played[script.name], direct)
            notes.add(script.name, direct, observations=True, tokens=True)  # tokens: `ScriptedTrainer.check_tokens`
        assert owned(every=True) <= before


class TestDataset:
    def test_a_row_has_the_prompt_of_declared_tools(self) -> None:
        environment = partial(RTLEnvironment, [gray()], config=RULES)
        (row,) = make_dataset(environment)
        assert row == {"prompt": tool_opening(gray(), RULES).messages, "problem_id": gray().id}
        assert len(make_dataset()) > 10

    def test_a_source_is_loaded_by_its_name(self) -> None:
        (row,) = make_dataset(partial(RTLEnvironment, "family:registers?count=1&seed=3"))
        assert row["problem_id"]

    def test_an_answer_has_no_tool(self) -> None:
        environment = partial(RTLEnvironment, [gray()], config=EpisodeConfig(workspace="answer"))
        with pytest.raises(UsageError, match="tool calls need the workspace 'shell', not 'answer'"):
            make_dataset(environment)

    def test_rows_whose_answer_is_text_are_left_out(self) -> None:
        text = gray().model_copy(update={"id": "cvdp_agentic_text_0001", "category": 6, "harness": {}})
        with pytest.warns(UserWarning, match="1 of 2 problems cannot be scored here"):
            (row,) = make_dataset(partial(RTLEnvironment, [text, gray()]))
        assert row["problem_id"] == gray().id


class TestTool:
    def test_it_is_declared_as_everywhere(self) -> None:
        from transformers.utils.chat_template_utils import get_json_schema

        declared = get_json_schema(RTLEnvironment().execute_bash)
        del declared["function"]["return"]
        assert declared == TOOL

    @pytest.mark.parametrize("name", ["self", "comand", "arguments"])
    def test_whatever_the_model_calls_its_argument(self, name: str) -> None:
        assert RTLEnvironment().execute_bash(**{name: "ls"}) == OVER

    def test_nothing_else_is_a_tool(self) -> None:
        methods = inspect.getmembers(RTLEnvironment, predicate=inspect.isfunction)
        assert {name for name, _ in methods if not name.startswith("_")} == {"reset", "execute_bash"}

    def test_it_travels_to_a_worker_and_opens_nothing(self) -> None:
        made = pickle.loads(pickle.dumps(partial(RTLEnvironment, [gray()], config=RULES)))()
        assert made.execute_bash(command="ls") == OVER


async def test_the_reward_of_each_episode_is_given_and_means_are_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    async def graded(self: RTLEnvironment, completion: Result | None) -> Result | None:
        return completion

    monkeypatch.setattr(RTLEnvironment, "_grade", graded)
    score, numbers = Score(passed=False), dict[str, float]()
    results = [
        Result(score, "completed", {"reward": 0.4, "tests_passed": 0.0}),
        Result(score, "completed", {"reward": 1.4, "tests_passed": 1.0}),
        None,
    ]
    assert await grade([RTLEnvironment([gray()])] * 3, results, log_metric=numbers.__setitem__) == [0.4, 1.4, None]
    assert numbers == pytest.approx({"rtl/reward": 0.9, "rtl/tests_passed": 0.5, "rtl/faults": 1 / 3})


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
        assert not containers(all=True) & set(sandboxes)
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
        """The processes of a machine share its memory."""
        monkeypatch.setattr(shared, "usage", lambda: {"agent/capacity": 8.0 * admission.RESERVED["agent"]})
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
        monkeypatch.delenv(admission.VARIABLE, raising=False)
        first, second = RTLEnvironment([gray()]), RTLEnvironment([gray()])
        await asyncio.to_thread(first.reset, problem_id=gray().id)
        with pytest.raises(UsageError, match="there is memory for 1: lower"):
            await asyncio.to_thread(second.reset, problem_id=gray().id)
        await asyncio.to_thread(first.reset, problem_id=gray().id)  # its own sandbox is not another one
        await asyncio.to_thread(run_sync, first._end())

    async def test_the_memory_is_known_before_the_first_sandbox(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def unconnected() -> dict[str, float]:
            return admission.usage() if connected else {}

        async def known(provider: Any) -> admission.Budget:
            connected.append(provider)
            budget: admission.Budget = await ask(provider)
            return budget

        connected: list[object] = []
        made = type(make_provider())
        ask: Any = made.budget
        monkeypatch.setattr(made, "budget", known)
        monkeypatch.setattr(shared, "usage", unconnected)
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
        await asyncio.to_thread(run_sync, environment._end())

    async def test_a_start_that_waits_for_memory_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def wait(self: Episode) -> None:
            await asyncio.sleep(3600)

        monkeypatch.setattr(Episode, "start", wait)
        environment = RTLEnvironment([gray()])
        await asyncio.to_thread(environment.reset, problem_id=gray().id)
        ending = asyncio.run_coroutine_threadsafe(environment._end(), background_loop())
        await asyncio.wait_for(asyncio.wrap_future(ending), 60)

    @pytest.mark.parametrize(
        ("number", "limits", "sharing"),
        [("8", "", 8), ("8", "cpus=4", 8), ("8", "memory=24G,cpus=4", 1), ("eight", "", 1), ("0", "", 1), ("", "", 1)],
    )
    def test_a_process_with_a_limit_of_its_own_shares_no_memory(
        self, monkeypatch: pytest.MonkeyPatch, number: str, limits: str, sharing: int
    ) -> None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", number)
        monkeypatch.setenv(admission.VARIABLE, limits)
        assert adapter._processes() == sharing

    def test_rewards_of_turns_are_refused(self) -> None:
        with pytest.raises(UsageError, match=r"turn_rewards must be 'none', not 'files': .* TRL"):
            RTLEnvironment([gray()], config=EpisodeConfig(turn_rewards="files"))

    def test_wrong_rows_end_training(self) -> None:
        with pytest.raises(UsageError, match="no problem 'nosuch'"):
            RTLEnvironment([gray()]).reset(problem_id="nosuch")

    def test_no_container_outlives_the_process(self) -> None:
        program = (
            "from rtl_agent_gym.integrations.trl import RTLEnvironment; import os\n"
            "from tests.sandboxes.providers import owned\n"
            f"one = RTLEnvironment(); one.reset(problem_id={gray().id!r})\n"
            "print(os.getpid(), one.execute_bash(command='echo begun'), *owned())"
        )
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        number, begun, *sandboxes = done.stdout.split()
        assert (begun, len(sandboxes)) == ("begun", 1)
        assert until(lambda: not (owned(int(number), every=True) | running(set(sandboxes))))


def test_trl_and_accelerate_accept_the_run_for_8_gpus(tmp_path: Path) -> None:
    from accelerate.commands.config.config_args import load_config_from_file
    from trl import GRPOConfig

    settings = yaml.safe_load((ROOT / "examples/trl/grpo.yaml").read_text())
    cpu = {"bf16": False, "use_cpu": True, "output_dir": str(tmp_path)}
    config = GRPOConfig(**settings | cpu, num_generations=8, max_completion_length=28672)
    assert (config.use_vllm, config.vllm_mode, config.vllm_max_model_length) == (True, "colocate", 32768)
    machine = load_config_from_file(str(ROOT / "examples/trl/accelerate.yaml"))
    assert (machine.num_processes, machine.distributed_type) == (8, "FSDP")
    assert config.generation_batch_size * machine.num_processes == 16 * config.num_generations
    assert machine.fsdp_config["fsdp_version"] == 2


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_step_of_the_example_trains(tmp_path: Path) -> None:
    from tests.integrations.trl_trainer import ScriptedTrainer, tiny

    spec = importlib.util.spec_from_file_location("grpo_trl", ROOT / "examples" / "grpo_trl.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    model, tokenizer = tiny()
    look, other, solve = (ToolCall.of("ls rtl docs"),), (ToolCall.of("ls docs"),), solution()
    played = [
        Script("first", (look, solve, "The first.")),
        Script("second", ("The second.",)),
        Script("third", (other, look, "The third."), fault_in=2),
        Script("fourth", (solve, "The fourth.")),
    ]
    options = Namespace(
        model=model, problems=[gray()], rows="all", group=4, max_turns=6, max_tokens=20000, steps=1, learning_rate=1e-2,
        out=str(tmp_path),
    )  # fmt: skip
    trainer = example.make_trainer(
        options, partial(ScriptedTrainer, scripts=played), processing_class=tokenizer, use_cpu=True, bf16=False,
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    trainer.train()

    trainer.check_tokens()
    completions = trainer.made[3]
    outputs = [message["content"] for message in completions[0] if message["role"] == "tool"]
    assert len(outputs) == 1 + len(solve)
    assert "rtl:" in outputs[0]
    assert completions[2][3]["content"] == FAULT
    rewards = trainer.rewards[:, 0].tolist()
    assert rewards[:2] + rewards[3:] == [pytest.approx(1.4), pytest.approx(0.4), pytest.approx(1.4)]
    assert rewards[2] != rewards[2]  # not a number: left out
    advantages = trainer.scored["advantages"].flatten().tolist()
    assert advantages[2] == 0.0
    assert advantages[0] > 0 > advantages[1]
    log = next(entry for entry in trainer.state.log_history if "reward" in entry)
    assert log["reward"] == pytest.approx((1.4 + 0.4 + 1.4) / 3)
    assert (log["rtl/faults"], log["rtl/tests_passed"]) == (0.25, pytest.approx(2 / 3))
    assert log["tools/failure_frequency"] == 0.0
    assert log["grad_norm"] > 0
    assert any((weight != before[name]).any() for name, weight in model.named_parameters())

"""Plays scripts with verl's own worker, whose engine answers with the ids of the script; runs where verl is installed.

The worker, its configuration, its registry of agent loops, its padding and its batch are verl's. What stands in for a
GPU is `ScriptedEngine`, in the place of verl's client of the engine.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ray
import transfer_queue as tq
import verl
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen3_5Config, Qwen3Config
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
from verl.protocol import DataProto
from verl.trainer.ppo.metric_utils import process_validation_metrics
from verl.trainer.ppo.utils import create_rl_dataset, need_critic, need_reference_policy
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.utils.config import validate_config
from verl.utils.dataset.rl_dataset import collate_fn
from verl.utils.tensordict_utils import assign_non_tensor_data, get_tensordict
from verl.workers.rollout.replica import TokenOutput

from rtl_agent_gym.errors import SandboxError, UsageError
from rtl_agent_gym.integrations.verl import RTLAgentLoop, rows
from rtl_agent_gym.renderers import ModelTurn, get_renderer
from rtl_agent_gym.renderers.vocabularies import qwen3_5_tokenizer, qwen3_tokenizer
from tests.integrations.conformance import Played, Script, gray, in_short, rules_of
from tests.integrations.started import episodes
from tests.sandboxes.providers import kill

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "verl"
CONFIG = Path(str(verl.__file__)).parent / "trainer" / "config"
TOKENIZERS = {"qwen3": qwen3_tokenizer, "qwen3_5": qwen3_5_tokenizer}
QWEN = get_renderer("qwen3", qwen3_tokenizer())
END = "<|im_end|>"
USER, ASSISTANT = "\n<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
"""What stands before and after an observation among the tokens."""


class Attempt(NamedTuple):
    """What the engine read and sampled in an episode, turn by turn."""

    prompts: list[list[int]]
    sampled: list[list[int]]


class ScriptedEngine:
    """verl's client of the engine: answers each request with the ids of the next turn, as a model would sample them.

    Log-probabilities tell which token is meant: -0.001 times its place among all sampled ones. It is no dataclass,
    which hydra would take for a configuration.

    Args:
        script: What the model does.
        renderer: The name of its dialect.
        faults: In how many episodes the machine fails, if the script has a fault.
        stops: What the engine says of its first requests instead of having completed them.
    """

    def __init__(self, script: Script, renderer: str = "qwen3", *, faults: int = 1, stops: Sequence[str] = ()) -> None:
        self.script, self.renderer, self.faults, self.stops = script, renderer, faults, list(stops)
        self.parameters: list[dict[str, Any]] = []
        """Of each request."""
        self.attempts: dict[str, Attempt] = {}
        """By the id of the requests."""

    @property
    def last(self) -> Attempt:
        """Of the last episode that began."""
        return [*self.attempts.values()][-1]

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        self.parameters.append(sampling_params)
        prompts, sampled = self.attempts.setdefault(request_id, Attempt([], []))
        prompts.append(prompt_ids)
        if self.stops:
            return TokenOutput(token_ids=[], log_probs=[], stop_reason=self.stops.pop(0))
        if len(prompts) == self.script.fault_in and self.faults:
            self.faults -= 1
            kill(episodes[-1].sandbox)
        given, encoder = self.script.turns[len(prompts) - 1], TOKENIZERS[self.renderer]()
        turn = ModelTurn(text=given) if isinstance(given, str) else ModelTurn(calls=given)
        text = get_renderer(self.renderer).turn_text(turn)
        ids = encoder.encode(text + END, add_special_tokens=False).ids[: sampling_params["max_tokens"]]
        before = sum(map(len, sampled))
        sampled.append(ids)
        return TokenOutput(
            token_ids=ids,
            log_probs=[-0.001 * (before + place) for place in range(len(ids))],
            stop_reason="completed",
            num_preempted=1,
            extra_fields={"min_global_steps": len(prompts), "max_global_steps": len(prompts)},
        )


def model_folder(folder: Path, renderer: str) -> str:
    """A folder that verl reads a model's configuration and tokenizer from: its vocabulary, no weights."""
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=TOKENIZERS[renderer](), eos_token=END, pad_token="<|endoftext|>"
    )
    tokenizer.save_pretrained(folder)
    if renderer == "qwen3":
        Qwen3Config(architectures=["Qwen3ForCausalLM"]).save_pretrained(folder)
    else:
        Qwen3_5Config(architectures=["Qwen3_5ForConditionalGeneration"]).save_pretrained(folder)
    return str(folder)


def worker_config(folder: Path, loop: dict[str, Any], *overrides: str) -> DictConfig:
    """verl's configuration of a trainer, as its own command composes it, with an agent loop with these options."""
    place = folder / "agent_loop.yaml"
    OmegaConf.save(OmegaConf.create([{"name": "rtl", "_target_": TARGET, "renderer": "qwen3", **loop}]), place)
    with initialize_config_dir(config_dir=str(CONFIG), version_base=None):
        return compose(
            "ppo_trainer",
            [
                f"actor_rollout_ref.model.path={model_folder(folder / 'model', 'qwen3')}",
                "actor_rollout_ref.rollout.name=vllm",
                f"actor_rollout_ref.rollout.agent.agent_loop_config_path={place}",
                "data.max_prompt_length=4096",
                "data.max_response_length=8192",
                *overrides,
            ],
        )


TARGET = "rtl_agent_gym.integrations.verl.RTLAgentLoop"


def batch() -> DataProto:
    """The row of the scripts' problem as verl's data loader gives it to a worker."""
    (row,) = rows(ids=[gray().id])
    columns = {name: np.array([value], dtype=object) for name, value in row.items() if name != "prompt"}
    return DataProto(non_tensor_batch=columns | {"raw_prompt": np.array([row["prompt"]], dtype=object)})


def generated(
    script: Script, folder: Path, attempts: int, engine: ScriptedEngine, *overrides: str, **rules: Any
) -> DataProto:
    """What verl's worker makes of a script with more rules."""
    options = {"attempts": attempts, "rules": rules_of(script, folder / "transcripts") | rules}
    worker = AgentLoopWorker(worker_config(folder, options, *overrides), engine)
    return asyncio.run(worker.generate_sequences(batch()))


def play(script: Script, folder: Path, attempts: int = 1) -> Played:
    """Play it in this process. The tokens are checked: see `check_tokens`."""
    engine = ScriptedEngine(script)
    try:
        made = generated(script, folder, attempts, engine)
    except SandboxError:
        return Played(None, None, observations(engine))
    check_tokens(made, engine)
    row = {name: values[0] for name, values in made.non_tensor_batch.items()}
    reward = round(made.batch["rm_scores"].sum().item(), 6)  # a float of 32 bits
    numbers = {"submissions": 0.0, "progress_reward": 0.0} | row["numbers"]
    whole = isinstance(script.turns[-1], str)  # the model does not read the output of the last turn
    assert made.non_tensor_batch["__num_turns__"].tolist() == [2 * len(engine.last.sampled)]
    assert (row["min_global_steps"], row["max_global_steps"]) == (1, len(engine.last.sampled))
    return Played(reward, bool(row["tests_passed"]), observations(engine) if whole else None, numbers)


def check_tokens(made: DataProto, engine: ScriptedEngine) -> None:
    """The batch must hold exactly the ids that the engine read and sampled, and the latter's log-probabilities.

    So must each request: its prompt is the one before, the sampled ids, and what was appended to them.
    """
    prompts, every = engine.last
    for before, ids, after in zip(prompts, every, prompts[1:], strict=False):
        assert after[: len(before) + len(ids)] == before + ids
        assert len(after) > len(before) + len(ids)
    data = made.batch
    width = data["prompts"].shape[1]
    valid = data["attention_mask"][0].bool()
    first, whole = prompts[0], prompts[-1] + every[-1]
    assert data["input_ids"][0][valid].tolist() == whole
    assert data["prompts"][0][valid[:width]].tolist() == first
    length = len(whole) - len(first)
    assert valid[width:].tolist() == [place < length for place in range(data["responses"].shape[1])]
    mask, wanted = data["response_mask"][0].tolist(), [0] * data["responses"].shape[1]
    for before, ids in zip(prompts, every, strict=True):
        begin = len(before) - len(first)
        wanted[begin : begin + len(ids)] = [1] * len(ids)
    assert mask == wanted
    logprobs = [round(value, 6) for value in data["rollout_log_probs"][0].tolist()]
    sampled = iter(range(len(mask)))
    assert logprobs == [round(-0.001 * next(sampled), 6) if one else 0.0 for one in mask]
    assert data["rm_scores"][0].nonzero().tolist() == [[length - 1]]


def observations(engine: ScriptedEngine) -> tuple[str, ...]:
    """What the model read after each turn with calls, from the tokens."""
    found = []
    prompts, sampled = engine.last
    for given, before, ids, after in zip(engine.script.turns, prompts, sampled, prompts[1:], strict=False):
        if not isinstance(given, str):
            text = QWEN.decode(after[len(before) + len(ids) :]).removeprefix(USER).removesuffix(ASSISTANT)
            found.append(in_short("\n".join(QWEN.read_observation(text, len(given)))))
    return tuple(found)


def repeated(script: Script, folder: Path, attempts: int, stops: Sequence[str] = ()) -> dict[str, Any]:
    """A script in `attempts`, of which the first has a fault, of the machine or of the engine."""
    engine = ScriptedEngine(script, stops=stops)
    try:
        made = generated(script, folder, attempts, engine)
    except SandboxError as error:
        return {"error": type(error).__name__, "episodes": len(engine.attempts)}
    check_tokens(made, engine)
    return {"reward": round(made.batch["rm_scores"].sum().item(), 6), "episodes": len(engine.attempts)}


def divided(script: Script, folder: Path) -> dict[str, Any]:
    """The rewards of a script's turns, and their sum as verl has it."""
    rules = {"turn_rewards": "files", "turn_grading_time": None}
    made = generated(script, folder, 1, ScriptedEngine(script), **rules)
    reward = round(made.batch["rm_scores"].sum().item(), 6)
    return {"turns": made.non_tensor_batch["turn_scores"][0], "reward": reward}


def limited(script: Script, folder: Path, response_length: int, most: int | None = None) -> dict[str, Any]:
    """A script whose episode may have so many tokens behind its prompt, and `most` in all."""
    engine, length = ScriptedEngine(script), f"data.max_response_length={response_length}"
    made = generated(script, folder, 1, engine, length, max_trajectory_tokens=most)
    check_tokens(made, engine)
    row = made.non_tensor_batch
    return {
        "numbers": row["numbers"][0],
        "width": made.batch["responses"].shape[1],
        "asked": [one["max_tokens"] for one in engine.parameters],
        "read": [len(prompt) for prompt in engine.last.prompts],
        "appended": [len(after) - len(before) for before, after in pairwise(engine.last.prompts)],
        "stop": [one["stop_token_ids"] for one in engine.parameters],
    }


def cramped(script: Script, folder: Path) -> str:
    """What is said if a response may have fewer tokens than a turn needs."""
    engine = ScriptedEngine(script)
    try:
        generated(script, folder, 1, engine, "data.max_response_length=100")
    except UsageError as error:
        assert not engine.attempts
        return str(error)
    return ""


def refused() -> str:
    """What a row of another data set is told."""
    loop = object.__new__(RTLAgentLoop)
    try:
        asyncio.run(loop.run({}, extra_info={"index": 0}))
    except UsageError as error:
        return str(error)
    return ""


def run_config(folder: Path, *overrides: str) -> DictConfig:
    """The configuration of examples/verl/run.sh, as verl's command composes it, and checked by verl.

    The model's weights, which are not here, are left out: `folder` has its vocabulary and the kind of its
    configuration.
    """
    with initialize_config_dir(config_dir=str(EXAMPLE), version_base=None):
        config = compose(
            "qwen3_5_9b",
            [
                f"data.train_files={folder}/train.jsonl",
                f"data.val_files={folder}/val.jsonl",
                f"actor_rollout_ref.rollout.agent.agent_loop_config_path={EXAMPLE}/agent_loop.yaml",
                f"actor_rollout_ref.model.path={model_folder(folder / 'model', 'qwen3_5')}",
                *overrides,
            ],
        )
    validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    return config


def validated(infos: list[dict[str, float]], expected: int) -> Any:
    """verl's metrics of a validation in which a problem's expected episodes gave these infos."""
    values = {name: [info[name] for info in infos] for name in infos[0]}
    sources, problems = ["rtl_agent_gym"] * len(infos), ["one"] * len(infos)
    return process_validation_metrics(
        sources, problems, values, expected_acc_counts={("rtl_agent_gym", "one"): expected}
    )


def trained(script: Script, folder: Path, group: int) -> dict[str, Any]:
    """What verl's trainer has of a step with one problem, up to the advantages, which it would compute next.

    Data set, data loader's collation, manager, worker (in a process of Ray), queue and replay buffer are verl's, with
    the configuration of examples/verl. A fault of the script is in one episode of the group, whose loop then gives up.
    """
    subprocess.run(
        [sys.executable, str(EXAMPLE / "make_data.py"), "--problems", "bundled", "--rows", "all", "--out", str(folder)],
        check=True,
    )
    small = "transfer_queue.backend.SimpleStorage.num_data_storage_units=1"  # each is a process
    config = run_config(folder, f"actor_rollout_ref.rollout.n={group}", small)
    place = folder / "agent_loop.yaml"
    (loop,) = OmegaConf.load(EXAMPLE / "agent_loop.yaml")
    OmegaConf.save(OmegaConf.create([{**loop, "attempts": 1}]), place)
    config.actor_rollout_ref.rollout.agent.agent_loop_config_path = str(place)
    tokenizer = AutoTokenizer.from_pretrained(config.actor_rollout_ref.model.path)
    data = {
        name: create_rl_dataset(config.data[f"{name}_files"], config.data, tokenizer, None, is_train=name == "train")
        for name in ("train", "val")
    }
    ray.init(num_cpus=16, include_dashboard=False)
    try:
        tq.init(config.transfer_queue)
        engine: Any = ScriptedEngine(script, "qwen3_5")
        manager = AgentLoopManagerTQ.create(config=config, llm_client=engine)
        every = [*data["train"], *data["val"]]
        columns = collate_fn([row for row in every if row["extra_info"]["problem_id"] == gray().id])
        columns["uid"] = np.array(["one"], dtype=object)
        prompts = get_tensordict(columns)
        assign_non_tensor_data(prompts, "global_steps", 1)
        tq.kv_batch_put(
            keys=["one"], partition_id="train", tags=[{"is_prompt": True, "status": "pending", "global_steps": 1}]
        )
        manager.generate_sequences(prompts)
        buffer = ReplayBuffer("sync", DictConfig({}), 8, "drop", DictConfig({}), poll_interval=0.5)
        batch, _ = buffer.sample(global_steps=1, partition_id="train", batch_size=1)
        names = ["prompts", "responses", "response_mask", "rollout_log_probs", "rm_scores", "extra_fields", "num_turns"]
        made = tq.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=names)
        infos = [one["reward_extra_info"] for one in made.pop("extra_fields").tolist()]
        return {
            "rows": {name: len(part) for name, part in data.items()},
            "episodes": len(batch.keys),
            "rewards": [round(one.sum().item(), 6) for one in made["rm_scores"].unbind()],
            "passed": [info["tests_passed"] for info in infos],
            "validated": validated(infos, len(infos)) == validated(infos, len(infos) + 1),
            "turns": made.pop("num_turns").tolist(),
            "lengths": [len(one) for one in made["responses"].unbind()],
            "sampled": [int(one.sum()) for one in made["response_mask"].unbind()],
            "logprobs": [int((one != 0).sum()) for one in made["rollout_log_probs"].unbind()],
        }
    finally:
        ray.shutdown()

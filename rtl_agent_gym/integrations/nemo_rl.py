"""NeMo RL 0.6: an environment for the rollouts of its GRPO, and its data set.

::

    options = {"renderer": "qwen3_5", "max_turns": 50}
    environment = ray.remote(RTLEnvironment).options(max_concurrency=64).remote(options)
    dataset = RTLDataset(tokenizer, "cvdp", keep="fair", renderer="qwen3_5")
    grpo_train(…, task_to_env={NAME: environment}, …)

NeMo RL has no way to leave an episode out. So a machine fault is repaired inside, as in `ReplayedEnv`, and only one in
each attempt is raised. It tokenizes an observation as it is, so observations carry the dialect's control tokens.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import torch
from nemo_rl.environments.interfaces import EnvironmentInterface, EnvironmentReturn

from ..episodes.prompt import open_prompt
from ..episodes.runtime import run_sync
from ..episodes.turn_rewards import refuse_turn_rewards
from ..errors import SandboxError, UsageError
from ..problems.notes import Rows
from ..renderers import ModelTurn, Renderer, ToolCall, get_renderer
from ..renderers.vocabularies import written_out
from .replay import ReplayedEnv
from .session import choose_problems, sandboxes_at_once

NAME = "rtl"
"""The name of the task in NeMo RL's batches."""
POLL_SECONDS = 1.0
"""How often an environment looks for idle episodes."""


class RTLEnvironment(EnvironmentInterface[dict[str, Any]]):
    """Plays the episodes of all rollouts. An episode begins with its first turn.

    The metadata of a sample are ``problem_id`` and ``problems`` (the source), and after its first turn ``episode``.
    A turn that ends within its thinking or a call is taken for one that NeMo RL's limit of tokens has cut off: it ends
    the episode, and the files are graded. The environment learns of no other limit of NeMo RL's: sandboxes of rollouts
    that end at one end after `idle_seconds`.

    Args:
        cfg: ``workers`` (turns that are played at the same time in one call), ``idle_seconds``, ``attempts``, and the
            arguments of `CVDPAgenticEnv`, such as ``renderer`` and ``max_turns``: give NeMo RL's ``max_rollout_turns``,
            so that an episode's last turn is graded.

    Raises:
        UsageError: The rule ``turn_rewards`` is set.
    """

    def __init__(self, cfg: Mapping[str, Any] | None = None) -> None:
        options = dict(cfg or {})
        refuse_turn_rewards(options.get("turn_rewards", "none"), "NeMo RL")
        self._idle = float(options.pop("idle_seconds", 3600.0))
        self._threads = ThreadPoolExecutor(int(options.pop("workers", 64)), "rtl")
        self._renderer = get_renderer(options.get("renderer", "qwen3"))
        self._options = options
        self._episodes: dict[str, tuple[ReplayedEnv, float]] = {}
        """Running episodes, and when each one's last step ended, in seconds of a monotonic clock; inf during it."""
        self._lock, self._shut = threading.Lock(), threading.Event()
        threading.Thread(target=self._watch, name="rtl-idle", daemon=True).start()

    def step(
        self, message_log_batch: list[list[dict[str, Any]]], metadata: list[dict[str, Any]]
    ) -> EnvironmentReturn[dict[str, Any]]:
        """Play the last message of each log.

        Raises:
            SandboxError: The machine failed in each attempt of an episode, or an episode had ended since it was idle.
            UsageError: More episodes begin with this step than the machine has memory for.
        """
        self._require_room([row for row in metadata if not row.get("episode")])
        texts = [log[-1]["content"] for log in message_log_batch]
        numbers = [str(row.get("episode") or uuid.uuid4()) for row in metadata]
        self._note(numbers, math.inf)
        played = [self._threads.submit(self._turn, *each) for each in zip(texts, metadata, numbers, strict=True)]
        wait(played)
        self._note(numbers, time.monotonic())
        turns = [turn.result() for turn in played]
        observations, after, rewards, over = (list(column) for column in zip(*turns, strict=True))
        return EnvironmentReturn(
            observations=[{"role": "environment", "content": text} for text in observations],
            metadata=after,
            next_stop_strings=[None] * len(turns),
            rewards=torch.tensor(rewards, dtype=torch.float32),
            terminateds=torch.tensor(over, dtype=torch.bool),
            answers=None,
        )

    def _require_room(self, new: Sequence[Mapping[str, Any]]) -> None:
        """Raise `UsageError` if these episodes cannot have a sandbox each: they keep it until the step has ended."""
        if len(new) > 1 and len(new) > (room := run_sync(sandboxes_at_once(self._made(new[0]).config))):
            raise UsageError(
                f"a step of NeMo RL needs a sandbox for each of its {len(new)} episodes, and there is memory for "
                f"{room:.0f}: lower grpo.num_prompts_per_step or grpo.num_generations_per_prompt (in validation "
                "grpo.val_batch_size), or raise the limits of sandboxes"
            )

    def _made(self, row: Mapping[str, Any]) -> ReplayedEnv:
        return ReplayedEnv(row["problem_id"], self._options | {"problems": row["problems"]})

    def _turn(self, text: str, metadata: Mapping[str, Any], number: str) -> tuple[str, dict[str, Any], float, bool]:
        rest = {name: value for name, value in metadata.items() if name != "episode"}
        with self._lock:
            env, _ = self._episodes.pop(number, (None, 0.0))
        if env is None:
            if metadata.get("episode"):  # its files are lost, so a new sandbox would give a wrong reward
                problem = rest["problem_id"]
                raise SandboxError(f"an episode of {problem} is lost: idle for {self._idle:g} s, or of another actor")
            env = self._made(rest)
            env.begin()
        observation, reward, over, info = env.step(text)
        if not over and info["action"] == "malformed" and is_cut_off(text, self._renderer):
            reward, over = reward + env.finish("max_tokens"), True
        if over:
            env.close()
            return "", rest, reward, True
        with self._lock:
            self._episodes[number] = env, math.inf
        framed = written_out(self._renderer.turn_pieces([observation]))
        return framed, {**rest, "episode": number}, reward, False

    def _note(self, numbers: Sequence[str], when: float) -> None:
        with self._lock:
            for number in self._episodes.keys() & numbers:
                self._episodes[number] = self._episodes[number][0], when

    def _watch(self) -> None:
        while not self._shut.wait(POLL_SECONDS):
            self._end_idle()

    def _end_idle(self) -> None:
        oldest = time.monotonic() - self._idle
        with self._lock:
            idle = [number for number, (_, last) in self._episodes.items() if last < oldest]
            envs = [self._episodes.pop(number)[0] for number in idle]
        for env in envs:
            env.close()

    def global_post_process_and_metrics(self, batch: Any) -> tuple[Any, dict[str, Any]]:
        """Nothing to add."""
        return batch, {}

    def shutdown(self) -> None:
        """End all sandboxes."""
        self._shut.set()
        self._idle = 0.0
        self._end_idle()


def is_cut_off(text: str, dialect: Renderer) -> bool:
    """Whether a malformed turn ends within its thinking or a call.

    NeMo RL does not say whether its limit of tokens ended a turn. If it did, the correction of such a turn names what
    was cut off. That of another turn is the same as without the limit, or as that of an empty turn.
    """
    cut, whole = dialect.parse_text(text, truncated=True), dialect.parse_text(text)
    return cut.correction not in (whole.correction, dialect.parse_text("", truncated=True).correction)


def require_readable(dialect: Renderer, tokenizer: Any) -> None:
    """Raise `UsageError` if a call cannot be read as NeMo RL passes it on: without the tokenizer's special tokens."""
    call = dialect.turn_text(ModelTurn(calls=(ToolCall.of("ls"),)))
    passed = tokenizer.decode(tokenizer.encode(call, add_special_tokens=False), skip_special_tokens=True)
    if dialect.parse_text(passed).kind != "command":
        raise UsageError(
            f"renderer {dialect.name!r}: this tokenizer has special tokens in a call, which NeMo RL removes from what "
            "the model writes, so none of its calls could be read; train this model through another integration"
        )


class RTLDataset(Sequence[dict[str, Any]]):
    """The problems of a source as NeMo RL's rows: prompts as token ids, and the metadata of `RTLEnvironment`.

    Args:
        tokenizer: The model's tokenizer.
        problems: The source; see `load_problems`.
        keep: ``fair``, ``partial`` or ``sound`` keeps the rows of CVDP that are known to be so, or better.
        renderer: The dialect.
        rules: Options of `EpisodeConfig`. Problems that cannot be scored with them are left out, with a warning.

    Raises:
        UsageError: NeMo RL would remove the marks of a call from what the model writes; see `require_readable`.
    """

    def __init__(
        self, tokenizer: Any, problems: str = "bundled", *, keep: Rows = "all", renderer: str = "qwen3", **rules: Any
    ) -> None:
        self._tokenizer, self._dialect = tokenizer, get_renderer(renderer)
        require_readable(self._dialect, tokenizer)
        self._source, self._problems, self._config = choose_problems(problems, rows=keep, texts=True, **rules)

    def __len__(self) -> int:
        return len(self._problems)

    def __getitem__(self, index: Any) -> Any:
        problem = self._problems[index]
        opening = open_prompt(problem, self._config, self._dialect)
        text = self._dialect.initial_text(opening.system, opening.user)
        ids = torch.tensor(self._tokenizer.encode(text, add_special_tokens=False), dtype=torch.int64)
        return {
            "message_log": [{"role": "user", "content": text, "token_ids": ids}],
            "length": len(ids),
            "extra_env_info": {"problem_id": problem.id, "problems": self._source},
            "loss_multiplier": 1.0,
            "idx": index,
            "task_name": NAME,
            "stop_strings": None,
        }

"""verl 0.9: an agent loop, registered as ``rtl``, that plays an episode with the tokens of verl's engine.

verl makes one `RTLAgentLoop` for each row and awaits `RTLAgentLoop.run`. verl's configuration names the class and sets
the rules::

    # actor_rollout_ref.rollout.agent.agent_loop_config_path
    - name: rtl
      _target_: rtl_agent_gym.integrations.verl.RTLAgentLoop
      rules: {max_turns: 30}

This package tokenizes the prompt and the replies itself (`Episode.tokens`): no chat template is rendered again, so
training uses exactly the ids that the engine read and sampled. After a machine fault, the episode is played again; if
the last attempt fails too, `run` raises, and verl gets no sample of that session.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from omegaconf import OmegaConf
from tenacity import RetryCallState, stop_after_attempt
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register

from ..engines.catalogue import renderer_for
from ..episodes.episode import Episode
from ..episodes.rules import EpisodeConfig, FunctionGrader, Reward, read_reward
from ..episodes.runtime import acquire
from ..errors import ModelError, RequestRefused, SandboxError, UsageError
from ..evaluation.play import play
from ..policies.protocol import Completion, smallest_turn
from ..problems import Problem
from ..problems.notes import Rows
from ..renderers import Renderer, renderer_named
from ..renderers.transcript import TokenTranscript
from ..retries import EPISODE
from .session import choose_problems, find_problem, read_once, require_shell

NAME = "rtl"
"""The loop's name in verl, and the value of a row's column ``agent_name``."""

NUMBERS = (
    "tests_passed", "tests_share", "format_valid", "syntax_valid", "interface", "compile", "violations",
    "turns", "commands", "commands_timed_out", "malformed_turns",
)  # fmt: skip
"""The `result_numbers` that verl averages, for which it needs the same names in every episode."""

_log = logging.getLogger(__name__)


@register(NAME)
class RTLAgentLoop(AgentLoopBase):
    """Plays the episode of one row.

    The prompt is shortened to ``rollout.prompt_length`` tokens, and the episode ends and is graded when
    ``rollout.response_length`` leaves no room for another turn. Arguments not listed here are verl's own.

    Args:
        renderer: The model's dialect; None for the one that `renderer_for` chooses for ``model.path``.
        reward: How the score becomes a reward; see `read_reward`.
        cache: Folder of cached gradings; None for no cache.
        attempts: Maximum number of times that an episode is played if the machine fails.
        rules: Options of `EpisodeConfig` by name.

    Raises:
        UsageError: An option is invalid, or there is no dialect for the model.
    """

    def __init__(
        self,
        *args: Any,
        renderer: str | None = None,
        reward: Reward = None,
        cache: str | None = None,
        attempts: int = EPISODE.attempts,
        rules: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        name = renderer or renderer_for(self.config.actor_rollout_ref.model.path, None, option="renderer")
        self._renderer = _load_renderer(name, self.tokenizer)
        self._weights, self._function = read_reward(_plain(reward))
        self._cache = None if cache is None else Path(cache)
        self._attempts = max(attempts, 1)
        config = require_shell(EpisodeConfig().with_options(**(_plain(rules) or {})))
        limits = [limit for limit in (config.max_prompt_tokens, self.rollout_config.prompt_length) if limit is not None]
        self._rules = config.with_options(max_prompt_tokens=min(limits))

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """Play the episode of a row of `rows`.

        Returns:
            The prompt ids; the response, up to the last sampled id: sampled ids (mask 1, with the engine's
            log-probabilities) and ids appended between them (mask 0, log-probability 0); the episode's reward,
            submissions included; and in ``extra_fields`` the ``numbers`` (all `result_numbers`),
            ``reward_extra_info`` (those in `NUMBERS`, which verl averages), and ``turn_scores`` (the rewards of the
            turns, if the rules have ``turn_rewards``).

        Raises:
            PromptTooLong: Even the shortened prompt does not fit ``rollout.prompt_length``.
            SandboxError: The machine or the engine failed in every attempt.
            UsageError: The row was not made by `rows`, the limits leave no room for a turn, or the engine does not
                return the requested log-probabilities.
        """
        given = row.get("extra_info") or {}
        if "problem_id" not in given:
            raise UsageError("a row of verl's data needs extra_info.problem_id; rows() makes such rows")
        problem = await asyncio.to_thread(find_problem, given.get("problems", "bundled"), given["problem_id"])
        async with acquire(sandbox=self._rules.sandbox.kind) as lease:
            scorer = lease.runtime.scorer(self._weights, self._cache, options=self._rules.grading)
            grader = scorer if self._function is None else FunctionGrader(scorer, self._function)

            def played_again(state: RetryCallState) -> None:
                _log.warning("%s is played again: %s", problem.id, state.outcome and state.outcome.exception())

            stop = stop_after_attempt(self._attempts)
            async for attempt in EPISODE.retrying(_may_pass, stop=stop, before_sleep=played_again):
                with attempt:
                    episode = Episode(
                        problem,
                        provider=lease.runtime.agents,
                        grader=grader,
                        renderer=self._renderer,
                        config=self._rules,
                        turn_budget=lease.runtime.turn_budget(
                            self._rules.turn_grading_time, self._weights, self._function
                        ),
                    )
                    engine = _Engine(self, self._rules, sampling_params, int(row.get("priority", 0)))
                    await play(episode, engine)
                    return await self._output(episode, engine)
        raise AssertionError("unreachable")

    async def _output(self, episode: Episode, engine: _Engine) -> AgentLoopOutput:
        score = await episode.finish()  # the episode has ended: this returns its score
        numbers = episode.trained_numbers(score)
        response = episode.tokens.response
        if not response.ids:
            raise UsageError(
                "there was no room for a turn: raise data.max_response_length or rollout.max_model_len, or lower "
                "data.max_prompt_length"
            )
        return AgentLoopOutput(
            prompt_ids=episode.tokens.prompt,
            response_ids=response.ids,
            response_mask=response.mask,
            response_logprobs=response.logprobs if engine.wants_logprobs else None,
            routed_experts=engine.routed_experts,
            reward_score=numbers["reward"],
            num_turns=2 * engine.turns,  # each turn replies to the user or to an output
            metrics=AgentLoopMetrics(
                generate_sequences=engine.seconds,
                tool_calls=sum(result.seconds for turn in episode.turns for result in turn.results),
                compute_score=score.seconds,
                num_preempted=engine.preempted,
            ),
            extra_fields={
                "turn_scores": list(episode.turn_rewards),
                "tool_rewards": [],
                "numbers": numbers,
                # no "acc": verl's validation would count a lost session as 0 in it
                "reward_extra_info": {name: numbers[name] for name in NUMBERS},
                **engine.versions,
            },
        )


class _Engine:
    """verl's engine as the policy and the player of one episode.

    Args:
        loop: Has the engine and its limits.
        rules: The rules of the episode.
        parameters: verl's sampling parameters.
        priority: The priority of the requests.
    """

    name = "verl"

    def __init__(self, loop: RTLAgentLoop, rules: EpisodeConfig, parameters: Mapping[str, Any], priority: int) -> None:
        self._manager, self._rollout = loop.server_manager, loop.rollout_config
        self._rules, self._parameters, self._priority = rules, parameters, priority
        determined = self._rollout.get("full_determinism", False)
        self._request = f"det-{priority}" if determined else uuid4().hex  # sticky: one server has the prefix cached
        self._renderer: Renderer
        self.wants_logprobs = bool(parameters.get("logprobs"))
        self.turns = 0
        self.seconds = 0.0
        """Seconds that the engine took, waiting included."""
        self.preempted = -1
        self.routed_experts: Any = None
        self.versions: dict[str, Any] = {"min_global_steps": None, "max_global_steps": None}
        """The versions of the weights that sampled the first and the last turn, so that verl can drop stale samples."""

    def player(self, problem: Problem, renderer: Renderer, seed: int | None = None) -> _Engine:
        self._renderer = renderer
        return self

    async def sample(self, tokens: TokenTranscript) -> Completion | None:
        """The next turn; None if the rules, ``response_length`` or the model's context leave no room for it."""
        room = int(self._rollout.response_length) + len(tokens.prompt) - len(tokens)
        if context := self._rollout.get("max_model_len"):
            room = min(room, int(context) - len(tokens))
        if most := self._rules.max_trajectory_tokens:
            room = min(room, most - len(tokens))
        if room < smallest_turn(self._rules.max_tokens):
            return None
        limit = min(room, self._rules.max_tokens or room)
        stop = list(self._renderer.stop)
        begun = time.monotonic()
        output = await self._manager.generate(
            request_id=self._request,
            prompt_ids=tokens.tokens,
            sampling_params={**self._parameters, "max_tokens": limit, "stop_token_ids": stop},
            priority=self._priority,
        )
        self.seconds += time.monotonic() - begun
        ids, logprobs = list(output.token_ids), output.log_probs
        if output.stop_reason in ("abort", "aborted") or not ids:
            raise ModelError(
                f"the engine did not complete the turn: stop reason {output.stop_reason!r} after {len(ids)} tokens"
            )
        if self.wants_logprobs and (logprobs is None or len(logprobs) != len(ids)):
            raise UsageError("the engine returned no log-probability for each token; set rollout.calculate_log_probs")
        self._note(output)
        return Completion(
            self._renderer.decode(ids),
            token_ids=ids,
            logprobs=logprobs if self.wants_logprobs else None,
            cut_off=len(ids) >= limit and ids[-1] not in stop,
            prompt_tokens=len(tokens),
        )

    def _note(self, output: Any) -> None:
        self.turns += 1
        if output.num_preempted is not None:
            self.preempted = max(self.preempted, 0) + output.num_preempted
        if output.routed_experts is not None:
            self.routed_experts = output.routed_experts
        fields = output.extra_fields
        if self.versions["min_global_steps"] is None:
            self.versions["min_global_steps"] = fields.get("min_global_steps")
        if fields.get("max_global_steps") is not None:
            self.versions["max_global_steps"] = fields["max_global_steps"]


def rows(problems: str = "bundled", *, kept: Rows = "all", **chosen: Any) -> list[dict[str, Any]]:
    """The rows of verl's data set for a source of problems, as ``RLHFDataset`` reads them from JSON Lines or Parquet.

    ``extra_info`` names the problem; no row contains hidden tests. The column ``prompt`` is the problem's text, whose
    length verl's data set can measure; the model reads the prompt that `RTLAgentLoop` makes.

    Args:
        problems: The source; a path must be the same on all machines that play episodes.
        kept: The option ``rows`` of `load_problems`.
        chosen: ``ids``, ``categories`` and ``difficulties`` of `load_problems`, and options of `EpisodeConfig`, as in
            the loop's configuration; problems that cannot be scored with them are left out.

    Raises like `choose_problems`.
    """
    source, found, _ = choose_problems(problems, rows=kept, **chosen)
    return [
        {
            "data_source": "rtl_agent_gym",
            "agent_name": NAME,
            "prompt": [{"role": "user", "content": problem.prompt}],
            "ability": "rtl",
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": index, "problems": source, "problem_id": problem.id},
        }
        for index, problem in enumerate(found)
    ]


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, SandboxError) and not isinstance(error, RequestRefused)


def _plain(value: Any) -> Any:
    """An option with plain containers instead of omegaconf's types."""
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


@read_once
def _load_renderer(name: str, tokenizer: Any) -> Renderer:
    """One renderer for all episodes of a process: reading a vocabulary takes a second."""
    renderer = renderer_named(name, tokenizer)
    _ = renderer.codec  # read it now, since episodes make their prompts in threads
    return renderer

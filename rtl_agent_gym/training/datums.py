"""Turns graded episodes into training datums, with the teacher's judgement and the advantages.

Tokens and log-probabilities are also added to the transcripts, which are written before the teacher's are known.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tinker
import torch

from ..errors import RequestRefused, ServiceDown, ServiceError, TranscriptError, UsageError
from ..renderers import Renderer
from ..renderers.transcript import TokenTranscript
from ..transcripts import TokenRecord, add_tokens
from .advantages import RunningMeans, centred_turns, permuted, shuffled, token_advantages, token_targets
from .options import TrainOptions
from .rollouts import PlayedGroup, Rollout, mean
from .teacher_context import teacher_feedback
from .teachers import Judgement, Sampled, Teacher

logger = logging.getLogger(__name__)

_ROUNDING = 1e-9
"""Upper bound on the rounding error in the difference between equal rewards and their mean."""


@dataclass
class Example:
    """An episode, or one conversation of a third-party agent in it, as a datum; advantages are added later."""

    rollout: Rollout
    tokens: TokenTranscript
    """One of the rollout's streams."""
    sampled: Sampled
    """All tokens, for the teacher."""
    datum: tinker.Datum
    centred: tuple[float, ...]
    """The reward minus its baseline, times the problem's weight, for each sampled turn."""
    judgement: Judgement | None = None
    """The teacher's judgement; None without a teacher."""
    failure: ServiceError | None = None
    """Why the teacher did not judge."""

    @classmethod
    def of(cls, rollout: Rollout, centred: Sequence[float], feedback: str = "") -> list[Example]:
        """The examples of an episode, still without advantages.

        `centred` is the reward minus the baseline: one number, or one for each turn of the episode's only stream.
        `feedback` is what the teacher reads about the episode.
        """
        found: list[Example] = []
        for tokens in rollout.streams:
            turns = sum(segment.sampled for segment in tokens.segments) if len(centred) == 1 else 1
            sampled = Sampled(rollout.result.problem_id, tokens.tokens, tokens.mask, tokens.logprobs, feedback)
            found.append(cls(rollout, tokens, sampled, _known_only(tokens.to_datum()), tuple(centred) * turns))
        return found

    async def judge(self, teacher: Teacher | None) -> None:
        """Let the teacher judge. If that fails, the episode has no KL, since each resumed run would fail there again.

        Raises `ServiceDown` if the service can no longer be used.
        """
        nothing = [0.0] * len(self.sampled.tokens)
        self.judgement = Judgement(nothing, nothing)
        try:
            if teacher is not None:
                self.judgement = await teacher.judge(self.sampled)
        except ServiceDown:
            raise
        except ServiceError as error:
            logger.warning("an episode of %s is not judged: %s", self.sampled.problem, error)
            self.failure = error

    def set_advantages(self, options: TrainOptions, renderer: Renderer | None) -> None:
        """Combine reward and KL into the datum's advantages, or with ``kl_top_k`` set its targets."""
        kl_T = weights_T = None
        if self.judgement is not None:
            kl_T = self.judgement.kl[1:]  # the first token is not a target
            weights_T = kl_weights(self.sampled, options, renderer)[1:]
        mask_T = self.datum.loss_fn_inputs["mask"].to_torch().tolist()
        if options.kl_top_k:
            kl_T, weights_T = kl_T or [0.0] * len(mask_T), weights_T or [1.0] * len(mask_T)
            found = None if self.judgement is None else self.judgement.top
            top_T = [[] for _ in mask_T] if found is None else found[1:]
            sampled_T, logprobs_T = (self.datum.loss_fn_inputs[name].tolist() for name in ("target_tokens", "logprobs"))
            targets_TK, weights_TK = token_targets(sampled_T, kl_T, logprobs_T, top_T, mask_T, options, weights_T)
            weights = torch.tensor(weights_TK, dtype=torch.float32)
            self.datum = with_inputs(self.datum, target_tokens=torch.tensor(targets_TK), weights=weights)
            return
        turns = iter(self.centred)
        centred_T = [
            value
            for segment in self.tokens.segments
            for value in [next(turns) if segment.sampled else 0.0] * len(segment.ids)
        ][1:]
        advantages_T = token_advantages(centred_T, kl_T, mask_T, options, weights_T)
        self.datum = with_inputs(self.datum, advantages=torch.tensor(advantages_T, dtype=torch.float32))


def _known_only(datum: tinker.Datum) -> tinker.Datum:
    """A datum without training on tokens whose sampled log-probability is NaN or infinite.

    Their importance weights are unknown.
    """
    mask_T, logprobs_T = (datum.loss_fn_inputs[name].to_torch() for name in ("mask", "logprobs"))
    known_T = logprobs_T.isfinite()
    return with_inputs(datum, mask=mask_T * known_T, logprobs=torch.where(known_T, logprobs_T, 0.0))


def kl_weights(sampled: Sampled, options: TrainOptions, renderer: Renderer | None) -> list[float]:
    """Factor for the KL of each token, by its kind; 1 for a token without a kind, such as a control token."""
    weights = {"thinking": options.kl_weight_thinking, "text": options.kl_weight_text, "call": options.kl_weight_call}
    if renderer is None or all(weight == 1 for weight in weights.values()):
        return [1.0] * len(sampled.tokens)
    found: list[float] = []
    for ids, by_student in sampled.runs():
        kinds = renderer.kinds(ids) if by_student else [None] * len(ids)
        found += [1.0 if kind is None else weights[kind] for kind in kinds]
    return found


def with_inputs(datum: tinker.Datum, **inputs: torch.Tensor) -> tinker.Datum:
    """A copy of a datum with some inputs of the loss replaced."""
    made = {name: tinker.TensorData.from_torch(values) for name, values in inputs.items()}
    return tinker.Datum(model_input=datum.model_input, loss_fn_inputs={**datum.loss_fn_inputs, **made})


def make_examples(
    groups: Sequence[PlayedGroup],
    options: TrainOptions,
    running: RunningMeans,
    weights: Mapping[str, float] | None = None,
) -> list[Example]:
    """The training examples of a step, with their centred rewards; updates the `running` means.

    `weights` are factors for the centred rewards, by problem; 1 for other problems.
    """
    problems_P = [group.problem.id for group in groups]
    rewards_P = [[rollout.reward for rollout in group.rollouts] for group in groups]
    weights = weights or {}
    if options.control == "permuted_rewards":
        if len({*problems_P}) > 1:
            rewards_P = permuted(rewards_P, problems_P)
        else:  # there is no other problem's reward
            weights = dict.fromkeys(problems_P, 0.0)
    # Without turn rewards, each episode counts as one turn with the whole reward.
    turns_P: list[list[Sequence[float]]] = [[[reward] for reward in rewards_G] for rewards_G in rewards_P]
    if options.turn_rewards != "none":
        turns_P = [[_turn_rewards(rollout, options) for rollout in group.rollouts] for group in groups]
    centred_P = centred_turns(turns_P, problems_P, options.baseline, running)
    feedback_P = [teacher_feedback(group.rollouts, options) for group in groups]
    return [
        example
        for group, problem, centred_G, feedback_G in zip(groups, problems_P, centred_P, feedback_P, strict=True)
        for rollout, centred, feedback in zip(group.rollouts, centred_G, feedback_G, strict=True)
        for example in Example.of(rollout, [weights.get(problem, 1.0) * value for value in centred], feedback)
    ]


def _turn_rewards(rollout: Rollout, options: TrainOptions) -> Sequence[float]:
    if options.control != "shuffled_turns":
        return rollout.turn_rewards
    return shuffled(rollout.turn_rewards, f"{options.seed} {rollout.streams[0].tokens}")


async def judge(examples: Sequence[Example], teachers: Mapping[str, Teacher]) -> None:
    """Let the teachers, by problem, judge a step's episodes. Without any teacher, nothing is judged.

    Raises:
        ServiceError: No episode was judged, and at least one failure was not a refusal. Such a step is not trained on.
        ServiceDown: The service can no longer be used.
    """
    if not teachers:
        return
    await asyncio.gather(*(example.judge(teachers.get(example.sampled.problem)) for example in examples))
    transient = [failure for failure in _failures_of_all(examples, teachers) if not isinstance(failure, RequestRefused)]
    if transient:
        raise ServiceError(f"the teacher judged no episode of the step; {transient[-1]}") from transient[-1]


def check_first_judgements(examples: Sequence[Example], teachers: Mapping[str, Teacher], options: TrainOptions) -> None:
    """Check after a run's first step that there is something to learn from.

    Later steps are not checked: a resumed run would find the same episodes, and fail again.

    Raises:
        UsageError: The teacher refused every episode, and ``kl_top_k`` is set, which its service may not support.
        RequestRefused: The teacher refused every episode, and there is no reward.
    """
    if options.reward_coef > 0 or not (refusals := _failures_of_all(examples, teachers)):
        return
    found = f"the teacher refused every episode of the first step; {refusals[-1]}"
    if options.kl_top_k:
        reason = f"kl_top_k: {found}; if its service does not name the most likely tokens, use kl_top_k=0"
        raise UsageError(reason) from refusals[-1]
    raise RequestRefused(f"{found}; nothing would be learned, since reward_coef is 0") from refusals[-1]


def _failures_of_all(examples: Sequence[Example], teachers: Mapping[str, Teacher]) -> list[ServiceError]:
    """Why the teachers judged no episode; empty if they judged at least one, or were asked to judge none."""
    asked = [example for example in examples if teachers.get(example.sampled.problem)]
    failures = [example.failure for example in asked if example.failure is not None]
    return failures if len(failures) == len(asked) else []


def example_metrics(examples: Sequence[Example], *, judged: bool) -> dict[str, float]:
    """Metrics: the size of the advantages and, if there is a teacher (`judged`), the KL to it."""
    sampled = max(1.0, sum(sum(example.sampled.mask) for example in examples))
    inputs = [example.datum.loss_fn_inputs for example in examples]
    sizes = [float(found["advantages"].to_torch().abs().sum()) for found in inputs if "weights" not in found]
    unknown = sum(not math.isfinite(value) for example in examples for value in example.sampled.logprobs)
    metrics = {
        "rollouts/not_finite": float(unknown),
        "advantage/abs_reward": mean([mean([abs(value) for value in example.centred]) for example in examples]),
    }
    if sizes:  # tokens with targets have no advantages
        metrics["advantage/abs_token"] = sum(sizes) / sampled
    if not judged:
        return metrics
    kl, covered = defaultdict[str, float](float), defaultdict[str, float](float)
    unknown = 0
    for example in examples:
        if example.judgement is not None:
            unknown += example.judgement.not_finite
            kl[example.sampled.problem] += sum(example.judgement.kl)
            covered[example.sampled.problem] += sum(example.judgement.covered)
    if any(covered.values()):  # otherwise it is unknown, not 0
        metrics["teacher_kl"] = sum(kl.values()) / sum(covered.values())
    metrics["teacher_kl/covered"] = sum(covered.values()) / sampled
    metrics["teacher_kl/not_finite"] = float(unknown)
    if len(kl) > 1:
        metrics |= {f"teacher_kl/{problem}": kl[problem] / covered[problem] for problem in kl if covered[problem]}
    metrics["teacher_kl/unjudged"] = float(sum(example.failure is not None for example in examples))
    return metrics


def warnings_of(metrics: Mapping[str, float]) -> list[str]:
    """Warnings for the results of `example_metrics`: a step without a gradient, episodes without a KL, values that are
    not finite.
    """
    found: list[str] = []
    if "teacher_kl/covered" not in metrics and metrics["advantage/abs_reward"] < _ROUNDING:
        found.append("no episode's reward differs from its baseline, so nothing is learned from this step")
    if (count := metrics["rollouts/not_finite"]) > 0:
        found.append(f"{count:.0f} sampled log-probabilities are NaN or infinite; these tokens are not trained on")
    none = "" if metrics.get("teacher_kl/covered") else "; no token of this step has a KL"
    if (count := metrics.get("teacher_kl/unjudged", 0.0)) > 0:
        found.append(
            f"the teacher did not judge {count:.0f} of the episodes, which have no KL; logs.log says why{none}"
        )
    if (count := metrics.get("teacher_kl/not_finite", 0.0)) > 0:
        check = f"{none}: check the teacher's weights" if none else ""
        found.append(f"the KL of {count:.0f} tokens is NaN or infinite, so it is unknown and left out{check}")
    return found


def annotate(examples: Sequence[Example], renderer: Renderer | None) -> None:
    """Add tokens and log-probabilities to the episodes' transcripts, for `rtl-agent-gym view`. Idempotent.

    Errors with a transcript are only logged, since the training does not depend on it. `renderer` provides the texts
    of the tokens; without it, their ids are shown.
    """
    for example in examples:
        path = example.rollout.result.transcript
        if path is None or example.rollout.through_agent:
            continue
        try:
            add_tokens(Path(path), dict(enumerate(_token_records(example, renderer), 1)))
        except (TranscriptError, UsageError) as error:
            logger.warning("not annotated: %s", error)


def _token_records(example: Example, renderer: Renderer | None) -> Iterator[TokenRecord]:
    begin, judgement = 0, example.judgement
    for segment in example.tokens.segments:
        ids, end = segment.ids, begin + len(segment.ids)
        if segment.sampled:
            teacher = None
            own = segment.logprobs if all(map(math.isfinite, segment.logprobs)) else None  # only finite ones are stored
            if judgement is not None and own is not None:
                judged = zip(own, judgement.kl[begin:end], judgement.covered[begin:end], strict=True)
                teacher = [logprob - kl if covered else None for logprob, kl, covered in judged]
            texts = [renderer.codec.token_bytes(id_).decode(errors="replace") for id_ in ids] if renderer else None
            yield TokenRecord(ids, own, texts, teacher)
        begin = end

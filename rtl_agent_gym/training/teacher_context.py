"""Text that only the teacher reads, in addition to the student's prompt, and for which problems there is one.

The text is appended only to the teacher's user message. The student's prompt, tokens and transcript do not contain it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .. import strict_json
from ..episodes.submissions import all_pass, verdict
from ..errors import UsageError
from ..problems import Problem
from ..problems.paths import expand_home
from ..prompts import feedback_text, with_reference
from .options import TrainOptions

if TYPE_CHECKING:
    from .rollouts import Rollout

SELF = "self"
"""The name, as a teacher, of the student's own weights."""
HINTS = "hints:"
"""Prefix of the file of hints in ``teacher_context``."""
KINDS = ("none", "reference", "feedback")
"""The values of ``teacher_context`` other than hints."""


@dataclass(frozen=True)
class TeacherContext:
    """The option ``teacher_context``."""

    kind: str
    """One of `KINDS`, or ``hints``."""
    hints: Mapping[str, str] = field(default_factory=dict)
    """The texts by problem id."""

    @classmethod
    def of(cls, o: TrainOptions) -> TeacherContext:
        """Read the option and its file. Raises `UsageError`."""
        value = o.teacher_context
        if value.startswith(HINTS):
            return cls("hints", _read_hints(value.removeprefix(HINTS)))
        if value not in KINDS:
            raise UsageError(f"teacher_context: got {value!r}; choose one of {', '.join(KINDS)}, or {HINTS}FILE")
        return cls(value)

    def covers(self, problem: Problem) -> bool:
        """Whether there is a text for a problem."""
        if self.kind == "reference":
            return bool(problem.golden)
        return self.kind != "hints" or problem.id in self.hints

    def user_message(self, problem: Problem, user: str) -> str:
        """The teacher's user message, from the student's, for a covered problem. Feedback is added later."""
        if self.kind == "reference":
            return with_reference(user, problem.golden or {})
        hint = self.hints.get(problem.id, "")  # separated by exactly one empty line
        return f"{user.strip()}\n\n{hint.lstrip()}" if hint.strip() else user


def teacher_feedback(rollouts: Sequence[Rollout], options: TrainOptions) -> list[str]:
    """What the teacher reads about each episode of a group: its grading, and the files of another episode that passed.

    All texts are empty without ``teacher_context=feedback``.
    """
    if options.teacher_context != "feedback" or not options.distils:
        return [""] * len(rollouts)
    tested = options.reward_config().simulate
    scores = [rollout.result.score for rollout in rollouts]
    passed = [place for place, score in enumerate(scores) if score is not None and all_pass(score, tested=tested)]
    texts: list[str] = []
    for place, score in enumerate(scores):
        assert score is not None  # every rollout is graded
        files = next((rollouts[other].files for other in passed if other != place), {})
        broken = not score.violations and min(score.syntax, score.compile if tested else 1.0) < 1
        texts.append(feedback_text(verdict(score, tested=tested), score.reason if broken else "", files))
    return texts


def check_teachers(o: TrainOptions, problems: Sequence[Problem]) -> list[str]:
    """Check the options of a self-teacher and of the teacher's context; returns warnings.

    Raises `UsageError` if an option is wrong or has no effect, or if no problem has a text for this context.
    """
    names = {model for _, model in o.named_teachers()}
    if o.teacher_lag is not None and SELF not in names:
        raise UsageError(f"teacher_lag: {o.teacher_lag} needs teacher_model={SELF}; other teachers do not change")
    context = TeacherContext.of(o)
    if not o.distils:
        without = context.kind != "none"
        return ["teacher_context: has no effect without a teacher; name one with teacher_model"] if without else []
    if names == {SELF} and o.teacher_renderer_name is not None:
        raise UsageError(f"teacher_renderer_name: teacher_model={SELF} has the student's dialect; leave it out")
    alike = context.kind == "none" and o.teacher_system_prompt is None
    if alike and o.reward_coef == 0 and names == {SELF}:
        raise UsageError(
            f"teacher_context: teacher_model={SELF} without a context or a teacher_system_prompt agrees with the "
            "student, and reward_coef=0; nothing would be learned: choose teacher_context=reference"
        )
    missing = [problem.id for problem in problems if not context.covers(problem)]
    if not missing:
        return []
    what = "reference solution" if context.kind == "reference" else "hint"
    some = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    if len(missing) == len(problems):
        raise UsageError(f"teacher_context: no problem of the run has a {what}: {some}; choose another context")
    return [f"teacher_context: {len(missing)} of {len(problems)} problems have no {what} and so no KL: {some}"]


def _read_hints(name: str) -> dict[str, str]:
    path = expand_home(name)
    try:
        found = strict_json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"teacher_context: {name or 'the file of hints'} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"teacher_context: {name} is not JSON: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise UsageError(f'teacher_context: {name} must be a JSON object of texts: {{"problem id": "hint", …}}')
    return found

"""A run from its options to its report."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import RTLGymError, SandboxError, UsageError
from .checks import Plan, plan_run
from .endings import cause_of, clean_up
from .folder import RunFolder
from .options import TINY, split_arguments
from .progress import Progress

if TYPE_CHECKING:
    from ..engines.protocol import Trainer
    from ..envs.tinker_config import TinkerEnvConfig
    from .annotations import Spell
    from .services import Engine, Status

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    folder: Path
    steps: int
    """Steps done, earlier sittings included."""
    metrics: list[dict[str, Any]]
    """One a step."""
    checkpoint: str | None
    """The last checkpoint's ``state_path``."""


@dataclass(frozen=True)
class Models:
    """Whom a run is about, by the names the engine knows them by."""

    student: str
    teacher: str | None
    tokenizer: str
    renderer: str
    system_prompt: str | None
    user_prompt: str | None


def train(given: Mapping[str, Any], *, rl: bool = False, progress: Progress | None = None) -> Outcome:
    """Do a run, or what is left of it.

    Args:
        given: Options by name; see `TrainOptions`.
        rl: Reinforcement learning, without a teacher.
        progress: Where to show it; a new one on stderr if not given.

    Raises:
        UsageError: An option is wrong.
        SandboxError: The machine failed for good; the same call goes on where it stopped.
        KeyboardInterrupt: Ctrl-C or SIGTERM; likewise.
    """
    plan = plan_run(given, rl=rl)
    folder = RunFolder(plan.options.log_path)
    folder.open(plan.options.model_dump(mode="json"), plan.options.behavior_if_log_dir_exists)
    try:
        with progress or Progress(plan.options.num_steps) as shown:
            return asyncio.run(_train(plan, folder, shown))
    except asyncio.CancelledError:  # SIGTERM, answered like Ctrl-C
        raise KeyboardInterrupt from None
    except BaseExceptionGroup as group:
        raise cause_of(group) from group
    finally:
        folder.close()


def main(arguments: Sequence[str] | None = None, *, rl: bool = False) -> int:
    """The scripts' entry: ``key=value`` options in, exit code out (see ``rtl-agent-gym --help``)."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if any(argument in ("-h", "--help") for argument in arguments):
        print(describe_options())
        return 0
    try:
        outcome = train(split_arguments(arguments), rl=rl)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except SandboxError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    except RTLGymError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130
    print(f"{outcome.steps} steps; report: {outcome.folder / 'report.html'}", file=sys.stderr)
    return 0


def describe_options() -> str:
    """The options with their defaults and what they mean."""
    from . import options_help

    return options_help.describe_options()


async def _train(plan: Plan, folder: RunFolder, progress: Progress) -> Outcome:
    from ..episodes.runtime import acquire

    _quiet()
    task = asyncio.current_task()
    assert task is not None
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    last = folder.mend()
    if last is not None and int(last["batch"]) >= plan.options.num_steps:
        progress.say(f"{folder.path}: all {plan.options.num_steps} steps are done")
        return _outcome(folder)
    for warning in plan.warnings:
        progress.say(f"warning: {warning}")
        logger.warning("%s", warning)
    lease = acquire()  # one Docker client for all steps, not one a step
    engine: Engine | None = None
    status: Status = "errored"
    try:
        models = await _models(plan, progress)
        engine = await _engine(plan, folder, progress)
        await _steps(plan, folder, progress, models, engine, last)
        status = "success"
    except asyncio.CancelledError:
        status = "interrupted"
        raise
    except BaseException:
        logger.exception("the run ended before its last step")
        raise
    finally:
        closing = {} if engine is None else {"closing the engine": partial(engine.close, status)}
        await clean_up(
            {
                **closing,
                "ending the containers": lambda: asyncio.shield(lease.release()),
                "writing the report": lambda: _report(folder),
            },
            failed=sys.exc_info()[1] is not None,
        )
    return _outcome(folder)


async def _report(folder: RunFolder) -> None:
    from .report import write_report

    try:
        write_report(folder)
    except OSError as error:
        logger.warning("the report was not written: %s", error)


async def _steps(
    plan: Plan, folder: RunFolder, progress: Progress, models: Models, engine: Engine, last: dict[str, Any] | None
) -> None:
    from ..envs.tinker_env import CVDPEnvGroupBuilder
    from .loop import Loop, Parts
    from .services import LONGER
    from .teachers.setup import make_teacher

    o = plan.options
    config = env_config(plan, folder, models)
    await asyncio.to_thread(check_prompts, plan, config)

    async def make_trainer(checkpoint: str | None) -> Trainer:
        state = checkpoint or o.load_checkpoint_path
        return await engine.trainer(models.student, o.lora_rank, o.seed, state, optimizer=checkpoint is not None)

    trainer = await make_trainer(last["state_path"] if last is not None else None)
    if last is not None:
        progress.say(f"{folder.path}: going on behind step {last['batch']}")
    parts = Parts(
        engine=engine,
        trainer=trainer,
        teacher=await make_teacher(plan, models.teacher, engine, config),
        problems=plan.problems,
        make_group=lambda problem, size: CVDPEnvGroupBuilder(problem, config, size, o.seed),
        folder=folder,
        progress=progress,
        spell=await asyncio.to_thread(spelling, config),
        make_trainer=make_trainer,
    )
    engine.requests.settle(LONGER * o.service_wait_seconds)
    with _other_loggers(plan, folder) as on_metrics:
        parts.on_metrics = on_metrics
        loop = Loop(o, parts)
        if last is not None:
            loop.restore(last)
        await loop.run()


def env_config(plan: Plan, folder: RunFolder, models: Models) -> TinkerEnvConfig:
    """What the environments of a run are made of."""
    from ..envs.tinker_config import TinkerEnvConfig
    from ..episodes.episode import EpisodeConfig
    from ..scoring.cache import default_cache_dir

    o = plan.options
    return TinkerEnvConfig(
        model_name=models.tokenizer,
        renderer_name=models.renderer,
        episode=EpisodeConfig(
            workspace="answer" if o.env == "single_turn" else "shell",
            max_turns=o.max_turns,
            command_timeout=o.timeout_seconds,
            harness_feedback=o.harness_feedback,
            progress_coef=o.progress_coef,
            transcript_dir=folder.transcripts,
            system_prompt=models.system_prompt,
            user_prompt=models.user_prompt,
            max_tokens=o.max_tokens,
            max_trajectory_tokens=o.max_trajectory_tokens,
        ),
        reward=o.reward_config(),
        score_cache=default_cache_dir(),
    )


def spelling(config: TinkerEnvConfig) -> Spell:
    """The bytes of the student's tokens."""
    from ..envs.tinker_config import load_dialect

    return load_dialect(config).renderer.codec.token_bytes


def check_prompts(plan: Plan, config: TinkerEnvConfig) -> None:
    """See that every problem's opening fits. Raises `UsageError` that names the option and the problem."""
    from ..envs.tinker_config import load_dialect
    from ..episodes.prompt import PromptTooLong, open_prompt

    renderer = load_dialect(config).renderer
    for problem in plan.problems:
        try:
            open_prompt(problem, config.episode, renderer)
        except PromptTooLong as error:
            raise UsageError(
                f"max_trajectory_tokens: the prompt of {problem.id} does not fit {plan.options.max_trajectory_tokens} "
                "tokens, shortened as far as it can be; give more, or leave the problem out with problem_ids"
            ) from error


async def _models(plan: Plan, progress: Progress) -> Models:
    """The models by the names that the engine takes, tiny ones made."""
    o = plan.options
    system, user = o.text_of("system_prompt"), o.text_of("user_prompt")
    if TINY not in (o.student_model, o.teacher_model):
        return Models(o.student_model, o.teacher_model, o.student_model, plan.renderer, system, user)
    from ..demo import tiny, tiny_episode

    progress.say("making the tiny student and teacher, or taking them from the cache …")
    made = await asyncio.to_thread(tiny.make_tiny, o.seed)
    student = str(made.student_path) if o.student_model == TINY else o.student_model
    teacher = str(made.teacher_path) if o.teacher_model == TINY else o.teacher_model
    own = o.student_model == TINY and o.env == "agentic"
    return Models(
        student=student,
        teacher=teacher,
        tokenizer=str(made.tokenizer_path) if o.student_model == TINY else student,
        renderer=plan.renderer or tiny_episode.RENDERER,
        system_prompt=tiny_episode.SYSTEM_PROMPT if own and system is None else system,
        user_prompt=tiny_episode.USER_PROMPT if own and user is None else user,
    )


async def _engine(plan: Plan, folder: RunFolder, progress: Progress) -> Engine:
    from .services import local_engine, tinker_engine

    if plan.engine == "tinker":
        return await tinker_engine(plan.options.base_url, progress.say, plan.options.service_wait_seconds)
    return local_engine(folder.path / "checkpoints", plan.options.seed)


@contextlib.contextmanager
def _other_loggers(plan: Plan, folder: RunFolder) -> Any:
    """Weights & Biases, where it is asked for."""
    if plan.options.wandb_project is None:
        yield None
        return
    from tinker_cookbook.exceptions import ConfigurationError
    from tinker_cookbook.utils.ml_log import WandbLogger

    try:
        made = WandbLogger(
            plan.options.wandb_project, plan.options.model_dump(mode="json"), folder.path, plan.options.wandb_name
        )
    except (ImportError, ConfigurationError) as error:
        raise UsageError(f"wandb_project: {error}") from error
    tell: Callable[[int, dict[str, Any]], None] = lambda step, metrics: made.log_metrics(metrics, step)  # noqa: E731
    try:
        yield tell
    finally:
        made.close()


def _quiet() -> None:
    """No progress bars but ours: each save and load of a model would draw its own."""
    try:
        from transformers.utils import logging as transformers_logging
    except ImportError:
        return
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def _outcome(folder: RunFolder) -> Outcome:
    records = folder.checkpoints()
    last = records[-1] if records else None
    return Outcome(
        folder.path, int(last["batch"]) if last else 0, folder.metrics(), last["state_path"] if last else None
    )


def summary_line(outcome: Outcome) -> str:
    """An outcome as one line of JSON."""
    last = outcome.metrics[-1] if outcome.metrics else {}
    return json.dumps({"folder": str(outcome.folder), "steps": outcome.steps, "last": last})

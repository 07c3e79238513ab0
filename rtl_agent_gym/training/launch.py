"""Starts a run: from its options to its report."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engines.threads import end_process
from ..errors import RTLGymError, ServiceError, TranscriptError, UsageError, exit_code, leaves, most_telling
from ..logs import showing
from ..metrics import serving
from ..visible import visible
from .options import TrainOptions, describe_options, split_arguments
from .plan import ModelRecipe, Plan, check_prompts, plan_run
from .preview import describe_run
from .progress import Progress
from .run_folder import DISK_FAULTS, WEIGHTS, RunFolder

if TYPE_CHECKING:
    from ..engines.connect import Engine, Status
    from ..engines.protocol import Trainer
    from ..episodes.runtime import Runtime
    from .loop import OnMetrics

Clusters = Callable[[str, str, float, int], Callable[[], "Runtime"]]
"""From address, limits of each node, ``canary_seconds`` and slots to a factory of an event loop's runtime."""

logger = logging.getLogger(__name__)

MACHINES = ("sandboxes", "episodes", "cluster")
"""Loggers whose warnings a run shows, since they explain why it waits."""


@dataclass(frozen=True)
class Outcome:
    """The result of a run."""

    folder: Path
    steps: int
    """Completed steps, including those before it was resumed."""
    metrics: list[dict[str, Any]]
    """One row per step."""

    def summary_line(self) -> str:
        """The folder, the number of steps and the last step's metrics as one line of JSON."""
        last = self.metrics[-1] if self.metrics else {}
        return json.dumps({"folder": str(self.folder), "steps": self.steps, "last": last})


def train(
    given: Mapping[str, Any],
    *,
    rl: bool = False,
    recipes: Sequence[ModelRecipe] = (),
    clusters: Clusters | None = None,
) -> Outcome:
    """Start or resume a run, and return when it is complete.

    Args:
        given: Options by name; see `TrainOptions`.
        rl: Reinforcement learning, without a teacher.
        recipes: Models that can be built on this machine; without a service, the first is the default.
        clusters: Connects to the cluster at `ray_address`; usually `cluster.runtime_at`.

    Raises:
        UsageError: An option is wrong, or this thread's event loop is running.
        SandboxError: The machine failed repeatedly; the same call resumes the run.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the same call resumes the run.
    """
    return launch(plan_run(given, rl=rl, recipes=recipes), clusters)


def launch(plan: Plan, clusters: Clusters | None = None) -> Outcome:
    """Start or resume a planned run, and return when it is complete. Arguments and exceptions are those of `train`."""
    if asyncio._get_running_loop() is not None:
        raise UsageError("a run needs its own event loop; in a notebook: await asyncio.to_thread(train, options)")
    folder = RunFolder(plan.options.log_path)
    folder.open(plan.record(), plan.options.behavior_if_log_dir_exists)
    try:
        with contextlib.ExitStack() as stack:
            shown = stack.enter_context(Progress(plan.options.num_steps))
            stack.enter_context(showing(shown.print, *MACHINES))
            stack.enter_context(_machines(plan.options, clusters))
            if port := stack.enter_context(serving(plan.options.metrics_port)):
                shown.print(f"metrics: http://127.0.0.1:{port}/metrics")
            asyncio.run(_run(plan, folder, shown))
        return Outcome(
            folder.path, max((int(record["batch"]) for record in folder.checkpoints()), default=0), folder.metrics()
        )
    except asyncio.CancelledError:  # SIGTERM, handled like Ctrl-C
        raise KeyboardInterrupt from None
    except BaseExceptionGroup as group:
        raise cause_of(group) from group
    finally:
        folder.close()


def dry_run(plan: Plan) -> str:
    """A description of the run that `launch` would start, with its warnings. Nothing is created or requested.

    Raises `UsageError` if a prompt is too long, or the tokenizer of a published student cannot be loaded.
    """
    if not plan.recipes:
        check_prompts(plan, plan.env_config(Path(plan.options.log_path)))
    return "\n".join([*describe_run(plan), *(f"warning: {warning}" for warning in plan.warnings)])


def main(
    arguments: Sequence[str] | None = None,
    *,
    rl: bool = False,
    recipes: Sequence[ModelRecipe] = (),
    defaults: Callable[[Mapping[str, str]], Mapping[str, Any]] = lambda given: given,
    closing: Callable[[Path], Sequence[str]] = lambda run: (),
    clusters: Clusters | None = None,
) -> int:
    """Run the command line ``key=value …``; `defaults` adds options to the given ones; ``--dry-run`` prints the plan.

    Returns the exit code (see ``rtl-agent-gym --help``). Once all steps are done, it prints the lines that `closing`
    returns for the run's folder.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if any(argument in ("-h", "--help") for argument in arguments):
        print(describe_options())
        return 0
    only_plan = "--dry-run" in arguments
    try:
        given = defaults(split_arguments([argument for argument in arguments if argument != "--dry-run"]))
        if only_plan:
            print(dry_run(plan_run(given, rl=rl, recipes=recipes)))
            return 0
        outcome = train(given, rl=rl, recipes=recipes, clusters=clusters)
    except RTLGymError as error:
        _tell(f"error: {error}")
        return end_process(exit_code(error))
    except OSError as error:
        if error.errno not in DISK_FAULTS:
            raise
        where = f"{error.filename}: " if error.filename else ""
        _tell(f"error: {where}{error.strerror or error}; the same command resumes the run")
        return end_process(3)
    except KeyboardInterrupt:
        _tell("stopped; the same command resumes the run")
        return end_process(130)
    _tell(f"{outcome.steps} steps; report: {outcome.folder / 'report.html'}")
    try:
        lines = closing(outcome.folder)
    except TranscriptError as error:  # the run itself is complete
        lines = [f"warning: {error}"]
    for line in lines:
        _tell(line)
    return end_process(0)


def _tell(line: str) -> None:
    with contextlib.suppress(OSError):  # the run and its exit code do not depend on who reads this
        print(visible(line), file=sys.stderr)


def _machines(options: TrainOptions, clusters: Clusters | None) -> contextlib.AbstractContextManager[None]:
    """The context in which episodes get their sandboxes from the cluster of the options, if any."""
    from ..episodes.runtime import using

    if not options.ray_address:
        return contextlib.nullcontext()
    if clusters is None:
        raise UsageError("ray_address: launch got no `clusters`; call it with clusters=cluster.runtime_at")
    if options.sandbox != "auto":
        command = f"rtl-agent-gym --sandbox {options.sandbox} cluster up"
        raise UsageError(f"sandbox: a run cannot set it for the nodes of a cluster; start them with `{command}`")
    slots = options.ray_slots or options.max_concurrent
    return using(clusters(options.ray_address, options.sandbox_limits, options.canary_seconds, slots))


async def _run(plan: Plan, folder: RunFolder, progress: Progress) -> None:
    from ..episodes.runtime import acquire
    from ..sandboxes.admission import set_limits
    from ..sandboxes.choice import set_kind

    task = asyncio.current_task()
    assert task is not None
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    last = folder.repair()
    if last is not None and int(last["batch"]) >= plan.options.num_steps:
        progress.print(f"{folder.path}: all {plan.options.num_steps} steps are done")
        await _report(folder)  # a run that was killed after its last step has none
        return
    if last is not None and (chosen := last.get("local_dtype")):  # at the first start, perhaps on another machine
        plan = replace(plan, options=plan.options.model_copy(update={"local_dtype": chosen}))
    if plan.engine == "tinker":
        for line in await asyncio.to_thread(describe_run, plan):
            progress.print(line)
    _warn(progress, plan.warnings)
    set_kind(plan.options.sandbox)
    if plan.options.sandbox_limits:
        set_limits(plan.options.sandbox_limits)
    lease = acquire()  # one Docker client for all steps, not one per step
    engine: Engine | None = None
    status: Status = "errored"
    try:
        given = plan.options.local_dtype
        plan = await _make_models(plan)
        if plan.options.local_dtype != given:
            progress.print(f"local_dtype: {plan.options.local_dtype}, in which this processor is faster")
        engine = await _make_engine(plan, folder, progress)
        if plan.engine == "local":  # checkpoints record it, so that a resumed run computes in the same
            from ..engines.models import precision_of

            dtype = precision_of(plan.options.local_device, plan.options.local_dtype)
            plan = replace(plan, options=plan.options.model_copy(update={"local_dtype": dtype}))
        _warn(progress, await _shared(plan))
        await _train(plan, folder, progress, engine, lease.runtime)
        status = "success"
    except asyncio.CancelledError:
        status = "interrupted"
        raise
    except BaseException as error:
        logger.exception("the run ended before its last step")
        for part in leaves(error):
            if isinstance(part, OSError):
                folder.explain(part)
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


def _warn(progress: Progress, warnings: Sequence[str]) -> None:
    for warning in warnings:
        progress.print(f"warning: {warning}")
        logger.warning("%s", warning)


async def _shared(plan: Plan) -> list[str]:
    """A warning if other processes use the Docker host of the episodes, and this run has no limits there."""
    from ..options import WITHOUT_DAEMON
    from ..sandboxes.choice import host_of, kind
    from ..sandboxes.container import warning_of_others

    if plan.supervised is not None or plan.options.ray_address or kind(plan.options.sandbox) in WITHOUT_DAEMON:
        return []
    limits, host = plan.options.sandbox_limits, partial(host_of, plan.options.sandbox)
    warning = await asyncio.to_thread(warning_of_others, "sandbox_limits", limits, host)
    return [warning] if warning else []


async def _make_models(plan: Plan) -> Plan:
    for recipe in plan.recipes:
        plan = await asyncio.to_thread(recipe.make, plan)
    return plan


async def _make_engine(plan: Plan, folder: RunFolder, progress: Progress) -> Engine:
    from ..engines.connect import local_engine, tinker_engine

    if plan.engine == "tinker":
        return await tinker_engine(plan.options.base_url, progress.print, plan.options.service_wait_seconds)
    try:
        return local_engine(plan.options.local_config(folder.path / WEIGHTS))
    except UsageError as error:  # it begins with the option's name in the engine's configuration
        raise UsageError(f"local_{error}") from error


async def _train(plan: Plan, folder: RunFolder, progress: Progress, engine: Engine, runtime: Runtime) -> None:
    from ..engines.connect import RUNNING_PATIENCE
    from ..envs.tinker_config import load_renderer
    from .checkpointer import Checkpointer
    from .evaluator import Evaluator
    from .loop import SupervisedLoop, TrainingLoop
    from .options import SftOptions
    from .rollouts import EpisodePlayer
    from .teachers.setup import make_teachers

    o = plan.options
    config = plan.env_config(folder.transcripts)
    await asyncio.to_thread(check_prompts, plan, config)

    async def make_trainer(checkpoint: str | None) -> Trainer:
        state = checkpoint or o.load_checkpoint_path
        return await engine.trainer(plan.student, o.lora_rank, o.seed, state, optimizer=checkpoint is not None)

    checkpointer = Checkpointer(o, folder, engine, make_trainer, progress, tested=bool(plan.held_out))
    await checkpointer.open()
    if checkpointer.steps:
        progress.print(f"{folder.path}: resuming after step {checkpointer.steps}")
    if (context := checkpointer.context) is not None and context < o.max_trajectory_tokens:
        config = plan.env_config(folder.transcripts, context)
        await asyncio.to_thread(check_prompts, plan, config)
        if plan.supervised is not None and (longest := plan.supervised.longest) > context:
            raise UsageError(
                f"max_trajectory_tokens: an episode has {longest} tokens, and the student's context is {context}; "
                f"max_trajectory_tokens={context} leaves such episodes out"
            )
    teachers = await make_teachers(plan, engine, config)
    renderer = await asyncio.to_thread(load_renderer, config)
    engine.requests.run_begins(RUNNING_PATIENCE * o.service_wait_seconds)
    evaluator = Evaluator(o, plan.evaluated(), config, folder.path / "evaluations", progress)
    with _weights_and_biases(plan, folder) as on_metrics:
        if folder.replaces and (plan.supervised is None or any(plan.evaluated().values())):
            async with runtime.provider.grading():  # fails if no sandbox can be made here
                pass
        folder.begin()
        loop: TrainingLoop | SupervisedLoop
        if plan.supervised is not None and isinstance(o, SftOptions):
            loop = SupervisedLoop(o, plan.supervised, checkpointer, evaluator, progress, on_metrics)
        else:
            player = EpisodePlayer(config, renderer, runtime, o.seed, o.agent)
            loop = TrainingLoop(
                o, plan.batches(), player, checkpointer, teachers, evaluator, folder, progress,
                renderer=renderer, on_metrics=on_metrics,
            )  # fmt: skip
        await loop.run()
    best = folder.best_checkpoint()
    if best is not None:
        progress.print(f"best checkpoint by held-out problems: {best['name']}, {best['test_pass_rate']:.1%} pass")
    if weights := (best or folder.checkpoints()[-1]).get("sampler_path"):
        progress.print(f"evaluate its weights: {plan.evaluation_command(weights)}")


def cause_of(error: BaseException) -> BaseException:
    """The exception of a group to report to the user: Ctrl-C, else an exception from outside this package (a bug), else
    the package's error that explains most.
    """
    found = list(leaves(error))
    stopped = next((part for part in found if isinstance(part, KeyboardInterrupt)), None)
    foreign = (part for part in found if not isinstance(part, (RTLGymError, asyncio.CancelledError)))
    return stopped or most_telling(error) or next(foreign, found[0])


async def clean_up(steps: Mapping[str, Callable[[], Awaitable[None]]], *, failed: bool) -> None:
    """Do every step, even if another fails, and then raise the first exception.

    A `ServiceError` is only logged; if the run has already `failed`, so is every exception.
    """
    first: Exception | None = None
    for name, step in steps.items():
        try:
            await step()
        except ServiceError as error:
            logger.warning("%s: %s", name, error)
        except Exception as error:  # raised after the other steps
            logger.warning("%s failed", name, exc_info=True)
            first = first or error
    if first is not None and not failed:
        raise first


async def _report(folder: RunFolder) -> None:
    from ..evaluation import report

    try:
        report.write_report([folder.path], folder.path / "report.html", episodes=False)
    except RTLGymError as error:
        logger.warning("the report was not written: %s", error)


@contextlib.contextmanager
def _weights_and_biases(plan: Plan, folder: RunFolder) -> Iterator[OnMetrics | None]:
    """Yield a function that logs a step's metrics to Weights & Biases; None if `wandb_project` is not set."""
    if plan.options.wandb_project is None:
        yield None
        return
    from tinker_cookbook.exceptions import ConfigurationError
    from tinker_cookbook.utils.ml_log import WandbLogger

    try:
        wandb = WandbLogger(plan.options.wandb_project, plan.record(), folder.path, plan.options.wandb_name)
    except (ImportError, ConfigurationError) as error:
        raise UsageError(f"wandb_project: {error}") from error
    with contextlib.closing(wandb):
        yield wandb.log_metrics

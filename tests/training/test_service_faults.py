"""Failures of a service during a run cost an episode, a pause or the run; no step counts twice."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import AsyncMock, Mock

import pytest
import tinker
from rich.console import Console
from tinker.types import RequestErrorCategory

from rtl_agent_gym.demo.shipped import SMALL
from rtl_agent_gym.engines import requests
from rtl_agent_gym.errors import RequestRefused, ServiceDown, ServiceError, UsageError
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.retries import REQUEST, STEP
from rtl_agent_gym.sandboxes.admission import Budget, Limits
from rtl_agent_gym.training import checkpointer, launch, loop
from rtl_agent_gym.training.launch import cause_of, clean_up
from rtl_agent_gym.training.options import TrainOptions
from rtl_agent_gym.training.progress import Progress
from rtl_agent_gym.training.rollouts import EpisodePlayer
from rtl_agent_gym.training.run_folder import RunFolder
from tests.arbiter import ARBITER
from tests.training.common import differs
from tests.training.faulty_service import Fault, Faulty, failed, no_connection, status_error
from tests.training.scripted_run import make_plan

BUSY = status_error(tinker.RateLimitError, 429)
BROKEN = status_error(tinker.InternalServerError, 500)
KEY = status_error(tinker.AuthenticationError, 401)
BILLING = status_error(tinker.BillingError, 402)
TOO_LONG = status_error(tinker.BadRequestError, 400)
UNSUPPORTED = status_error(tinker.UnprocessableEntityError, 422)
SERVERS = failed(RequestErrorCategory.Server)
USERS = failed(RequestErrorCategory.User)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointer, "STEP", STEP._replace(first=0.0))
    monkeypatch.setattr(requests, "REQUEST", REQUEST._replace(first=0.0))


async def reason(ran: Awaitable[Any]) -> BaseException:
    """Why a run ended."""
    try:
        await ran
    except Exception as error:
        return cause_of(error)
    raise AssertionError("the run came to its end")


async def played(toy: Any, home: Path, name: str, faulty: Any, *arguments: str) -> Any:
    common = ("num_steps=3", "group_size=3", "kl_penalty_coef=1", f"log_path={home / name}")
    return await toy.run(home, *common, *arguments, service=faulty)


WHOLE: dict[tuple[str, ...], Any] = {}


async def whole_run(toy: Any, home: Path, *arguments: str) -> Any:
    """A run without faults, which is the same for all tests."""
    if arguments not in WHOLE:
        WHOLE[arguments] = await played(toy, home, "whole", None, *arguments)
    return WHOLE[arguments]


async def test_a_request_that_changes_nothing_is_made_again(toy: Any, home: Path) -> None:
    whole = await whole_run(toy, home)
    faults: dict[str, dict[int | str, Fault]] = {
        "sample": {1: BUSY, 2: BROKEN, 7: SERVERS, 9: no_connection},
        "compute_logprobs": {0: BROKEN, 1: no_connection},
        "create_sampling_client": {0: BUSY},
    }
    ran = await played(toy, home, "faulty", lambda below: Faulty(below, faults))
    assert differs(ran.weights, whole.weights) < 1e-6
    assert [row["rollouts/faults"] for row in ran.folder.metrics()] == [0, 0, 0]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("method", "carried_out"),
    [
        ("forward_backward", True),
        ("optim_step", False),
        pytest.param("forward_backward", False, marks=pytest.mark.slow),
        pytest.param("optim_step", True, marks=pytest.mark.slow),
        ("save_state", True),
        pytest.param("save_state", False, marks=pytest.mark.slow),
        pytest.param("save_weights_and_get_sampling_client", True, marks=pytest.mark.slow),
        ("save_weights_and_get_sampling_client", False),
    ],
)
async def test_a_step_that_failed_counts_once(toy: Any, home: Path, method: str, carried_out: bool) -> None:
    """Whether or not the service had executed the request."""
    whole = await whole_run(toy, home)
    calls = {"forward_backward": 1, "optim_step": 1, "save_state": 1, "save_weights_and_get_sampling_client": 2}
    service: list[Faulty] = []

    def faulty(below: Any) -> Faulty:
        lost = () if carried_out else (method,)
        service.append(Faulty(below, {method: {calls[method]: SERVERS, calls[method] + 1: BROKEN}}, lost=lost))
        return service[0]

    ran = await played(toy, home, "faulty", faulty)
    rows = ran.folder.metrics()
    assert [row["service/steps_repeated"] for row in rows] == [0, 2, 0]
    assert differs(ran.weights, whole.weights) < 1e-6
    assert [row["teacher_kl"] for row in rows] == [
        pytest.approx(row["teacher_kl"], abs=1e-6) for row in whole.folder.metrics()
    ]
    assert service[0].calls["create_training_client_from_state_with_optimizer"] == 2
    assert ran.faults.played == whole.faults.played  # the episodes are the same ones


@pytest.mark.parametrize(
    ("faults", "arguments"),
    [
        ({"save_weights_and_get_sampling_client": {0: SERVERS}, "optim_step": {0: SERVERS}}, ()),  # the first step
        ({"forward_backward": {1: SERVERS}, "save_weights_for_sampler": {0: SERVERS}}, ("pipeline=true",)),
    ],
)
async def test_any_step_can_be_repeated(toy: Any, home: Path, faults: Any, arguments: tuple[str, ...]) -> None:
    whole = await whole_run(toy, home, *arguments)
    ran = await played(toy, home, "faulty", lambda below: Faulty(below, faults), *arguments)
    assert differs(ran.weights, whole.weights) < 1e-6


async def test_a_step_behind_an_old_checkpoint_ends_the_run_which_resumes_exactly(toy: Any, home: Path) -> None:
    whole = await whole_run(toy, home, "resume_every=2")
    faulty = lambda below: Faulty(below, {"optim_step": {1: SERVERS}})  # noqa: E731
    cause = await reason(played(toy, home, "faulty", faulty, "resume_every=2"))
    assert isinstance(cause, ServiceDown)
    assert "step 2: the optimizer step: Request failed: boom" in str(cause)
    assert "the last checkpoint is of step 0: start the same command again" in str(cause)
    again = await played(toy, home, "faulty", None, "resume_every=2")
    assert differs(again.weights, whole.weights) < 1e-6
    assert again.faults.played < whole.faults.played


@pytest.mark.parametrize(
    ("faults", "kind", "says"),
    [
        ({"sample": {"always": KEY}}, UsageError, "TINKER_API_KEY"),
        ({"compute_logprobs": {2: BILLING}}, ServiceDown, "billing"),
        ({"sample": {3: BILLING}}, ServiceDown, "billing"),
        ({"optim_step": {"always": SERVERS}}, ServiceDown, "step 1 failed 4 times; the optimizer step"),
        ({"forward_backward": {0: TOO_LONG}}, RequestRefused, "computing the gradient: the service refuses"),
        ({"compute_logprobs": {"always": SERVERS}}, ServiceError, "the teacher judged no episode of the step"),
        ({"sample": {"always": USERS}}, RequestRefused, "the service refused every episode of step 1: sampling"),
    ],
)
async def test_what_no_retry_can_mend_ends_the_run_with_its_reason(
    toy: Any, home: Path, faults: Any, kind: type[Exception], says: str
) -> None:
    cause = await reason(played(toy, home, "run", lambda below: Faulty(below, faults)))
    assert isinstance(cause, kind), cause
    assert says in str(cause)


async def test_a_refused_sample_costs_its_episode_and_is_not_repeated(toy: Any, home: Path) -> None:
    ran = await played(toy, home, "run", lambda below: Faulty(below, {"sample": {1: TOO_LONG}}))
    rows = ran.folder.metrics()
    assert [(row["rollouts/faults"], row["env/all/total_episodes"]) for row in rows] == [(1, 2), (0, 3), (0, 3)]


async def test_an_episode_that_the_teacher_refuses_stays_unjudged_also_when_resumed(toy: Any, home: Path) -> None:
    faults: Any = {"compute_logprobs": {1: TOO_LONG}, "optim_step": {"always": BILLING}}
    cause = await reason(played(toy, home, "run", lambda below: Faulty(below, faults)))
    assert isinstance(cause, ServiceDown)  # behind the judging
    ran = await played(toy, home, "run", lambda below: Faulty(below, {"compute_logprobs": {1: USERS, 3: USERS}}))
    rows = ran.folder.metrics()
    assert [row["teacher_kl/unjudged"] for row in rows] == [1, 1, 0]
    assert [row["teacher_kl/covered"] for row in rows] == [pytest.approx(2 / 3), pytest.approx(2 / 3), 1]


async def test_a_teacher_that_refuses_everything_leaves_the_reward(toy: Any, home: Path) -> None:
    faults: Any = {"compute_logprobs": {"always": TOO_LONG}}
    ran = await played(toy, home, "run", lambda below: Faulty(below, faults), "reward_coef=1", "baseline=none")
    assert [row["teacher_kl/unjudged"] for row in ran.folder.metrics()] == [3, 3, 3]


@pytest.mark.parametrize(
    ("faults", "arguments", "kind", "says"),
    [
        ({"compute_logprobs": {"always": UNSUPPORTED}}, (), RequestRefused, "the teacher refused .* reward_coef is 0"),
        # The six requests before these are the student's: three episodes of two turns.
        (
            {"sample": dict.fromkeys((6, 7, 8), UNSUPPORTED)},
            ("kl_top_k=2",),
            UsageError,
            "^kl_top_k: the teacher refused .* use kl_top_k=0$",
        ),
    ],
)
async def test_a_teacher_that_refuses_everything_ends_a_run_without_a_reward(
    toy: Any, home: Path, faults: Any, arguments: tuple[str, ...], kind: type[Exception], says: str
) -> None:
    ran = played(toy, home, "run", lambda below: Faulty(below, faults), "reward_coef=0", *arguments)
    cause = await reason(ran)
    assert isinstance(cause, kind), cause
    assert re.search(says, str(cause)), cause
    assert not RunFolder(home / "run").checkpoints()


async def test_a_later_step_that_the_teacher_refuses_is_told_of(
    toy: Any, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A resumed run would find the same episodes, and end again."""
    faults: Any = {"compute_logprobs": dict.fromkeys((1, 3, 4, 5), TOO_LONG)}
    ran = await played(toy, home, "run", lambda below: Faulty(below, faults), "reward_coef=0")
    assert [row["teacher_kl/unjudged"] for row in ran.folder.metrics()] == [1, 3, 0]
    first, second = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert first == "warning: step 1: the teacher did not judge 1 of the episodes, which have no KL; logs.log says why"
    assert second.startswith("warning: step 2: the teacher did not judge 3 of the episodes")
    assert second.endswith("; no token of this step has a KL")


async def test_a_trainer_that_is_not_restored_at_once_is_tried_again(tmp_path: Path) -> None:
    opened = []

    async def make_trainer(_: str | None) -> Any:
        opened.append(1)
        if len(opened) == 2:
            raise ServiceError("creating the trainer: 503")
        return object()

    async def work(_: Any) -> str:
        if len(opened) < 3:
            raise ServiceError("an optimizer step failed")
        return "done"

    engine: Any = None
    with Progress(1) as progress:
        made = checkpointer.Checkpointer(TrainOptions(), RunFolder(tmp_path), engine, make_trainer, progress)
        await made.open()
        assert await made.apply(0, work) == "done"
    assert len(opened) == 3


async def test_a_run_begins_with_the_weights_it_is_given_and_goes_on_with_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint of the run itself is restored with the optimizer's state."""
    made: list[tuple[Any, ...]] = []

    class Engine:
        async def trainer(self, model: str, rank: int, seed: int, state: str | None, *, optimizer: bool) -> None:
            made.append((model, rank, seed, state, optimizer))

    class Opened:
        def __init__(self, *given: Any, **_: Any) -> None:
            self.make_trainer = given[3]

        async def open(self) -> None:
            await self.make_trainer(None)
            await self.make_trainer("state/000002")
            raise ServiceDown("enough")

    monkeypatch.setattr(checkpointer, "Checkpointer", Opened)
    problems, start = load_problems("bundled", ids=[ARBITER]), "tinker://x/weights/y"
    plan = make_plan(tmp_path, problems, f"load_checkpoint_path={start}", "lora_rank=8", "seed=5")
    engine, runtime = Engine(), object()
    with pytest.raises(ServiceDown, match="enough"):
        await launch._train(plan, RunFolder(tmp_path), Progress(1), engine, runtime)  # type: ignore[arg-type]
    assert made == [(plan.student, 8, 5, start, False), (plan.student, 8, 5, "state/000002", True)]


@pytest.mark.parametrize("tested", [True, False])
async def test_a_run_begins_when_nothing_can_refuse_it_any_more(
    tested: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the earlier run in its folder is deleted, and a silent service is waited for longer than at the start."""
    happened: list[Any] = []

    class Loop:
        def __init__(self, o: Any, batches: Any, player: EpisodePlayer, *_: Any, **__: Any) -> None:
            assert player.seed == o.seed == 5

        async def run(self) -> None:
            happened.append("loop")
            raise ServiceDown("enough")

    opened = Mock(return_value=Mock(steps=0, context=None, open=AsyncMock()))
    monkeypatch.setattr(checkpointer, "Checkpointer", opened)
    monkeypatch.setattr(loop, "TrainingLoop", Loop)
    folder = Mock(path=tmp_path, transcripts=tmp_path, replaces=False)
    folder.begin.side_effect = lambda: happened.append("begin")
    engine = Mock()
    engine.requests.run_begins.side_effect = happened.append
    problems = load_problems("bundled", ids=[ARBITER])
    plan = make_plan(
        tmp_path, problems, "teacher_model=none", "kl_penalty_coef=0", "reward_coef=1", "service_wait_seconds=7",
        "seed=5", held_out=problems if tested else (),
    )  # fmt: skip
    with pytest.raises(ServiceDown, match="enough"):
        await launch._train(plan, folder, Progress(1), engine, Mock())
    patience, *rest = happened
    assert patience > 7
    assert rest == ["begin", "loop"]
    assert opened.call_args.kwargs["tested"] == tested  # only then is the best checkpoint kept


def test_what_a_service_says_cannot_control_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said, printed = "503 \x1b]0;title\x07", io.StringIO()

    def fails(*_: Any, **__: Any) -> Any:
        raise ServiceError(said)

    progress = Progress(1)
    progress.console = Console(file=printed)
    progress.print(said)
    monkeypatch.setattr(launch, "train", fails)
    assert launch.main([]) == 3
    for shown in (printed.getvalue(), capsys.readouterr().err):
        assert shown.endswith("503 ⟨U+001B⟩]0;title⟨U+0007⟩\n")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of rich's live line
def test_a_run_goes_on_after_its_terminal_was_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that was disowned outlives its terminal."""
    master, slave = os.openpty()
    with contextlib.suppress(OSError), os.fdopen(slave, "w") as terminal:  # closing it fails, too
        monkeypatch.setattr(sys, "stderr", terminal)
        with Progress(2) as progress:
            assert progress.console.is_terminal
            progress.print("a line")
            os.close(master)
            progress.begin(0, "playing", 1)
            progress.episode_done()
            progress.step_done(0, {"time/total": 1.0})
            progress.print("another line")
        monkeypatch.undo()
    assert "nothing more is shown" in caplog.text


def test_a_run_goes_on_after_the_reader_of_its_pipe_ended(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with contextlib.suppress(OSError), os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stderr", pipe)
        with Progress(2) as progress:
            progress.print("a line")
            progress.step_done(0, {"time/total": 1.0})
        monkeypatch.undo()
    assert caplog.text.count("nothing more is shown") == 1


async def test_a_run_inside_a_running_loop_makes_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="event loop"):
        launch.train({"engine": "local", "log_path": str(tmp_path / "run")}, recipes=[SMALL])
    assert not (tmp_path / "run").exists()


def test_a_mistake_in_the_code_is_told_before_what_failed_beside_it() -> None:
    mistake, cancelled = KeyError("no such layer"), asyncio.CancelledError()
    group = BaseExceptionGroup("tasks", [cancelled, ServiceDown("away"), ExceptionGroup("more", [mistake])])
    assert cause_of(group) is mistake
    assert cause_of(BaseExceptionGroup("tasks", [cancelled])) is cancelled
    stopped = KeyboardInterrupt()
    assert cause_of(BaseExceptionGroup("tasks", [mistake, ServiceDown("away"), stopped])) is stopped


async def test_every_step_of_cleaning_up_is_done_and_the_first_error_told() -> None:
    done: list[str] = []

    async def step(name: str, error: Exception | None) -> None:
        done.append(name)
        if error is not None:
            raise error

    steps = {
        "service": lambda: step("service", ServiceError("did not take note")),
        "lease": lambda: step("lease", ValueError("first")),
        "report": lambda: step("report", OSError("second")),
    }
    with pytest.raises(ValueError, match="first"):
        await clean_up(steps, failed=False)
    await clean_up(steps, failed=True)
    assert done == ["service", "lease", "report"] * 2


def test_a_runs_own_error_is_told_before_those_of_its_end_and_why_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Engine:
        closed: ClassVar[list[str]] = []

        async def close(self, status: str) -> None:
            self.closed.append(status)
            raise TypeError("close() missing 1 required positional argument")

    async def engine(*_: Any) -> Any:
        return Engine()

    async def models(plan: Any, *_: Any) -> Any:
        return plan

    async def steps(*_: Any) -> None:
        Budget(Limits(1 << 30, 1, 1)).start_failed("the daemon does not answer")
        raise ExceptionGroup("tasks", [ServiceError("one"), ExceptionGroup("more", [UsageError("the reason")])])

    reports: list[Any] = []
    monkeypatch.setattr(launch, "_make_models", models)
    monkeypatch.setattr(launch, "_make_engine", engine)
    monkeypatch.setattr(launch, "_train", steps)
    monkeypatch.setattr("rtl_agent_gym.evaluation.report.write_report", lambda *given, **_: reports.append(given))
    with pytest.raises(UsageError, match="the reason"):
        launch.train({"engine": "local", "log_path": str(tmp_path / "run")}, recipes=[SMALL])
    assert Engine.closed == ["errored"]
    assert len(reports) == 1
    assert (
        "warning: a sandbox could not be started (failure 1 in a row): the daemon does not answer"
        in capsys.readouterr().err
    )

"""Requests to an engine: the SDK's exceptions become ours, and a silent service is given up in time."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
import tinker
from tinker.types import RequestErrorCategory

from rtl_agent_gym.engines import requests
from rtl_agent_gym.engines.requests import GuardedSampler, GuardedTrainer, Purpose, Requests, context_length, translate
from rtl_agent_gym.errors import RequestRefused, ServiceDown, ServiceError, UsageError
from rtl_agent_gym.retries import REQUEST
from tests.training.common import Certain
from tests.training.faulty_service import failed, no_connection, status_error


async def test_the_teacher_reads_what_its_context_holds_less_one() -> None:
    """The service samples one token after the prompt."""
    below: Any = Certain(-1.0)
    sampler = GuardedSampler(below, Requests(), context=5)
    found = await sampler.compute_logprobs(tinker.ModelInput.from_ints([1, 2, 3, 4, 5, 6]))
    assert below.read == [[1, 2, 3, 4]]
    assert found == [None, -1.0, -1.0, -1.0, None, None]
    assert len(await sampler.compute_logprobs(tinker.ModelInput.from_ints([1, 2, 3, 4]))) == 4


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("Proto deserialization failed"), ServiceError),
        (RuntimeError("A previous request failed; this TrainingClient is poisoned"), ServiceError),
        (status_error(tinker.NotFoundError, 404)(), RequestRefused),
        (status_error(tinker.UnprocessableEntityError, 422)(), RequestRefused),
        (status_error(tinker.BadRequestError, 400)(), RequestRefused),
        (status_error(tinker.APIStatusError, 413)(), RequestRefused),
        (status_error(tinker.PermissionDeniedError, 403)(), UsageError),
        (status_error(tinker.APIStatusError, 402)(), ServiceDown),
        (status_error(tinker.ConflictError, 409)(), ServiceError),
        (status_error(tinker.RateLimitError, 429)(), ServiceError),
        (status_error(tinker.InternalServerError, 500)(), ServiceError),
        (no_connection(), ServiceError),
        (failed(RequestErrorCategory.User)(), RequestRefused),
        (failed(RequestErrorCategory.Server)(), ServiceError),
        (tinker.TinkerError("The api_key JWT has expired"), UsageError),
        (tinker.TinkerError("retrieve_futures polling failed"), ServiceError),
    ],
)
def test_every_exception_of_the_sdk_becomes_one_of_ours(error: Exception, kind: type[Exception]) -> None:
    assert type(translate(error, Purpose("sampling"), remote=True)) is kind


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (status_error(tinker.AuthenticationError, 401)(), "TINKER_API_KEY: "),
        (status_error(tinker.PermissionDeniedError, 403)(), "student_model: the service refuses 'm'"),
        (status_error(tinker.NotFoundError, 404)(), "student_model: the service refuses 'm'"),
        (failed(RequestErrorCategory.User)(), "student_model: the service refuses 'm'"),
        (ValueError("unknown base model"), "student_model: the service refuses 'm'"),
    ],
)
def test_the_option_that_names_what_is_refused_is_wrong(error: Exception, says: str) -> None:
    found = translate(error, Purpose("creating the trainer", option="student_model", value="m"), remote=True)
    assert isinstance(found, UsageError)
    assert str(found).startswith(says)


def test_a_futures_error_is_judged_by_the_status_behind_it() -> None:
    error = ValueError("Error retrieving result")
    error.__cause__ = status_error(tinker.AuthenticationError, 401)()
    assert isinstance(translate(error, Purpose("sampling"), remote=True), UsageError)


@pytest.mark.parametrize(("again", "attempts"), [(True, 5), (False, 1)])
async def test_what_a_step_repeats_is_not_repeated_here_too(
    monkeypatch: pytest.MonkeyPatch, again: bool, attempts: int
) -> None:
    monkeypatch.setattr(requests, "REQUEST", REQUEST._replace(first=0.0))
    sent: list[int] = []

    async def send() -> None:
        sent.append(1)
        raise ServiceError("503")

    with pytest.raises(ServiceError, match="503"):
        await Requests().with_retries(Purpose("creating the trainer"), send, again=again)
    assert len(sent) == attempts


async def test_before_a_run_begins_requests_are_retried_for_a_time_and_then_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests, "REQUEST", REQUEST._replace(first=0.0))
    sent: list[int] = []

    async def send() -> None:
        sent.append(1)
        raise ServiceError("503")

    sending = Requests(patience=0.2, starting=True)
    with pytest.raises(ServiceDown, match="503; given up after 0 s"):
        await sending.with_retries(Purpose("creating the trainer"), send)
    assert len(sent) > REQUEST.attempts
    sending.run_begins(60)
    sent.clear()
    with pytest.raises(ServiceError) as caught:
        await sending.with_retries(Purpose("sampling"), send)
    assert type(caught.value) is ServiceError
    assert len(sent) == REQUEST.attempts
    assert sending.patience == 60


async def test_the_log_has_no_more_lines_of_a_topic_than_the_user_sees(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(requests, "REQUEST", REQUEST._replace(first=0.0))
    told: list[str] = []

    async def send() -> None:
        raise ServiceError("503")

    with pytest.raises(ServiceError, match="503"):
        await Requests(told.append).with_retries(Purpose("sampling"), send)
    assert [record.getMessage() for record in caplog.records] == told == ["503; retrying in 0 s"]


async def test_a_guarded_trainer_and_its_samplers_know_the_context_length() -> None:
    sampler, client = Mock(context=None), Mock()
    client.save_weights_and_get_sampling_client = AsyncMock(return_value=sampler)
    trainer = GuardedTrainer(client, Requests(), 32)
    assert context_length(trainer) == 32
    assert context_length(await trainer.save_weights_and_get_sampling_client()) == 32
    sampler.context = 16
    assert context_length(await trainer.save_weights_and_get_sampling_client()) == 16


async def test_a_prompt_that_the_engine_does_not_take_costs_its_episode_alone() -> None:
    refusing = Mock(sample=AsyncMock(side_effect=UsageError("too long")))
    refusing.compute_logprobs = refusing.sample
    sampler, prompt = GuardedSampler(refusing, Requests()), tinker.ModelInput.from_ints([1])
    for request in (sampler.sample(prompt, 1), sampler.compute_logprobs(prompt)):
        with pytest.raises(RequestRefused, match="too long"):
            await request


async def test_a_request_that_cannot_be_sent_fails_where_its_answer_is_awaited() -> None:
    """So all requests of a step fail in the same way, and the step can be repeated."""
    client = Mock(forward_backward=Mock(side_effect=no_connection()))
    request = GuardedTrainer(client, Requests(probe=AsyncMock())).forward_backward([], "ppo")
    with pytest.raises(ServiceError, match="computing the gradient"):
        await request


async def test_a_request_that_the_sdk_cancels_is_no_cancelled_run() -> None:
    withdrawn = asyncio.get_running_loop().create_future()
    withdrawn.cancel()
    with pytest.raises(ServiceError, match="the SDK cancelled the request"):
        await Requests(probe=AsyncMock()).once(Purpose("sampling"), lambda: withdrawn)


@pytest.mark.parametrize(("failure", "kind"), [(ServiceError, ServiceDown), (UsageError, UsageError)])
async def test_a_service_that_falls_silent_is_told_of_and_given_up(
    failure: type[Exception], kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong option is one from the start, such as a key that is no longer accepted."""
    monkeypatch.setattr(requests, "PROBE_EVERY", 0.02)
    told: list[str] = []
    never = asyncio.get_running_loop().create_future()

    async def probe() -> None:
        raise failure("base_url: no answer")

    sending = Requests(told.append, probe, patience=0.1)
    with pytest.raises(kind, match="given up after 0 s: base_url: no answer"):
        await sending.once(Purpose("sampling"), lambda: never)
    assert told == ["base_url: no answer; waited 0 s, giving up after 0 s"]
    await asyncio.sleep(0.01)
    assert never.cancelled()


async def test_nothing_probes_a_service_once_all_is_answered() -> None:
    async def probe() -> None: ...

    sending = Requests(probe=probe)
    await asyncio.gather(*(sending.once(Purpose("sampling"), lambda: asyncio.sleep(0.01)) for _ in range(2)))
    await asyncio.sleep(0.01)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_service_that_answers_every_other_probe_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "PROBE_EVERY", 0.02)
    probe = AsyncMock(side_effect=itertools.cycle([ServiceError("blip"), None]))
    await Requests(probe=probe, patience=0.1).once(Purpose("sampling"), lambda: asyncio.sleep(0.4))
    assert probe.await_count > 4


async def test_an_answer_ends_the_time_for_which_a_service_was_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two probes that fail, with answers in between, are no silence however far they are apart."""
    monkeypatch.setattr(requests, "PROBE_EVERY", 0.02)

    async def probe() -> None:
        raise ServiceError("blip")

    shown: list[str] = []
    sending = Requests(shown.append, probe, patience=0.3)

    async def slow() -> None:
        for _ in range(8):
            await sending.once(Purpose("sampling"), lambda: asyncio.sleep(0.1))

    await asyncio.gather(slow(), slow())  # so that the watch goes on from one request to the next
    assert any("blip" in line for line in shown)

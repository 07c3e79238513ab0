"""The contract of every engine, tested on the local one and, if there is a key, on Tinker's service.

It is also tested on the local engine behind autospecs of the SDK's classes, so that a changed signature in the SDK
fails here, and behind the guards that a run uses for any engine.
"""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import pytest
import tinker

from rtl_agent_gym.engines import connect
from rtl_agent_gym.engines.config import LocalEngineConfig
from rtl_agent_gym.engines.local import LocalServiceClient
from rtl_agent_gym.engines.protocol import Service, Trainer
from rtl_agent_gym.errors import UsageError
from tests.training.tinker_stub import serving

from .conftest import check_scores, datum, inputs, step

pytestmark = pytest.mark.filterwarnings("default::FutureWarning", "default::DeprecationWarning")

TEXT = "module counter (input wire clk, input wire reset, output reg [7:0] count);"


@dataclass
class Engine:
    """An engine under test."""

    service: Service
    model: str
    local: bool = True


class _Later:
    """A future of the local engine whose result is wrapped in an autospec."""

    def __init__(self, below: Any, kind: type) -> None:
        self._below, self._kind = below, kind

    def __await__(self) -> Any:
        return self._wait().__await__()

    async def _wait(self) -> Any:
        return behind_spec(self._kind, await self._below)


MAKES = {
    "create_lora_training_client": tinker.TrainingClient,
    "create_training_client_from_state": tinker.TrainingClient,
    "create_training_client_from_state_with_optimizer": tinker.TrainingClient,
    "create_sampling_client": tinker.SamplingClient,
    "save_weights_and_get_sampling_client": tinker.SamplingClient,
}


def behind_spec(kind: type, below: Any) -> Any:
    """`below`, which can be called only with the signatures of one of the SDK's classes."""
    spec = create_autospec(kind, instance=True)
    for name in dir(kind):
        if name.startswith("_") or not callable(getattr(kind, name)) or not hasattr(below, name):
            continue
        method = getattr(below, name)
        makes = MAKES.get(name)
        if makes is None:
            getattr(spec, name).side_effect = method
        else:
            getattr(spec, name).side_effect = lambda *a, _m=method, _k=makes, **k: _Later(_m(*a, **k), _k)
    return spec


class Guarded:
    """The service as a run uses it: through `connect.Engine`."""

    def __init__(self, engine: connect.Engine, model: str) -> None:
        self._engine, self._model = engine, model

    def create_lora_training_client(self, base_model: str, rank: int = 32, seed: int | None = None) -> Any:
        return self._engine.trainer(base_model, rank, seed or 0, None, optimizer=False)

    def create_training_client_from_state(self, path: str) -> Any:
        return self._engine.trainer(self._model, 0, 0, path, optimizer=False)

    def create_training_client_from_state_with_optimizer(self, path: str) -> Any:
        return self._engine.trainer(self._model, 0, 0, path, optimizer=True)

    def create_sampling_client(self, model_path: str | None = None, base_model: str | None = None) -> Any:
        if model_path is not None:
            return self._engine.sampler(model_path)
        return self._engine.published("student_model", str(base_model))


@pytest.fixture(params=[pytest.param("local", marks=pytest.mark.slow), "specified", "tinker"])
async def engine(request: pytest.FixtureRequest, model_path: Path, tmp_path: Path) -> AsyncIterator[Engine]:
    if request.param != "tinker":
        with LocalServiceClient(LocalEngineConfig(checkpoint_dir=tmp_path)) as service:
            if request.param == "local":
                yield Engine(service, str(model_path))
            else:
                spec = behind_spec(tinker.ServiceClient, service)
                guarded: Any = Guarded(connect.Engine(spec, "tinker"), str(model_path))
                yield Engine(guarded, str(model_path))
        return
    base_url = os.environ.get("TINKER_BASE_URL")
    if not (os.environ.get("TINKER_API_KEY") or base_url):
        pytest.skip("neither TINKER_API_KEY nor TINKER_BASE_URL is set, so there is no Tinker service to test against")
    remote: Any = tinker.ServiceClient(base_url=base_url)
    yield Engine(remote, os.environ.get("RTL_AGENT_GYM_TEST_MODEL", "Qwen/Qwen3-8B"), local=False)


@pytest.fixture
async def trainer(engine: Engine) -> Trainer:
    return await engine.service.create_lora_training_client(engine.model, rank=4, seed=1)


async def test_sampled_logprobs_are_those_that_scoring_gives(engine: Engine) -> None:
    sampler = await engine.service.create_sampling_client(base_model=engine.model)
    prompt = sampler.get_tokenizer().encode(TEXT)
    answer = await sampler.sample(inputs(prompt), 3, tinker.SamplingParams(max_tokens=24, temperature=1.0, seed=3))
    assert len(answer.sequences) == 3
    assert len({tuple(sequence.tokens) for sequence in answer.sequences}) == 3
    for sequence in answer.sequences:
        await check_scores(sampler, prompt, sequence.tokens, sequence.logprobs, near=1e-4 if engine.local else 0.1)


async def test_scoring_gives_one_value_a_token_and_none_for_the_first(engine: Engine) -> None:
    sampler = await engine.service.create_sampling_client(base_model=engine.model)
    ids = sampler.get_tokenizer().encode(TEXT)
    scored = await sampler.compute_logprobs(inputs(ids))
    assert len(scored) == len(ids)
    assert scored[0] is None
    assert all(value is not None and value < 0 for value in scored[1:])


async def test_prompt_logprobs_come_with_a_sample(engine: Engine) -> None:
    sampler = await engine.service.create_sampling_client(base_model=engine.model)
    ids = sampler.get_tokenizer().encode(TEXT)
    params = tinker.SamplingParams(max_tokens=1)
    answer = await sampler.sample(inputs(ids), 1, params, include_prompt_logprobs=True)
    scored = await sampler.compute_logprobs(inputs(ids))
    assert answer.prompt_logprobs is not None
    assert answer.prompt_logprobs[1:] == pytest.approx(scored[1:], abs=1e-4 if engine.local else 0.1)


async def test_a_sample_ends_at_its_limit_or_at_a_stop_token_which_it_keeps(engine: Engine) -> None:
    sampler = await engine.service.create_sampling_client(base_model=engine.model)
    prompt = sampler.get_tokenizer().encode(TEXT)
    free = tinker.SamplingParams(max_tokens=20, seed=5, stop=[], temperature=1.0)
    whole = (await sampler.sample(inputs(prompt), 1, free)).sequences[0]
    assert (len(whole.tokens), whole.stop_reason) == (20, "length")
    stop = whole.tokens[7]
    params = tinker.SamplingParams(max_tokens=20, seed=5, stop=[stop], temperature=1.0)
    cut = (await sampler.sample(inputs(prompt), 1, params)).sequences[0]
    assert cut.stop_reason == "stop"
    assert cut.tokens == whole.tokens[: whole.tokens.index(stop) + 1]


async def test_a_stop_text_ends_a_sample_with_the_token_that_completes_it(engine: Engine) -> None:
    sampler = await engine.service.create_sampling_client(base_model=engine.model)
    tokenizer = sampler.get_tokenizer()
    prompt = tokenizer.encode(TEXT)
    params = tinker.SamplingParams(max_tokens=40, seed=6, stop=["e", "\n", "a", " "], temperature=1.0)
    for one in (await sampler.sample(inputs(prompt), 4, params)).sequences:
        text = tokenizer.decode(one.tokens)
        before = tokenizer.decode(one.tokens[:-1])
        found = any(stop in text for stop in ("e", "\n", "a", " "))
        assert one.stop_reason == ("stop" if found else "length")
        assert not any(stop in before for stop in ("e", "\n", "a", " "))


async def test_temperature_zero_takes_the_likeliest_token(engine: Engine) -> None:
    sampler = await engine.service.create_sampling_client(base_model=engine.model)
    prompt = sampler.get_tokenizer().encode(TEXT)
    params = tinker.SamplingParams(max_tokens=8, temperature=0.0, stop=[])
    first = (await sampler.sample(inputs(prompt), 1, params)).sequences[0]
    second = (await sampler.sample(inputs(prompt), 1, params)).sequences[0]
    assert first.tokens == second.tokens


async def test_training_makes_the_targets_likelier(engine: Engine, trainer: Trainer) -> None:
    ids = trainer.get_tokenizer().encode(TEXT)
    losses = []
    for _ in range(6):
        gradient = trainer.forward_backward([datum(ids)], "cross_entropy")
        step = trainer.optim_step(tinker.AdamParams(learning_rate=5e-3))
        outcome = await gradient
        await step
        losses.append(outcome.metrics["loss:sum"])
        logprobs = outcome.loss_fn_outputs[0]["logprobs"].to_numpy()
        assert losses[-1] == pytest.approx(-float(logprobs.sum()), rel=1e-3)
    assert losses[-1] < 0.9 * losses[0]


async def test_fresh_adapters_change_nothing(engine: Engine, trainer: Trainer) -> None:
    ids = trainer.get_tokenizer().encode(TEXT)
    base = await engine.service.create_sampling_client(base_model=engine.model)
    sampler = await trainer.save_weights_and_get_sampling_client()
    assert (await sampler.compute_logprobs(inputs(ids)))[1:] == pytest.approx(
        (await base.compute_logprobs(inputs(ids)))[1:], abs=1e-4 if engine.local else 0.1
    )


async def test_a_sampler_keeps_the_weights_of_its_moment_and_the_base_its_own(engine: Engine, trainer: Trainer) -> None:
    ids = trainer.get_tokenizer().encode(TEXT)
    base = await engine.service.create_sampling_client(base_model=engine.model)
    untouched = await base.compute_logprobs(inputs(ids))
    before = await trainer.save_weights_and_get_sampling_client()
    early = await before.compute_logprobs(inputs(ids))
    await trainer.forward_backward([datum(ids)], "cross_entropy")
    await trainer.optim_step(tinker.AdamParams(learning_rate=2e-2))
    after = await trainer.save_weights_and_get_sampling_client()
    near = 1e-6 if engine.local else 0.1
    assert (await before.compute_logprobs(inputs(ids)))[1:] == pytest.approx(early[1:], abs=near)
    assert (await base.compute_logprobs(inputs(ids)))[1:] == pytest.approx(untouched[1:], abs=near)
    assert total(await after.compute_logprobs(inputs(ids))) > total(early) + 1


async def test_advantages_move_probabilities_their_way(engine: Engine, trainer: Trainer) -> None:
    ids = trainer.get_tokenizer().encode(TEXT)
    sampler = await trainer.save_weights_and_get_sampling_client()
    scored = [value or 0.0 for value in (await sampler.compute_logprobs(inputs(ids)))[1:]]
    half = len(scored) // 2
    advantages = [1.0] * half + [-1.0] * (len(scored) - half)
    for loss_fn in ("importance_sampling", "ppo"):
        outcome = await trainer.forward_backward([datum(ids, logprobs=scored, advantages=advantages)], loss_fn)
        assert outcome.metrics["loss:sum"] == pytest.approx(-sum(advantages), abs=0.1 if engine.local else 2.0)
    await trainer.optim_step(tinker.AdamParams(learning_rate=2e-3))
    after = await trainer.save_weights_and_get_sampling_client()
    now = [value or 0.0 for value in (await after.compute_logprobs(inputs(ids)))[1:]]
    assert sum(now[:half]) - sum(now[half:]) > sum(scored[:half]) - sum(scored[half:])


async def test_forward_alone_leaves_the_weights_without_a_gradient(engine: Engine, trainer: Trainer) -> None:
    ids = trainer.get_tokenizer().encode(TEXT)
    first = await trainer.forward([datum(ids)], "cross_entropy")
    second = await trainer.forward([datum(ids)], "cross_entropy")
    assert first.metrics["loss:sum"] == pytest.approx(second.metrics["loss:sum"], rel=1e-2)
    assert len(first.loss_fn_outputs[0]["logprobs"].to_numpy()) == len(ids) - 1


async def test_saved_weights_can_be_sampled_from_and_trained_on(engine: Engine, trainer: Trainer) -> None:
    ids = trainer.get_tokenizer().encode(TEXT)
    await trainer.forward_backward([datum(ids)], "cross_entropy")
    await trainer.optim_step(tinker.AdamParams(learning_rate=1e-2))
    live = await trainer.save_weights_and_get_sampling_client()
    wanted = (await live.compute_logprobs(inputs(ids)))[1:]
    path = (await trainer.save_weights_for_sampler("sampler")).path
    saved = await engine.service.create_sampling_client(model_path=path)
    near = 1e-5 if engine.local else 0.1
    assert (await saved.compute_logprobs(inputs(ids)))[1:] == pytest.approx(wanted, abs=near)
    state = (await trainer.save_state("state")).path
    again = await engine.service.create_training_client_from_state(state)
    sampler = await again.save_weights_and_get_sampling_client()
    assert (await sampler.compute_logprobs(inputs(ids)))[1:] == pytest.approx(wanted, abs=near)


async def test_a_restored_trainer_goes_on_as_the_first_one_does(engine: Engine, trainer: Trainer) -> None:
    data = [datum(trainer.get_tokenizer().encode(TEXT))]
    for _ in range(3):
        await step(trainer, data, 3e-3)
    state = (await trainer.save_state("middle")).path
    again = await engine.service.create_training_client_from_state_with_optimizer(state)
    for _ in range(2):
        first, second = await step(trainer, data, 3e-3), await step(again, data, 3e-3)
        assert first == second if engine.local else math.isclose(first, second, rel_tol=1e-2)


async def test_info_names_the_model_and_the_rank(engine: Engine, trainer: Trainer) -> None:
    info = trainer.get_info()
    assert info.model_data.model_name == engine.model
    assert info.lora_rank == 4


def total(logprobs: list[float | None]) -> float:
    return sum(value for value in logprobs if value is not None)


@pytest.mark.parametrize("status", ["success", "errored", "interrupted"])
async def test_a_session_of_the_sdk_is_closed_with_its_status_and_waited_for(status: connect.Status) -> None:
    spec = create_autospec(tinker.ServiceClient, instance=True)
    waited: list[str] = []

    async def finished() -> None:
        waited.append("yes")

    spec.close.side_effect = lambda status, detail=None: finished()
    engine = connect.Engine(spec, "tinker")
    await engine.close(status)
    await engine.close(status)  # idempotent
    spec.close.assert_called_once_with(status)
    assert waited == ["yes"]


async def test_a_state_of_another_model_is_refused_by_the_name_that_the_sdk_gives() -> None:
    spec = create_autospec(tinker.ServiceClient, instance=True)
    client = create_autospec(tinker.TrainingClient, instance=True)
    info = {"model_data": {"model_name": "Qwen/Qwen3.5-9B"}, "model_id": "a"}  # without the optional `model_name`
    client.get_info.return_value = tinker.types.GetInfoResponse.model_validate(info)

    async def created() -> Any:
        return client

    spec.create_training_client_from_state.side_effect = lambda path: created()
    engine = connect.Engine(spec, "tinker")
    with pytest.raises(UsageError, match=r"is of the model Qwen/Qwen3\.5-9B, but student_model is Qwen/Qwen3-8B"):
        await engine.trainer("Qwen/Qwen3-8B", 32, 0, "tinker://a/weights/b", optimizer=False)
    assert await engine.trainer("Qwen/Qwen3.5-9B", 32, 0, "tinker://a/weights/b", optimizer=False)


def test_messages_name_a_service_without_its_password() -> None:
    assert connect.Probe("http://alice:secret@gpu:8000").name == "http://gpu:8000"


async def test_a_credential_command_is_not_run_by_each_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    monkeypatch.setenv("TINKER_CREDENTIAL_CMD", f"echo run >> {tmp_path / 'runs'}; echo tml-made")
    checks: list[str] = []
    with serving({}) as stub:
        probe = connect.Probe(stub.url)
        await probe()
        probe.service = SimpleNamespace(_check_accessible=lambda: checks.append("checked"))
        await probe()
        await probe()
    assert checks == ["checked", "checked"]
    assert (tmp_path / "runs").read_text() == "run\n"


async def test_what_the_sdk_is_asked_beside_its_clients_is_still_there() -> None:

    assert callable(tinker.ServiceClient._check_accessible)
    client: Any = connect.AsyncTinker  # type: ignore[attr-defined]
    assert create_autospec(client)(base_url="x", max_retries=0, timeout=1.0, http_client=None)
    rest = create_autospec(tinker.RestClient)(base_url="x")
    rest.get_server_capabilities()
    rest.delete_checkpoint_from_tinker_path("tinker://a/weights/b")
    assert create_autospec(tinker.SamplingClient, instance=True).get_base_model

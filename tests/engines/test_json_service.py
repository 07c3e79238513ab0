"""The proxy for servers that speak the JSON form of Tinker's API, between the real SDK and recorded answers."""

from __future__ import annotations

import asyncio
import gc
import math
import socket
import warnings
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import tinker

from rtl_agent_gym.engines import json_service
from rtl_agent_gym.engines.json_service import JsonService, sample
from rtl_agent_gym.errors import UsageError
from tests.training.tinker_stub import Stub, serving

MODEL = "Qwen/Qwen3-8B"
PROMISE = {"future_id": "7", "status": "pending", "request_id": "7"}
ANSWERS: dict[str, tuple[int, Any]] = {
    "create_model": (200, {"model_id": "model-1", "base_model": MODEL, "status": "created", "request_id": "1"}),
    "get_info": (200, {"model_id": "model-1", "model_data": {"base_model": MODEL, "model_name": MODEL}}),
    "create_sampling_session": (200, {"type": "create_sampling_session", "sampling_session_id": "sampling-1"}),
    "asample": (200, PROMISE),
    "forward_backward": (200, PROMISE),
    "forward": (200, PROMISE),
    "optim_step": (200, PROMISE),
}
SAMPLED = {
    "sequences": [
        {"stop_reason": "stop", "tokens": [5, 6], "logprobs": [-0.1, -1.7]},
        {"stop_reason": "length", "tokens": [8], "logprobs": [-0.3]},
    ],
    "prompt_logprobs": [-2.5, -0.25],
}
LOSSES = {
    "loss_fn_output_type": "scalar",
    "loss_fn_outputs": [
        {"logprobs": {"data": [-0.1, -0.2, -0.3], "dtype": "float32", "shape": [3]}},
        {"logprobs": {"data": [-0.4], "dtype": "float32", "shape": [1]}},
    ],
    "metrics": {"loss:sum": 1.5},
}


SERVICES: list[tinker.ServiceClient] = []
"""Those that a test connected."""


def connected(proxy: JsonService) -> tinker.ServiceClient:
    SERVICES.append(tinker.ServiceClient(base_url=proxy.url))
    return SERVICES[-1]


@pytest.fixture
async def pair(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Stub, JsonService]]:
    """The stub and the proxy; a parameter says whether the proxy makes up for means."""
    monkeypatch.setenv("TINKER_API_KEY", "tml-of-no-use")
    with serving(ANSWERS) as stub:
        async with JsonService(stub.url, sums=getattr(request, "param", True)) as proxy:
            yield stub, proxy
            while SERVICES:
                await SERVICES.pop().close("success")
    with warnings.catch_warnings():  # the SDK leaves sockets to the garbage collector
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def of(stub: Stub, path: str) -> Any:
    return next(body for name, body in stub.seen if name == path)


def data() -> list[tinker.Datum]:
    def one(tokens: list[int], advantage: float) -> tinker.Datum:
        count = len(tokens)
        return tinker.Datum(
            model_input=tinker.ModelInput.from_ints(tokens),
            loss_fn_inputs={
                "target_tokens": tinker.TensorData(data=[x + 1 for x in tokens], dtype="int64", shape=[count]),
                "logprobs": tinker.TensorData(data=[-0.5] * count, dtype="float32", shape=[count]),
                "advantages": tinker.TensorData(data=[advantage] * count, dtype="float32", shape=[count]),
            },
        )

    return [one([1, 2, 3], 2.0), one([9], -1.0)]


async def sampler(proxy: JsonService) -> Any:
    # In a thread: the SDK blocks its caller until it is connected, and the proxy runs on this loop.
    service = connected(proxy)
    return await asyncio.to_thread(lambda: service.create_sampling_client(base_model=MODEL).result())


async def trainer(stub: Stub, proxy: JsonService) -> Any:
    created = {"model_id": "model-1", "base_model": MODEL, "lora_config": {"rank": 4}, "type": "create_model"}
    stub.answers["retrieve_future"] = (200, created)
    service = connected(proxy)
    return await asyncio.to_thread(lambda: service.create_lora_training_client(MODEL, rank=4).result())


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
class TestSdk:
    async def test_samples(self, pair: tuple[Stub, JsonService]) -> None:
        stub, proxy = pair
        stub.answers["retrieve_future"] = (200, SAMPLED)
        params = tinker.SamplingParams(max_tokens=2, temperature=0.5, seed=3)
        client = await sampler(proxy)
        found = await client.sample_async(tinker.ModelInput.from_ints([1, 2, 3]), 2, params, True)
        assert [list(x.tokens) for x in found.sequences] == [[5, 6], [8]]
        assert [x.stop_reason for x in found.sequences] == ["stop", "length"]
        assert found.sequences[0].logprobs == pytest.approx([-0.1, -1.7])
        assert found.prompt_logprobs == [None, -2.5, -0.25]  # the server has no value for the first token
        sent = of(stub, "asample")
        assert sent["prompt"]["chunks"][0]["tokens"] == [1, 2, 3]
        assert (sent["num_samples"], sent["sampling_params"]["seed"]) == (2, 3)

    @pytest.mark.parametrize(("pair", "factor"), [(True, 3), (False, 1)], indirect=["pair"])
    async def test_training_data_and_losses(self, pair: tuple[Stub, JsonService], factor: int) -> None:
        stub, proxy = pair
        client = await trainer(stub, proxy)
        stub.answers["retrieve_future"] = (200, LOSSES)
        found = await (await client.forward_backward_async(data(), "importance_sampling"))
        sent = of(stub, "forward_backward")["forward_backward_input"]
        assert sent["loss_fn"] == "importance_sampling"
        first, second = (datum["loss_fn_inputs"] for datum in sent["data"])
        assert first["target_tokens"]["data"] == [2, 3, 4]
        assert sent["data"][1]["model_input"]["chunks"] == [{"type": "encoded_text", "tokens": [9]}]
        # The server divides a sequence's loss by its three tokens.
        assert first["advantages"]["data"] == [2.0 * factor] * 3
        assert second["advantages"]["data"] == [-1.0]
        assert [list(x["logprobs"].data) for x in found.loss_fn_outputs] == [
            pytest.approx([-0.1, -0.2, -0.3]),
            pytest.approx([-0.4]),
        ]
        assert found.metrics["loss:sum"] == 1.5

    async def test_losses_alone(self, pair: tuple[Stub, JsonService]) -> None:
        stub, proxy = pair
        client = await trainer(stub, proxy)
        stub.answers["retrieve_future"] = (200, LOSSES)
        await (await client.forward_async(data(), "cross_entropy"))
        assert of(stub, "forward")["forward_input"]["loss_fn"] == "cross_entropy"
        assert "forward_backward" not in stub.paths()

    async def test_a_failed_request_is_not_repeated(self, pair: tuple[Stub, JsonService]) -> None:
        stub, proxy = pair
        client = await sampler(proxy)
        stub.answers["retrieve_future"] = (400, {"detail": "Maximum number of LoRA adapters (8) reached"})
        with pytest.raises(tinker.RequestFailedError, match=r"Maximum number of LoRA adapters \(8\) reached"):
            await client.sample_async(tinker.ModelInput.from_ints([1]), 1, tinker.SamplingParams(max_tokens=1))
        assert stub.paths().count("retrieve_future") == 1


@pytest.mark.parametrize(
    ("path", "body", "refused"),
    [
        (
            "optim_step",
            {"adam_params": {"learning_rate": 1e-4, "grad_clip_norm": 0.1}},
            "adam_params.grad_clip_norm=0.1",
        ),
        ("optim_step", {"adam_params": {"learning_rate": 1e-4, "grad_clip_norm": 0.0}}, None),
        ("create_model", {"optimizer_config": {"type": "dimuon"}}, "optimizer_config.type=dimuon"),
        ("create_model", {"base_model": MODEL}, None),
        ("asample", {"topk_sample_logprobs": 4}, "topk_sample_logprobs=4"),
        ("forward_backward", {}, "the request is not one of the SDK's"),  # which sends protobuf
    ],
)
async def test_what_the_server_would_ignore_is_refused(
    pair: tuple[Stub, JsonService], path: str, body: Any, refused: str | None
) -> None:
    stub, proxy = pair
    async with httpx.AsyncClient() as client:
        answer = await client.post(f"{proxy.url}/api/v1/{path}", json=body)
    if refused is None:
        assert answer.status_code == 200
        assert of(stub, path) == body
    else:
        assert answer.status_code == 422
        assert refused in answer.json()["detail"]
        assert path not in stub.paths()


async def test_a_result_that_is_late_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_service, "PATIENCE", 0.2)
    late: list[tuple[int, Any] | None] = [None, (408, {"detail": "Timeout waiting for result"})]
    with serving({}) as stub:
        async with JsonService(stub.url) as proxy, httpx.AsyncClient() as client:
            for stub.answers["retrieve_future"] in late:
                answer = await client.post(f"{proxy.url}/api/v1/retrieve_future", json={"request_id": "7"})
                assert answer.json()["type"] == "try_again"


async def test_a_server_that_is_down_is_no_result() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        with pytest.raises(UsageError, match=f"cannot listen at 127.0.0.1:{port}"):
            async with JsonService("http://127.0.0.1:1", port=port):
                pass
    async with JsonService(f"http://alice:secret@127.0.0.1:{port}") as proxy, httpx.AsyncClient() as client:
        for path in ("asample", "retrieve_future", "healthz"):
            answer = await client.post(f"{proxy.url}/api/v1/{path}", json={"request_id": "7"})
            assert answer.status_code == 503
            assert answer.json()["detail"].startswith(f"http://127.0.0.1:{port}: ")
        answer = await client.post(f"{proxy.url}/api/v1/asample", json={"topk_sample_logprobs": 4})
        assert f"has no effect at http://127.0.0.1:{port}; " in answer.json()["detail"]


def test_a_value_that_is_not_finite_is_kept() -> None:
    found = sample({"sequences": [{"stop_reason": "stop", "tokens": [1], "logprobs": [math.nan]}]})
    assert found.sequences[0].logprobs == b"\x00\x00\xc0\x7f"
    with pytest.raises(KeyError):
        sample({"sequences": [{"stop_reason": "unheard of", "tokens": [1], "logprobs": [0.0]}]})


async def test_what_a_web_page_sends_is_not_forwarded(pair: tuple[Stub, JsonService]) -> None:
    stub, proxy = pair
    async with httpx.AsyncClient(base_url=proxy.url) as page:
        plain = {"Content-Type": "text/plain"}  # for which a browser does not ask beforehand
        for headers in (plain | {"Origin": "http://example.org"}, plain | {"Origin": "null"}):
            for path in ("optim_step", "forward_backward", "asample", "retrieve_future"):
                reply = await page.post(f"/api/v1/{path}", content=b"{}", headers=headers)
                assert reply.status_code == 403
        assert stub.seen == []
        assert (await page.post("/api/v1/optim_step", content=b"{}")).status_code == 200

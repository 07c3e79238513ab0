"""A proxy between the current Tinker SDK and self-hosted servers with the JSON form of the SDK's API.

::

    python -m rtl_agent_gym.engines.json_service http://127.0.0.1:8000 --port 8001
    ... train distill base_url=http://127.0.0.1:8001 ...

SkyRL 0.3 (``skyrl.tinker.api``) is such a server. The SDK sends training data, and expects samples and losses, only as
protobuf; the proxy translates both and forwards everything else. A parameter that changes the meaning of a request, and
that the server would ignore, is refused with status 422.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from tinker.proto import tinker_public_pb2 as pb  # the SDK has no public form of its messages

from ..errors import RTLGymError, UsageError, importing
from ..visible import without_secrets

with importing('the proxy needs aiohttp: pip install "rtl-agent-gym[agents]"'):
    from aiohttp import web
    from aiohttp.typedefs import Handler

PROTOBUF = "application/x-protobuf"
LARGEST = 1 << 30
"""Maximum bytes of a request."""
PATIENCE = 30.0
"""Seconds to hold a request for a result that is not ready; the SDK gives up after 45 s and asks again."""
DTYPES = {pb.DTYPE_FLOAT32: np.float32, pb.DTYPE_INT64: np.int64}
STOPS = {"stop": pb.STOP_REASON_STOP, "length": pb.STOP_REASON_LENGTH}

UNSUPPORTED: Mapping[str, Mapping[tuple[str, ...], Any]] = {
    "create_model": {("optimizer_config", "type"): "adamw"},
    "optim_step": {("adam_params", "grad_clip_norm"): 0.0},
    "asample": {
        ("prompt_logprobs_last_n",): None,
        ("topk_prompt_logprobs",): 0,
        ("topk_sample_logprobs",): 0,
        ("target_prompt_logprobs",): None,
        ("prompt_alt_tokens_k",): 0,
    },
}
"""By request: the parameters that these servers ignore, each with the only value for which this is harmless."""


class JsonService:
    """The proxy.

    Args:
        url: The server's address.
        sums: Whether to undo the server's division of each sequence's loss by its number of tokens, which SkyRL's JAX
            backend does and Tinker does not: advantages are multiplied by that number. A constant factor remains, to
            which Adam is invariant.
        host: The address to listen on.
        port: The port to listen on; 0 for a free one.

    Raises `UsageError` if it cannot listen there.

    Example:
        async with JsonService("http://127.0.0.1:8000") as service:
            print(service.url)
    """

    def __init__(self, url: str, *, sums: bool = True, host: str = "127.0.0.1", port: int = 0) -> None:
        self._upstream, self._sums, self._place = url.rstrip("/"), sums, (host, port)
        self._client = httpx.AsyncClient(timeout=httpx.Timeout(None, connect=10.0))
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> JsonService:
        app = web.Application(client_max_size=LARGEST, middlewares=[self._answered])
        app.router.add_post("/api/v1/forward_backward", self._train)
        app.router.add_post("/api/v1/asample", self._sample)
        app.router.add_post("/api/v1/retrieve_future", self._retrieve)
        app.router.add_route("*", "/{rest:.*}", self._pass_on)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, *self._place).start()
        except OSError as error:
            raise UsageError("the proxy cannot listen at {}:{}: {}".format(*self._place, error.strerror)) from error
        self.url = "http://{}:{}".format(*self._runner.addresses[0][:2])
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        await self._client.aclose()

    async def _train(self, request: web.Request) -> web.Response:
        message = pb.ForwardBackwardRequest()
        message.ParseFromString(await request.read())
        body = training_request(message, sums=self._sums)
        return await self._send(request, "forward" if message.forward_only else "forward_backward", json.dumps(body))

    async def _sample(self, request: web.Request) -> web.Response:
        answer = await self._pass_on(request)
        if answer.status != 200:
            return answer
        promise, count = json.loads(answer.body), (await request.json()).get("num_samples", 1)  # type: ignore[arg-type]
        return web.json_response(
            {**promise, "sample_sequence_ids": [f"{promise['request_id']}:{i}" for i in range(count)]}
        )

    async def _retrieve(self, request: web.Request) -> web.Response:
        asking = self._client.post(
            f"{self._upstream}/api/v1/retrieve_future", json={"request_id": (await request.json())["request_id"]}
        )
        try:
            answer = await asyncio.wait_for(asking, PATIENCE)
        except TimeoutError:
            answer = None
        if answer is None or answer.status_code == 408:
            return web.json_response({"type": "try_again", "queue_state": "active"})
        if answer.status_code == 400:  # how these servers report a failed request; the SDK would retry it
            return web.json_response({"error": _detail(answer), "category": "server"})
        found = answer.json() if answer.status_code == 200 else {}
        if PROTOBUF in request.headers.get("Accept", "") and "error" not in found:
            if "sequences" in found:
                return web.Response(body=sample(found).SerializeToString(), content_type=PROTOBUF)
            if "loss_fn_outputs" in found:
                return web.Response(body=losses(found).SerializeToString(), content_type=PROTOBUF)
        return web.Response(status=answer.status_code, body=answer.content, content_type="application/json")

    async def _pass_on(self, request: web.Request) -> web.Response:
        body = await request.read()
        for keys, harmless in UNSUPPORTED.get(request.path.rsplit("/", 1)[-1], {}).items():
            value: Any = json.loads(body)
            for key in keys:
                value = value.get(key, harmless) if isinstance(value, dict) else harmless
            if value != harmless:
                name = ".".join(keys)
                raise UsageError(
                    f"{name}={value} has no effect at {without_secrets(self._upstream)}; it can only be {harmless}"
                )
        return await self._send(request, None, body)

    async def _send(self, request: web.Request, name: str | None, body: str | bytes) -> web.Response:
        path = request.rel_url.raw_path_qs if name is None else f"/api/v1/{name}"
        kept = {key: value for key, value in request.headers.items() if key.lower() in {"x-api-key", "authorization"}}
        kept["Content-Type"] = "application/json"
        answer = await self._client.request(request.method, self._upstream + path, content=body, headers=kept)
        kind = answer.headers.get("Content-Type", "application/json").split(";")[0]
        return web.Response(status=answer.status_code, body=answer.content, content_type=kind)

    @web.middleware
    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Turn errors into answers, and refuse what a web page sends.

        A browser lets any page post to this machine, and names the page in ``Origin``.
        """
        status, detail = 403, "requests of web pages are refused"
        try:
            if "Origin" not in request.headers:
                return await handler(request)
        except DecodeError as error:
            status, detail = 422, f"the request is not one of the SDK's: {error}"
        except UsageError as error:
            status, detail = 422, str(error)
        except httpx.TransportError as error:
            status, detail = 503, f"{without_secrets(self._upstream)}: {error or type(error).__name__}"
        return web.json_response({"detail": detail}, status=status)


def training_request(message: pb.ForwardBackwardRequest, *, sums: bool) -> dict[str, Any]:
    """The JSON form of a request for losses, with or without gradients.

    With `sums`, each datum's advantages are multiplied by its number of targets; see `JsonService`. Raises `UsageError`
    for inputs other than text, and for sparse tensors.
    """
    data = []
    for datum in message.data:
        chunks = []
        for chunk in datum.model_input:
            if chunk.WhichOneof("chunk") != "encoded_text":
                raise UsageError("only text can be trained on at this server")
            tokens = np.frombuffer(chunk.encoded_text.tokens, np.int32)
            chunks.append({"type": "encoded_text", "tokens": tokens.tolist()})
        inputs = {name: _array(name, tensor) for name, tensor in datum.loss_fn_inputs.items()}
        if sums and "advantages" in inputs:
            inputs["advantages"] = inputs["advantages"] * len(inputs["advantages"])
        tensors = {name: {"data": array.tolist()} for name, array in inputs.items()}
        data.append({"model_input": {"chunks": chunks}, "loss_fn_inputs": tensors})
    found: dict[str, Any] = {"data": data, "loss_fn": message.loss_fn}
    if message.loss_fn_config:
        found["loss_fn_config"] = dict(message.loss_fn_config)
    key = "forward_input" if message.forward_only else "forward_backward_input"
    return {"model_id": message.model_id, key: found}


def sample(found: Mapping[str, Any]) -> pb.SampleResponse:
    """The protobuf message of sampled sequences, from their JSON form."""
    message = pb.SampleResponse()
    for sequence in found["sequences"]:
        message.sequences.add(
            stop_reason=STOPS[sequence["stop_reason"]],
            tokens=np.asarray(sequence["tokens"], np.int32).tobytes(),
            logprobs=np.asarray(sequence["logprobs"], np.float32).tobytes(),
        )
    if (scored := found.get("prompt_logprobs")) is not None:
        if not scored or scored[0] is not None:  # SkyRL leaves out the first token, which has no probability
            scored = [None, *scored]
        message.prompt_logprobs = np.asarray([np.nan if x is None else x for x in scored], np.float32).tobytes()
    return message


def losses(found: Mapping[str, Any]) -> pb.ForwardBackwardOutput:
    """The protobuf message of losses, from their JSON form. Fields that only some of the data have are left out."""
    outputs: Sequence[Mapping[str, Any]] = found["loss_fn_outputs"]
    message = pb.ForwardBackwardOutput(loss_fn_output_type=found["loss_fn_output_type"])
    for name, value in found["metrics"].items():
        message.metrics[name] = float(value)
    record = message.loss_fn_outputs.add(num_datums=len(outputs))
    for name in set.intersection(*(set(output) for output in outputs)) if outputs else ():
        arrays = [np.asarray(output[name]["data"], np.float32).reshape(-1) for output in outputs]
        field = record.fields[name]
        field.dtype = pb.DTYPE_FLOAT32
        field.data = b"".join(array.tobytes() for array in arrays)
        field.offsets = np.cumsum([0, *(array.nbytes for array in arrays)], dtype=np.int64).tobytes()
    return message


def _array(name: str, tensor: pb.Tensor) -> Any:
    if tensor.HasField("sparse_csr") or tensor.dtype not in DTYPES:
        raise UsageError(f"{name}: only dense tensors of float32 or int64 can be sent to this server")
    return np.frombuffer(tensor.dense, DTYPES[tensor.dtype])


def _detail(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:1000]


async def _serve(options: argparse.Namespace) -> None:
    service = JsonService(options.url, sums=not options.no_sums, host=options.host, port=options.port)
    async with service:
        print(f"base_url={service.url}", flush=True)
        await asyncio.Event().wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the proxy until Ctrl-C. Returns 2 if it cannot listen."""
    parser = argparse.ArgumentParser("python -m rtl_agent_gym.engines.json_service", description=__doc__.split("\n")[0])
    parser.add_argument("url", help="the server, such as http://127.0.0.1:8000")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=8001, help="port to listen on; 0 for a free one (%(default)s)")
    parser.add_argument(
        "--no-sums", action="store_true", help="the server sums the losses of a sequence as Tinker does"
    )
    try:
        asyncio.run(_serve(parser.parse_args(arguments)))
    except KeyboardInterrupt:
        return 130
    except RTLGymError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

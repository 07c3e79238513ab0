"""Plays scripts through an environment server as prime-rl's orchestrator does; runs where verifiers is installed.

The run's configuration is that of ``examples/prime_rl``.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import sys
import tomllib
from pathlib import Path
from typing import Any
from unittest import mock

import verifiers.v1 as vf
from renderers.base import load_tokenizer
from verifiers.v1.serve import EnvClient, env_config_data, serve_env

from rtl_agent_gym.renderers import get_renderer
from tests.integrations.conformance import Script, gray, ids_of
from tests.integrations.generate_server import generating

RUN = Path(__file__).resolve().parents[2] / "examples/prime_rl/rl.toml"


def environments() -> dict[str, Any]:
    """The environments of the run, by name, for which prime-rl's launcher starts servers."""
    orchestrator = tomllib.loads(RUN.read_text())["orchestrator"]
    sources = [*orchestrator["train"]["source"], *orchestrator["eval"]["source"]]
    return {source["name"]: vf.resolve_env_config(source["env"]) for source in sources}


def parsed() -> dict[str, Any]:
    """What prime-rl's own parser makes of the run."""
    from prime_rl.configs.rl import RLConfig
    from prime_rl.utils.config import cli

    with mock.patch.object(sys, "argv", ["rl", "@", str(RUN)]):
        config = cli(RLConfig)
    tasksets = [
        source.env.taskset for part in ("train", "eval") for source in getattr(config.orchestrator, part).source
    ]
    return {
        "problems": [taskset.problems for taskset in tasksets],
        "rows": [taskset.rows for taskset in tasksets],
        "addresses": len(config.orchestrator.env_addresses),
        "gpus": [config.deployment.num_train_gpus, config.deployment.num_infer_gpus],
    }


def serve(address: str, config: dict[str, Any]) -> None:
    """Run the server, with one worker."""
    serve_env(max_workers=1, elastic=False, address=address, config_data=config)


def play(script: Script, tokenizer: str, *options: dict[str, Any]) -> dict[str, Any]:
    """The trace that the orchestrator gets of a script, in the evaluation's environment with these rules."""
    encoder, renderer = load_tokenizer(tokenizer), get_renderer("qwen3_disable_thinking")

    def sample(number: int) -> list[int]:
        return ids_of(script.turns[number], renderer, encoder)

    config = env_config_data(environments()["bundled"])
    for rules in options:
        config["taskset"]["task"] |= rules
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(address, config))
    server.start()
    try:
        with generating(sample) as engine:
            trace = asyncio.run(_run(address, config, engine.url, tokenizer))
            return {"trace": trace, "sampled": engine.sampled, "prompts": engine.prompts}
    finally:
        server.terminate()
        server.join(30)


async def _run(address: str, config: dict[str, Any], url: str, tokenizer: str) -> dict[str, Any]:
    client = EnvClient(address=address)
    await client.wait_for_server_startup(timeout=120)
    taskset = vf.load_taskset(vf.resolve_env_config(config).taskset)
    [task] = [task for task in taskset if task.key == gray().id]
    renderer = {"name": "qwen3", "enable_thinking": False}
    train = vf.TrainClientConfig.model_validate(
        {"base_url": url, "api_key_var": "NO_KEY", "renderer_model_name": tokenizer, "renderer": renderer}
    )
    episode = await client.run(
        client=train, model="stub", sampling=vf.SamplingConfig(), task_data=task.data.model_dump(mode="json")
    )
    [trace] = episode.traces
    found: dict[str, Any] = trace.model_dump(mode="json")
    return found

"""Models for the loop's tests, and processes for it to run in."""

from __future__ import annotations

import importlib
import multiprocessing
import shutil
from collections.abc import AsyncIterator, Callable
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rtl_agent_gym.episodes.runtime import Runtime, acquire
from rtl_agent_gym.renderers import Renderer, get_renderer
from rtl_agent_gym.renderers.vocabularies import qwen3_tokenizer


@pytest.fixture(autouse=True)
def _few_containers(shared_gradings: None) -> None:
    """These tests play many episodes, and test what is learned from them."""


@pytest.fixture(scope="session")
def qwen() -> Renderer:
    return get_renderer("qwen3", qwen3_tokenizer())


@pytest.fixture(scope="session")
def harmony() -> Renderer:
    return get_renderer("gpt_oss")


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Any]:
    """A local engine."""
    from rtl_agent_gym.engines.config import LocalEngineConfig
    from rtl_agent_gym.engines.local import LocalServiceClient

    with LocalServiceClient(LocalEngineConfig(checkpoint_dir=tmp_path / "checkpoints")) as made:
        yield made


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    """Sandboxes and scorers."""
    lease = acquire()
    yield lease.runtime
    await lease.release()


@pytest.fixture(scope="session")
def toy() -> ModuleType:
    """The toy environment's module."""
    return importlib.import_module("tests.training.toy")


@pytest.fixture(scope="session")
def forks() -> ForkServerContext:
    """Where runs get processes of their own.

    Each process is forked from one that has imported the libraries and done nothing else: importing them takes seconds.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["tests.training.toy", "rtl_agent_gym.engines.local", "transformers.models.qwen3.modeling_qwen3"]
    )
    return context


@pytest.fixture(scope="module")
def start_toy(forks: ForkServerContext) -> Callable[..., BaseProcess]:
    """Starts a toy run in a process of its own."""

    def start(folder: Path, *arguments: str) -> BaseProcess:
        module = importlib.import_module("tests.training.toy")
        process = forks.Process(target=module.run_alone, args=(folder, *arguments))
        process.start()
        return process

    return start


@pytest.fixture(scope="session")
def toy_models(tmp_path_factory: pytest.TempPathFactory, toy: ModuleType) -> Path:
    folder = tmp_path_factory.mktemp("toy-models")
    toy.make_models(folder)
    return folder


@pytest.fixture
def home(tmp_path: Path, toy_models: Path) -> Path:
    """A folder with a student and a teacher."""
    shutil.copytree(toy_models, tmp_path, dirs_exist_ok=True)
    return tmp_path

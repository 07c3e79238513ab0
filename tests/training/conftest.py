"""Models for the loop's tests."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def toy() -> ModuleType:
    """The toy environment's module."""
    path = Path(__file__).with_name("toy.py")
    spec = importlib.util.spec_from_file_location("training_toy", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["training_toy"] = module
    spec.loader.exec_module(module)
    return module


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

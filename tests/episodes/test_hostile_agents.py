"""Whatever an agent does to its own sandbox, its episode ends with a score; what the machine does is none."""

from __future__ import annotations

import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rtl_agent_gym.envs import Episode, EpisodeConfig
from rtl_agent_gym.episodes.turns import Turn
from rtl_agent_gym.errors import SandboxBroken, SandboxLost
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.sandboxes import DockerSandboxes
from rtl_agent_gym.sandboxes.warden_sandbox import WardenSandbox
from rtl_agent_gym.scoring import RewardWeights, Scorer
from rtl_agent_gym.transcripts import read_transcript
from tests.arbiter import call, golden_call
from tests.sandboxes.providers import kill

pytestmark = pytest.mark.docker


def program(text: str) -> str:
    return f"python3 - <<'EOP'\n{textwrap.dedent(text)}\nEOP"


SIGNAL_EVERY_BASH = """
    import os, time
    if os.fork() == 0:
        os.setsid()
        while True:
            for name in os.listdir('/proc'):
                if name.isdigit() and int(name) not in (1, os.getpid()):
                    try:
                        if open(f'/proc/{{name}}/comm').read().strip() == 'bash':
                            {0}
                    except OSError:
                        pass
"""
FILES = program(r"""
    import os, socket
    os.chdir('/code/rtl')
    os.mkfifo('fifo')
    socket.socket(socket.AF_UNIX).bind('sock')
    for link in ('loop', '/dev/zero', '.', '..'):
        os.symlink(link, 'loop' if link == 'loop' else f'link{len(os.listdir())}')
    target = next(name for name in os.listdir() if name.endswith('.sv'))
    os.link(target, 'hard.sv')
    for name in (b'\xff\xfe.sv', b'new\nline.sv', b'x' * 255, b'-rf', b'"; $(true)'):
        open(name, 'w').write('x')
    for number in range(9):
        with open(f'sparse{number}', 'w') as file:
            file.truncate(250 << 20)
    for number in range(6000):
        open(f'many{number}', 'w').close()
    for folder in ('/code/verif', '/code/docs'):
        os.chdir(folder)
        for _ in range(1200):
            os.mkdir('d')
            os.chdir('d')
    os.chmod(f'/code/rtl/{target}', 0)
    os.chmod('/code/rtl', 0o444)
    os.chmod('/code', 0)
""")
ATTACKS = {
    "files": FILES,
    "limits of process 1": "prlimit --pid 1 --nofile=3:3; prlimit --pid 1 --cpu=1:1; prlimit --pid 1 --as=1",
    "status": "timeout 2 cat /dev/zero >&13; for fd in /proc/$$/fd/*; do timeout 0.2 cat /dev/zero > $fd; done",
    "its script": "read -t 1 -u 10 line; for word in $line; do printf '%s bad x\\0' $word >&13; done",
}
SLOW_ATTACKS = {
    "every bash killed": program(SIGNAL_EVERY_BASH.format("os.kill(int(name), 9)")),
    "every bash stopped": program(SIGNAL_EVERY_BASH.format("os.kill(int(name), 19)")),
    "every bash traced": program(
        SIGNAL_EVERY_BASH.format("__import__('ctypes').CDLL(None).ptrace(16, int(name), 0, 0)")
    ),
    "memory folders full": "for d in /code /tmp /rundir ~ /dev/shm; do for i in 1 2 3 4; do "
    "head -c 200M /dev/zero > $d/f$i & done; wait; done 2>/dev/null",
    "inodes full": program("""
        import os
        for folder in ('/code', '/tmp', '/rundir', '/home/agent', '/dev/shm'):
            try:
                for number in range(50_000):
                    os.mknod(f'{folder}/{number:0200d}')
            except OSError:
                pass
    """),
    "fork bomb": "f() { f | f & }; f; sleep 60",
    "busy loops": "for i in $(seq 300); do (while :; do :; done) & done; sleep 1",
    "shared memory": program("""
        import ctypes
        libc = ctypes.CDLL(None)
        libc.shmat.restype = ctypes.c_void_p
        while (found := libc.shmget(0, 1 << 24, 0o1600)) >= 0:
            ctypes.memset(libc.shmat(found, None, 0), 1, 1 << 24)
    """),
}
MANY_SMALL = program("""
    import os, time
    for _ in range(480):
        if os.fork() == 0:
            open('/proc/self/oom_score_adj', 'w').write('0')
            memory = bytearray(4_500_000)
            time.sleep(60)
            os._exit(0)
    time.sleep(10)
""")
"""Takes all memory with processes that are each smaller than the warden, so that it is killed first."""


@pytest.fixture
async def episode(provider: DockerSandboxes, arbiter: Problem, tmp_path: Path) -> AsyncIterator[Episode]:
    """A running episode, graded without the hidden tests."""
    config = EpisodeConfig(command_timeout=5.0, transcript_dir=tmp_path)
    renderer = get_renderer("qwen3")
    async with (
        Scorer(provider, weights=RewardWeights.preset("proxy")) as scorer,
        Episode(arbiter, provider=provider, grader=scorer, renderer=renderer, config=config) as made,
    ):
        await made.start()
        yield made


async def played(episode: Episode, attack: str) -> Turn:
    """Write the right design, attack, see whether a command still runs, and end."""
    await episode.step(golden_call(episode.problem))
    await episode.step(call(attack))
    for _ in range(5):  # an attacker in the background may cost a command or two before the warden has ended it
        turn = await episode.step(call("echo still here"))
        if "still here" in turn.observation:
            break
    assert "still here" in turn.observation
    return await episode.step("Done.")


@pytest.mark.parametrize("name", [*ATTACKS, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_ATTACKS)])
async def test_an_attack_on_the_own_sandbox_costs_nobody_the_score(episode: Episode, name: str) -> None:
    turn = await played(episode, (ATTACKS | SLOW_ATTACKS)[name])
    assert turn.score is not None
    assert (turn.score.format, turn.score.syntax) == (1.0, 1.0), turn.score.reason
    assert episode.transcript_path is not None
    assert read_transcript(episode.transcript_path).complete


async def test_who_breaks_the_own_sandbox_is_graded_on_nothing(
    episode: Episode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await episode.step(golden_call(episode.problem))
    run = WardenSandbox.run

    async def broken(self: WardenSandbox, command: str, *, timeout: float = 30.0, **more: object) -> object:
        if command == "break":
            await self._ask(b"R", {}, patience=5.0)  # the warden cannot go on from this
        return await run(self, command, timeout=timeout, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(WardenSandbox, "run", broken)
    turn = await episode.step(call("echo one", "break", "echo two"))
    assert turn.stop_reason == "sandbox_broken"
    assert (turn.terminated, turn.truncated) == (True, False)  # no limit ended it, so no later value counts
    assert "ended this machine" in turn.observation
    assert turn.score is not None
    assert turn.score.format == 0.0
    assert "nothing was left to grade" in turn.score.reason
    assert episode.transcript_path is not None
    transcript = read_transcript(episode.transcript_path)
    assert transcript.end is not None
    assert (transcript.end.stop_reason, transcript.end.error) == ("sandbox_broken", None)
    assert transcript.end.oom_kills is None  # nobody is left to count them


@pytest.mark.slow
async def test_who_fills_the_memory_until_the_warden_is_killed_has_a_score(episode: Episode) -> None:
    turn = await episode.step(call(MANY_SMALL))
    if turn.score is None:  # the kernel took another process
        turn = await episode.step("Done.")
    assert turn.score is not None


async def test_a_container_that_somebody_else_kills_has_none(episode: Episode) -> None:
    await episode.step(golden_call(episode.problem))
    kill(episode.sandbox)
    with pytest.raises(SandboxLost):
        await episode.step(call("echo one"))


async def test_what_breaks_before_the_first_turn_is_the_machines_fault(
    provider: DockerSandboxes, arbiter: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise SandboxBroken("gone")

    monkeypatch.setattr(WardenSandbox, "run", broken)
    async with Scorer(provider, weights=RewardWeights.preset("proxy")) as scorer:
        config = EpisodeConfig(start_attempts=1)
        episode = Episode(arbiter, provider=provider, grader=scorer, renderer=get_renderer("qwen3"), config=config)
        with pytest.raises(SandboxLost, match="gone"):
            await episode.start()
        await episode.close()


@pytest.mark.slow
async def test_large_files_push_no_target_out(episode: Episode) -> None:
    """Five files of 14 MB are more than is read, and they come before the target by name."""
    dumps = "for n in 1 2 3 4 5; do head -c 14000000 /dev/zero > rtl/a$n.bin; done; head -c 17000000 /dev/zero > docs/x"
    await episode.step(golden_call(episode.problem, dumps, "head -c 300000 /dev/zero | tr '\\0' x > rtl/long.txt"))
    await episode.step(call("rm rtl/long.txt; echo changed > docs/note.txt"))
    turn = await episode.step("Done.")
    assert turn.score is not None
    assert (turn.score.format, turn.score.syntax) == (1.0, 1.0)
    assert "docs/x: 17000000 bytes; at most 16777216 a file are read" in turn.score.reason
    assert "rtl/a5.bin: 14000000 bytes; at most 67108864 are read in all" in turn.score.reason
    assert "rtl/a4.bin" not in turn.score.reason
    assert episode.transcript_path is not None
    transcript = read_transcript(episode.transcript_path)
    first, second, _ = transcript.turns
    (target,) = episode.problem.targets
    assert target in first.files
    assert {line.partition(":")[0] for line in first.left_out} == {
        "docs/x", "rtl/long.txt", *(f"rtl/a{n}.bin" for n in range(1, 6))
    }  # fmt: skip
    assert second.files == {"docs/note.txt": "changed\n"}
    assert not any(line.startswith("rtl/long.txt") for line in second.left_out)

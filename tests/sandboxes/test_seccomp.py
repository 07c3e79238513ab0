"""The system call filters of sandboxes of namespaces and of what the warden starts, call by call."""

from __future__ import annotations

import asyncio
import ctypes
import ctypes.util
import errno
import json
import os
import struct
import subprocess
import sys
from types import SimpleNamespace

import pytest

from rtl_agent_gym.errors import SandboxError
from rtl_agent_gym.sandboxes import DockerSandboxes, NamespaceSandboxes, SandboxProvider
from rtl_agent_gym.sandboxes.seccomp import allowed, compile_filter
from rtl_agent_gym.sandboxes.warden import confine

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, EPERM, ENOSYS, EAFNOSUPPORT = 0x7FFF0000, 0x50001, 0x50026, 0x50061
LAST = 512
"""A number above those of all system calls."""


def decide(machine: str, number: int, *arguments: int, architecture: int = 0, filter_program: bytes = b"") -> int:
    """What a filter, by default the sandboxes', returns for a system call, by the kernel's rules."""
    values = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number, architecture or ARCHITECTURES[machine], 0, *values)
    program = list(struct.iter_unpack("=HBBI", filter_program or compile_filter(machine)))
    at = value = 0
    while True:
        operation, if_true, if_false, operand = program[at]
        at += 1
        if operation == 0x20:
            value = struct.unpack_from("=I", data, operand)[0]
        elif operation == 0x06:
            return int(operand)
        else:
            test = {0x15: value == operand, 0x25: value > operand, 0x35: value >= operand, 0x45: bool(value & operand)}
            at += if_true if test[operation] else if_false


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_each_call_of_the_list_is_allowed_and_no_other(machine: str) -> None:
    numbers = set(allowed(machine).values())
    special = {allowed(machine)["socket"]}  # AF_UNSPEC is refused
    for number in range(LAST):
        found = decide(machine, number)
        if number in numbers - special:
            assert found == ALLOW, number
        else:
            assert found in (EPERM, ENOSYS, EAFNOSUPPORT), number
    assert decide(machine, max(numbers) + 1) == ENOSYS
    assert decide(machine, 0x4000_0000) == ENOSYS
    assert decide(machine, 0, architecture=0x4000_0003) == ENOSYS  # 32 bits


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_arguments_count_where_they_decide(machine: str) -> None:
    calls = allowed(machine)
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert decide(machine, calls["clone"], flag | 17) == EPERM
    assert decide(machine, calls["clone"], 0x3D0F00) == ALLOW  # a thread
    assert decide(machine, 435) == ENOSYS
    for request in (0x5412, 0x541C):
        assert decide(machine, calls["ioctl"], 0, request) == EPERM
    assert decide(machine, calls["ioctl"], 0, 0x5413) == ALLOW
    assert [decide(machine, calls["fcntl"], 3, request) for request in (1024, 1026)] == [EPERM] * 2
    assert [decide(machine, calls["fcntl"], 3, request) for request in (0, 6, 37, 1025, 1031)] == [ALLOW] * 5
    assert decide(machine, calls["personality"], 0xFFFFFFFF) == decide(machine, calls["personality"], 0) == ALLOW
    assert decide(machine, calls["personality"], 0x40000) == EPERM
    assert [decide(machine, calls["socket"], family) for family in (1, 2, 10, 16)] == [ALLOW] * 4
    assert {decide(machine, calls["socket"], family) for family in (0, 17, 38, 40)} == {EAFNOSUPPORT}


@pytest.mark.parametrize("limited", [True, False])
@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_what_the_warden_starts_cannot_change_it(machine: str, limited: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine=machine))
    monkeypatch.setattr(confine, "_shared_memory_is_limited", lambda: limited)
    monkeypatch.setattr(confine, "refused", (LAST,))
    calls, warden, other = allowed(machine), 7, 8
    program = confine.build(warden)
    assert program is not None

    def found(number: int, *arguments: int, architecture: int = 0) -> int:
        return decide(machine, number, *arguments, architecture=architecture, filter_program=program)

    for call in ("prlimit64", "sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr"):
        assert [found(calls[call], pid) for pid in (warden, other, 0)] == [EPERM, ALLOW, ALLOW], call
    process, group, user = range(3)
    assert [found(calls["setpriority"], kind, warden) for kind in (process, group, user)] == [EPERM] * 3
    assert [found(calls["setpriority"], kind, other) for kind in (process, group, user)] == [ALLOW, ALLOW, EPERM]
    assert [found(calls["socket"], family) for family in (1, 2, 10, 16)] == [ALLOW] * 4
    assert {found(calls["socket"], family) for family in (0, 17, 38, 40)} == {EAFNOSUPPORT}
    assert found(425) == ENOSYS  # io_uring_setup
    assert found(calls["shmget"]) == (ALLOW if limited else EPERM)
    assert found(LAST) == EPERM
    assert found(calls["read"], warden) == ALLOW
    assert found(0x4000_0000) == ENOSYS
    assert found(calls["read"], architecture=0x4000_0003) == ENOSYS  # 32 bits


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_numbers_are_those_of_libseccomp(machine: str) -> None:
    name = ctypes.util.find_library("seccomp")
    if name is None:
        pytest.skip("libseccomp is not installed")
    library = ctypes.CDLL(name)
    found = {
        call: library.seccomp_syscall_resolve_name_arch(ctypes.c_uint32(ARCHITECTURES[machine]), call.encode())
        for call in allowed(machine)
    }
    newer = {call for call, number in found.items() if number == -1}
    assert {call: found[call] for call in found.keys() - newer} == {
        call: number for call, number in allowed(machine).items() if call not in newer
    }
    assert all(allowed(machine)[call] > 440 for call in newer)


def test_an_unknown_architecture_is_an_error() -> None:
    with pytest.raises(SandboxError, match="not on sparc64"):
        compile_filter("sparc64")


PROBE = """
import ctypes, json, os, signal
libc = ctypes.CDLL(None, use_errno=True)
found = {}
for number in range(LAST):
    if number in SKIPPED:
        continue
    pid = os.fork()
    if not pid:
        os.setsid()
        signal.setitimer(signal.ITIMER_REAL, 0.2)  # ends a call that waits
        result = libc.syscall(*map(ctypes.c_long, (number, -1, -1, -1, -1, -1, -1)))
        os._exit(min(ctypes.get_errno(), 255) if result == -1 else 0)
    status = os.waitpid(pid, 0)[1]
    found[number] = os.waitstatus_to_exitcode(status)
print(json.dumps(found))
"""
SKIPPED = {
    "x86_64": (15, 56, 57, 58, 60, 231, 435),
    "aarch64": (93, 94, 139, 220, 435),
}
"""rt_sigreturn, clone, fork, vfork, exit, exit_group and clone3, which end the caller or make another one."""


@pytest.mark.daemon
async def test_what_docker_refuses_is_refused(root_folder: object) -> None:
    program = PROBE.replace("LAST", str(LAST)).replace("SKIPPED", str(SKIPPED[os.uname().machine]))

    async def probe(provider: SandboxProvider) -> dict[str, int]:
        async with provider:
            sandbox = await provider.create()
            return dict(json.loads((await sandbox.exec(["python3", "-c", program])).output))

    def control() -> dict[str, int]:
        return dict(json.loads(subprocess.check_output([sys.executable, "-c", program])))

    docker, namespaces, host = await asyncio.gather(
        probe(DockerSandboxes()), probe(NamespaceSandboxes()), asyncio.to_thread(control)
    )
    refused = {number for number, code in docker.items() if code in (errno.EPERM, errno.ENOSYS)}
    # Docker looks at 64 bits of personality's argument, of which the kernel uses 32.
    refused.discard(str(allowed()["personality"]))
    assert len(refused) > 50
    assert not {number for number in refused if namespaces[number] not in (errno.EPERM, errno.ENOSYS)}
    # Without a filter, the same calls fail for their arguments.
    assert len({number for number in refused if host[number] not in (errno.EPERM, errno.ENOSYS)}) > 10

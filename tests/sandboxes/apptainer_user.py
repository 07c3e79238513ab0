"""Tests of sandboxes below Apptainer, for an ordinary user: `test_apptainer.py` runs them as one."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rtl_agent_gym.cluster.canaries import known
from rtl_agent_gym.errors import SandboxError
from rtl_agent_gym.sandboxes import ApptainerSandboxes, SandboxSpec, root_folder, root_image
from rtl_agent_gym.scoring import Scorer
from tests.sandboxes import test_namespaces
from tests.sandboxes.apptainer_stub import apptainer_stub
from tests.sandboxes.test_root_folder import saved

READ_ONLY = ("/", "/usr", "/etc", "/dev", "/sys", "/proc/sys/kernel", "/var", "/var/tmp", "/mnt")
PYTHON = (
    *("bin", "lib", "lib64", "mnt", "dev", "proc", "tmp", "var/tmp", "etc/passwd", "var/lib/dpkg/status"),
    *("usr/bin/python3*", "usr/bin/env", "usr/lib/python3.13", "usr/lib64/*", "usr/lib/ld-linux*"),
    *(f"usr/lib/*-linux-gnu/{name}*.so*" for name in ("libc", "libm", "libz", "libexpat", "ld-linux")),
)
"""The paths of an image that has Python alone."""


@pytest.fixture
async def provider() -> AsyncIterator[ApptainerSandboxes]:
    with apptainer_stub():
        async with ApptainerSandboxes() as made:
            yield made


test_no_process_has_a_capability = test_namespaces.test_no_process_has_a_capability_or_may_gain_one
test_each_sandbox_has_namespaces_of_its_own = test_namespaces.test_each_sandbox_has_namespaces_of_its_own
test_its_own_limit_of_processes = test_namespaces.test_its_own_limit_of_processes
test_what_it_does_not_have_is_refused = test_namespaces.test_what_it_does_not_have_is_refused


async def test_no_process_gains_a_right_or_sees_the_callers_variables(provider: ApptainerSandboxes) -> None:
    sandbox = await provider.create(SandboxSpec(memory=300 << 20))
    assert (await sandbox.run("unshare --user true || echo refused")).output.endswith("refused\n")
    assert (await sandbox.run("id -un; env | grep -cE 'APPTAINER|SECRET'")).output == "agent\n0\n"
    assert "MemoryError" in (await sandbox.run("python3 -c 'x = bytearray(1 << 30)'")).output
    names = "python3 -c 'import socket; print([name for _, name in socket.if_nameindex()])'"
    assert (await sandbox.run(names)).output == "['lo']\n"


async def test_files_can_be_written_in_the_work_folders_alone(provider: ApptainerSandboxes) -> None:
    sandbox = await provider.create()
    result = await sandbox.run(f"for f in {' '.join(READ_ONLY)}; do touch $f/x; done")
    assert len(result.output.splitlines()) == len(READ_ONLY)
    result = await sandbox.run("head -c 70M /dev/zero > /home/agent/x; echo; head -c 70M /dev/zero > /dev/shm/x")
    assert result.output.count("No space left on device") == 2
    assert (await sandbox.run("touch /code/x && stat -c %U /code/x; ls /tmp")).output == "agent\n"


async def test_the_design_cannot_see_what_grades_it(provider: ApptainerSandboxes) -> None:
    sandbox = await provider.create(SandboxSpec(role="scoring", files={"/src/x": "text"}))
    result = await sandbox.exec(
        ["sh", "-c", "cat /src/x; echo y > /src/x || echo refused; ls /proc | grep -c '^[0-9]'"]
    )
    assert result.output.startswith("text")
    assert "refused\n" in result.output


async def test_a_grading(provider: ApptainerSandboxes) -> None:
    problem, right, wrong = known()
    async with Scorer(provider) as scorer:
        assert [(await scorer.score(problem, files)).passed for files in (right, wrong)] == [True, False]


def test_an_image_is_unpacked_and_checked_without_bubblewrap(monkeypatch: pytest.MonkeyPatch) -> None:
    real = root_folder.find_root().folder
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch, apptainer_stub() as stub:  # the stub hides /tmp
        layer = Path(scratch, "layer.tar")
        with tarfile.open(layer, "w") as archive:
            for path in sorted({path for pattern in PYTHON for path in real.glob(pattern)}):
                archive.add(path, path.relative_to(real), recursive=path.name == "python3.13")
        file = saved(Path(scratch, "image.tar"), layer.read_bytes())
        with monkeypatch.context() as patch:
            patch.setenv("PATH", str(stub))
            assert root_image.verify()["cocotb"] == "2.0.1"
            patch.setenv(root_folder.VARIABLE, f"{scratch}/roots")
            made = root_folder.unpack(file)
            assert made.packages["libc6"]
            (stub / "apptainer").unlink()
            with pytest.raises(SandboxError, match="install the package bubblewrap"):
                root_image.verify()
        assert root_folder._read(made.folder, made.modes).digest == made.digest


async def test_another_command_line_would_be_an_error(
    provider: ApptainerSandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rtl_agent_gym.sandboxes.root_folder.ISOLATION", ("--containall",))
    with pytest.raises(SandboxError, match="unexpected options"):
        await provider.create()

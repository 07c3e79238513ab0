"""What every provider of sandboxes promises."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from rtl_agent_gym.errors import ImageError, SandboxError, SandboxLost
from rtl_agent_gym.sandboxes import (
    ApptainerSandboxes,
    DockerSandboxes,
    NamespaceSandboxes,
    Sandbox,
    SandboxProvider,
    SandboxSpec,
    WaitingSandboxes,
)
from rtl_agent_gym.sandboxes.choice import make_provider, resolved_kind
from rtl_agent_gym.sandboxes.root_folder import remove_tree
from tests.sandboxes.apptainer_stub import apptainer_stub

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="module")]

ECHO = ["python3", "-uc", "import sys\nfor line in sys.stdin:\n    print('heard', line.strip())\nsys.exit(3)"]
COUNT = """
import sys
for number in range(200):
    sys.stdout.write("x" * 99_999 + "\\n")
    sys.stdout.flush()
    open("/tmp/written", "w").write(str(number + 1))
"""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each maker and each role once; those of namespaces start fast. The other pairs are slow."""
    pairs = [("docker", "agent"), ("pool", "scoring"), ("namespaces", "agent"), ("namespaces", "scoring")]
    if os.geteuid():  # Apptainer's sandboxes are for ordinary users; test_apptainer.py runs these as one
        pairs += [("apptainer", "agent"), ("apptainer", "scoring")]
    others = [pytest.param(*pair, marks=pytest.mark.slow) for pair in (("docker", "scoring"), ("pool", "agent"))]
    if "spec" in metafunc.fixturenames:
        metafunc.parametrize(("maker", "spec"), [*pairs, *others], indirect=True, scope="module")
    elif "maker" in metafunc.fixturenames:
        copies = metafunc.function is test_images_are_built_once  # the root; test_root_folder.py builds one
        last = pytest.param("namespaces", marks=[pytest.mark.slow] * copies)
        metafunc.parametrize("maker", ["docker", "pool", last], indirect=True, scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def maker(request: pytest.FixtureRequest) -> AsyncIterator[SandboxProvider]:
    if request.param == "apptainer":
        with apptainer_stub():
            async with ApptainerSandboxes() as apptainer:
                yield apptainer
        return
    if request.param == "namespaces":
        request.getfixturevalue("root_folder")
        async with NamespaceSandboxes() as namespaces:
            yield namespaces
        return
    if request.param == "docker":
        async with DockerSandboxes() as docker:
            yield docker
        return
    if resolved_kind() == "namespaces":
        request.getfixturevalue("root_folder")
    async with make_provider() as made, WaitingSandboxes(made, size=1) as pool:
        yield pool


@pytest.fixture(scope="module")
def spec(request: pytest.FixtureRequest) -> SandboxSpec:
    return SandboxSpec(role=request.param)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def box(maker: SandboxProvider, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
    """One for all tests that leave nothing in it which the others would see."""
    await maker.prepare(spec)
    made = await maker.create(spec)
    yield made
    await made.close()


async def test_a_process_is_talked_with(box: Sandbox) -> None:
    assert box.idle
    assert box.standby is None
    process = await box.spawn(ECHO)
    for word in (b"one", b"two"):
        await process.write(word + b"\n")
        assert await process.output.readline() == b"heard " + word + b"\n"
    assert process.exit_code is None
    assert not box.idle
    with pytest.raises(TimeoutError):
        await process.wait(0.1)
    await process.write(b"three")
    await process.close_stdin()
    await process.close_stdin()
    assert await process.output.read() == b"heard three\n"
    assert await process.wait() == await process.wait() == process.exit_code == 3
    with pytest.raises(BrokenPipeError):
        await process.write(b"late")
    await process.close_stdin()
    await process.kill()
    assert box.idle


async def test_two_processes_run_beside_each_other(box: Sandbox) -> None:
    first, second = [await box.spawn(ECHO, cwd="/tmp", env={"A": "b"}) for _ in range(2)]
    await second.write(b"second\n")
    assert await second.output.readline() == b"heard second\n"
    await first.write(b"first\n")
    assert await first.output.readline() == b"heard first\n"
    results = await asyncio.gather(first.communicate(b"x"), second.communicate(b"y\nz\n"))
    assert [(result.output, result.exit_code) for result in results] == [("heard x\n", 3), ("heard y\nheard z\n", 3)]


async def test_a_killed_process_takes_its_children_along(box: Sandbox) -> None:
    process = await box.spawn(["sh", "-c", "sleep 98 & setsid sleep 99 & echo $!; wait"])
    await process.output.readline()
    await process.kill()
    assert process.exit_code == 137
    assert (await box.exec(["pgrep", "-c", "sleep"])).output == "0\n"
    result = await box.exec(["sh", "-c", "echo begun; setsid sleep 97 & sleep 96"], timeout=1.0)
    assert (result.output, result.timed_out, result.exit_code) == ("begun\n", True, None)
    assert (await box.exec(["pgrep", "-c", "sleep"])).output == "0\n"


async def test_output_that_nobody_reads_holds_its_process_up_and_nobody_else(box: Sandbox) -> None:
    process = await box.spawn(["python3", "-c", COUNT])
    seen: list[str] = []
    for _ in range(600):
        await asyncio.sleep(0.1)
        seen.append((await box.exec(["sh", "-c", "cat /tmp/written 2>/dev/null || echo 0"])).output)
        if len(seen) > 5 and len(set(seen[-5:])) == 1 and int(seen[-1] or 0) > 10:
            break  # it has written nothing for a while
    assert 10 < int(seen[-1]) < 150
    size = 0
    while data := await process.output.read(1 << 20):
        size += len(data)
    assert size == 200 * 100_000
    assert await process.wait() == 0


async def test_much_stdin_waits_for_who_reads_it(box: Sandbox) -> None:
    process = await box.spawn(["sh", "-c", "sleep 1; wc -c"])
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(process.write(b"x" * 3_000_000), 0.3)
    assert (await box.exec(["echo", "fine"])).output == "fine\n"  # meanwhile, others are served
    assert (await process.communicate(b"y" * 3_000_000)).output == "6000000\n"
    result = await box.exec(["sh", "-c", "exec <&-; sleep 0.5; echo done"], stdin=b"x" * 3_000_000)
    assert (result.output, result.exit_code) == ("done\n", 0)


async def test_a_program_that_cannot_be_run_says_so(box: Sandbox) -> None:
    result = await box.exec(["/no/such"])
    assert result.exit_code == 127
    assert "/no/such" in result.output
    assert (await box.exec(["pwd"], cwd="/no/such")).output == "/\n"


async def test_output_is_cut_in_the_middle(box: Sandbox) -> None:
    result = await box.exec(
        ["sh", "-c", "echo begin; head -c 3000000 /dev/zero | tr '\\0' x; echo end"], max_output=100
    )
    assert result.truncated
    assert result.output_chars == 3_000_010
    assert result.output.startswith("begin\nx")
    assert result.output.endswith("xend\n")
    assert len(result.output) < 250


async def test_files_go_in_and_come_out(box: Sandbox) -> None:
    files: dict[str, str | bytes] = {"rtl/a.sv": b"module a;\n", "é/b c/b.bin": bytes(range(256))}
    await box.write_files(files)
    assert await box.read_files(["."]) == files
    assert (await box.exec(["stat", "-c", "%a %U", "rtl/a.sv"])).output == "644 agent\n"
    assert await box.read_files(["."], first=["docs/b", "rtl/a.sv"], skip=["rtl"]) == {
        path: data for path, data in files.items() if not path.startswith("rtl/")
    }
    assert await box.read_files(["rtl", "nowhere"]) == {"rtl/a.sv": b"module a;\n"}
    with pytest.raises(ValueError, match="relative file path"):
        await box.write_files({"../x": ""})
    await box.ping()


async def test_a_closed_sandbox_is_lost(maker: SandboxProvider, spec: SandboxSpec) -> None:
    box = await maker.create(spec)
    process = await box.spawn(["cat"])
    reading = asyncio.ensure_future(process.output.read())
    await asyncio.sleep(0)
    await box.close()
    await box.close()
    assert await reading == b""
    assert process.exit_code is None
    for call in (process.wait, process.kill, lambda: process.write(b"x"), box.ping, lambda: box.exec(["true"])):
        with pytest.raises(SandboxLost):
            await call()


async def test_files_and_a_process_are_there_from_the_start(maker: SandboxProvider, spec: SandboxSpec) -> None:
    script = "import sys; print(open('/code/src/part.py').read(), sys.stdin.read())"
    files: dict[str, str | bytes] = {"/src/main.py": script, "/code/src/part.py": b"part"}
    if spec.role == "agent":  # the folder /src is the keeper's alone
        files = {"/tmp/main.py": script, "/code/src/part.py": b"part"}
    program = next(path for path in files if path.endswith("main.py"))
    made = replace(spec, files=files, standby=("python3", program))
    await maker.prepare(made)
    box = await maker.create(made)
    assert box.standby is not None
    assert (await box.standby.communicate(b"and stdin")).output == "part and stdin\n"
    change = await box.exec(["sh", "-c", f"echo x >> {program}; rm -f {program}; test -e {program}"])
    assert (change.exit_code == 0) == (spec.role == "scoring")
    with pytest.raises(SandboxLost, match="standby"):
        await box.ping()
    await box.close()


async def test_a_folder_of_the_keepers(maker: SandboxProvider) -> None:
    box = await maker.create(SandboxSpec(role="scoring", keeper_folders=("/grader",), files={"/grader/a/b": "text"}))
    result = await box.exec(["sh", "-c", "cat /grader/a/b; touch /grader/x /grader/a/x; ls /grader/a"])
    assert result.output.startswith("text")
    assert result.output.count("Permission denied") == 2
    assert result.output.endswith("\nb\n")
    await box.close()


async def test_images_are_built_once(maker: SandboxProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    base = await maker.image()
    assert base == await maker.image()
    files = {"make/Dockerfile": f"FROM {base}\nCOPY word /tmp/word\n".encode(), "word": b"hello"}
    built = await maker.build_image(files, dockerfile="make/Dockerfile")
    try:
        assert built == await maker.build_image(files, dockerfile="make/Dockerfile") != base
        with pytest.raises(ImageError, match="not found"):
            await maker.build_image({"Dockerfile": f"FROM {base}\nCOPY nothing /x\n".encode()})
    finally:
        provider = maker._provider if isinstance(maker, WaitingSandboxes) else maker
        if isinstance(provider, NamespaceSandboxes):
            remove_tree(provider._host.root_of(SandboxSpec(image=built)).folder.parent)
        else:
            async with DockerSandboxes() as docker:
                with contextlib.suppress(SandboxError):
                    await asyncio.to_thread(docker._client.docker().api.remove_image, built)

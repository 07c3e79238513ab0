"""Files that are left for the checker, state that is carried over, and the agent's own container."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rtl_agent_gym.sandboxes import DockerSandbox, SandboxProvider
from rtl_agent_gym.scoring import Scorer
from rtl_agent_gym.scoring.harness import Defences
from rtl_agent_gym.scoring.submission import sift
from tests.sandboxes.providers import docker_api

from .file_attacks import FORGERIES
from .other_attacks import GOLDEN, HARMLESS_FILES, LEFT_FILES
from .thieves import TARGET, arbiter, module, shell


@pytest.mark.parametrize("path", LEFT_FILES, ids=ascii)
def test_a_file_for_the_checker_is_named_and_put_nowhere(path: str) -> None:
    submission = sift(arbiter(), {TARGET: GOLDEN, path: "import os; os._exit(0)"})
    assert list(submission.files) == [TARGET]
    (violation,) = submission.violations
    assert LEFT_FILES[path] in violation
    assert violation.startswith((path, ascii(path)))
    assert violation.isprintable()


@pytest.mark.parametrize("path", HARMLESS_FILES, ids=ascii)
def test_a_file_that_an_honest_agent_may_leave_is_put_nowhere(path: str) -> None:
    submission = sift(arbiter(), {TARGET: GOLDEN, path: "import os; os._exit(0)"})
    assert list(submission.files) == [TARGET]
    assert submission.violations == ()
    assert submission.ignored == (path,)
    (said,) = submission.left_out
    assert said.startswith((f"{path}: ", f"{path!a}: "))
    assert HARMLESS_FILES[path] in said
    assert said.isprintable()
    inside = path.startswith(("docs/", "rtl/", "verif/"))
    assert submission.omissions == (f"left out: {path if path.isprintable() else ascii(path)}" if inside else "")


@pytest.mark.docker
@pytest.mark.slow
async def test_all_of_them_at_once_earn_nothing(dense_scorer: Scorer) -> None:
    files = dict.fromkeys([*LEFT_FILES, *HARMLESS_FILES], "import os; os._exit(0)")
    score = await dense_scorer.score(arbiter(), {TARGET: module(""), **files})
    assert not score.passed
    assert score.reward <= 0.4
    assert len(score.violations) == len(LEFT_FILES)
    harmless = dict.fromkeys(HARMLESS_FILES, "import os; os._exit(0)")
    assert not (await dense_scorer.score(arbiter(), {TARGET: module(""), **harmless})).passed
    honest = await dense_scorer.score(arbiter(), {TARGET: GOLDEN, **harmless})
    assert (honest.passed, honest.violations) == (True, [])
    assert f"and {len(HARMLESS_FILES) - 20} more" in honest.left_out
    assert honest.reason.startswith("all ")
    assert "left out: " in honest.reason


@pytest.mark.docker
async def test_links_and_devices_do_not_leave_the_agents_container(provider: SandboxProvider) -> None:
    sandbox = await provider.create()
    made = await sandbox.run(
        "mkdir -p rtl verif rundir && ln -s /etc/passwd rtl/a.sv && ln -s /etc verif/etc && mkfifo rtl/pipe.sv && "
        "ln -s ../rtl rtl/loop && ln /usr/bin/env rtl/hard.sv 2>/dev/null; mknod rtl/null c 1 3 2>/dev/null; "
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"rtl/s.sv\")'; echo fine > rtl/b.sv"
    )
    assert made.exit_code == 0, made.output
    assert set(await sandbox.read_files(["rtl", "verif", "rtl/a.sv", "verif/etc/passwd"])) - {"rtl/hard.sv"} == {
        "rtl/b.sv"
    }


@pytest.mark.docker
async def test_one_grading_leaves_nothing_for_the_next(shared_provider: SandboxProvider, tmp_path: Path) -> None:
    """With the defences down, a thief writes wherever it can; the next grading finds none of it."""
    places = ("/tmp/left", "/rundir/left", "/code/rundir/left", "/home/agent/left", "/code/rtl/left", "/dev/shm/left")
    write = "\n".join(f'f = $fopen("{place}", "w"); $fclose(f);' for place in places)
    look = " || ".join(f"test -e {place}" for place in places)
    run = f"iverilog -g2012 -o t.vvp /code/{TARGET}; vvp t.vvp"
    writes = {TARGET: module(f"integer f;\ninitial begin\n{write}\nend")}
    leave, find = arbiter(shell(f"{run}; {look}")), arbiter(shell(look))
    async with Scorer(shared_provider, defences=Defences(simulation=False), cache=tmp_path) as scorer:
        assert (await scorer.score(leave, writes)).passed, "the files were left"
        assert not (await scorer.score(find, {TARGET: GOLDEN})).passed, "they were found again"


@pytest.mark.docker
async def test_a_stolen_grading_is_never_found_in_the_cache(shared_provider: SandboxProvider, tmp_path: Path) -> None:
    attack = FORGERIES[0]
    async with Scorer(shared_provider, defences=attack.undefended, cache=tmp_path) as scorer:
        assert (await scorer.score(arbiter(), attack.files)).passed
    async with Scorer(shared_provider, cache=tmp_path) as scorer:
        beaten = await scorer.score(arbiter(), attack.files)
        again = await scorer.score(arbiter(), attack.files)
        assert not beaten.passed
        assert (beaten.cached, again.cached) == (False, True)
        assert again.violations == beaten.violations
        honest = await scorer.score(arbiter(), {TARGET: GOLDEN})
        tried = await scorer.score(arbiter(), {TARGET: GOLDEN, "src/conftest.py": ""})
        assert (honest.passed, honest.violations) == (True, [])
        assert not tried.passed
        assert not tried.cached, "what was tried is part of what was graded"


@pytest.mark.docker
@pytest.mark.slow
async def test_gradings_go_on_beside_one_that_takes_everything(scorer: Scorer) -> None:
    greedy = module('int q [$]; initial forever begin q.push_back(1); $display("7 passed"); end')
    bad, good = await asyncio.gather(
        scorer.score(arbiter(), {TARGET: greedy}, timeout=8), scorer.score(arbiter(), {TARGET: GOLDEN})
    )
    assert not bad.passed
    assert good.passed
    assert good.reward == pytest.approx(1.4)


@pytest.mark.docker
async def test_hidden_tests_are_nowhere_in_an_agents_container(provider: SandboxProvider) -> None:
    """Not in a file, a mount, a variable, an argument or a label, also while another container grades with them."""
    mark = "a-mark-that-only-the-hidden-tests-hold"
    problem = arbiter({"src/hidden.txt": mark})
    half = mark[:18], mark[18:]
    sandbox = await provider.create()
    await sandbox.write_files(problem.context)
    script = "\n".join(
        [
            f'm="{half[0]}""{half[1]}"',
            "ls -A /src",
            "ls -A /code/src 2>/dev/null",
            'env | grep -- "$m"',
            # Compared by bash itself: a grep would find its own argument.
            "all=$(cat /proc/[0-9]*/{environ,cmdline} 2>/dev/null | tr '\\0' '\\n')",
            '[[ $all == *"$m"* ]] && echo "in a process"',
            'grep -rlsI "$m" /code /src /tmp /home /rundir /opt /etc /var /dev/shm',
            'grep " /src " /proc/mounts',
        ]
    )
    async with Scorer(provider) as scorer:
        grading = asyncio.ensure_future(scorer.score(problem, {TARGET: GOLDEN}))
        seen = await sandbox.run(script, timeout=60)
        assert (await grading).passed
    assert seen.output == ""
    assert not seen.timed_out
    await sandbox.write_files({"docs/leak.txt": mark})
    leaked = await sandbox.run(f"export LEAK={mark}; sleep 9 &\n{script}", timeout=60)
    for place in ("/code/docs/leak.txt", "in a process", f"LEAK={mark}"):
        assert place in leaked.output, "the search finds what is there"

    if not isinstance(sandbox, DockerSandbox):
        return
    with docker_api() as api:
        told = str(await asyncio.to_thread(api.inspect_container, sandbox.id))
    assert mark not in told
    assert "test_fixed_priority_arbiter" not in told

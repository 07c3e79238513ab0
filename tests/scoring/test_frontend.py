from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rtl_agent_gym.errors import HarnessError, UsageError
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.scoring import RewardWeights, Scorer
from rtl_agent_gym.scoring.frontend import LARGEST, READERS, Frontend
from rtl_agent_gym.scoring.static_stages import Build, demands, disagreement, judge_interface, judge_syntax
from rtl_agent_gym.scoring.submission import sift
from tests.waiting import soon

from .conftest import GOLDEN, TARGET, make_problem

TOPS = {"adder": ["test_adder"]}


@contextlib.asynccontextmanager
async def opened(**options: Any) -> AsyncIterator[Frontend]:
    """A front end of a test's own."""
    made = Frontend(**options)
    try:
        yield made
    finally:
        await made.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def frontend() -> AsyncIterator[Frontend]:
    """One for this file, whose children may be killed."""
    async with opened() as made:
        yield made


async def test_ports_have_elaborated_widths(frontend: Frontend) -> None:
    text = b"module a #(parameter W = 6, localparam L = $clog2(W)) (input [W-1:0] x, output reg [L:0] y[2]); endmodule"
    reading = await frontend.read({"rtl/a.sv": text}, ["rtl/a.sv"], ["a"])
    assert [(p.name, p.direction, p.width) for p in reading.ports["a"]] == [("x", "in", 6), ("y", "out", 8)]
    assert reading.errors == ()


async def test_includes_come_from_the_submission_alone(frontend: Frontend) -> None:
    files = {
        "rtl/w.svh": b"`define W 8\n",
        "rtl/a.sv": b'`include "/code/rtl/w.svh"\nmodule a(input [`W-1:0] x); endmodule\n',
        "rtl/b.sv": b'`include "/etc/passwd"\nmodule b; endmodule\n',
    }
    good = await frontend.read(files, ["rtl/a.sv"], ["a"])
    assert good.ports["a"][0].width == 8
    bad = await frontend.read(files, ["rtl/b.sv"])
    assert bad.errors[0][:2] == ("rtl/b.sv", 1)
    assert not any("root" in message for _, _, message in bad.errors)


async def test_includes_are_found_in_folders_and_by_relative_paths(frontend: Frontend) -> None:
    files = {
        "rtl/include/w.svh": b"`define W 8\n",
        "verif/v.svh": b"`define V 4\n",
        "rtl/a.sv": b'`include "w.svh"\n`include "../verif/v.svh"\nmodule a(input [`W-`V-`U:0] x); endmodule\n',
    }
    found = await frontend.read(files, ["rtl/a.sv"], ["a"], folders=["rtl/include"], defines=["U=1"])
    assert (found.errors, found.unread, found.ports["a"][0].width) == ((), False, 4)
    by_folder = await frontend.read(files, ["rtl/a.sv"], folders=["rundir/sim_build/../../rtl/include"], defines=["U"])
    assert by_folder.unread is False
    lost = await frontend.read(files, ["rtl/a.sv"], ["a"], defines=["U=1"])
    assert lost.unread
    assert lost.errors[0][:2] == ("rtl/a.sv", 1)
    broken = files | {"verif/v.svh": b"`define V 4\nmodule ;\n"}
    assert {path for path, _, _ in (await frontend.read(broken, ["rtl/a.sv"], folders=["rtl/include"])).errors} >= {
        "verif/v.svh"
    }


async def test_includes_with_a_full_path_are_found_in_any_spelling_and_missing_ones_are_named(
    frontend: Frontend,
) -> None:
    """The reason is not that the front end may open no file."""
    files = {
        "rtl/w.svh": b"`define W 8\n",
        "rtl/a.sv": b'`include "/code/rtl/../rtl//w.svh"\nmodule a(input [`W-1:0] x); endmodule\n',
        "rtl/b.sv": b'`include "/code/rtl/none.svh"\n',
    }
    found = await frontend.read(files, ["rtl/a.sv"], ["a"])
    assert (found.errors, found.ports["a"][0].width) == ((), 8)
    lost = await frontend.read(files, ["rtl/b.sv"])
    assert lost.errors == (("rtl/b.sv", 1, "'/code/rtl/none.svh': No such file or directory"),)


async def test_headers_of_any_name_are_read(adder: Problem) -> None:
    """If a file that includes them says so, also through another header."""
    text = GOLDEN.replace("7:0", "`TOP:0")
    files = {
        TARGET: f'`include "/code/rtl/top.inc"\n{text}',
        "rtl/top.inc": '`include "../docs/top.h"\n',
        "docs/top.h": "`define TOP 7\n",
    }
    async with Scorer(weights=RewardWeights.preset("proxy")) as scorer:
        score = await scorer.score(adder, files)
        assert (score.syntax, score.interface) == (1.0, 1.0), score.reason
        files["docs/top.h"] = "`define TOP 6\n"
        assert (await scorer.score(adder, files)).interface < 1.0


async def test_errors_are_in_the_real_file_whatever_it_says(frontend: Frontend) -> None:
    """Else a file that is no Verilog at all would have no error, and the whole share of the syntax."""
    files = {"rtl/a.sv": b'`line 1 "rtl/b.sv" 0\n// \xc3\xa9\nno verilog\n', "rtl/b.sv": 60 * b"endmodule;;) \n"}
    reading = await frontend.read(files, ["rtl/b.sv", "rtl/a.sv"])
    assert {path for path, _, _ in reading.errors} == {"rtl/a.sv", "rtl/b.sv"}
    assert next(line for path, line, _ in reading.errors if path == "rtl/a.sv") == 3


async def test_macros_reach_later_files_as_in_the_compiler(frontend: Frontend) -> None:
    files = {"rtl/a.sv": b"`define W 8\n", "rtl/b.sv": b"module b(input [`W-1:0] x); endmodule\n"}
    assert (await frontend.read(files, ["rtl/a.sv", "rtl/b.sv"], ["b"])).errors == ()
    assert (await frontend.read(files, ["rtl/b.sv"], ["b"])).errors


async def test_sources_that_keep_it_busy_or_crash_it_are_unreadable_and_it_works_on() -> None:
    bomb = b"`define A0 x x x x x x x x x x\n" + b"".join(
        b"`define A%d `A%d `A%d `A%d `A%d `A%d `A%d `A%d `A%d\n" % (n, *[n - 1] * 8) for n in range(1, 12)
    )
    deep = b"module a; assign x = " + b"(" * 3_000_000 + b"1;\nendmodule\n"
    async with opened(processor=1, patience=60) as frontend:  # also on a busy machine
        reading = await frontend.read({"a.sv": bomb + b"module a; `A11 endmodule"}, ["a.sv"])
        assert reading.fault
        assert not reading.repeatable, "a faster machine might read it"
        reading = await frontend.read({"a.sv": deep}, ["a.sv"])
        assert reading.fault or reading.errors
        assert (await frontend.read(PLAIN, ["a.sv"], ["a"])).modules == ("a",)


PLAIN = {"a.sv": b"module a; endmodule"}
BUSY = b"module a;\nassign x = 1;\n" * 400_000
"""Sources that take some seconds to read."""


def children(process: int | str = "self") -> list[int]:
    return [int(pid) for path in Path(f"/proc/{process}/task").glob("*/children") for pid in path.read_text().split()]


def workers() -> list[int]:
    """Children of front ends."""
    return [child for child in children() if b"slang_worker" in Path(f"/proc/{child}/cmdline").read_bytes()]


async def forked() -> tuple[int, int]:
    """A child of a front end, and the fork of it that reads."""
    while True:
        for child in workers():
            if forks := children(child):
                return child, forks[0]
        await asyncio.sleep(0.01)


async def test_a_slow_reading_does_not_delay_another(frontend: Frontend) -> None:
    slow = asyncio.ensure_future(frontend.read({"a.sv": BUSY}, ["a.sv"]))
    _, fork = await forked()
    os.kill(fork, signal.SIGSTOP)  # it does not end by itself now
    async with asyncio.timeout(60):
        quick = [frontend.read({"b.sv": b"module b; endmodule"}, ["b.sv"], ["b"]) for _ in range(20)]
        assert {reading.modules for reading in await asyncio.gather(*quick)} == {("b",)}
    assert not slow.done()
    assert len(workers()) <= READERS
    os.kill(fork, signal.SIGKILL)
    with pytest.raises(HarnessError):
        await slow


async def test_one_that_is_closed_starts_nothing() -> None:
    frontend = Frontend()
    assert (await frontend.read(PLAIN, ["a.sv"], ["a"])).modules == ("a",)
    before = len(workers())
    waiting = [asyncio.ensure_future(frontend.read(PLAIN, ["a.sv"], ["a"])) for _ in range(READERS + 1)]
    await asyncio.sleep(0)  # all but one have begun
    await frontend.close()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each).__name__ for each in found] == ["Reading"] * READERS + ["UsageError"]
    with pytest.raises(UsageError, match="front end is closed"):
        await frontend.read(PLAIN, ["a.sv"], ["a"])
    assert len(workers()) < before


async def test_too_much_text_is_not_read(frontend: Frontend) -> None:
    found = await frontend.read(PLAIN, ["a.sv"], submitted=LARGEST + 1)
    assert found.fault == "more than 8 MiB of Verilog were submitted"
    assert (await frontend.read(PLAIN, ["a.sv"], submitted=LARGEST)).fault == ""


async def test_one_that_is_killed_from_outside_says_nothing_of_its_sources(frontend: Frontend) -> None:
    reading = asyncio.ensure_future(frontend.read({"a.sv": BUSY}, ["a.sv"]))
    os.kill((await forked())[1], signal.SIGKILL)
    with pytest.raises(HarnessError, match="signal 9 from outside"):
        await reading
    reading = asyncio.ensure_future(frontend.read({"a.sv": BUSY}, ["a.sv"]))
    os.kill((await forked())[0], signal.SIGKILL)
    with pytest.raises(HarnessError, match="ended from outside"):
        await reading
    assert (await frontend.read(PLAIN, ["a.sv"], ["a"])).modules == ("a",)


async def test_a_python_that_was_built_for_old_systems_serves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os\ndel os.memfd_create, os.pidfd_open\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    async with opened() as frontend:
        assert (await frontend.read(PLAIN, ["a.sv"], ["a"])).modules == ("a",)


async def test_its_packages_are_those_of_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pyslang.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    async with opened() as frontend:
        with pytest.raises(HarnessError, match=r"does not start; try: \S+ -c 'import pyslang'"):
            await frontend.read(PLAIN, ["a.sv"])


async def test_children_that_were_killed_while_nobody_asked_them_are_replaced(frontend: Frontend) -> None:
    """As Ctrl-C at a prompt did to all of them."""
    await asyncio.gather(*(frontend.read(PLAIN, ["a.sv"]) for _ in range(2)))
    idle = list(frontend._idle)
    assert len(idle) >= 2
    for child in idle:
        assert os.getsid(child.pid) == child.pid != os.getsid(0), "Ctrl-C reaches it"
        child.kill()
        await child.wait()
    assert (await frontend.read(PLAIN, ["a.sv"], ["a"])).modules == ("a",)


@pytest.mark.parametrize("cancelled", [True, False])
async def test_a_reading_that_nobody_waits_for_ends(frontend: Frontend, cancelled: bool) -> None:
    reading = asyncio.ensure_future(frontend.read({"a.sv": BUSY}, ["a.sv"]))
    child, fork = await forked()
    while Path(f"/proc/{fork}/oom_score_adj").read_text() != "1000\n":  # it has begun
        await asyncio.sleep(0.001)
    os.kill(fork, signal.SIGSTOP)  # it does not end by itself now
    if cancelled:
        reading.cancel()
    else:
        os.kill(child, signal.SIGKILL)
    with pytest.raises((asyncio.CancelledError, HarnessError)):
        await reading
    status = Path(f"/proc/{fork}/stat")
    assert await soon(lambda: not status.exists() or b") Z " in status.read_bytes())


async def test_other_names_of_files_are_not_looked_for_in_every_folder() -> None:
    folders = [f"rtl/part{number}" for number in range(500)]
    files: dict[str, bytes] = {"verif/a.svh": b"", "rtl/a.sv": b'`include "../verif/a.svh"\nmodule a; endmodule\n'}
    for number, folder in enumerate(folders * 20):
        files |= {f"{folder}/m{number}.sv": b'`include "m%d.svh"\n' % number, f"{folder}/m{number}.svh": b""}
    sources = [path for path in files if path.endswith(".sv")]
    async with opened(processor=4) as frontend:  # each name in each folder: 10 s and more
        reading = await frontend.read(files, sources, ["a"], folders=folders)
    assert (reading.fault, reading.unread, reading.modules) == ("", False, ("a",))


async def test_one_that_is_given_no_processor_says_nothing_of_its_sources() -> None:
    async with opened(patience=1.5) as frontend:
        await frontend.read(PLAIN, ["a.sv"])  # it has started
        reading = asyncio.ensure_future(frontend.read({"a.sv": BUSY}, ["a.sv"]))
        os.kill((await forked())[1], signal.SIGSTOP)
        with pytest.raises(HarnessError, match=r"got only \d\.\d s of processor time in 1.5 s"):
            await reading


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        ({"signal": 9, "peak": 1 << 30}, "more memory"),  # the host's limit or its own: it asked for it
        ({"overdue": True, "signal": 9, "peak": 1 << 30}, "more memory"),
        ({"signal": 24, "seconds": 20.1}, "20 s of processor time"),
        ({"signal": 9, "seconds": 21.0}, "20 s of processor time"),
        ({"long": True, "signal": 9}, "output is too long"),
    ],
)
def test_a_source_that_asks_for_too_much_is_to_blame(ended: dict[str, Any], said: str) -> None:
    plain = {"signal": 0, "code": 0, "overdue": False, "long": False, "seconds": 0.5, "peak": 50 << 20}
    blamed = Frontend()._blame(plain | ended)
    assert blamed is not None
    assert said in blamed.fault


async def test_a_front_end_that_is_broken_is_not_the_sources_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    frontend = Frontend()

    async def crash(request: bytes) -> dict[str, Any]:
        plain = {"code": 0, "overdue": False, "long": False, "seconds": 0.5, "peak": 50 << 20}
        return {"ended": {**plain, "signal": signal.SIGSEGV}}

    monkeypatch.setattr(frontend, "_ask", crash)
    with pytest.raises(HarnessError, match="crashes on everything"):
        await frontend.read(PLAIN, ["a.sv"])


LOWERED = """
import asyncio, ctypes, resource
from rtl_agent_gym.errors import HarnessError
from rtl_agent_gym.scoring.frontend import Frontend

ctypes.CDLL(None).prctl(24, 24)  # PR_CAPBSET_DROP of CAP_SYS_RESOURCE: root's children cannot raise limits either
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    asyncio.run(Frontend().read({"a.sv": b"module a; endmodule"}, ["a.sv"]))
except HarnessError as error:
    print(error)
"""


def test_limits_of_the_user_that_are_too_low_for_a_front_end_are_named() -> None:
    done = subprocess.run([sys.executable, "-c", LOWERED], capture_output=True, text=True, check=False)
    assert "`ulimit -Hf`" in done.stdout, done.stderr


async def test_a_front_end_that_fails_once_costs_no_syntax(adder: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Scorer(weights=RewardWeights.preset("proxy")) as scorer:
        inner, failures = scorer._frontend.read, [HarnessError("killed")]

        async def flaky(*arguments: Any, **options: Any) -> Any:
            if failures:
                raise failures.pop()
            return await inner(*arguments, **options)

        monkeypatch.setattr(scorer._frontend, "read", flaky)
        score = await scorer.score(adder, {TARGET: GOLDEN})
    assert (score.syntax, score.interface, score.retries) == (1.0, 1.0, 1)


async def test_given_files_do_not_count_as_written(adder: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell's episode leaves them as they are; to delete them would pay otherwise."""
    given = {"rtl/cells.v": "// cells\n"}
    monkeypatch.setattr("rtl_agent_gym.scoring.frontend.LARGEST", len(GOLDEN) + 4)
    problem = adder.model_copy(update={"context": {**adder.context, **given}})
    async with Scorer(weights=RewardWeights.preset("proxy")) as scorer:
        kept = await scorer.score(problem, {TARGET: GOLDEN, **given})
        changed = await scorer.score(problem, {TARGET: GOLDEN, "rtl/cells.v": "// more cells\n"})
    assert (kept.syntax, kept.interface, changed.syntax) == (1.0, 1.0, 0.0)


async def test_the_syntax_stage_judges_each_target(frontend: Frontend) -> None:
    problem = make_problem(targets=("rtl/a.sv", "rtl/b.sv", "docs/x.md"))
    files = {"rtl/a.sv": "module a; endmodule", "rtl/b.sv": "module b; assign = endmodule", "docs/x.md": "text"}
    submission = sift(problem, files)
    build = Build.of(submission, ["rtl/a.sv"])
    assert build.sources == ("rtl/a.sv", "rtl/b.sv")
    share, reason = judge_syntax(submission, await frontend.read(submission.tree, build.sources))
    assert share == pytest.approx(2 / 3)
    assert reason.startswith("syntax: rtl/b.sv:1: ")


async def test_given_files_that_nobody_submitted_earn_nothing(frontend: Frontend) -> None:
    problem = make_problem(context={TARGET: GOLDEN})
    submission = sift(problem, {})
    share, _ = judge_syntax(submission, await frontend.read(submission.tree, [TARGET]))
    assert share == 0.0


async def test_a_disagreement_says_which_front_end_complained(frontend: Frontend) -> None:
    submission = sift(make_problem(), {TARGET: GOLDEN})
    _, good = judge_syntax(submission, await frontend.read(submission.tree, [TARGET]))
    lint = "%Error: /code/rtl/adder.sv:2:5: syntax error, unexpected x\n"
    assert disagreement(bool(good), lint).startswith("Verilator alone complains of the syntax: rtl/adder.sv:2")
    assert disagreement(bool(good), "%Warning-WIDTH: /code/rtl/adder.sv:2:5: too wide\n") == ""
    assert disagreement(bool(good), None) == ""
    for missing in ("Cannot find include file: '../../rtl/w.svh'", "Define or directive not defined: '`TOP'"):
        assert disagreement(bool(good), f"%Error: /code/rtl/adder.sv:1:10: {missing}\n{lint}") == ""
    broken = sift(make_problem(), {TARGET: "module adder; endmodul"})
    _, bad = judge_syntax(broken, await frontend.read(broken.tree, [TARGET]))
    assert disagreement(bool(bad), lint) == ""
    assert disagreement(bool(bad), "") == "pyslang alone complains of the syntax, Verilator does not"


@pytest.mark.parametrize(
    ("header", "share", "said"),
    [
        ("input clk, input [7:0] a, input [7:0] b, output [8:0] sum", 1.0, []),
        ("output [8:0] sum, input [7:0] b, a, input clk, input extra", 1.0, []),
        ("input clk, input [7:0] a, input b, output [8:0] sum", 0.75, ["b has 1 bit, expected 8"]),
        ("input clk_i, input [7:0] a, input [7:0] b, output [8:0] sum", 0.75, ["clk_i instead of clk"]),
        ("input clk, input [7:0] a, output [7:0] b, output [8:0] sum", 0.75, ["b is output, expected input"]),
        ("input clk, input [7:0] a, input [7:0] b", 0.75, ["sum is missing"]),
    ],
)
async def test_the_interface_stage_spells_out_differences(
    frontend: Frontend, header: str, share: float, said: list[str]
) -> None:
    asked = await demands(make_problem(), TOPS, frontend)
    text = f"module adder({header}); endmodule".encode()
    found, differences = judge_interface(asked, await frontend.read({TARGET: text}, [TARGET], ["adder"]))
    assert found == pytest.approx(share)
    assert differences == said


async def test_a_missing_module_names_those_that_are_there(frontend: Frontend) -> None:
    async def differences(text: str) -> list[str]:
        share, found = judge_interface(asked, await frontend.read({TARGET: text.encode()}, [TARGET], ["adder"]))
        assert share == 0.0
        return found

    asked = await demands(make_problem(), TOPS, frontend)
    assert await differences("module add; endmodule") == ["module adder is missing (modules found: add)"]
    (told,) = await differences("".join(f"module m{number}{'x' * 500}; endmodule\n" for number in range(50)))
    assert len(told) < 2500
    assert told.endswith("x, and 30 more)")


async def test_the_header_is_found_in_prompt_then_docs_then_rtl_then_tests(frontend: Frontend) -> None:
    def header(port: str) -> str:
        return f"module adder (input logic [3:0] {port});"

    old_style = "module adder(a, b);\n  input [1:0] a; // first\n  output b;\nendmodule"
    sources = {"docs/s.md": header("d"), "rtl/adder.sv": old_style}
    (asked,) = await demands(make_problem(prompt=header("p"), context=sources), TOPS, frontend)
    assert [port.name for port in asked.ports] == ["p"]
    (asked,) = await demands(make_problem(prompt="Write it.", context=sources), TOPS, frontend)
    assert [port.name for port in asked.ports] == ["d"]
    (asked,) = await demands(make_problem(prompt="Write it.", context={"rtl/given.sv": old_style}), TOPS, frontend)
    assert [(port.name, port.direction, port.width) for port in asked.ports] == [("a", "in", 2), ("b", "out", 1)]
    tests = {"src/test_adder.py": "dut.a.value = 1\nif dut.sum.value == 2: pass\nClock(dut.clk, 1)\n"}
    (asked,) = await demands(make_problem(prompt="Write it.", harness=tests), TOPS, frontend)
    assert asked.names_only
    assert [port.name for port in asked.ports] == ["a", "clk"]


async def test_a_header_that_is_to_be_changed_is_asked_for_as_far_as_the_tests_look_at_it(frontend: Frontend) -> None:
    old = "module adder (input clk, input [3:0] a, input [3:0] b, input renamed, output [4:0] sum);\nendmodule"
    problem = make_problem(prompt="Widen it, and rename a port.", context={TARGET: old})
    (asked,) = await demands(problem, TOPS, frontend)
    assert [(port.name, port.direction, port.width) for port in asked.ports] == [
        ("clk", "in", None),
        ("a", "in", None),
        ("b", "in", None),
        ("sum", "out", None),
    ]
    (asked,) = await demands(make_problem(prompt="Use it.", context={"rtl/adder.v": old}), TOPS, frontend)
    assert ("renamed", 1) in [(port.name, port.width) for port in asked.ports]


async def test_every_golden_solution_has_the_interface_that_was_asked_for(bundled: dict[str, Problem]) -> None:
    solved = [problem for problem in bundled.values() if problem.golden]
    assert solved
    async with Scorer(weights=RewardWeights.preset("proxy")) as scorer:
        for problem in solved:
            assert problem.golden is not None
            score = await scorer.score(problem, problem.golden)
            assert (problem.id, score.interface, score.syntax, score.format) == (problem.id, 1.0, 1.0, 1.0)
            assert "interface:" not in score.reason

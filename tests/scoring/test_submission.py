from __future__ import annotations

import time

import pytest

from rtl_agent_gym.scoring import submission
from rtl_agent_gym.scoring.submission import MAX_FILE, sift
from rtl_agent_gym.scoring.used_by_tests import inputs_of_tests

from .conftest import GOLDEN, TARGET, make_problem


def test_submitted_files_go_over_the_given_ones() -> None:
    problem = make_problem(context={"rtl/given.sv": "old", "rtl/other.sv": "stays"})
    found = sift(problem, {"rtl/given.sv": "new", TARGET: GOLDEN})
    assert found.tree == {"rtl/given.sv": b"new", "rtl/other.sv": b"stays", TARGET: GOLDEN.encode()}


def test_a_folder_takes_the_place_of_a_given_file() -> None:
    problem = make_problem(context={"rtl/a": "file", "rtl/b/c": "file"})
    assert set(sift(problem, {"rtl/a/x.sv": "x", "rtl/b": "y"}).tree) == {"rtl/a/x.sv", "rtl/b"}


def test_thousands_of_files_take_no_time() -> None:
    given = {f"a/{number}/b.sv": "x" for number in range(4000)}
    files = {f"rtl/{number}/b.sv": "y" for number in range(2000)}
    begun = time.process_time()
    assert len(sift(make_problem(context=given), files).tree) == 6000
    assert time.process_time() - begun < 1.0  # each compared with each: 3 s


def test_a_file_that_is_a_folder_too_is_a_fault_of_the_submission() -> None:
    found = sift(make_problem(), {"rtl/a": "x", "rtl/a/b": "y"})
    assert "rtl/a" in found.fault
    assert not found.files


def test_too_large_is_a_fault_of_the_submission() -> None:
    assert "bytes" in sift(make_problem(), {TARGET: b"x" * (MAX_FILE + 1)}).fault


def test_a_large_file_beside_the_design_is_left_out() -> None:
    """Such as a waveform, as at the end of an episode."""
    found = sift(make_problem(), {TARGET: GOLDEN, "verif/dump.vcd": b"x" * (MAX_FILE + 1)})
    assert (found.fault, set(found.files), found.format) == ("", {TARGET}, 1.0)
    assert found.left_out == (f"verif/dump.vcd: {MAX_FILE + 1} bytes; at most {MAX_FILE} a file are graded",)


@pytest.mark.parametrize("name", ["-DDEPTH.sv", "+define+DEPTH.sv", "@options.sv", "a -DDEPTH.sv"])
def test_a_file_by_the_name_of_an_option_is_left_out(name: str) -> None:
    """A harness that compiles ``*.sv`` in the folder of the design would pass it to the compiler."""
    found = sift(make_problem(), {TARGET: GOLDEN, f"rtl/{name}": b"", "rtl/a-b+c@d.sv": b""})
    assert (set(found.files), found.format) == ({TARGET, "rtl/a-b+c@d.sv"}, 1.0)
    assert found.left_out == (f"rtl/{name}: a compiler would take a file of this name for an option",)


YOSYS = {
    "src/run.sh": "yosys -p 'read_verilog -sv -I/src /code/rtl/*.sv; synth'",
    "src/gold.sv": "module gold; endmodule",
}


@pytest.mark.parametrize(
    "content",
    [
        'import "DPI-C" function int kill(int, int);',
        b'import\t"DPI" function f(); \xff',
        'import "DPI\r-C" function f();',
        '`define D DPI\n`define Q(x) `"x-C`"\nimport `Q(`D) function f();',
        '`define I(a, b) a``b\n`I(im, port) `"DPI`" function f();',
    ],
)
def test_a_design_for_yosys_imports_no_c_functions(content: str | bytes) -> None:
    """Yosys would call them while it reads the design: `exit(0)` is a success, and `kill(-1, 9)` ends the grading."""
    problem = make_problem(harness=YOSYS, context={"rtl/given.sv": 'import "DPI-C" function int f();'})
    found = sift(problem, {TARGET: content, "rtl/given.sv": problem.context["rtl/given.sv"]})
    assert found.violations == (f"{TARGET}: imports a C function, which Yosys would call; it was left out",)
    assert set(found.files) == {"rtl/given.sv"}
    assert not sift(make_problem(), {TARGET: content}).violations  # the guards of other compilers judge it


@pytest.mark.parametrize(
    "content",
    [
        '`include "/src/gold.sv"',
        '`inc\rlude"/code/src/gold.sv"',
        '`include "../../src/gold.sv"',
        '`include "gold.sv"',
        '`include "src/gold.sv"',
        '`define GOLD "/src/gold.sv"\n`include `GOLD',
        '`define GOLD gold\n`include `"/src/`GOLD.sv`"',
        '`include "/code/docs/gold.md"',
    ],
)
def test_a_design_for_yosys_includes_no_hidden_file(content: str) -> None:
    """A copy of the hidden reference is equal to it."""
    problem = make_problem(harness=YOSYS)
    found = sift(problem, {TARGET: content, "docs/gold.md": '`include "/src/gold.sv"'})
    assert any(
        text.endswith(": includes a file that is none of the problem's; it was left out") for text in found.violations
    )
    assert not sift(make_problem(), {TARGET: content}).violations


def test_a_design_for_yosys_includes_its_own_files() -> None:
    files = {
        TARGET: '`include "defs.vh"\n`include "/code/rtl/gold.sv"\n`include "../rtl/src/a.vh"\n`include "gold.sv"',
        "rtl/proc/a.sv": '`include "proc/b.vh"',
        "rtl/gold.sv": '`define P "defs.vh"\n`include `P\n`define J(a, b) a``b',
        "docs/notes.md": 'Without `import "DPI-C"`, and with `"gold"`; see `include "/src/gold.sv"`.',
        "verif/test.py": "import cocotb",
    }
    found = sift(make_problem(harness=YOSYS), files)
    assert (found.violations, set(found.files)) == ((), set(files) - {"verif/test.py"})


@pytest.mark.parametrize(("name", "most"), [("MAX_TOTAL", 10), ("MAX_COUNT", 2)])
def test_too_much_in_all_is_a_fault_of_the_submission(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"rtl/{letter}.sv": "12345" for letter in "abc"}
    assert not sift(make_problem(), files).fault
    monkeypatch.setattr(submission, name, most)
    found = sift(make_problem(), files)
    assert f"at most {most} are graded" in found.fault
    assert found.files == {}


def test_format_is_the_share_of_targets_with_something_in_them() -> None:
    problem = make_problem(targets=("rtl/a.sv", "rtl/b.sv"), context={"rtl/b.sv": "given"})
    assert sift(problem, {}).format == 0.0
    assert sift(problem, {"rtl/a.sv": "x", "rtl/b.sv": " \n"}).format == 0.5
    assert sift(problem, {"rtl/a.sv": b"x", "rtl/b.sv": "y"}).format == 1.0


def test_the_digest_tells_submissions_apart() -> None:
    problem = make_problem()
    digests = {
        sift(problem, files).digest
        for files in (
            {},
            {"rtl/a": ""},
            {"rtl/b": ""},
            {"rtl/a": "x"},
            {"rtl/a": "", "rtl/b": ""},
            {"src/conftest.py": ""},
            {"rtl/a": "x", "rtl/a/b": "y"},  # a fault, of which no file is graded
        )
    }
    assert len(digests) == 7
    assert sift(problem, {"rtl/a": "x"}).digest == sift(problem, {"rtl/a": b"x", "notes": "y"}).digest


def test_a_repositorys_programs_are_graded_as_given() -> None:
    """Those that are changed, by whatever name, and those in whose place something else is put."""
    given = {"tools/check.py": "1", "Makefile": "all:", "run": "#!/bin/sh\n", "a/b.sv": "module b; endmodule\n"}
    problem = make_problem(checkout="owner/name@0123456", context=given)
    script = "#!/bin/sh\n"
    submitted = {"run": script + "exit 0\n", "util/run": script, "tools": "x", "Makefile/x.txt": "x"}
    submitted["a/b.sv"] = "// mine\n"
    found = sift(problem, submitted)
    assert found.files == {"a/b.sv": b"// mine\n"}
    assert found.tree == {path: text.encode() for path, text in (given | {"a/b.sv": "// mine\n"}).items()}
    assert sorted(found.ignored) == ["Makefile/x.txt", "run", "tools", "util/run"]


def test_what_the_tests_run_or_read_is_graded_as_given() -> None:
    """A harness may run a program among the given files, or read expected values there."""
    given = {
        "verif/model.py": "def add(a, b): return a + b\n",
        "verif/Makefile": "test:\n",
        "verif/rows.hex": "3\n",
        "verif/tb.sv": "module tb; endmodule\n",
        "rtl/core.sv": "module core; endmodule\n",
        "rtl/defs.h": "`define W 8\n",
        "rtl/files.f": "/code/rtl/core.sv\n",
        "docs/notes.txt": "",
    }
    text = "model = open('/code/verif/rows.hex'); make('tb.sv', 'core.sv', 'defs.h', 'files.f', 'notes.txt.gz')"
    problem = make_problem(context=given, harness={"src/test_adder.py": text})
    changed = dict.fromkeys([*given, TARGET], "// mine\n")
    found = sift(problem, changed | {"verif/GNUmakefile": "test:\n", "verif/x.h": ""})
    assert set(found.files) == {TARGET, "rtl/core.sv", "rtl/defs.h", "rtl/files.f", "docs/notes.txt", "verif/x.h"}
    assert sorted(found.ignored) == [
        *("verif/GNUmakefile", "verif/Makefile", "verif/model.py", "verif/rows.hex", "verif/tb.sv")
    ]
    kept = ("verif/Makefile", "verif/model.py", "verif/rows.hex", "verif/tb.sv")
    assert all(found.tree[path] == given[path].encode() for path in kept)
    assert set(sift(problem.model_copy(update={"targets": tuple(given)}), changed).files) == set(changed)


def test_a_port_of_both_ways_is_no_input() -> None:
    for item in (
        "| `pad` | in/out | 8 |",
        "`pad` (Input/Output)",
        "`pad`: input or output",
        "pad (8 bits): bidirectional",
    ):
        problem = make_problem(prompt=f"- a: Input\n- {item}", harness={"src/test_adder.py": "f(dut.a, dut.pad)"})
        assert inputs_of_tests(problem) == ["a"]


@pytest.mark.parametrize(
    "prompt",
    [
        "### Inputs\n- `a`: a summand\n- `b`\n### Outputs\n- `sum`, [8:0]: the sum of the two input words, in bits",
        "**Outputs:**\n* `sum` (9 bits): registered input sum\n**Inputs:**\n* `a` (8 bits): operand\n* `b`",
        "| a | 8 | first input |\n| b | 8 | other input |\n| sum | 9 | sum of the input words |",
        "## Ports\n### Inputs\n- `a`: a summand\n- `b`\n## Results\n- `sum`: after a cycle",
        "## Inputs and outputs\n- `a`: input\n- `b` (input)\n- `sum`: the result",
        "### Signals in the interface\n- a: Input\n- b: Data input\n- sum: Result",
        "### Data Inputs (8 bits)\n- `a`\n- `b`\n### Input Handling:\n- `sum`: is 0 after a reset",
        "input logic [7:0] a,\n  input word_t b; // summands\nInput words are added to `sum`.\n- `sum`: result",
        "Outputs:\n| `a` / `b` | in / in | 8 |\n| `b` | in | 8 |\n| `sum` | out | 9 |",
    ],
)
def test_an_output_that_is_described_by_inputs_is_none(prompt: str) -> None:
    tests = "dut.a.value, dut.b.value = 1, 2\nassert await sample(dut.sum) == 3"
    assert inputs_of_tests(make_problem(prompt=prompt, harness={"src/test_adder.py": tests})) == ["a", "b"]


@pytest.mark.parametrize(
    "driven",
    [
        "@cocotb.test(timeout_time=9)\n@other\nasync def test_sum(top):\n    top.a.value = top.b.value = 3",
        "getattr(dut, 'a').value = dut[\"b\"].value = 3",
        "for signal in [dut.a, dut.b]:",
        "for name, value in {'a': 1, 'b': 2, 'sum': 3}.items():\n    getattr(dut, name).value = value",
        "for name in ['a', 'b']:\n    dut[name].value = 1",
        "first = dut.a  # kept\nports = {'b': dut.b}",
    ],
)
def test_inputs_are_found_however_tests_name_them(driven: str) -> None:
    prompt = "| `a` | input |\n| `b` | input |\n| `sum` | output |"
    assert inputs_of_tests(make_problem(prompt=prompt, harness={"src/test_adder.py": driven})) == ["a", "b"]


def test_the_inputs_that_tests_drive_are_those_that_the_task_calls_inputs() -> None:
    """Tests initialise outputs, too, and texts mention them beside inputs."""
    names = ("a", "b[0]", "mode", "sel", "serial", "sum", "done", "step", "known")
    lines = [f"dut.{name}.value = random.randint(0, 9)" for name in names]
    lines += ["Clock(dut.clk, 10)", "dut.busy.value = 0  # idle", "dut.rst.setimmediatevalue(0)", "dut.rst.value = 1"]
    lines += [
        "reset(dut.low, active=False)",
        "drive(clk, self.dut.odd)",
        "x = dut.last",
        "RisingEdge(dut.irq)",
        "int(dut.ack.value)",
    ]
    tests = "\n".join(lines)
    prompt = """Write `sum`, whose inputs are added.

    module adder(input clk, input logic [7:0] a, b, output logic [8:0] sum);
    ### Data Inputs
    1. **sel([2:0])**: Selection.
    2. `serial`: Serial data, which appears at an output later.
    - mode (2 bits): Input that chooses the output.
    - rst: Reset input.
    - low: Reset input.
    - odd: Input.
    - last: Input.
    - irq: Input of a processor.
    - ack: Input of a processor.
    ### Outputs
    | step | 4 | Step |
    - **busy**: Input is not accepted.
    """
    rtl = "module sub(\n    input [7:0] known,\n    output done);\nendmodule\nmodule x(\n    input done);\nendmodule\n"
    problem = make_problem(prompt=prompt, context={"rtl/sub.sv": rtl}, harness={"src/test_adder.py": tests})
    assert inputs_of_tests(problem) == ["a", "b", "clk", "known", "last", "low", "mode", "odd", "rst", "sel"]

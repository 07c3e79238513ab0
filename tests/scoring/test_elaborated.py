"""What is found in a design that Verilator has elaborated; no container."""

from __future__ import annotations

import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest

from rtl_agent_gym.scoring.grader import verilated
from rtl_agent_gym.scoring.grader.connections import letting_go
from rtl_agent_gym.scoring.grader.preprocessed import check_preprocessed
from rtl_agent_gym.scoring.grader.sources import Reach
from rtl_agent_gym.scoring.grader.verilated import (
    Elaborated,
    check_tree,
    confused_interfaces,
    corruptions,
    judge,
    reached_signals,
    replaced_inputs,
    shared_signals,
    steered,
    written_inputs,
)

FILES = {"e": "/code/rtl/a.sv", "t": "/src/tb.sv", "s": "<verilated_std>"}


def node(kind: str, fields: str = "", name: str = "") -> str:
    """A node as Verilator 5.032 prints it, at line 7."""
    return f'{{"type":"{kind}","name":"{name}","addr":"(X)","loc":"e,7:19,7:25",{fields}'


def text(words: str, key: str = "filenamep") -> str:
    """A child that is a text."""
    number = f"{8 * len(words)}'h{words.encode().hex()}"
    return f'\n  "{key}": [\n   {{"type":"CONST","name":"{number}","addr":"(Z)","loc":"e,7:26,7:37"}}\n  ]'


def string(words: str) -> str:
    """A child that is a text of type ``string``."""
    name = rf"\\\"{words}\\\""
    return f'\n  "filenamep": [\n   {{"type":"CONST","name":"{name}","addr":"(GB)","loc":"e,6:49,6:50"}}\n  ]'


def found(*nodes: str) -> tuple[list[str], list[str]]:
    return check_tree(Elaborated("\n".join(nodes).encode(), FILES, []))


@pytest.mark.parametrize(
    ("kind", "fields", "words"),
    [
        ("FUNC", '"dpiExport":false,"dpiImport":true,"cname":"system"', "import of a foreign function"),
        ("TASK", '"dpiExport":true,"dpiImport":false,"cname":"x"', "export of a foreign function"),
        ("SYSTEMT", "", "$system reaches out"),
        ("SYSTEMF", "", "$system reaches out"),
        ("UCSTMT", "", "$c puts C++"),
        ("UCFUNC", "", "$c puts C++"),
        *((kind, "", "`systemc puts text") for kind in ("SCHDR", "SCINT", "SCIMP", "SCIMPHDR", "SCCTOR", "SCDTOR")),
    ],
)
def test_what_reaches_out_is_a_violation_with_its_place(kind: str, fields: str, words: str) -> None:
    (violation,), refused = found(node("MODULE"), node(kind, fields))
    assert violation.startswith(f"rtl/a.sv:7: {words}")
    assert refused == []


def test_verilators_own_package_is_no_violation_and_cannot_be_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = node("UCSTMT").replace('"loc":"e,', '"loc":"s,')
    assert found(own) == ([], [])
    text = b'`line 148 "<verilated_std>" 0\nwire a;\n'
    monkeypatch.setattr(subprocess, "run", Mock(return_value=Mock(returncode=0, stdout=text, stderr=b"")))
    monkeypatch.setattr(verilated, "elaborate", Mock(return_value=(b"", Elaborated(own.encode(), FILES, []))))
    (refused,) = judge(["a.sv"], str(tmp_path), {"testbench": False})[3]
    assert "names one of Verilator's own sources" in refused


def use(kind: str, fields: str, file: str, key: str = "varp", label: str = "(T)") -> str:
    return f'{{"type":"{kind}","name":"x","addr":"(X)","loc":"{file},7:19,7:25",{fields}"{key}":"{label}"}}'


@pytest.mark.parametrize(
    ("tree", "reached"),
    [
        (use("VARREF", '"access":"RD",', "e"), True),
        (use("VARXREF", '"dotted":"judge","access":"WR",', "e"), True),
        (use("MEMBERSEL", "", "e"), True),
        (use("TASKREF", '"dotted":"",', "e", "taskp", "(F)"), True),
        (use("FUNCREF", '"dotted":"",', "e", "taskp", "(G)"), True),
        (use("METHODCALL", '"dotted":"",', "e", "taskp", "(S)"), False),
        (use("VARREF", '"access":"RD",', "t"), False),
        (use("VARREF", '"access":"RD",', "e", label="(P)"), False),
        (use("VARXREF", '"dotted":"dut","access":"RD",', "t", label="(P)"), False),
        (use("PIN", '"svDotName":true,', "e", "modVarp"), False),
    ],
)
def test_a_design_uses_no_variable_and_no_routine_of_the_testbench(tree: str, reached: bool) -> None:
    declared = (
        '{"type":"VAR","name":"bad","addr":"(T)","loc":"t,3:1,3:2","direction":"NONE"}',
        '{"type":"TASK","name":"check","addr":"(F)","loc":"t,4:1,4:2"}',
        '{"type":"FUNC","name":"answer","addr":"(G)","loc":"t,5:1,5:2"}',
        '{"type":"FUNC","name":"self","addr":"(S)","loc":"s,6:1,6:2"}',
        '{"type":"VAR","name":"own","addr":"(P)","loc":"e,3:1,3:2","direction":"NONE"}',
    )
    faults = reached_signals(Elaborated("\n".join((*declared, tree)).encode(), FILES, []))
    assert [fault.startswith("rtl/a.sv:7: ") and "hidden" in fault for fault in faults] == [True] * reached


READS_HIDDEN = '{"type":"VAR","name":"bad","addr":"(T)","loc":"t,3:1,3:2","direction":"NONE"}\n'
READS_HIDDEN += use("VARREF", '"access":"RD",', "e")
WRITES_INPUT = '    {"type":"VAR","name":"req","addr":"(T)","loc":"e,3:1,3:2","direction":"INPUT"}\n'
WRITES_INPUT += use("VARREF", '"access":"WR",', "e")


@pytest.mark.parametrize(
    ("tree", "mixed", "violation", "refusal"),
    [
        (node("READMEM", text("/src/x.py")), False, "$readmemh reads '/src/x.py'", ""),
        (node("FOPENMCD", text("x.txt")), False, "", "opens 'x.txt' for writing"),
        (READS_HIDDEN, True, "", "'bad' is the hidden testbench's"),
        (WRITES_INPUT, True, "", "the input 'req' is written"),
        (node("FINISH"), True, "", "ends the simulation"),
        (node("FINISH"), False, "", ""),
        (READS_HIDDEN, False, "", ""),
        (WRITES_INPUT, False, "", ""),
    ],
)
def test_what_only_the_elaborated_design_shows_is_not_built(
    tree: str, mixed: bool, violation: str, refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = Mock(returncode=0, stdout=b"module m; endmodule\n", stderr=b"")
    monkeypatch.setattr(subprocess, "run", Mock(return_value=printed))
    monkeypatch.setattr(verilated, "elaborate", Mock(return_value=(b"", Elaborated(tree.encode(), FILES, []))))
    monkeypatch.setattr(verilated, "_beyond_ports", Mock(return_value=Reach([], [], mixed)))
    failed, _, violations, refusals = judge(["a.sv"], str(tmp_path), {"testbench": True})
    assert failed is None
    assert [violation in each for each in violations] == [True] * bool(violation)
    assert [refusal in each for each in refusals] == [True] * bool(refusal)


ENDS_IT = node("FINISH")
SWITCHES = node("TEXT", '"shortText":"vlSymsp->_vm_contextp__->assertOnClear(255 ,7);..."')
SETS = node("TEXT", '"shortText":"vlSymsp->_vm_contextp__->assertOnSet(255 ,7);..."')
ASKS = node("TEXT", '"shortText":"vlSymsp->_vm_contextp__->assertOnGet(2, 1)"')
MAIN = "--cc --exe /src/main.cpp"


@pytest.mark.parametrize(
    ("options", "tree", "printed", "violation", "refusal"),
    [
        (MAIN, ENDS_IT, "", "", "ends the simulation"),
        (MAIN, SWITCHES, "", "", "switches assertions"),
        (MAIN, SETS, "", "", "switches assertions"),
        (MAIN, WRITES_INPUT, "", "", "the input 'req' is written"),
        (MAIN, ASKS + "\n" + ENDS_IT.replace('"loc":"e,', '"loc":"t,'), "", "", ""),
        (MAIN, "", "initial $stop;", "$stop ends the simulation", ""),
        (MAIN, "", "initial $assertkill;", "$assertkill switches assertions", ""),
        (MAIN, "", '`line 1 "/src/tb.sv" 0\ninitial $stop;', "", "names a file that is not the design's"),
        ("--cc --build", ENDS_IT, "", "", "ends the simulation"),
        ("--cc --exe /code/rundir/main.cpp", ENDS_IT, "", "", "ends the simulation"),
        ("--cc --exe /code/verif/main.cpp /src/main.cpp", ENDS_IT, "", "", "ends the simulation"),
        ("--sc --exe /src/main.cpp", ENDS_IT, "", "", "ends the simulation"),
        ("--cc --exe /code/verif/main.cpp", ENDS_IT, "initial $finish;", "", ""),
        ("--cc --main --build", ENDS_IT, "initial $finish;", "", ""),
        ("-cc --exe /venv/verilator.cpp -LDFLAGS -lcocotbvpi_verilator", ENDS_IT, "initial $finish;", "", ""),
        ("--binary", ENDS_IT, "initial $finish;", "", ""),
    ],
)
def test_a_program_is_a_hidden_testbench(
    options: str,
    tree: str,
    printed: str,
    violation: str,
    refusal: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = f'`line 1 "/code/rtl/a.sv" 1\nmodule m; {printed}\nendmodule\n'.encode()
    monkeypatch.setattr(subprocess, "run", Mock(return_value=Mock(returncode=0, stdout=text, stderr=b"")))
    monkeypatch.setattr(verilated, "elaborate", Mock(return_value=(b"", Elaborated(tree.encode(), FILES, []))))
    _, _, violations, refusals = judge([*options.split(), "/code/rtl/a.sv"], str(tmp_path), {"testbench": True})
    assert [violation in each for each in violations] == [True] * bool(violation)
    assert [refusal in each for each in refusals] == [True] * bool(refusal)


@pytest.mark.parametrize(
    ("way", "program", "replaced"),
    [
        ("OUTPUT", "dut.req = 1;", True),
        ("OUTPUT", "dut->req[0] |= 1;", True),
        ("OUTPUT", "for (dut.req = 0; ...; ++i) {}", True),
        ("OUTPUT", "req = dut.req == 1; dut.request = 1;", False),
        ("INOUT", "dut.req = 1;", True),
        ("INOUT", "if (!dut.req__en) dut.req = 1;", False),
        ("INPUT", "dut.req = 1;", False),
    ],
)
def test_a_program_writes_no_output(way: str, program: str, replaced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verilated, "hidden_texts", lambda: ([program.encode()], set()))
    below = '  {"type":"MODULE","name":"below"}\n' + WRITES_INPUT.replace('"INPUT"', '"OUTPUT"')
    tree = f'  {{"type":"MODULE","name":"top"}}\n{WRITES_INPUT}\n{below}'.replace('"INPUT"', f'"{way}"', 1)
    faults = replaced_inputs(Elaborated(tree.encode(), FILES, []))
    assert [f"the {way.lower()} 'req' is in the place of an input" in fault for fault in faults] == [True] * replaced


@pytest.mark.parametrize(
    ("status", "printed", "design", "failed"),
    [
        (3, b"module m; endmodule\n", Elaborated(b"", FILES, []), 3),
        (0, b"module m; endmodule\n", None, 1),
        (0, b" \n", Elaborated(b"", FILES, []), 1),
    ],
)
def test_nothing_is_built_whose_text_or_design_is_unknown(
    status: int, printed: bytes, design: Elaborated | None, failed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Mock(return_value=Mock(returncode=status, stdout=printed, stderr=b"why"))
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(verilated, "elaborate", Mock(return_value=(b"", design)))
    found, said, violations, (refused,) = judge(["a.sv"], str(tmp_path), {"testbench": False})
    assert (found, said, violations) == (failed, b"why", [])
    assert "nothing is built" in refused


@pytest.mark.parametrize("way", ["INPUT", "REF", "CONSTREF", "OUTPUT"])
@pytest.mark.parametrize("kind", ["VARREF", "VARXREF"])
@pytest.mark.parametrize("access", ["WR", "RW", "RD"])
def test_a_written_input_is_found(way: str, kind: str, access: str) -> None:
    tree = WRITES_INPUT.replace('"INPUT"', f'"{way}"').replace('"VARREF"', f'"{kind}"')
    faults = written_inputs(Elaborated(tree.replace('"WR"', f'"{access}"').encode(), FILES, []))
    assert bool(faults) == (way != "OUTPUT" and access != "RD")
    assert written_inputs(Elaborated(f"  {tree}".encode(), FILES, [])) == []  # of a task


PIN = """      {"type":"PIN","name":"a","addr":"(N)","loc":"t,9:1,9:2","modVarp":"(T)",
       "exprp": [
        {"type":"CONST","name":"8'h1"}
      ]}
"""
DEFAULT = WRITES_INPUT.replace('{"type":"VARREF', '    {"type":"INITIALSTATIC",\n      {"type":"VARREF')


@pytest.mark.parametrize(
    ("connected", "tree", "hidden", "read_back"),
    [
        (PIN, DEFAULT, True, False),
        (PIN.partition("\n")[0] + '"exprp": []}\n', DEFAULT, False, False),
        (PIN, WRITES_INPUT, True, True),
        ("", DEFAULT, True, False),
        ("", WRITES_INPUT.replace('"INPUT"', '"NONE"'), False, True),
        ("", WRITES_INPUT.replace('"INPUT"', '"OUTPUT"'), False, True),
        ("", WRITES_INPUT.replace('"INPUT"', '"OUTPUT"').replace("req", "grant"), False, False),
    ],
)
def test_what_cocotb_drives_is_not_written_but_a_default_value_is(
    connected: str, tree: str, hidden: bool, read_back: bool
) -> None:
    """A hidden testbench's signal is written by a default value of the port that it is connected to."""
    top = (
        f'  {{"type":"MODULE","name":"tb"\n{connected}  {{"type":"MODULE","name":"dut"\n'
        if connected
        else '  {"type":"MODULE"\n'
    )
    design = Elaborated(f"{top}{tree}\n".encode(), FILES, [])
    assert bool(written_inputs(design)) == hidden
    assert bool(written_inputs(design, ["req"])) == read_back


KEY = """\
              {{"type":"WITH","name":"","addr":"(W)","loc":"e,7:15,7:19",
               "exprp": [
                {{{},"loc":"e,7:21,7:24"}}
              ]}}
"""
"""The key of an array's method."""


@pytest.mark.parametrize(
    ("tree", "refused"),
    [
        (KEY.format('"type":"FUNCREF","taskp":"(F)"'), True),
        (KEY.format('"type":"RAND"'), True),
        (KEY.format('"type":"VARREF","access":"WR","varp":"(V)"'), True),
        (KEY.format('"type":"VARREF","access":"RD","varp":"(V)"'), False),
        (KEY.format('"type":"LAMBDAARGREF"') + node("RAND"), False),
        (KEY.format('"type":"RAND"').replace("e,", "t,"), False),
        (node("SSCANF"), True),
        (node("FSCANF").replace("e,", "t,"), False),
        (node("VAR", '"direction":"REF"', "x"), True),
        (node("VAR", '"direction":"REF"', "x").replace("e,", "t,"), False),
        (node("VAR", '"direction":"INOUT"', "x"), False),
    ],
)
def test_a_design_changes_no_memory_of_the_testbench(tree: str, refused: bool) -> None:
    faults = corruptions(Elaborated(tree.encode(), FILES, []))
    assert [fault.startswith("rtl/a.sv:7: ") for fault in faults] == [True] * refused


INTERFACES = """\
    {"type":"CELL","name":"x","addr":"(C)","loc":"e,7:1,7:2","origName":"x","modp":"(I)"}
    {"type":"VAR","name":"NAME","addr":"(V)","loc":"FILE,3:1,3:2","dtypep":"(T)","origName":"x"}
  {"type":"IFACE","name":"bus","addr":"(I)","loc":"e,1:1,1:2"}
    {"type":"IFACEREFDTYPE","name":"","addr":"(T)","loc":"e,3:1,3:2","ifacep":"(KIND)"}
"""
"""An instance of an interface, and a port."""


@pytest.mark.parametrize(
    ("name", "file", "kind", "confused"),
    [
        ("x", "e", "J", True),
        ("x", "e", "I", False),
        ("x", "t", "I", True),
        ("y", "t", "J", False),
    ],
)
def test_no_interface_has_the_name_of_a_port_that_is_another(name: str, file: str, kind: str, confused: bool) -> None:
    tree = INTERFACES.replace("NAME", name).replace("FILE", file).replace("KIND", kind)
    faults = confused_interfaces(Elaborated(tree.encode(), FILES, []))
    assert [fault.startswith("rtl/a.sv:7: the interface 'x'") for fault in faults] == [True] * confused


@pytest.mark.parametrize(
    "draws",
    [
        node("RAND"),
        node("RANDRNG"),
        node("URANDOMRANGE"),
        *(node("METHODCALL", name=name) for name in ("randomize", "srandom", "get_randstate", "set_randstate")),
        node("TASKREF", name="srandom"),
    ],
)
def test_a_design_draws_no_random_numbers_if_the_testbench_does(draws: str) -> None:
    """Nodes as Verilator 5.032 prints them for `$urandom`, the method `randomize`, and the like."""
    theirs, built_in = (draws.replace('"loc":"e,', f'"loc":"{file},') for file in "ts")
    (fault,) = steered(Elaborated(f"{draws}\n{theirs}".encode(), FILES, []))
    assert "random numbers that the hidden testbench draws" in fault
    for others in (draws, theirs, f"{draws}\n{built_in}", f"{draws}\n{node('METHODCALL', name='size')}"):
        assert steered(Elaborated(others.encode(), FILES, [])) == []


@pytest.mark.parametrize(
    ("inside", "outside", "refused"),
    [
        ("", "eW tW", True),
        ("", "eW tR", False),
        ("", "eR tW", False),
        ("eW", "eW", False),
        ("eW", "tW", True),  # by the design's interface itself
        ("tW", "eW", True),
        ("", "eW eW", False),
    ],
)
def test_a_signal_of_an_interface_is_written_by_one_side(inside: str, outside: str, refused: bool) -> None:
    def uses(words: str) -> str:
        pairs = [(word[0], {"R": "RD", "W": "WR"}[word[1]]) for word in words.split()]
        return "".join("\n   " + use("VARXREF", f'"access":"{access}",', file) for file, access in pairs)

    tree = '  {"type":"IFACE","name":"bus","addr":"(I)","loc":"t,2:1,2:2"\n'
    tree += '    {"type":"VAR","name":"req","addr":"(T)","loc":"t,3:1,3:2","direction":"NONE"}'
    tree += f"{uses(inside)}\n  }},\n{uses(outside)}"
    faults = shared_signals(Elaborated(tree.encode(), FILES, []))
    assert bool(faults) == refused


PART = """\
       {"type":"SEL","name":"","addr":"(S)","loc":"t,7:19,7:25",
        "fromp": [
         WRITE
       ]}
"""
JOINED = """\
{"type":"NOT","name":""}
      ]}
      {"type":"PIN","name":"pad","addr":"(M)","loc":"t,13:1,13:2","modVarp":"(Q)",
       "exprp": [
        WRITE
      ]}
    {"type":"VAR","name":"pad","addr":"(Q)","loc":"t,20:1,20:2","direction":"INOUT"}
"""
"""A module of the testbench, whose port is connected to the same signal."""
CONNECTED = """\
    {"type":"VAR","name":"req","addr":"(T)","loc":"t,3:1,3:2","direction":"NONE"}
    {"type":"INITIALSTATIC","name":"","addr":"(I)","loc":"t,3:1,3:2",
     "stmtsp": [
      WRITE
    ]}
      {"type":"PIN","name":"req","addr":"(N)","loc":"t,9:1,9:2","modVarp":"(P)",
       "exprp": [
        PORT
      ]}
      {"type":"ASSIGN","name":"","addr":"(A)","loc":"t,12:1,12:2",
       "lhsp": [
        OTHER
      ]}
    {"type":"VAR","name":"req","addr":"(P)","loc":"e,7:1,7:2","direction":"WAY"}
"""


@pytest.mark.parametrize(
    ("way", "port", "other", "bench", "reached"),
    [
        ("OUTPUT", "WRITE", "WRITE", "", True),
        ("OUTPUT", "WRITE", "WRITE", "assign req = go ? 1 : 1'bz;", True),
        ("OUTPUT", PART, "WRITE", "", True),
        ("OUTPUT", "WRITE", PART, "", True),
        ("OUTPUT", PART, PART, "", False),  # two halves of one bus
        ("OUTPUT", "WRITE", "", "", False),
        ("INOUT", "WRITE", "WRITE", "", True),
        ("INOUT", "WRITE", "WRITE", "assign other = go ? 1 : 1'bz;", True),
        ("INOUT", "WRITE", "WRITE", "assign req = go ? 1 : 1'bz;", False),
        ("INOUT", "WRITE", JOINED, "assign pad = go ? 1 : 1'bz;", False),
        ("INOUT", "WRITE", "", "", False),
        ("INPUT", "", "WRITE", "", False),
    ],
)
def test_an_output_in_the_place_of_an_input_is_found(
    way: str, port: str, other: str, bench: str, reached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tb.sv").write_text(bench)
    monkeypatch.setattr(verilated, "letting_go", lambda _: letting_go([str(tmp_path / "tb.sv")]))
    tree = CONNECTED.replace("PORT", port.strip()).replace("OTHER", other.strip())
    tree = tree.replace("WRITE", use("VARREF", '"access":"WR",', "t")).replace("WAY", way)
    faults = reached_signals(Elaborated(tree.encode(), FILES, []))
    said = f"rtl/a.sv:7: the {way.lower()} 'req' is in the place"
    assert [fault.startswith(said) for fault in faults] == [True] * reached


@pytest.mark.parametrize(
    ("task", "violation", "refusal"),
    [
        (node("READMEM", text("x.hex")), "", ""),
        (node("READMEM", text("/src/x.py")), "$readmemh reads '/src/x.py'", ""),
        (node("READMEM", '\n  "filenamep": [\n   {"type":"VARREF","name":"n","addr":"(J)"'), "", "computed"),
        (node("READMEM", text("/src/x.py").replace("'h", "'sh")), "$readmemh reads '/src/x.py'", ""),
        (node("READMEM", string("x.hex")), "", ""),
        (node("READMEM", string("/src/x.py")), "$readmemh reads '/src/x.py'", ""),
        (node("READMEM", string("a b")), "", "computed"),
        (node("READMEM", '"filenamep": []}'), "", "computed"),
        (node("FOPEN", f"{text('x.hex')},{text('rb', 'modep')}"), "", ""),
        (node("FOPEN", f"{text('x.hex')},{text('r+', 'modep')}"), "", "opens 'x.hex' for writing"),
        (node("FOPEN", f"{text('x.xml')},{text('w', 'modep')}"), "$fopen opens 'x.xml' for writing", ""),
        (node("FOPENMCD", text("x.txt")), "", "opens 'x.txt' for writing"),
        (node("WRITEMEM", text("x.txt")), "", "opens 'x.txt' for writing"),
        (node("DUMPCTL", text("x.vcd", "exprp")), "", ""),
        (node("DUMPCTL", text("waves", "exprp")), "", ""),
        (node("DUMPCTL", text("x.txt", "exprp")), "", "no waveform file"),
        (node("DUMPCTL", text("x.py", "exprp")), "opens 'x.py' for writing", ""),
        (node("DUMPCTL", '\n  "exprp": [\n   {"type":"CONST","name":"32\'sh0","addr":"(J)"'), "", ""),
        (node("DUMPCTL", '"exprp": []}'), "", ""),
    ],
)
def test_files_are_judged_by_the_names_that_were_resolved(task: str, violation: str, refusal: str) -> None:
    violations, refused = found(task, node("VAR"))
    assert [violation in each for each in violations] == [True] * bool(violation)
    assert [refusal in each for each in refused] == [True] * bool(refusal)


def test_a_relative_name_leads_to_no_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link.hex").symlink_to("/usr/bin/env")
    monkeypatch.chdir(tmp_path)
    assert found(node("READMEM", text("x.hex"))) == ([], [])
    assert found(node("READMEM", text("link.hex"))) != ([], [])
    monkeypatch.chdir("/")
    assert found(node("READMEM", text("usr/bin/env"))) != ([], [])


def test_a_design_may_read_the_files_that_the_harness_names() -> None:
    tree = Elaborated(node("READMEM", text("/src/x.hex")).encode(), FILES, [])
    assert check_tree(tree, ["/src/x.hex"]) == ([], [])
    assert len(check_tree(tree, ["/src/y.hex"])[0]) == 1
    for at, faults in (("e", 1), ("t", 0)):  # the hidden testbench may read any file
        tree = Elaborated(node("READMEM", text("/src/x.hex")).replace('"e,7', f'"{at},7').encode(), FILES, [])
        assert len(check_tree(tree, apart=True)[0]) == faults
        said = f'`line 1 "{FILES[at]}" 0\ninitial $readmemh("/src/x.hex", m); initial f = $fopen("/src/y", "r");\n'
        assert len(check_preprocessed(said, [FILES[at]], apart=True)[0]) == 2 * faults
        assert len(check_preprocessed(said.replace('"r"', '"w"'), [FILES[at]], apart=True)[0]) == 2 * faults
    written = Elaborated(node("WRITEMEM", text("/src/x.hex")).encode(), FILES, [])
    assert len(check_tree(written, ["/src/x.hex"])[0]) == 1


@pytest.mark.parametrize(
    ("task", "refused"),
    [
        (node("READMEM", text("/code/rtl/x.hex")), True),
        (node("DUMPCTL", text("verdict", "exprp")), True),
        (node("DUMPCTL", text("x.vcd", "exprp")), False),
        (node("DUMPCTL", text("\0", "exprp")), False),
    ],
)
@pytest.mark.parametrize("writes", ["FOPEN", "FOPENMCD", "WRITEMEM"])
def test_beside_a_testbench_that_writes_files_a_design_opens_none(task: str, refused: bool, writes: str) -> None:
    computed = node(writes) + '\n  "filenamep": [\n   {"type":"VARREF"}\n  ]'
    for name in (text("/code/rundir/verdict.xml"), computed.removeprefix(node(writes))):
        testbench = (node(writes) + name).replace('"e,7', '"t,7')
        assert check_tree(Elaborated(testbench.encode(), FILES, []), apart=True) == ([], [])
        design = Elaborated(f"{testbench}\n{task}".encode(), FILES, [])
        violations, refusals = check_tree(design, apart=True)
        assert (violations, ["beside a hidden testbench" in each for each in refusals]) == ([], [True] * refused)
    assert check_tree(Elaborated(task.encode(), FILES, []), apart=True) == ([], [])


@pytest.mark.parametrize(
    ("task", "refused"), [("$readmemh(FILE, m)", 0), ("$fopen(FILE)", 0), ("$writememh(FILE, m)", 1)]
)
def test_a_computed_name_of_a_file_that_is_read_is_left_to_the_elaborated_design(task: str, refused: int) -> None:
    found = check_preprocessed(f'`line 1 "/code/rtl/a.sv" 1\ninitial {task};\n', [])
    assert (found[0], len(found[1])) == ([], refused)


def test_names_and_texts_look_like_no_node() -> None:
    """Verilator escapes a text, but not a name; a text may also be in an event."""
    hostile = r"a\\\"type\\\":\\\"SYSTEMT\\\""
    assert found(node("SFORMATF", '"dpiImport":false', hostile), node("FUNC", '"dpiImport":false')) == ([], [])
    named = "rtl/a.sv:7: a name has a quotation mark or a backslash, which cannot be judged"
    assert found(node("VAR", '"dpiImport":false', hostile)) == ([], [named])
    kind = '{"type":"BASICDTYPE","name":"string","addr":"(S)","loc":"s,1:1,1:2"}'
    for event in (node("SENITEM"), node("SENITEM") + "\n],", node("WAIT") + '\n "condp": ['):
        assert found(kind, event, " " * 3 + node("VARREF", '"dtypep":"(B)"'), "") == ([], [])
        ((refusal,),) = found(kind, event, " " * 3 + node("VARREF", '"dtypep":"(S)"'), "")[1:]
        assert refusal.startswith("rtl/a.sv:7: an event that depends on a string")

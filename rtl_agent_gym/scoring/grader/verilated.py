"""Checks, before Verilator turns a design into a program, what the program could do outside the simulation.

Verilator prints two things without building anything. Its preprocessor prints the text that its compiler will read,
with every macro, include and condition resolved; a search of that text can name each place. Its compiler prints the
elaborated design as JSON: every module, including those looked up in a folder, with macros, parameters and constants
resolved. What is not in the JSON is not in the program, so the JSON decides; this module may read the text differently
than the compiler does. The JSON is searched as text, since a design determines its nesting depth. Quotation marks in
names are escaped, so no name looks like a node.

Nothing guards the program while it runs, so file names must be constants, and a design that writes files is not built.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
from collections import namedtuple

from .compiled import READABLE, TOOLS, below, short
from .connections import letting_go
from .options_files import DUMPS, FOREIGN_SOURCES, OPTIONS_FILES, elsewhere, file_fault, has_hidden_main, with_listed
from .preprocessed import SOURCES, check_preprocessed
from .sources import (
    APART,
    Reach,
    beyond_ports,
    hidden_texts,
    is_hidden,
    is_own,
    is_part_hidden,
    libraries,
    named_files,
)
from .testbench import DRAWN, STEERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .messages import Settings

    Checked = tuple[list[str], list[str]]

CONSTRUCTS = {
    b'"dpiImport":true': "import of a foreign function reaches out of the simulation",
    b'"dpiExport":true': "export of a foreign function reaches out of the simulation",
    b'"type":"SYSTEM': "$system reaches out of the simulation",
    b'"type":"UC': "$c puts C++ of its own into the simulator",
    b'"type":"C': "$c puts C++ of its own into the simulator",
    b'"type":"S': "`systemc puts text of its own into the simulator",
}
"""What a node does, by the beginning of its text."""
OUTSIDE = re.compile(
    rb'"dpi(?:Import|Export)":true|"type":"SYSTEM(?=[TF]")|"type":"UC(?=(?:STMT|FUNC)")|"type":"C(?=(?:STMT|EXPR)USER")'
    rb'|"type":"S(?=C(?:HDR|INT|IMP|IMPHDR|CTOR|DTOR)"|YSTEMCSECTION")'
)
FILE = re.compile(
    rb'"type":"(?P<task>FOPEN|FOPENMCD|READMEM|WRITEMEM|DUMPCTL)"[^\n]*(?:\n\s*"(?:filenamep|exprp)": \[\s*'
    rb"""\{"type":"(?:CONST","name":"(?:\d+'(?P<sign>s?)h(?P<name>[\da-f]+)|\\\\\\"(?P<plain>[\w./-]+)\\\\\\")\""""
    rb"""|(?P<computed>))[^\n]*"""
    rb"""(?:\n\s*\],\s*"modep": \[\s*\{"type":"CONST","name":"\d+'h(?P<mode>[\da-f]+)")?)?"""
)
"""A task that opens a file, with its arguments. Verilator prints strings as numbers, except those of type string."""
TASKS = {
    "FOPEN": "$fopen",
    "FOPENMCD": "$fopen",
    "READMEM": "$readmemh",
    "WRITEMEM": "$writememh",
    "DUMPCTL": "$dumpfile",
}
PORT = re.compile(
    rb'^ {4}\{"type":"VAR","name":"(?P<name>(?:[^"\\]|\\.)*)","addr":"(?P<label>\(\w+\))"'
    rb'[^\n]*"direction":"(?P<way>INPUT|OUTPUT|INOUT|(?:CONST)?REF|NONE)"',
    re.MULTILINE,
)
"""A port of a module, or another of its variables, which have this indentation; those of routines have a deeper one."""
INPUTS = (b"INPUT", b"REF", b"CONSTREF")
TOP = re.compile(rb'^  \{"type":"MODULE"[^\n]*\n(?:   [^\n]*\n)*', re.MULTILINE)
"""A module, the first of which is the design as a testbench in C++ sees it."""
PARAMETER = re.compile(
    rb'^ {4}\{"type":"VAR","name":"(?P<name>[^"\\]*)"[^\n]*"isGParam":true[^\n]*\s*"valuep": \[\s*'
    rb"""\{"type":"CONST","name":"(?:(?P<width>\d+)'s?h(?P<value>[\da-f]+)"|(?P<text>\\))""",
    re.MULTILINE,
)
"""A parameter of a module whose value is an integer or a text."""
GIVEN = re.compile(r"-G(\w+)=(-?\d+)")
"""A number that the harness gives to a parameter of the top module."""
SET = re.compile(rb"(?:\.|->)\s*(\w+)(?:\s*\[[^\]\n]*\]|\.at\([^)\n]*\))*\s*(?:(?:[-+*/%&|^]|<<|>>)?=(?!=)|\+\+|--)")
"""A member that C++ writes."""
WRITTEN = re.compile(
    rb'(?P<part>"fromp": \[\s*\{)?"type":"VARX?REF"[^\n]*"access":"(?:WR|RW)"[^\n]*"varp":"(?P<label>\(\w+\))"'
)
"""A variable that is written, or a part of it."""
DECLARED = re.compile(
    rb'"type":"(?:VAR|FUNC|TASK)","name":"(?P<name>(?:[^"\\]|\\.)*)","addr":"(?P<label>\(\w+\))","loc":"(?P<file>\w+),'
    rb'(?:[^\n]*?"direction":"(?P<way>\w+)")?'
)
USED = re.compile(rb'"loc":"(?P<file>\w+),[^\n]*"(?:varp|taskp)":"(?P<label>\(\w+\))"')
"""A use of a variable or a routine; connected ports have a different key."""
PORT_OR_INITIAL = re.compile(
    rb'^(?P<indent> *)\{"type":"(?:PIN"[^\n]*"modVarp":"(?P<port>\(\w+\))"|INITIALSTATIC")[^\n]*\n'
    rb"(?P<inside>(?:(?P=indent) [^\n]*\n)*)",
    re.MULTILINE,
)
"""A connected port, or a variable's initial value; the lines inside have a deeper indentation."""
INTERFACE = re.compile(rb'^  \{"type":"IFACE"[^\n]*\n(?:   [^\n]*\n)*', re.MULTILINE)
IFACE = re.compile(rb'^  \{"type":"IFACE"[^\n]*?"addr":"(\(\w+\))"', re.MULTILINE)
CELL = re.compile(
    rb'"type":"CELL","name":"(?P<name>[^"]*)"[^\n]*"loc":"(?P<file>\w+),[^\n]*"modp":"(?P<label>\(\w+\))"'
)
"""An instance of a module or an interface."""
REFERS = re.compile(rb'"type":"IFACEREFDTYPE"[^\n]*?"addr":"(\(\w+\))"[^\n]*"ifacep":"(\(\w+\))"')
"""The type of a port that is an interface."""
TYPED = re.compile(rb'"type":"VAR","name":"([^"]*)"[^\n]*?"loc":"(\w+),[^\n]*?"dtypep":"(\(\w+\))"')
ROUTINE = re.compile(
    rb'^ {4}\{"type":"(?:FUNC|TASK)"[^\n]*?"addr":"(?P<label>\(\w+\))"[^\n]*\n(?: {4}[ \]][^\n]*\n)*', re.MULTILINE
)
CALL = re.compile(rb'"loc":"\w+,[^\n]*"taskp":"(?P<label>\(\w+\))"')
MEMBER_WRITTEN = re.compile(
    rb'"type":"MEMBERSEL"[^\n]*"varp":"(?P<label>\(\w+\))"[^\n]*\s*"fromp": \[\s*\{"type":"[^\n]*"access":"(?:WR|RW)"'
)
"""A signal that is written through a virtual interface."""
STEERED = re.compile(
    rb'"type":"(?:FINISH"|TEXT"(?=[^\n]*"shortText":"vlSymsp->_vm_contextp__->assertOn(?:Set|Clear)\())'
    rb'[^\n]*?"loc":"(?P<file>\w+),'
)
"""A task that ends the simulation, or one that switches assertions, of which Verilator prints the C++."""
DRAWS = re.compile(
    rb'"type":"(?:RAND(?:RNG)?|URANDOMRANGE|CMETHODHARD","name":"shuffle'
    rb'|(?:METHODCALL|FUNCREF|TASKREF)","name":"(?:s?random(?:ize)?|[gs]et_randstate))"'
    rb'[^\n]*?"loc":"(?P<file>\w+),'
)
"""A random number, or a change of a generator's state. A seed is one for the whole program."""
TEXT_NAME = re.compile(rb'"type":"(?!CONST"|SFORMATF"|[FS]SCANF"|TEXT"|COMMENT")\w+","name":"[^"\\]*\\')
"""A name with a quotation mark or a backslash; the other nodes are texts, which Verilator escapes."""
EVENT = re.compile(
    rb'^(?P<indent> *)(?:\{"type":"SENITEM"[^\n]*\n(?P<item>(?:(?P=indent)[ \]][^\n]*\n)*)'
    rb'|\{"type":"WAIT"[^\n]*\n(?P=indent) "condp": \[\n(?P<waited>(?:(?P=indent)  [^\n]*\n)*))',
    re.MULTILINE,
)
"""An event control, or the condition of a `wait`."""
STRING_TYPE = re.compile(rb'"type":"BASICDTYPE","name":"string","addr":"(\(\w+\))"')
OVERRUN = re.compile(
    rb'^(?P<indent> *)\{"type":"FREAD"[^\n]*"loc":"(?P<file>\w+),[^\n]*\n'
    rb'(?:(?P=indent)[ \]][^\n]*\n)*?(?P=indent) "startp": \[\n',
    re.MULTILINE,
)
"""A `$fread` that begins at an index, which Verilator does not compare with the size of the memory."""
WITH = re.compile(
    rb'^(?P<indent> *)\{"type":"WITH"[^\n]*"loc":"(?P<file>\w+),[^\n]*\n(?P<inside>(?:(?P=indent)[ \]][^\n]*\n)*)',
    re.MULTILINE,
)
"""An expression for each element of an array, such as the key by which they are sorted."""
IMPURE = re.compile(
    rb'"taskp":|"access":"(?:WR|RW)"|"type":"(?:RAND|URANDOM|CMETHODHARD"|F(?:GET|READ|SCANF|SEEK|TELL|UNGET|EOF))'
)
"""What may have another value each time."""
SCANF = re.compile(rb'"type":"[FS]SCANF"[^\n]*?"loc":"(?P<file>\w+),')
HANDLE = re.compile(rb'"filep": \[\s*\{"type":"\w+","name":"(?P<value>(?:[^"\\]|\\.)*)"[^\n]*?"loc":"(?P<file>\w+),')
OPEN = re.compile(rb'"type":"F(?:OPEN(?:MCD)?|CLOSE|GET[CS]|READ|SCANF|SEEK|UNGETC)"[^\n]*?"loc":"(?P<file>\w+),')
"""A task that opens a file, or reads an open one, such as stdin."""
OUTPUT = re.compile(rb"\d+'s?h(?:0*1|8000000[12])")
"""The handle of stdout or stderr."""
BUILT_IN = ("<built-in>", "<command-line>", "<verilated_std>", "<verilated_std_waiver>")
"""Verilator's names for its own sources. One of them is a package that uses `$c`."""
CLAIMS_BUILT_IN = re.compile(rb"<(?:built-in|command-line)>|verilated_std")
LOC = re.compile(rb'"loc":"(\w+),(\d+):')
READ_MODES = (b"r", b"rb")
BOTH_OPEN = "opens a file beside a hidden testbench that writes files"

Elaborated = namedtuple("Elaborated", "tree files read")
"""An elaborated design: its JSON, the file names by their letters in it, and every file that the compiler read."""


def elaborate(arguments: list[str], folder: str, cwd: str | None = None) -> tuple[bytes, Elaborated | None]:
    """Elaborate a design. Returns Verilator's error output and the design, or None if it failed. The arguments must not
    build anything; `folder` is a private folder for the output.
    """
    outputs = ["--json-only", "--json-only-output", f"{folder}/.tree", "--json-only-meta-output", f"{folder}/.meta"]
    command = [f"{TOOLS}/verilator", *arguments, *outputs, "--Mdir", folder]
    done = subprocess.run(command, capture_output=True, cwd=cwd)
    if done.returncode:
        return done.stderr or b"no reason", None
    try:
        with open(f"{folder}/.meta", "rb") as stream:
            entries = json.loads(stream.read().decode("utf-8", errors="surrogateescape"))["files"]
        with open(f"{folder}/.tree", "rb") as stream:
            tree = stream.read()
    except (OSError, ValueError, KeyError):
        return done.stderr or b"no elaborated design", None
    files = {letter: entry["filename"] for letter, entry in entries.items()}
    read = [os.path.join(cwd or "", name) for name in files.values() if not name.startswith("<")]
    return b"", Elaborated(tree, files, read)


def check_tree(design: Elaborated, named: Sequence[str] = (), apart: bool = False) -> Checked:
    """Check an elaborated design: (violations, reasons not to build it). It may read `named` files anywhere. A hidden
    testbench from which it is `apart` may open any file; beside one that writes files, it opens none but waveforms.
    """
    own = _own_files(design) if apart else {}
    reaching = [(_place(design, node.start()), CONSTRUCTS[node[0]]) for node in OUTSIDE.finditer(design.tree)]
    violations = [f"{place}: {what}" for place, what in reaching if not place.startswith(BUILT_IN)]
    refused, opened, writes = _unescaped(design), list[str](), False
    for node in FILE.finditer(design.tree):
        task, place = TASKS[node["task"].decode()], _place(design, node.start())
        if task == "$dumpfile" and (node["sign"] or node["name"] is node["plain"] is node["computed"]):
            continue  # other $dump tasks have signed numbers, or nothing
        mode = bytes.fromhex(node["mode"].decode()) if node["mode"] and not len(node["mode"]) % 2 else b""
        reads = task == "$readmemh" or mode in READ_MODES
        if (at := LOC.search(design.tree, node.start())) and own.get(at[1]) is False:
            writes |= not reads and task != "$dumpfile"
            continue
        if node["name"] is node["plain"]:  # both are None
            refused.append(f"{place}: {task} has a computed argument; a file that it opens cannot be watched")
            continue
        digits = (node["name"] or b"").decode()
        path = os.fsdecode(node["plain"] or bytes.fromhex(digits.zfill(len(digits) + len(digits) % 2)))
        waves = task == "$dumpfile" and (path.endswith(DUMPS) or not path.isprintable())  # "\0" is `$dumpvars;`
        opened += [] if waves else [f"{place}: {task} {BOTH_OPEN}"]
        if not (reads and path in named):
            secret, reason = file_fault(task, path, reads=reads)
            (violations if secret else refused).extend([f"{place}: {reason}"] if reason else [])
    refused += opened if writes else []
    return list(dict.fromkeys(violations)), list(dict.fromkeys(refused))


def _unescaped(design: Elaborated) -> list[str]:
    """Reasons not to build a design: names of signals and files, and texts in event controls, which Verilator writes
    between quotation marks into the program without escaping them. So they could be C++.
    """
    odd = [name for name in design.files.values() if not name.isprintable() or not {'"', "\\"}.isdisjoint(name)]
    places = [f"?: the name of the file {name!r}" for name in odd]
    places += [f"{_place(design, node.start())}: a name" for node in TEXT_NAME.finditer(design.tree)]
    found = [f"{place} has a quotation mark or a backslash, which cannot be judged" for place in places]
    types = {label[1] for label in STRING_TYPE.finditer(design.tree)}
    for event in EVENT.finditer(design.tree):
        if not types.isdisjoint(re.findall(rb'"dtypep":"(\(\w+\))"', event["item"] or event["waited"] or b"")):
            found.append(f"{_place(design, event.start())}: an event that depends on a string, which cannot be judged")
    return found


def written_inputs(design: Elaborated, read_back: Sequence[str] | None = None) -> list[str]:
    """Reasons not to build a design: a module writes its own input, which Verilator allows if the source disables the
    error. In the program, that writes the signal connected to the port, which is a hidden testbench's.

    For a design that is tested by cocotb, it is what the tests may read back. There, signals of the top module with one
    of the names `read_back` count as inputs, whatever the design declares.

    A default value is written, too, but once, at the beginning: before cocotb writes anything, and to no signal if
    nothing is connected to the port.
    """
    tree, top, inputs, connected = design.tree, TOP.search(design.tree), dict[bytes, str](), set[bytes]()
    for port in PORT.finditer(tree):
        of_top = top is not None and port.start() < top.end()
        if port["way"] in INPUTS or (of_top and port["name"].decode(errors="replace") in (read_back or ())):
            inputs[port["label"]] = _name(port)
            connected |= {port["label"]} if of_top else set()
    blocks = list(PORT_OR_INITIAL.finditer(tree))
    initial = [block.span() for block in blocks if not block["port"]]
    connected |= {block["port"] for block in blocks if block["port"] and block["inside"]}
    connected = connected if read_back is None else set()
    whose = "and so would be the hidden testbench's signal" if read_back is None else "which the tests may read back"
    return [
        f"{_place(design, node.start())}: the input {inputs[node['label']]} is written, {whose}"
        for node in WRITTEN.finditer(tree)
        if node["label"] in inputs
        if node["label"] in connected or not any(start < node.start() < end for start, end in initial)
    ]


def changed_parameters(design: Elaborated, arguments: Sequence[str]) -> list[str]:
    """Reasons not to build a design: a parameter does not have the number that the arguments give it, as a test would
    read it from the design. Of such numbers, Verilator 5.032 takes 32 bits.
    """
    top, found = TOP.search(design.tree), filter(None, map(GIVEN.fullmatch, arguments))
    given = {match[1].encode(): int(match[2]) for match in found}
    return [
        f"{_place(design, node.start())}: the parameter {_name(node)} is not {number}, which the harness gives it"
        for node in (PARAMETER.finditer(design.tree, *top.span()) if top else ())
        if (number := given.get(node["name"])) is not None
        if node["text"]
        or int(node["value"], 16) not in (number, number & 0xFFFFFFFF, number + (1 << int(node["width"])))
    ]


def replaced_inputs(design: Elaborated) -> list[str]:
    """Reasons not to build a design with a hidden testbench in C++: it has an output in the place of an input, and so
    could write what the testbench reads back. An inout port is one unless the testbench uses its enable signal.
    """
    texts, top = hidden_texts()[0], TOP.search(design.tree)
    names = {name for text in texts for name in SET.findall(text)}
    return [
        f"{_place(design, port.start())}: the {port['way'].decode().lower()} {_name(port)} is in the place of an input"
        for port in (PORT.finditer(design.tree, *top.span()) if top else ())
        if port["name"] in names and port["way"] in (b"OUTPUT", b"INOUT")
        if port["way"] == b"OUTPUT" or not any(port["name"] + b"__en" in text for text in texts)
    ]


def reached_signals(design: Elaborated) -> list[str]:
    """Reasons not to build a design with a hidden testbench: it uses a variable or a routine of the testbench other
    than through its ports, or has an output in place of an input, so that both write one signal. An inout port is one
    unless the testbench may let go of that signal.

    Verilator finds names upwards in the hierarchy and outside all modules, however the text is divided into files.
    """
    own = _own_files(design)
    declared = {node["label"]: node for node in DECLARED.finditer(design.tree)}
    theirs = {label for label, node in declared.items() if own.get(node["file"]) is False}
    found = [
        f"{_place(design, node.start())}: {_name(declared[node['label']])} is the hidden testbench's"
        for node in USED.finditer(design.tree)
        if own.get(node["file"]) and node["label"] in theirs
    ]
    connected: list[tuple[re.Match[bytes], re.Match[bytes]]] = []
    joined: list[set[bytes]] = []
    hidden = [name for letter, name in design.files.items() if own.get(letter.encode()) is False]
    lets_go = letting_go(list(filter(os.path.isfile, hidden)))

    def without(block: re.Match[bytes]) -> bytes:
        port = declared.get(block["port"])
        if block["port"] and (port is None or not own.get(port["file"]) or port["way"] not in (b"OUTPUT", b"INOUT")):
            joined.append({block["port"], *(write["label"] for write in WRITTEN.finditer(block["inside"]))})
            return block[0]
        connected.extend((port, write) for write in WRITTEN.finditer(block["inside"]) if port)
        return b""

    def is_shared(port: re.Match[bytes], signal: bytes) -> bool:
        """Whether a port is bidirectional, and the testbench may let go of the signal or what is connected to it."""
        net = {signal}
        while len(net) < len(net := net.union(*(pair for pair in joined if not net.isdisjoint(pair)))):
            pass
        names = {declared[label]["name"] for label in net if label in declared}
        return port["way"] == b"INOUT" and any(not words or not words.isdisjoint(names) for words in lets_go)

    rest = list(WRITTEN.finditer(PORT_OR_INITIAL.sub(without, design.tree)))
    written, parts = ({node["label"] for node in rest if bool(node["part"]) == part} for part in (False, True))
    return found + [
        f"{_place(design, port.start())}: the {port['way'].decode().lower()} {_name(port)} is in the place of an input:"
        " the hidden testbench writes that signal"
        for port, write in connected
        if write["label"] in theirs & (written if write["part"] else written | parts)
        and not is_shared(port, write["label"])
    ]


def shared_signals(design: Elaborated) -> list[str]:
    """Reasons not to build a design with a hidden testbench: both write one signal of an interface. What a routine
    of an interface writes, its callers write.
    """
    own, tree = _own_files(design), design.tree
    spans = [found.span() for found in INTERFACE.finditer(tree)]
    names = {node["label"]: _name(node) for start, end in spans for node in DECLARED.finditer(tree, start, end)}
    routines = [node for start, end in spans for node in ROUTINE.finditer(tree, start, end)]
    initial = [node.span() for node in PORT_OR_INITIAL.finditer(tree) if not node["port"]]
    callers: dict[bytes, set[bool]] = {}

    def around(node: re.Match[bytes]) -> bytes | None:
        """The routine of an interface that contains a node."""
        return next((each["label"] for each in routines if each.start() < node.start() < each.end()), None)

    def sides(node: re.Match[bytes], routine: bytes | None) -> set[bool]:
        """Whose a node is: the design's, the testbench's, or, in a routine, its callers'."""
        if routine:
            return callers.get(routine, set())
        place = LOC.search(node[0])
        return {own[place[1]]} if place and place[1] in own else set()

    calls = [(node, around(node)) for node in (CALL.finditer(tree) if routines else ())]
    for _ in routines:
        for node, routine in calls:
            callers.setdefault(node["label"], set()).update(sides(node, routine))
    written: dict[bool, dict[bytes, re.Match[bytes]]] = {False: {}, True: {}}
    for node in itertools.chain(WRITTEN.finditer(tree), MEMBER_WRITTEN.finditer(tree)):
        if node["label"] in names and not any(start < node.start() < end for start, end in initial):
            for side in sides(node, around(node)):
                written[side][node["label"]] = node
    return [
        f"{_place(design, node.start('label'))}: the hidden testbench also writes {names[label]} of an interface"
        for label, node in written[True].items()
        if label in written[False]
    ]


def confused_interfaces(design: Elaborated) -> list[str]:
    """Reasons not to build a design with a hidden testbench: it has an interface with the name of a port
    that is an interface of another type, or the testbench's. Verilator may take one for the other when it inlines.
    """
    own, interfaces, types = _own_files(design), set(IFACE.findall(design.tree)), dict(REFERS.findall(design.tree))
    cells = [cell for cell in CELL.finditer(design.tree) if cell["label"] in interfaces]
    ports = (port for port in TYPED.findall(design.tree) if port[2] in types)
    named = {(name, types[label] if own.get(file) else b"") for name, file, label in ports}
    return [
        f"{_place(design, cell.start('name'))}: the interface {_name(cell)} has the name of a port that is another one"
        for cell in cells
        if own.get(cell["file"]) and any(cell["name"] == name and cell["label"] != kind for name, kind in named)
    ]


def steered(design: Elaborated) -> list[str]:
    """Reasons not to build a design with a hidden testbench: it ends the simulation, switches assertions, or
    draws random numbers as the testbench does.
    """
    own = _own_files(design)
    draws = {own[node["file"]]: node for node in DRAWS.finditer(design.tree) if node["file"] in own}
    drawn = [f"{_place(design, draws[True].start())}: {DRAWN}"] if len(draws) > 1 else []
    return drawn + [
        f"{_place(design, node.start())}: {STEERS['$finish' if b'FINISH' in node[0] else '$assertcontrol']}"
        for node in STEERED.finditer(design.tree)
        if own.get(node["file"])
    ]


def used_files(design: Elaborated) -> list[str]:
    """Reasons not to build a design with a hidden testbench: both use handles of open files, which are numbers."""
    own = _own_files(design)
    if all(own.get(node["file"]) is not False for node in OPEN.finditer(design.tree)):
        return []
    return [
        f"{_place(design, node.start('file'))}: the design and the hidden testbench both use open files"
        for node in HANDLE.finditer(design.tree)
        if own.get(node["file"]) and not OUTPUT.fullmatch(node["value"])
    ]


def overruns(design: Elaborated, alone: bool) -> list[str]:
    """Reasons not to build a design, which is `alone` or with a hidden testbench: it could write beyond a memory."""
    own = _own_files(design)
    return [
        f"{_place(design, node.start('file'))}: $fread with the index of a word, which could be outside the memory"
        for node in OVERRUN.finditer(design.tree)
        if alone or own.get(node["file"])
    ]


def corruptions(design: Elaborated) -> list[str]:
    """Reasons not to build a design with a hidden testbench: it could change any memory of the program, by what no
    design needs that is to be synthesized.

    C++'s `std::sort` leaves the array if a key changes, `$sscanf` writes words of more than 8 KiB to memory, and a
    reference to an element of a queue remains when the element is deleted.
    """
    own = _own_files(design)
    found = [(node, "a key or condition that changes") for node in WITH.finditer(design.tree) if IMPURE.search(node[0])]
    found += [(node, "$sscanf or $fscanf") for node in SCANF.finditer(design.tree)]
    found += [
        (node, "an argument by reference")
        for node in DECLARED.finditer(design.tree)
        if node["way"] in (b"REF", b"CONSTREF")
    ]
    return [
        f"{_place(design, node.start('file'))}: {what} could change memory of the hidden testbench"
        for node, what in found
        if own.get(node["file"])
    ]


def _own_files(design: Elaborated) -> dict[bytes, bool]:
    """Whether each file is the design's, by its letter in the tree."""
    return {letter.encode(): is_own(name) for letter, name in design.files.items() if name not in BUILT_IN}


def _name(node: re.Match[bytes]) -> str:
    return repr(node["name"].decode(errors="replace"))


def _place(design: Elaborated, at: int) -> str:
    """The place of a node, as ``file:line``, which `line directives can falsify."""
    line = design.tree.rfind(b"\n", 0, at)
    found = LOC.search(design.tree, line + 1)
    return f"{short(design.files.get(found[1].decode(), '?'))}:{int(found[2])}" if found else "?"


def looked_up(text: bytes, design: Elaborated, arguments: list[str], folder: str) -> list[str]:
    """Reasons not to build a design: it has submitted modules that Verilator looked up by their names.

    The preprocessed text of all sources is elaborated again, alone and without searching submitted folders. If that
    reads no other files than before, no submitted module was looked up. `text` is the preprocessed text of the sources
    in Verilator's arguments; `folder` is a private folder with no files but this module's.
    """
    named = {os.path.realpath(word) for word in arguments if os.path.isfile(word)}
    read = {os.path.realpath(path) for path in design.read}
    own = sorted(path for path in read - named if below(path, READABLE) and os.path.isfile(path))
    if not own:
        return []
    alone = f"{folder}/.alone.sv"
    with open(alone, "wb") as stream:
        stream.write(text)
    _, again = elaborate([*elsewhere(arguments, named), "-Wno-fatal", alone], folder, folder)
    if again is not None and {os.path.realpath(path) for path in again.read if os.path.isfile(path)} <= read | {alone}:
        return []
    return [f"{short(path)}: a module that is looked up in a folder cannot be judged; nothing is built" for path in own]


MODES = ("build", "exe", "binary", "cc", "sc", "main", "lint-only", "xml-only", "json-only", "dpi-hdr-only")
"""Modes that cannot be combined with -E."""
HARMLESS = {"--lint-only", "-lint-only", "--version", "-version", "-V", "-E", "--getenv"}
"""Options with which Verilator builds nothing."""
INCLUDED = re.compile(r"-I|\+incdir\+")
"""An option with folders that Verilator also searches for modules."""


def judge(arguments: list[str], folder: str, settings: Settings) -> tuple[int | None, bytes, list[str], list[str]]:
    """Check a build before it runs: its exit status if it would fail, else None; what it printed then; violations;
    refusals. With the setting `testbench`, a design may be connected to a hidden testbench by ports only, and has the
    inputs and parameters that cocotb's tests read. `folder` is an empty folder for Verilator's output.
    """
    testbench = settings["testbench"]
    # Without the text nothing can be checked, so nothing is built.
    given, arguments = arguments, with_listed(arguments)
    kept = [word for word in arguments if word.lstrip("-") not in MODES]
    options = {word.lstrip("-") for word in arguments}
    if "binary" in options and options.isdisjoint(("timing", "no-timing")):
        kept.append("--timing")  # --binary implies it, and a design can test for it
    done = subprocess.run([f"{TOOLS}/verilator", *kept, "-E"], capture_output=True)
    failed, design = (b"", None) if done.returncode else elaborate(kept, folder)
    if design is None or not done.stdout.strip():
        reason = "Verilator does not end well on these sources, so nothing is built from them"
        return done.returncode or 1, done.stderr + failed, [], [reason]
    text = done.stdout.decode("utf-8", errors="surrogateescape")
    driven = testbench and has_hidden_main(given, options)
    reach = _beyond_ports(kept, design.read) if testbench else Reach([], [], False)
    apart = reach.mixed and not reach.refusals
    violations, refusals = check_preprocessed(text, arguments, driven, apart)
    read = [f"M {path}" for path in design.read if not path.startswith("/usr/")]
    certain, refused = check_tree(design, named_files(arguments, read), apart)
    # The text gives better places, and the elaborated design is complete.
    violations, refusals = violations or certain, refusals or refused
    refusals += looked_up(done.stdout, design, kept, folder)
    if CLAIMS_BUILT_IN.search(done.stdout):
        refusals.append("?: a text names one of Verilator's own sources; nothing is built")
    refusals += overruns(design, alone=not reach.mixed)
    violations, refusals = violations + reach.violations, refusals + reach.refusals
    if reach.mixed or driven:
        refusals += written_inputs(design) + reached_signals(design) + shared_signals(design) + steered(design)
        refusals += confused_interfaces(design)
        refusals += used_files(design) + corruptions(design) + (replaced_inputs(design) if driven else [])
    elif testbench and any("cocotbvpi" in word for word in given):
        refusals += written_inputs(design, settings.get("inputs", ())) + changed_parameters(design, given)
    return None, b"", violations, refusals


def _beyond_ports(kept: list[str], read: list[str]) -> Reach:
    """`beyond_ports` for Verilator, from the files that it reads."""
    files = [word for word in kept if os.path.isfile(word) and not word.endswith(FOREIGN_SOURCES)]
    named = [word for word in files if word.endswith(SOURCES)]
    others = [word for word in kept if word not in named]
    hidden = [is_hidden(path) for path in read if not path.startswith("/usr/")]
    listed = len(named) < len(files) or any(word.lstrip("-") in OPTIONS_FILES for word in others)
    if (listed and any(hidden) and not all(hidden)) or any(map(is_part_hidden, read)):
        return Reach([], [APART], True)
    tops = [word for option, word in itertools.pairwise(others) if option.lstrip("-") == "top-module"]
    searched = [word for option, word in itertools.pairwise(others) if option.lstrip("-") == "y"]
    searched += [place for word in others if INCLUDED.match(word) for place in INCLUDED.sub("", word).split("+")]
    files = libraries([f"-y{place}" for place in searched])
    return beyond_ports([f"{TOOLS}/verilator", "-E", *others], named, tops, files)

"""Finds where a compiled design reads or writes a signal of the hidden testbench that it is compiled with.

In Icarus's compiled file, an input of a module is not a variable but another name of the signal connected to the port,
even if the source declares it as a variable. So a statement that writes an input changes what the testbench and its
reference model read. This module finds such writes by the signal that an instruction writes, however the source spells
the statement: any assignment, arguments of tasks, loop indices, `force`. Reads are found in the same way: any signal of
the testbench that is not connected to one of the design's ports, whatever name leads there.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from .compiled import CALL as SYSTEM_CALL
from .compiled import has_hidden, read_compiled, short
from .testbench import DRAWN

SCOPE = re.compile(
    rb'(?P<label>S_\w+) \.scope (?P<kind>\w+)[^"]*, "(?:[^"\\]|\\.)*" "(?P<name>(?:[^"\\]|\\.)*)"'
    rb" (?P<file>\d+) (?P<line>\d+)"
    rb"(?:, (?P<own_file>\d+) (?P<own_line>\d+) \d+)?(?:, (?P<parent>S_\w+))?;"
)
"""A scope, with the file and line of its instance and, if present, those of its definition.

The file shows whose it is. The name does not: for some names, Icarus writes other bytes than those of the source.
"""
PARAMETER = re.compile(
    rb'P_\w+ \.param/\w+ "(?P<name>[^"\\]*)" [\d ]+, (?:\+?C4<(?P<bits>[01]+)>;|Cr<[^>]*>; value=(?P<real>\S+))?'
)
"""A parameter, and its value if that is a number."""
GIVEN = re.compile(r"\0-P\0?([\w$]+)\.([\w$]+)=(-?\d+)(?=\0)")
"""A number that the harness gives to a parameter of a top module."""
PORT = re.compile(rb' +\.port_info \d+ /(\w+) +\d+ "((?:[^"\\]|\\.)*)"')
SIGNAL = re.compile(rb'(\w+) \.([a-z]+)[\w/]* (?:\*?"((?:[^"\\]|\\.)*)")?([^;]*)')
"""The label, the kind and the name of a signal or functor; the rest of the line has its drivers."""
WRITE = re.compile(rb" +%(?!load|ix/getv|test_nul|vpi_|push)[a-z][\w/]* (?:[^;]*?[ ,])??(v0x[\da-f]+(?:_\d+)?)(?!\w)")
"""An instruction that changes a signal. Excluded instructions only read, or call tasks."""
CASTS = (b"    %cast/vec4/str ", b"    %cast/vec4/dar ", b"    %cast/vec2/dar ")
"""Instructions that stop the simulation if the sizes differ, which ``vvp -n`` turns into an end with status 0."""
CALL = re.compile(rb' +%vpi_[/a-z]+ \d+ \d+ "\$(\w+)"(.*)')
LABEL = re.compile(rb"(?<!\w)[vL]_?0x[\da-f]+(?:_\d+)?(?!\w)")
RESOLVED = re.compile(rb"(?<!\w)(?:RS_|p)0x[\da-f]+(?!\w)")
"""A net with several drivers, or one of an island."""
ISLAND = re.compile(rb"I0x[\da-f]+")
"""Nets that act on each other, such as an inout port's and the one that it is connected to, if their widths differ."""
SOURCE = re.compile(rb"(?<!\w)(?:[vL]_?0x[\da-f]+(?:_\d+)?|RS_0x[\da-f]+)(?!\w)")
"""A signal or functor to which an instruction, a net or a functor refers."""
CONSTANT = re.compile(rb" BUFT?Z? ?\d*, *C(?P<kind>\d)<(?P<value>[^>]*)>")
TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"')
COMPLETE = re.compile(rb'(?:[^"\\]++|\\[^"]|"(?:[^"\\]|\\.)*+")*+')
"""A line in which all texts end. Icarus does not escape the names of states, classes and system tasks, so a quotation
mark in one begins a text that may continue over the testbench's processes.
"""
WORD = re.compile(rb"[A-Za-z_][\w$]*")
READERS = re.compile(
    rb"f?(?:display|write|strobe|monitor)[bho]?|dump\w+|s?time|realtime|info|warning|error|fatal|sformatf|clog2|countones"
    rb"|countbits|onehot0?|isunknown|bits|left|right|low|high|size|dimensions|unpacked_dimensions|increment|itor|rtoi"
    rb"|realtobits|bitstoreal|shortrealtobits|bitstoshortreal|printtimescale|timeformat|showvars|signed|unsigned"
    rb"|abs|acosh?|asinh?|atan[2h]?|ceil|cosh?|exp|floor|hypot|ln|log10|max|min|pow|sinh?|sqrt|tanh?"
)
"""Tasks and functions of the simulator that do not write their arguments."""
PRINTERS = re.compile(rb"swrite[bho]?|sformat")
"""Tasks that write their first argument and read the others."""
LETS_GO = re.compile(
    rb"'[sS]?[bBoOdDhH]?[ \t]*[\da-fA-FxX_]*[zZ]|\b(?:(?:buf|not|r?tran)if[01]|r?tran|r?[cnp]mos|(?:tri|w)(?:and|or))\b"
    rb"|\(\s*(?:supply|strong|pull|weak|highz)[01]\b"
)
"""What a testbench needs for a net that it and a design drive in turns: high impedance, strengths, or wired logic."""
COMPARED = re.compile(rb"[=!]==?[\w\s'{}]*")
ASSIGNED = re.compile(rb"(?!.*(?:`define|parameter|localparam)\b).*=", re.DOTALL)
"""A statement that lets go only of nets whose names are in it. Others, such as a task's call, may let go of any net."""
DRIVING, STRONG = re.compile(rb"(?:...)*..[^z]"), re.compile(rb"(?:...)*(?:[67].[0x]|.[67][1x])")
"""Constants that are not high impedance, and those stronger than a pull. Of each bit, they have the strengths as 0 and
as 1, and the value.
"""
RANDOM = re.compile(rb'\$(?:random"(?!(?: \d+)?, [^"])|urandom(?:_range)?"|mti_(?:random|dist_uniform)")')
"""Functions that draw from a generator that all modules share. For `$random` that is so without a seed, also where it
is called as a task or in a continuous assignment, but for `$urandom` even with one.
"""
OPERAND = re.compile(rb"(?<!\w)[A-Za-z]+_?0x[\da-f]+(?:_\d+)?(?!\w)")
"""Any signal or functor, or the end of a net that nothing drives (``o0x…``)."""
DRIVEN = re.compile(rb"input port (.*) is coerced to inout")
READS_FILES = re.compile(
    rb"\$(?:f(?:open|close|gets|getc|read|scanf|seek|tell|eof|error)|s?readmem|sdf_|rewind|ungetc|ivlh_)"
)
"""Names of tasks that open a file that they may read, or that use an open file; `$fclose` could end a testbench's."""
WRITES_FILES = re.compile(rb"\$(?:f(?!atal|inish|loor|flush)|writemem)")
"""Names of tasks that write files, including some of the above. Waveforms are separate, since they can be omitted."""
PRINTS = re.compile(rb"\$f(?:display|write|strobe|monitor)[bho]?\", 32's?b(?:0{31}1|10{29}(?:01|10))[ ,]")
"""A call that writes to stdout or stderr."""
OPENED = re.compile(rb'%vpi\S* \d+ \d+ "\$(?:fopen[rwa]?|readmem[bh])"(?: \d+)?, "([\w./-]+)"')
"""A call that opens a file with a constant name."""
OPENING = re.compile(rb"\$(?:fopen|s?readmem|sdf_|ivlh_)")
"""Names of tasks that open a file that they may read."""
HANDLES = re.compile(rb"\$(?:f(?!atal|inish|loor|flush)|rewind|ungetc|ivlh_)")
"""Names of tasks that open a file by a handle, or use an open file."""
MOST_OPENED = 20
OPENS = re.compile(rb"\$(?:fopen[wa]?$|writemem|ivlh_file_open)")
TO_READ = re.compile(rb'"[^\n]*, "rb?" \{')
"""Names of tasks that may open a file for writing, and the rest of a call that does not."""


def reached_signals(path: str, is_own: Callable[[str], bool], hidden: Sequence[str] = ()) -> list[str]:
    """Where a design writes its inputs, or reads or writes other signals of the testbench, as ``file:line: reason``.
    `hidden` has the files of the testbench; `is_own` says whether a source is the design's.
    """
    text, files = read_compiled(path)
    own = [is_own(os.path.realpath(name)) for name in files]
    words = set[bytes]()
    for name in hidden:
        with open(name, "rb") as stream:
            words.update(WORD.findall(stream.read()))
    found = _Compiled(text, own, words, letting_go(hidden))
    draws = [int(call["file"]) for call in SYSTEM_CALL.finditer(text) if RANDOM.match(text, call.start("name"))]
    if len({number >= len(own) or own[number] for number in draws}) > 1:
        found.unclear.append(f"?: {DRAWN}")
    faults = []
    for scope, reason in found.faults:
        number, line = (int(scope["own_file"] or scope["file"]), int(scope["own_line"] or scope["line"]))
        faults.append(f"{short(files[number])}:{line}: {reason}: that is a signal of the hidden testbench")
    return list(dict.fromkeys(found.unclear + faults))


def letting_go(hidden: Sequence[str]) -> list[set[bytes]]:
    """The words of each statement by which a testbench may let go of nets: of those that it names, or of any if the set
    is empty. `hidden` has the testbench's files.
    """
    found = list[set[bytes]]()
    for name in hidden:
        with open(name, "rb") as stream:
            statements = filter(LETS_GO.search, COMPARED.sub(b"", stream.read()).split(b";"))
        found += [set(WORD.findall(statement)) if ASSIGNED.match(statement) else set() for statement in statements]
    return found


def benches_with_files(paths: Sequence[str], is_own: Callable[[str], bool]) -> list[str]:
    """What hidden testbenches in compiled files may do with files, for `benches_files`.

    ``all`` if the design uses no files, ``dumps`` if it writes waveforms alone, ``read`` if it only writes files, or
    opens files with constant names and not both use handles of open files. Otherwise ``none``: the design could open
    the testbench's files, or use those that the testbench opened. A ``-`` follows if the testbench writes files
    nevertheless, then each file that the design opens, after a ``|``.
    """
    found = []
    for path in filter(os.path.isfile, dict.fromkeys(paths)):
        text, files = read_compiled(path)
        own = [not os.path.isfile(name) or is_own(os.path.realpath(name)) for name in files]
        names, opened, handles, writes = set[bytes](), set[str](), set[bool](), False
        for call in SYSTEM_CALL.finditer(text):
            name, ours = call["name"], (number := int(call["file"])) >= len(own) or own[number]
            if PRINTS.match(text, call.start("name")):
                continue
            handles |= {ours} if HANDLES.match(name) else set()
            if not ours:
                writes |= OPENS.match(name) is not None and TO_READ.match(text, call.end("name")) is None
                continue
            names.add(name)
            constant = OPENED.match(text, call.start())
            opened |= {constant[1].decode()} if constant else {""} if OPENING.match(name) else set()
        clear = "" not in opened and len(opened) <= MOST_OPENED and len(handles) < 2
        reads = any(map(READS_FILES.match, names))
        may = "none" if reads and not clear else "read" if reads or any(map(WRITES_FILES.match, names)) else "all"
        may = "dumps" if may == "all" and any(name.startswith(b"$dump") for name in names) else may
        kind = f"{may}{'-' if writes and may in ('none', 'read') else ''}"
        found.append(f"{'|'.join([kind, *sorted(opened)] if may == 'read' else [kind])} {_digest(text)}")
    return found


def claims(paths: Sequence[str]) -> list[str]:
    """For `benches_files`: compiled files of the design alone, which claims to be from other files (`line)."""
    texts = [read_compiled(path)[0] for path in paths if os.path.isfile(path) and has_hidden(path)]
    return [f"own {_digest(text)}" for text in texts]


def benches_files(path: str, found: Sequence[str]) -> str:
    """What `benches_with_files` found for a compiled file, without files; empty if it has no hidden testbench. It is
    ``none`` if the design opens a file that it may not read.
    """
    from .options_files import file_fault

    with open(path, "rb") as stream:
        digest = _digest(stream.read())
    entry = next((entry.partition(" ")[0] for entry in found if entry.endswith(f" {digest}")), "")
    kind, *opened = entry.split("|")
    return kind.replace("read", "none") if any(file_fault("", name, reads=True)[1] for name in opened) else kind


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def written_inputs(path: str, names: Sequence[str]) -> list[str]:
    """Where a design that is tested from outside, by cocotb, writes or drives inputs of its top module, as ``file:line:
    reason``. What a test reads back from such an input is not what it has driven.

    Signals of the top module with one of `names` count as inputs, whatever the design declares. Beside another top
    module, one without ports is a testbench that was left there.
    """
    text, files = read_compiled(path)
    inputs, variables = dict[bytes, tuple[re.Match[bytes], bytes]](), False
    tops = _tops(text)
    for top, section in tops:
        has_ports = len(tops) == 1 or b" .port_info " in section
        ports = {name.encode() for name in names} if has_ports else set()
        for line in section.split(b"\n"):
            if found := PORT.match(line):
                ports |= {found[2]} if found[1] == b"INPUT" else set()
            elif line.startswith(b"v") and (found := SIGNAL.match(line)):
                array = (OPERAND.findall(found[4]) or [b""])[0]
                if found[3] in ports:
                    inputs[found[1]] = top, found[3]
                    variables |= found[2] != b"net"
                elif not found[3] and array in inputs:
                    inputs[found[1]] = inputs[array]
    kinds = [b"%"] if variables else [b"%force", b"%vpi_"]  # only these write nets
    lines = (kind + rest.partition(b"\n")[0] for kind in kinds for rest in text.split(b"\n    " + kind)[1:])
    written = {label for line in lines for label in _written(b"    " + line)}

    def signal(label: bytes) -> re.Match[bytes] | None:
        at = text.find(b"\n%s " % label) + 1
        return SIGNAL.match(text[at : text.find(b"\n", at)]) if at else None

    @functools.cache
    def end(label: bytes) -> bytes:
        """What drives a net; aliases of a net have the same."""
        found = signal(label)
        return (OPERAND.findall(found[4]) or [label])[-1] if found and found[2] == b"net" else label

    owners = inputs | {end(label): of for label, of in inputs.items()}
    faults = [owners[end(label)] for label in written if end(label) in owners]
    for label, of in inputs.items():
        driver = signal(end(label))
        constant = driver is not None and driver[2] == b"functor" and not OPERAND.search(driver[4])
        faults += [] if end(label) == label or constant else [of]
    return [
        f"{short(files[int(top['file'])])}:{int(top['line'])}: {_shown(top['name'])} writes its input {_shown(name)},"
        " which the tests may read back"
        for top, name in dict.fromkeys(inputs.values())
        if (top, name) in faults
    ]


def changed_parameters(paths: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """Where a parameter of a top module does not have the number that the compiler's `arguments` give it, because of a
    ``defparam`` or a narrow type, as ``file:line: reason``. A test that reads the parameter from the design, for the
    range of its stimuli for example, would test something else than the harness asks for.
    """
    numbers = GIVEN.findall("\0".join(["", *arguments, ""]))
    given = {(top.encode(), name.encode()): int(number) for top, name, number in numbers}
    designs = [read_compiled(path) for path in filter(os.path.isfile, paths)] if given else []
    return [
        f"{short(files[int(top['file'])])}:{int(top['line'])}: the parameter {_shown(match['name'])} is not"
        f" {given[top['name'], match['name']]}, which the harness gives it"
        for text, files in designs
        for top, section in _tops(text)
        for match in map(PARAMETER.match, section.split(b"\n"))
        if match and not _is_number(match, given.get((top["name"], match["name"])))
    ]


def _is_number(parameter: re.Match[bytes], number: int | None) -> bool:
    """Whether a parameter has this value, signed or not; always with None."""
    if number is None:
        return True
    if parameter["real"]:
        return abs(float(parameter["real"]) - number) <= 1e-5 * abs(number)
    return parameter["bits"] is not None and int(parameter["bits"], 2) in (
        number,
        number + (1 << len(parameter["bits"])),
    )


def _tops(text: bytes) -> list[tuple[re.Match[bytes], bytes]]:
    """The top modules of a compiled design, each with what is directly in it."""
    scopes = ((SCOPE.fullmatch(b"S_" + part.partition(b"\n")[0]), part) for part in text.split(b"\nS_")[1:])
    return [(scope, part) for scope, part in scopes if scope and scope["kind"] == b"module" and not scope["parent"]]


def driven_inputs(warnings: Iterable[bytes]) -> list[str]:
    """From Icarus's warnings: inputs that are driven from inside, which also drives the signals connected to them."""
    names = [match[1].decode("utf-8", errors="replace") for line in warnings if (match := DRIVEN.search(line))]
    return [
        f"?: input port {name} is driven from inside, and so would be the hidden testbench's signal" for name in names
    ]


class _Compiled:
    """The scopes, ports and signals of a compiled file.

    Attributes:
        unclear: Messages about what cannot be judged.
        faults: Modules of the design that read, write or drive signals of the testbench, and what they do.
    """

    def __init__(
        self, text: bytes, own_files: Sequence[bool], hidden_words: set[bytes], lets_go: list[set[bytes]]
    ) -> None:
        self._own_files = own_files
        self._hidden_words = hidden_words
        self._lets_go = lets_go
        self._scopes: dict[bytes, re.Match[bytes]] = {}
        self._signals: dict[bytes, tuple[bytes, re.Match[bytes]]] = {}
        self._ports: dict[tuple[bytes, bytes], bytes] = {}
        self._indices: list[tuple[bytes, bytes]] = []
        self.unclear: list[str] = []
        writes: list[tuple[bytes, bytes]] = []
        reads = dict[tuple[bytes, bytes], None]()
        casts, routines = set[bytes](), set[bytes]()
        scope = b""
        for line in text.split(b"\n"):
            if (b'"' in line or b"\\" in line) and not COMPLETE.fullmatch(line):
                self.unclear.append("?: the compiled design has a name with a quotation mark that cannot be judged")
            if found := SCOPE.fullmatch(line):
                scope = found["label"]
                self._scopes[scope] = found
            elif line.startswith(b"    .scope "):  # the scope of the instructions that follow
                scope = line.removeprefix(b"    .scope ").rstrip(b";")
            elif line.startswith(b"    %"):
                writes += [(scope, label) for label in _written(line)]
                reads.update(dict.fromkeys((scope, label) for label in LABEL.findall(line)))
                casts.update({scope} if line.startswith(CASTS) else ())
            elif found := PORT.match(line):
                self._ports[scope, found[2]] = found[1]
            elif line.startswith(b"TD_"):  # the code of a function or task
                if line in routines:  # the simulator would use one in place of the other
                    self.unclear.append("?: two routines of the compiled design have the same name, with dots in it")
                routines.add(line)
            elif line.startswith(b"  .scope S_"):
                self.unclear.append("?: path delays in a specify block cannot be judged; leave them out")
            elif b".scope " in line:
                self.unclear.append("?: the compiled design has a scope that cannot be judged")
            elif found := SIGNAL.match(line):
                self._signals[found[1]] = scope, found
        self._name_words()
        if any(map(self._is_inside, casts)):
            self.unclear.append("?: the design casts a string or an array to a vector, which may end the simulation")
        self.faults = [*self._writes(writes), *self._reads(reads), *self._shared_nets()]
        if self.faults and (ports := self._renamed_ports()):
            self.unclear.append(f"?: the port {ports[0]} has another name inside the design; give both one name")

    def _name_words(self) -> None:
        """Give a memory's words its place and name, since Icarus writes each of them where it is first used."""
        for label, (_, word) in list(self._signals.items()):
            memory, *indices = SOURCE.findall(word[4]) if word[2] == b"array" and not word[3] else (b"",)
            if memory in self._signals:
                scope, _ = self._signals[label] = self._signals[memory]
                self._indices += [(scope, index) for index in indices]

    def _writes(self, writes: list[tuple[bytes, bytes]]) -> Iterator[tuple[re.Match[bytes], str]]:
        for scope, label in dict.fromkeys(writes):
            module, (owner, signal) = self._module(scope), self._signals.get(label, (b"", None))
            if module is None or signal is None:
                self.unclear.append("?: the compiled design has an instruction that cannot be judged")
            elif self._is_inside(scope):
                name = _shown(signal[3] or b"?")
                # A net is only written if it stands for a variable connected to a port.
                if signal[2] == b"net" or self._ports.get((owner, signal[3])) == b"INPUT":
                    yield module, f"{_shown(module['name'])} writes its input {name}"
                elif self._is_hidden(owner, signal):
                    yield module, f"{_shown(module['name'])} writes {name}"

    def _reads(self, reads: dict[tuple[bytes, bytes], None]) -> Iterator[tuple[re.Match[bytes], str]]:
        behind_ports = set[bytes]()
        reads.update(dict.fromkeys(self._indices))
        for scope, found in self._signals.values():
            if found[2] == b"resolv" or not self._is_inside(scope):
                continue
            sources = SOURCE.findall(TEXT.sub(b"", found[4]))
            array = found if found[3] or not sources else self._signals.get(sources[0], (b"", found))[1]
            port = found[2] == b"net" and self._ports.get((scope, array[3])) in (b"INPUT", b"INOUT")
            if port and not self._is_inside(self._scopes[scope]["parent"]):
                behind_ports.update(sources)
            else:
                reads.update(dict.fromkeys((scope, label) for label in sources))
        for scope, label in reads:
            signal = self._signals.get(label, (b"", None))[1]
            if signal is None or label in behind_ports or not self._is_inside(scope):
                continue
            same = SOURCE.findall(TEXT.sub(b"", signal[4])) if signal[2] == b"net" else []
            # Icarus chose another name of what a port leads to, or of a signal that the design drives.
            if same and all(source in behind_ports or self._is_driven_inside(source) for source in same):
                continue
            drivers = SOURCE.findall(signal[4]) if signal[2] == b"resolv" else [label]
            if all(driver in self._signals and self._is_hidden(*self._signals[driver]) for driver in drivers):
                module = self._module(scope) or self._scopes[scope]
                yield module, f"{_shown(module['name'])} reads {_shown(signal[3] or b'what no port leads to')}"

    def _renamed_ports(self) -> list[str]:
        """Ports of the design to the testbench that have no signal of their name, as by ``.a(b)`` in a module's head.

        What they lead to is unknown here, so it seems to be the testbench's.
        """
        names = {(scope, found[3]) for scope, found in self._signals.values()}
        outer = {scope for scope, found in self._scopes.items() if not self._is_inside(found["parent"])}
        missing = [key for key in self._ports if key[0] in outer and key not in names]
        return [_shown(name) for scope, name in missing if self._is_inside(scope)]

    def _is_driven_inside(self, label: bytes) -> bool:
        """Whether a signal or functor is the design's; of a net with several drivers, whether all of them are."""
        found = self._signals.get(label, (b"", None))[1]
        drivers = SOURCE.findall(found[4]) if found is not None and found[2] == b"resolv" else [label]
        return all(driver in self._signals and self._is_inside(self._signals[driver][0]) for driver in drivers)

    def _is_hidden(self, scope: bytes, signal: re.Match[bytes]) -> bool:
        """Whether a signal is the testbench's, and neither a constant nor local to a routine, which a design may call.

        ``$unit`` has the variables outside modules of both design and testbench; there, the name decides.
        """
        owner = self._scopes.get(scope)
        if owner is not None and _is_unit(owner):
            return signal[3] in self._hidden_words
        if owner is None or self._is_inside(scope) or (signal[2] == b"functor" and CONSTANT.search(b" " + signal[4])):
            return False
        module = self._module(scope)
        return module is not None and (module["kind"] == b"module" or owner is module)

    def _is_inside(self, scope: bytes | None) -> bool:
        """Whether a scope is the design's, or inside one: hidden sources may have modules that a design uses."""
        while scope is not None and (found := self._scopes.get(scope)) is not None:
            if self._is_own(found):
                return True
            scope = found["parent"]
        return False

    def _shared_nets(self) -> Iterator[tuple[re.Match[bytes], str]]:
        """Nets that the testbench drives and that the design also drives, or joins with another net of the testbench.

        Causes are outputs in place of inputs, and two ports with one signal: Icarus resolves them into one net. Nets of
        inout ports are excluded if the testbench could let go of them.
        """
        nets, joined = dict[bytes, set[bytes]](), dict[bytes, list[tuple[bytes, re.Match[bytes]]]]()
        islands = dict[bytes, bytes]()
        for label, (_, found) in self._signals.items():
            if found[2] == b"resolv":
                nets[label] = set(LABEL.findall(found[4]))
            elif part := ISLAND.match(found[4]):
                islands[label] = part[0]
        for label, island in islands.items():
            sources = SOURCE.findall(self._signals[label][1][4])
            nets.setdefault(island, set()).update(*(nets.get(source, {source}) for source in sources))
        for scope, found in self._signals.values():
            for net in RESOLVED.findall(found[4]) if found[2] == b"net" else ():
                joined.setdefault(islands.get(net, net), []).append((scope, found))
        for net, drivers in nets.items():
            signals = [pair for pair in joined.get(net, ()) if self._is_own(self._module(pair[0]))]
            own = [self._signals[label] for label in drivers if self._drives(label, own=True)]
            if not signals + own or not any(self._drives(label, own=False) for label in drivers):
                continue
            names = {found[3] for _, found in joined.get(net, ())}
            names |= {self._signals[label][1][3] for label in self._behind(drivers)} - {None}
            lets_go = any(not words or None in names or not words.isdisjoint(names) for words in self._lets_go)
            if lets_go and net in islands.values():
                continue
            # Two variables of the testbench are connected to two inputs, since it does not assign both to one net.
            several = sum(label in self._signals and self._signals[label][1][2] == b"var" for label in drivers) > 1
            # Of wired logic, which the testbench does not have, strengths are ignored.
            wired = not lets_go and not self._signals[net][1][4].startswith(b"tri,")
            odd = own or several or any(self._is_fixed(label, weak=wired) for label in drivers)
            shared = lets_go and any(self._ports.get((at, signal[3])) == b"INOUT" for at, signal in signals)
            if odd and not shared:
                scope, signal = (signals + own)[0]
                module = self._module(scope) or self._scopes[scope]
                yield module, f"{_shown(module['name'])} drives or joins the net {_shown(signal[3] or b'?')}"

    def _behind(self, drivers: Iterable[bytes]) -> set[bytes]:
        """Some drivers, and the signals whose bits come through them unchanged."""
        found, left = set[bytes](), list(drivers)
        while left:
            if (label := left.pop()) in self._signals and label not in found:
                found.add(label)
                signal = self._signals[label][1]
                wired = signal[2] in (b"part", b"concat") or signal[4].startswith(b"BUFZ")
                left += SOURCE.findall(signal[4]) if wired else []
        return found

    def _drives(self, label: bytes, *, own: bool) -> bool:
        """Whether a driver is a variable or functor, not a constant, of the design (`own`) or of the testbench."""
        scope, found = self._signals.get(label, (b"", None))
        if found is None or found[2] == b"net" or self._is_own(self._module(scope)) != own:
            return False
        return found[2] != b"functor" or bool(LABEL.search(found[4]) or RESOLVED.search(found[4]))

    def _is_fixed(self, label: bytes, *, weak: bool) -> bool:
        """Whether a driver is a constant, but not a pull (unless `weak`) or high impedance. Its owner cannot be
        determined.
        """
        found = self._signals.get(label, (b"", None))[1]
        value = CONSTANT.search(b" " + found[4]) if found is not None and found[2] == b"functor" else None
        if value is None or value["kind"] != b"8":
            return value is not None and value["kind"] == b"4" and bool(value["value"].strip(b"z"))
        return (DRIVING if weak else STRONG).match(value["value"]) is not None

    def _module(self, scope: bytes | None) -> re.Match[bytes] | None:
        found = self._scopes.get(scope or b"")
        while found is not None and found["kind"] not in (b"module", b"package") and found["parent"]:
            found = self._scopes.get(found["parent"])
        return found

    def _is_own(self, module: re.Match[bytes] | None) -> bool:
        """Whether a module is the design's, as unknown ones are. ``$unit`` is not: both may have parts of it."""
        if module is None or _is_unit(module):
            return module is None
        number = int(module["own_file"] or module["file"])
        return number >= len(self._own_files) or self._own_files[number]


def _is_unit(scope: re.Match[bytes]) -> bool:
    return (scope["kind"], scope["name"]) == (b"package", b"$unit")


def _written(line: bytes) -> list[bytes]:
    if call := CALL.match(line):
        labels = [] if READERS.fullmatch(call[1]) else LABEL.findall(TEXT.sub(b"", call[2]))
        return labels[:1] if PRINTERS.fullmatch(call[1]) else labels
    found = WRITE.match(line)
    return [found[1]] if found else []


def _shown(name: bytes) -> str:
    return ascii(name.decode("utf-8", errors="replace"))

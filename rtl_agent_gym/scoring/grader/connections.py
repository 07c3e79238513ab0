"""Finds where a compiled design writes a signal of the hidden testbench that it is compiled with.

In Icarus's compiled file, an input of a module is not a variable but another name of the signal behind the port, even
if the source declares it as a variable. So a statement that writes an input changes what the testbench and its
reference read. Here it is found by the signal that an instruction writes, however the source spells the statement:
assignments of every kind, arguments of tasks, indices of loops, `force`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator

from .compiled import FILES, short

SCOPE = re.compile(
    rb'(?P<label>S_\w+) \.scope (?P<kind>\w+)[^"]*, "(?:[^"\\]|\\.)*" "(?P<name>(?:[^"\\]|\\.)*)" \d+ \d+'
    rb"(?:, (?P<file>\d+) (?P<line>\d+) \d+)?(?:, (?P<parent>S_\w+))?;"
)
"""A scope, with the file and the line of its definition."""
PORT = re.compile(rb' +\.port_info \d+ /(\w+) +\d+ "((?:[^"\\]|\\.)*)"')
SIGNAL = re.compile(rb'(\w+) \.([a-z]+)[\w/]* (?:\*?"((?:[^"\\]|\\.)*)")?([^;]*)')
"""The label, the kind and the name of a signal or functor, and the rest with what drives it."""
WRITE = re.compile(rb" +%(?!load|ix/getv|test_nul|vpi_|push)[a-z][\w/]* (?:[^;]*?[ ,])??(v0x[\da-f]+(?:_\d+)?)(?![\w])")
"""An instruction that changes a signal. Those that are left out only read, or are calls of tasks."""
CALL = re.compile(rb' +%vpi_[/a-z]+ \d+ \d+ "\$(\w+)"(.*)')
LABEL = re.compile(rb"(?<!\w)[vL]_?0x[\da-f]+(?:_\d+)?(?!\w)")
RESOLVED = re.compile(rb"(?<!\w)RS_0x[\da-f]+(?!\w)")
TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"')
READERS = re.compile(
    rb"f?(?:display|write|strobe|monitor)[bho]?|dump\w+|s?time|realtime|info|warning|error|fatal|sformatf|clog2|countones"
    rb"|countbits|onehot0?|isunknown|bits|left|right|low|high|size|dimensions|unpacked_dimensions|increment|itor|rtoi"
    rb"|realtobits|bitstoreal|shortrealtobits|bitstoshortreal|printtimescale|timeformat|showvars|signed|unsigned"
    rb"|abs|acosh?|asinh?|atan[2h]?|ceil|cosh?|exp|floor|hypot|ln|log10|max|min|pow|sinh?|sqrt|tanh?"
)
"""Tasks and functions of the simulator that write none of their arguments."""


def reached_signals(path: str, hidden: Collection[str]) -> list[str]:
    """Where a design writes its inputs, or what else is the testbench's, as ``file:line: reason``.

    Args:
        path: The compiled file.
        hidden: The modules and packages that the hidden sources declare. All others are the design's.
    """
    with open(path, "rb") as stream:
        text = stream.read()
    files = [os.fsdecode(name) for name in FILES.findall(text, text.rfind(b"\n:file_names"))]
    read = _Compiled(text, {name.encode() for name in hidden})
    faults = []
    for module, reason in read.faults:
        number = int(module["file"] or 0)
        file = short(files[number]) if number < len(files) else "?"
        faults.append(f"{file}:{int(module['line'] or 0)}: {reason}: that is a signal of the hidden testbench")
    return list(dict.fromkeys(faults))


class _Compiled:
    """What a compiled file says of scopes, ports and signals.

    Attributes:
        faults: Modules of the design that write what is not theirs, by their definitions, and what they write.
    """

    def __init__(self, text: bytes, hidden: set[bytes]) -> None:
        self._hidden = hidden
        self._scopes: dict[bytes, re.Match[bytes]] = {}
        self._signals: dict[bytes, tuple[bytes, re.Match[bytes]]] = {}
        self._ports: dict[tuple[bytes, bytes], bytes] = {}
        self._named: dict[tuple[bytes, bytes], re.Match[bytes]] = {}
        writes: list[tuple[bytes, bytes]] = []
        scope = b""
        for line in text.split(b"\n"):
            if found := SCOPE.match(line):
                scope = found["label"]
                self._scopes[scope] = found
            elif line.startswith(b"    .scope "):  # the scope of the instructions that follow
                scope = line.removeprefix(b"    .scope ").rstrip(b";")
            elif line.startswith(b"    %"):
                writes += [(scope, label) for label in _written(line)]
            elif found := PORT.match(line):
                self._ports[scope, found[2]] = found[1]
            elif found := SIGNAL.match(line):
                self._signals[found[1]] = scope, found
                self._named[scope, found[3]] = found
        self.faults = [*self._writes(writes), *self._driven_outputs()]

    def _writes(self, writes: list[tuple[bytes, bytes]]) -> Iterator[tuple[re.Match[bytes], str]]:
        for scope, label in dict.fromkeys(writes):
            module, (owner, signal) = self._module(scope), self._signals.get(label, (b"", None))
            if signal is None or module is None or self._is_hidden(module):
                continue
            name, other = _shown(signal[3]), self._module(owner)
            # A net is only written where it stands for a variable behind a port.
            if signal[2] == b"net" or self._ports.get((owner, signal[3])) == b"INPUT":
                yield module, f"{_shown(module['name'])} writes its input {name}"
            elif self._is_hidden(other):
                yield module, f"{_shown(module['name'])} writes {name}"

    def _driven_outputs(self) -> Iterator[tuple[re.Match[bytes], str]]:
        """Outputs of a design in the place of inputs: the testbench drives the same net."""
        resolved = [LABEL.findall(found[4]) for _, found in self._signals.values() if found[2] == b"resolv"]
        for (scope, name), way in self._ports.items():
            module, signal = self._scopes[scope], self._named.get((scope, name))
            outer = way == b"OUTPUT" and self._is_hidden(self._module(module["parent"]))
            if signal is None or not outer or self._is_hidden(module):
                continue
            nets = [self._signals[label][1][4] for label in RESOLVED.findall(signal[4]) if label in self._signals]
            sources = {label for net in nets for label in LABEL.findall(net)}
            sources.update(*(labels for labels in resolved if signal[1] in labels))
            if any(map(self._is_of_testbench, sources)):
                yield module, f"{_shown(module['name'])} drives a net by its output {_shown(name)} that has a driver"

    def _is_of_testbench(self, label: bytes) -> bool:
        scope, found = self._signals.get(label, (b"", None))
        if found is None or found[2] == b"net" or not self._is_hidden(self._module(scope)):
            return False
        return found[2] != b"functor" or bool(LABEL.search(found[4]))  # not a constant, such as a pull-up's

    def _module(self, scope: bytes | None) -> re.Match[bytes] | None:
        """The module or package that a scope belongs to."""
        found = self._scopes.get(scope or b"")
        while found is not None and found["kind"] not in (b"module", b"package") and found["parent"]:
            found = self._scopes.get(found["parent"])
        return found

    def _is_hidden(self, module: re.Match[bytes] | None) -> bool:
        return module is not None and module["kind"] == b"module" and module["name"] in self._hidden


def _written(line: bytes) -> list[bytes]:
    """The labels of the signals that an instruction may change."""
    if call := CALL.match(line):
        return [] if READERS.fullmatch(call[1]) else LABEL.findall(TEXT.sub(b"", call[2]))
    found = WRITE.match(line)
    return [found[1]] if found else []


def _shown(name: bytes) -> str:
    return ascii(name.decode("utf-8", errors="replace"))

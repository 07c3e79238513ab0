"""A process that reads SystemVerilog with pyslang for `frontend.py`. Standard library and pyslang only.

The sources are written by a model, so they may crash the parser or make it run forever. A fork with its own limits
reads each request; this process parses nothing and reports how the fork ended. Requests and replies are JSON documents,
one per line.

Request: ``files`` (path to text), ``sources`` (paths to read, in order, as one compilation unit), ``tops`` (names of
modules), ``folders`` (include folders, searched after the including file's own), ``defines`` (``NAME`` or
``NAME=value``). Reply: ``reading``, with ``errors`` ([path, line, message] of each syntax error), ``unread`` (whether
an included file was not found), ``modules`` (names) and
``ports`` (per found top: [name, direction, width in bits or null] each). If the fork failed: ``ended``, with ``signal``
(the one that ended it, 0 for none), ``overdue`` (whether it was killed because its wall time was over), ``long``
(whether its reply was too long), ``seconds`` (its processor time) and ``peak`` (its peak memory in bytes).

Arguments: the limits of a fork in seconds of processor time and in seconds of wall time.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import json
import os
import posixpath
import re
import resource
import select
import signal
import sys
from collections import Counter
from typing import Any

import pyslang
from pyslang import ast, parsing, syntax

LIBC = ctypes.CDLL(None)
"""For `os.memfd_create` and `os.pidfd_open`, which Python builds for old systems lack."""
PIDFD_OPEN = 434
MEMORY = 2 << 30
LONGEST = 1 << 26
"""Maximum bytes of one reply."""
ROOT = "/code/"
INCLUDED = re.compile(r'`include[ \t]+"([^"\n]+)"')
MOST_DETOURS = 64
MOST_ERRORS = 50
"""Maximum errors that are reported of one file."""


def read(request: dict[str, Any]) -> dict[str, Any]:
    """Read the sources of one request."""
    manager = pyslang.SourceManager()
    manager.setDisableProximatePaths(True)
    buffers = {path: manager.assignText(ROOT + path, text) for path, text in request["files"].items()}
    for path, same in detours(request["files"], request["folders"]).items():
        manager.assignText(ROOT + path, request["files"][same])
    chosen = [buffers[path] for path in request["sources"]]
    options = parsing.PreprocessorOptions()
    options.additionalIncludePaths = [ROOT + folder for folder in request["folders"]]
    options.predefines = request["defines"]
    tree = syntax.SyntaxTree.fromBuffers(chosen, manager, pyslang.Bag([options]))
    engine = pyslang.DiagnosticEngine(manager)
    errors: list[list[Any]] = []
    counts: Counter[str] = Counter()
    unread = False
    for diagnostic in tree.diagnostics:
        if diagnostic.isError():
            missing = diagnostic.code == pyslang.Diags.CouldNotOpenIncludeFile
            unread = unread or missing
            place = manager.getFullyOriginalLoc(diagnostic.location)
            # Not the file and line that the manager reports, since a `line directive can change those.
            file = posixpath.normpath(str(manager.getRawFileName(place.buffer))).removeprefix(ROOT)
            if counts[file] < MOST_ERRORS:
                counts[file] += 1
                before = manager.getSourceText(place.buffer).encode(errors="replace")[: place.offset]
                text = engine.formatMessage(diagnostic)
                if missing:  # where a file exists in no folder, the reason is the limit on open files
                    text = text.replace(os.strerror(errno.EMFILE), os.strerror(errno.ENOENT))
                errors.append([file, 1 + before.count(b"\n"), text])
    modules, ports = elaborate(tree, request["tops"]) if request["tops"] else ([], {})
    return {"errors": errors, "unread": unread, "modules": modules, "ports": ports}


def detours(files: dict[str, str], folders: list[str]) -> dict[str, str]:
    """Other names by which files are included, such as ``rtl/../verif/a.svh``: slang compares names as strings."""
    found: dict[str, str] = {}
    named = {(posixpath.dirname(path), name) for path, text in files.items() for name in INCLUDED.findall(text)}
    names = {name for _, name in named}
    odd_names, odd_folders = (
        {path for path in paths if posixpath.normpath(path) != path} for paths in (names, folders)
    )
    ways = {*named, *itertools.product(folders, {*odd_names, *(name for name in names if name.startswith("../"))})}
    for folder, name in sorted({*ways, *itertools.product(odd_folders, names)}):
        place = posixpath.join(folder, name).removeprefix(ROOT)
        plain = posixpath.normpath(place)
        if place != plain and plain in files:
            found[place] = plain
            if len(found) == MOST_DETOURS:
                break
    return found


def elaborate(tree: syntax.SyntaxTree, tops: list[str]) -> tuple[list[str], dict[str, list[Any]]]:
    """The names of the modules, and the ports of each top with its parameters at their defaults."""
    options = ast.CompilationOptions()
    options.topModules = set(tops)
    options.maxInstanceDepth = 16
    options.maxGenerateSteps = 4096
    options.maxConstexprSteps = 100_000
    compilation = ast.Compilation(pyslang.Bag([options]))
    compilation.addSyntaxTree(tree)
    names = [definition.name for definition in compilation.getDefinitions()]
    known = [instance for instance in compilation.getRoot().topInstances if instance.name in tops]
    return names, {instance.name: [describe(port) for port in instance.body.portList] for instance in known}


def describe(port: Any) -> list[Any]:
    """A port as [name, direction, width]. Interface ports and ports of an erroneous type have no width."""
    direction = getattr(port, "direction", None)
    kind = getattr(port, "type", None)
    width = kind.bitstreamWidth if kind is not None and not kind.isError else None
    return [port.name, direction.name.lower() if direction is not None else "interface", width or None]


def serve(line: bytes, processor: int, patience: float) -> bytes:
    """The reply to one request, which a fork writes to a file in memory."""
    reply, parent = LIBC.memfd_create(b"reply", 1), os.getpid()
    pid = os.fork()
    if not pid:
        _answer(line, reply, processor, parent)
    ends = LIBC.syscall(PIDFD_OPEN, pid, 0)
    overdue = not select.select([ends], [], [], patience)[0]
    if overdue:
        os.kill(pid, signal.SIGKILL)
    _, status, used = os.wait4(pid, 0)
    os.close(ends)
    with open(reply, "rb") as stream:
        stream.seek(0)
        text = stream.read()
    code = os.waitstatus_to_exitcode(status)
    if not code and not overdue:
        return b'{"reading": ' + text + b"}"
    ended = {
        "signal": max(-code, 0),
        "overdue": overdue,
        "long": code == -signal.SIGXFSZ,
        "seconds": used.ru_utime + used.ru_stime,
        "peak": used.ru_maxrss * 1024,
    }
    return json.dumps({"ended": ended}).encode()


def _answer(line: bytes, reply: int, processor: int, parent: int) -> None:
    """In the fork: read the sources, write the result, and exit."""
    code = 1
    try:
        LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: the fork ends with its parent
        if os.getppid() != parent:
            return
        with open("/proc/self/oom_score_adj", "w") as stream:
            stream.write("1000")  # if memory runs out, the kernel kills this first
        os.dup2(reply, 1)
        os.close(reply)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (LONGEST, LONGEST))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (processor, processor + 1))
        # From here on no file of this machine can be opened, so an include finds only submitted files.
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
        text = memoryview(json.dumps(read(json.loads(line))).encode())
        while text:
            text = text[os.write(1, text) :]
        code = 0
    finally:
        os._exit(code)


def main() -> None:
    """Answer requests until the end of stdin."""
    processor, patience = int(sys.argv[1]), float(sys.argv[2])
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(serve(line, processor, patience) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()

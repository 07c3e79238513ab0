"""Looks at what a simulator is about to run, and lets it run or not. Works inside a scoring sandbox.

What is judged is the compiled design (`compiled.py`), a moment before the simulator reads it, when nothing of the
design has ever run. Every finding goes to the supervisor over its socket before the simulator starts. When the
supervisor cannot be reached, nothing is run.
"""

from __future__ import annotations

import getopt
import json
import os
import re
import signal
import sys
from _socket import AF_UNIX, SOCK_STREAM, socket

from compiled import READABLE, below, check_vvp, short

# What costs milliseconds to import is imported where it is used: this runs before every simulation.

REAL = "/opt/rtl-agent-gym/real"
SOCKET = "\0rtl-agent-gym"
REFUSED = 125
MODES = ("build", "exe", "binary", "cc", "sc", "main", "xml-only", "json-only", "dpi-hdr-only")
APART = "?: what the hidden testbench and the design say cannot be told apart, so nothing is simulated"
MOST, LONGEST = 20, 400
"""Complaints that are reported of one simulation, and the characters of one."""


class Supervisor:
    """The line to the supervisor of this grading. Nothing is run before it has answered, however late: a container that
    is frozen or starved is not the design's fault.
    """

    def __init__(self) -> None:
        self.socket = socket(AF_UNIX, SOCK_STREAM)
        self.socket.connect(SOCKET)
        self.settings = json.loads(self.line())

    def line(self) -> bytes:
        """The next line it says, or less when it is gone."""
        said = b""
        while not said.endswith(b"\n") and (more := self.socket.recv(1 << 16)):
            said += more
        return said

    def report(self, **message: object) -> None:
        """Say something and wait until it has been heard. Long lists, whose length a design decides, are cut."""
        for name in ("violations", "unknown") if self.settings.get("limits", True) else ():
            if isinstance(found := message.get(name), list):
                message[name] = first_few(found)
        self.socket.sendall(json.dumps(message).encode() + b"\n")
        if self.line() != b"ok\n":
            raise OSError("the supervisor did not answer")


def first_few(found: list[str]) -> list[str]:
    """The first complaints, none of them long, and how many more there are."""
    distinct = list(dict.fromkeys(text if len(text) <= LONGEST else text[:LONGEST] + " …" for text in found[:20_000]))
    more = [f"?: and {len(distinct) - MOST} more"] if len(distinct) > MOST else []
    return distinct[:MOST] + more


def refuse(messages: list[str]) -> None:
    """Say on stderr why nothing is run, and end."""
    for message in first_few(messages):
        print(f"rtl-agent-gym: {ascii(message)[1:-1]}", file=sys.stderr)
    sys.exit(REFUSED)


def run_vvp(arguments: list[str], supervisor: Supervisor) -> None:
    """Judge the compiled design that `vvp` is asked to run, then become `vvp`."""
    _, rest = getopt.getopt(arguments, "hil:M:m:nNpqsvV")
    violations: list[str] = []
    unknown: list[str] = []
    if rest and supervisor.settings.get("simulation", True):
        violations, unknown, silent = check_vvp(rest[0])
        if silent:
            arguments = [*arguments, "-none"]
    supervisor.report(tool="vvp", violations=violations, unknown=unknown)
    if violations or unknown:
        refuse(violations + unknown)
    os.execv(f"{REAL}/vvp", ["vvp", *arguments])


def run_iverilog(arguments: list[str], supervisor: Supervisor) -> None:
    """Compile, and look at which files the compiler read."""
    checked = supervisor.settings.get("includes", True) and not any(word.startswith("-M") for word in arguments)
    folder = _own_folder()
    listing, said = f"{folder}/files", f"{folder}/stderr"
    options = [f"-Mprefix={listing}"] if checked else []
    code = _run([f"{REAL}/iverilog", *options, *arguments], {2: said})
    if code and checked:  # the preprocessor may not have come to its list
        again = [f"{REAL}/iverilog", *options, *_without_output(arguments), "-E", "-o", "/dev/null"]
        _run(again, {1: "/dev/null", 2: "/dev/null"})
    first = _pass_on(said)
    lines = _read_lines(listing)
    for name in os.listdir(folder):
        os.unlink(f"{folder}/{name}")
    os.rmdir(folder)
    violations = include_faults(lines) if checked else []
    unknown: list[str] = []
    if checked and not code and supervisor.settings.get("testbench", True):
        reached, unknown = _beyond_ports(lines, arguments)
        violations += reached
    supervisor.report(tool="iverilog", code=code, said=first, violations=violations, unknown=unknown)
    if violations or unknown:
        for option, value in zip(arguments, arguments[1:]):  # noqa: B905, RUF007
            if option == "-o" and os.path.isfile(value):
                os.unlink(value)
        refuse(violations + unknown)
    sys.exit(code if code >= 0 else 128 - code)


def run_verilator(arguments: list[str], supervisor: Supervisor) -> None:
    """Judge the text that Verilator is asked to turn into a program, then let it."""
    if not {"--lint-only", "--version", "-V", "-E", "--getenv"}.isdisjoint(arguments):
        os.execv(f"{REAL}/verilator", ["verilator", *arguments])
    import subprocess

    from verilated import check_preprocessed

    if supervisor.settings.get("simulation", True):
        # Modes that do not go together with -E. Without the text nothing can be judged, and so nothing is built.
        kept = [word for word in arguments if word.lstrip("-") not in MODES]
        done = subprocess.run([f"{REAL}/verilator", *kept, "-E"], capture_output=True)
        if done.returncode or not done.stdout.strip():
            os.write(2, done.stderr)
            said = done.stderr[:4096].decode("utf-8", errors="replace")
            supervisor.report(tool="verilator", code=done.returncode or REFUSED, said=said, violations=[])
            refuse(["Verilator's preprocessor does not end well on these sources, so nothing is built from them"])
        violations, unknown = check_preprocessed(done.stdout.decode("utf-8", errors="surrogateescape"), arguments), []
        if supervisor.settings.get("testbench", True):
            named = [word for word in kept if word.endswith((".v", ".sv")) and os.path.isfile(word)]
            others = [word for word in kept if word not in named]
            tops = [word for option, word in zip(others, others[1:]) if option.lstrip("-") == "top-module"]  # noqa: B905, RUF007
            reached, unknown = beyond_ports([f"{REAL}/verilator", "-E", *others], named, tops)
            violations += reached
        if violations or unknown:
            supervisor.report(tool="verilator", violations=violations, unknown=unknown)
            refuse(violations + unknown)
    built = subprocess.run([f"{REAL}/verilator", *arguments], stderr=subprocess.PIPE)
    os.write(2, built.stderr)
    said = built.stderr[:4096].decode("utf-8", errors="replace")
    supervisor.report(tool="verilator", code=built.returncode, said=said, violations=[])
    sys.exit(built.returncode if built.returncode >= 0 else 128 - built.returncode)


def _own_folder() -> str:
    """A new folder that nobody else writes to."""
    count = 0
    while True:
        try:
            path = f"/tmp/rtl-gym-{os.getpid()}-{count}"
            os.mkdir(path, 0o700)
            return path
        except FileExistsError:
            count += 1


def _run(command: list[str], outputs: dict[int, str]) -> int:
    """Run a program with some descriptors open for writing to files; its exit status, negative for a signal."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    opened = [(os.POSIX_SPAWN_OPEN, number, path, flags, 0o600) for number, path in outputs.items()]
    ignored = [signal.SIGPIPE, signal.SIGXFSZ]  # by Python, and by nobody else
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=opened, setsigdef=ignored)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _pass_on(path: str) -> str:
    """Copy a file to stderr; return its beginning."""
    with open(path, "rb") as stream:
        first = b""
        while piece := stream.read(1 << 16):
            first = first or piece[:4096]
            os.write(2, piece)
    return first.decode("utf-8", errors="replace")


def _read_lines(path: str) -> list[str]:
    """The lines of the compiler's list. Only a newline ends one: paths may hold what else Unicode takes for an end."""
    try:
        with open(path, "rb") as stream:
            return [os.fsdecode(line) for line in stream.read().split(b"\n") if line]
    except FileNotFoundError:
        return []


def _without_output(arguments: list[str]) -> list[str]:
    kept, skip = [], False
    for word in arguments:
        if not skip and word != "-o":
            kept.append(word)
        skip = word == "-o"
    return kept


def include_faults(lines: list[str]) -> list[str]:
    """Included files that are none of the problem's.

    The list is in the order of reading: behind each source (``M``) come the files that it includes (``I``).
    What the harness compiles of its own may include what it likes, unless a file of the candidate's on that way may
    have done it.
    """
    odd = [f"?: the compiler's list of files has the line {line!r}" for line in lines if line[:2] not in ("M ", "I ")]
    read = list(dict.fromkeys(os.path.realpath(line[2:]) for line in lines))
    theirs, wrong = True, set()
    for line in lines:
        path = os.path.realpath(line[2:])
        if line.startswith("M "):
            theirs = below(path, READABLE)
        elif not below(path, READABLE):
            wrong |= {path} if theirs else set()
        elif not theirs:
            theirs = _could_include(path)
    return odd + [
        f"{_including(path, read)}: `include reads {path!r}, which is none of the problem's files"
        for path in sorted(wrong)
    ]


def _could_include(path: str) -> bool:
    """Whether a file that a source of the harness's includes may itself include what is none of the problem's."""
    with open(path, "rb") as stream:
        text = stream.read()
    plain = re.sub(rb'`include\s+"(/code/(?:rtl|verif|docs)/(?:[\w-][\w.-]*/)*[\w-][\w.-]*)"', b"", text)
    return b"include" in plain or b"``" in plain


def _beyond_ports(lines: list[str], arguments: list[str]) -> tuple[list[str], list[str]]:
    """`beyond_ports` for Icarus, by its list of files."""
    sources = [os.path.realpath(line[2:]) for line in lines if line.startswith("M ")]
    named = [word for word in arguments if os.path.realpath(word) in sources]
    others = [word for word in _without_output(arguments) if word not in named]
    tops = [word for option, word in zip(others, others[1:]) if option == "-s"]  # noqa: B905, RUF007
    tops += [word[2:] for word in others if word.startswith("-s") and len(word) > 2]
    named += _libraries(others)
    if not all(below(path, READABLE) for path in sources) and set(sources) - set(map(os.path.realpath, named)):
        return [], [APART]  # a file of options names sources
    return beyond_ports([f"{REAL}/iverilog", "-E", "-o", "/dev/stdout", *others], named, tops)


def _libraries(arguments: list[str]) -> list[str]:
    """Files that the compiler may read when it misses a module."""
    found: list[str] = []
    for at, word in enumerate(arguments):
        if word[:2] in ("-y", "-l"):
            place = word[2:] or "".join(arguments[at + 1 : at + 2])
            names = sorted(os.listdir(place)) if os.path.isdir(place) else []
            found += [f"{place}/{name}" for name in names if name.endswith((".v", ".sv", ".vl"))]
            found += [place] if os.path.isfile(place) else []
    return found


def beyond_ports(command: list[str], sources: list[str], tops: list[str]) -> tuple[list[str], list[str]]:
    """Where a design reaches into a testbench that it is compiled with: (violations, why it cannot be judged)."""
    hidden = [not below(os.path.realpath(word), READABLE) for word in sources]
    if all(hidden) or not any(hidden):
        return [], []
    texts = _texts(command, sources)
    if texts is None:
        return [], [APART]
    from testbench import Names, reach_faults

    names = Names([text for text, own in zip(texts, hidden) if own], tops)  # noqa: B905
    return [
        fault
        for word, text, own in zip(sources, texts, hidden)  # noqa: B905
        if not own
        for fault in reach_faults(text, os.path.realpath(word), names, short)
    ], []


def _texts(command: list[str], sources: list[str]) -> list[str] | None:
    """What the preprocessor makes of each source behind those before it; None where that cannot be said.

    It reads one source after the other, so its text of the first few is how its text of one more begins.
    """
    import subprocess

    texts, before = [], b""
    for count in range(1, len(sources) + 1):
        done = subprocess.run([*command, *sources[:count]], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        if done.returncode or not done.stdout.startswith(before):
            return None
        texts.append(os.fsdecode(done.stdout[len(before) :]))
        before = done.stdout
    return texts


def _including(path: str, read: list[str]) -> str:
    """Where `path` is included, as ``file:line``; through a macro, the first inclusion through one."""
    name, macro = os.path.basename(path).encode(errors="surrogateescape"), ""
    for file in read:
        if file == path or not os.path.isfile(file) or not below(file, READABLE):
            continue
        with open(file, "rb") as stream:
            for number, line in enumerate(stream, 1):
                if b"`include" in line and name in line:
                    return f"{short(file)}:{number}"
                if not macro and (b"`include" in line or name in line):
                    macro = f"{short(file)}:{number}"
    return macro or "?"


def main() -> None:
    """Stand in for the simulator's program whose name is the first argument."""
    name, arguments = sys.argv[1], sys.argv[2:]
    try:
        supervisor = Supervisor()
    except OSError as error:
        print(f"rtl-agent-gym: {name} is not run, as nobody supervises it ({error})", file=sys.stderr)
        sys.exit(REFUSED)
    if name == "vvp":
        run_vvp(arguments, supervisor)
    elif name == "iverilog":
        run_iverilog(arguments, supervisor)
    else:
        run_verilator(arguments, supervisor)


if __name__ == "__main__":
    main()

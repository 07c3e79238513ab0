"""Looks at what a simulator is about to run, and lets it run or not. Works inside a scoring sandbox.

What is judged is the compiled design (`compiled.py`), a moment before the simulator reads it, when nothing of the
design has ever run. Which files it opens is decided while it runs, in the simulator itself (`wall.c`). Every finding
goes to the supervisor over its socket before the simulator starts. When the supervisor cannot be reached, nothing is
run. What the compilers read is judged in `sources.py`.
"""

from __future__ import annotations

import getopt
import json
import os
import signal
import sys
from _socket import AF_UNIX, SOCK_STREAM, socket

from compiled import WALL, check_vvp
from sources import beyond_ports, driven_inputs, icarus_beyond_ports, include_faults, mixed, without_output

# What costs milliseconds to import is imported where it is used: this runs before every simulation.

REAL = "/opt/rtl-agent-gym/real"
FILES = "/opt/rtl-agent-gym/wall.so"
"""What decides in the simulator's process which files a design opens; built from `wall.c`."""
SOCKET = "\0rtl-agent-gym"
REFUSED = 125
MODES = ("build", "exe", "binary", "cc", "sc", "main", "xml-only", "json-only", "dpi-hdr-only")
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
    env = dict(os.environ)
    if rest and supervisor.settings.get("simulation", True):
        violations, unknown, silent = check_vvp(rest[0])
        if silent:
            arguments = [*arguments, "-none"]
        env["LD_PRELOAD"] = " ".join([FILES, *os.environ.get("LD_PRELOAD", "").split()])
        # The compiled file may hold a hidden testbench, which no design is to read.
        env["RTL_GYM_WALL"] = ":".join([os.path.realpath(rest[0]), os.path.abspath(rest[0]), WALL])
    supervisor.report(tool="vvp", violations=violations, unknown=unknown)
    if violations or unknown:
        refuse(violations + unknown)
    os.execve(f"{REAL}/vvp", ["vvp", *arguments], env)


def run_iverilog(arguments: list[str], supervisor: Supervisor) -> None:
    """Compile, and look at which files the compiler read."""
    checked = supervisor.settings.get("includes", True) and not any(word.startswith("-M") for word in arguments)
    folder = _own_folder()
    listing, said = f"{folder}/files", f"{folder}/stderr"
    options = [f"-Mprefix={listing}"] if checked else []
    code = _run([f"{REAL}/iverilog", *options, *arguments], {2: said})
    if code and checked:  # the preprocessor may not have come to its list
        again = [f"{REAL}/iverilog", *options, *without_output(arguments), "-E", "-o", "/dev/null"]
        _run(again, {1: "/dev/null", 2: "/dev/null"})
    first, driven = _pass_on(said)
    lines = _read_lines(listing)
    for name in os.listdir(folder):
        os.unlink(f"{folder}/{name}")
    os.rmdir(folder)
    violations = include_faults(lines) if checked else []
    unknown: list[str] = []
    if checked and not code and supervisor.settings.get("testbench", True):
        reached, unknown = icarus_beyond_ports(lines, arguments)
        violations += reached
        unknown += driven if mixed(lines) else []
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

    from verilated import check_preprocessed, unjudged

    if supervisor.settings.get("simulation", True):
        # Modes that do not go together with -E. Without the text nothing can be judged, and so nothing is built.
        kept = [word for word in arguments if word.lstrip("-") not in MODES]
        done = subprocess.run([f"{REAL}/verilator", *kept, "-E"], capture_output=True)
        read = _read_by_verilator(kept) if not done.returncode else b""
        if done.returncode or not done.stdout.strip() or isinstance(read, bytes):
            said = done.stderr + (read if isinstance(read, bytes) else b"")
            os.write(2, said)
            first = said[:4096].decode("utf-8", errors="replace")
            supervisor.report(tool="verilator", code=done.returncode or REFUSED, said=first, violations=[])
            refuse(["Verilator does not end well on these sources, so nothing is built from them"])
        text = done.stdout.decode("utf-8", errors="surrogateescape")
        violations, unknown = check_preprocessed(text, arguments)
        unknown += unjudged(text, read, arguments)
        if supervisor.settings.get("testbench", True):
            named = [word for word in kept if word.endswith((".v", ".sv")) and os.path.isfile(word)]
            others = [word for word in kept if word not in named]
            tops = [word for option, word in zip(others, others[1:]) if option.lstrip("-") == "top-module"]  # noqa: B905, RUF007
            reached, apart = beyond_ports([f"{REAL}/verilator", "-E", *others], named, tops)
            violations, unknown = violations + reached, unknown + apart
        if violations or unknown:
            supervisor.report(tool="verilator", violations=violations, unknown=unknown)
            refuse(violations + unknown)
    built = subprocess.run([f"{REAL}/verilator", *arguments], stderr=subprocess.PIPE)
    os.write(2, built.stderr)
    said = built.stderr[:4096].decode("utf-8", errors="replace")
    supervisor.report(tool="verilator", code=built.returncode, said=said, violations=[])
    sys.exit(built.returncode if built.returncode >= 0 else 128 - built.returncode)


def _read_by_verilator(kept: list[str]) -> list[str] | bytes:
    """Every file that Verilator reads for these arguments, also those that it looks up; what it says where it fails."""
    import subprocess

    folder = _own_folder()
    timing = [] if any(word.lstrip("-") in ("timing", "no-timing") for word in kept) else ["--timing"]
    outputs = ["--json-only", "--json-only-output", f"{folder}/tree", "--json-only-meta-output", f"{folder}/meta"]
    done = subprocess.run([f"{REAL}/verilator", *kept, *timing, *outputs, "--Mdir", folder], capture_output=True)
    try:
        with open(f"{folder}/meta", "rb") as stream:
            files = json.loads(stream.read().decode("utf-8", errors="surrogateescape"))["files"]
    except (OSError, ValueError, KeyError):
        return done.stderr or b"no list of files"
    finally:
        for name in os.listdir(folder):
            os.unlink(f"{folder}/{name}")
        os.rmdir(folder)
    return done.stderr if done.returncode else [file["filename"] for file in files.values()]


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


def _pass_on(path: str) -> tuple[str, list[str]]:
    """Copy a file to stderr; return its beginning, and what it says of inputs that a design drives from inside."""
    with open(path, "rb") as stream:
        first = b""
        while piece := stream.read(1 << 16):
            first = first or piece[:4096]
            os.write(2, piece)
        stream.seek(0)
        return first.decode("utf-8", errors="replace"), driven_inputs(stream)


def _read_lines(path: str) -> list[str]:
    """The lines of the compiler's list. Only a newline ends one: paths may hold what else Unicode takes for an end."""
    try:
        with open(path, "rb") as stream:
            return [os.fsdecode(line) for line in stream.read().split(b"\n") if line]
    except FileNotFoundError:
        return []


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

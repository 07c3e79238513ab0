"""Checks the text of a submitted design, then becomes the harness's own command, which is in the arguments.

NotSoTiny's harness compares the design with a reference in Yosys, and its verdict is a sentence in what Yosys prints.
Yosys also prints what a design tells it to print, and it reads what a design includes. So a design has to do without
everything by which it could print a sentence, read a file, or change what is compared. Lines of the problem's own files
may contain anything but marks of block comments. Files that are as they were given may contain these, too.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

FOLDERS = ("/code/rtl", "/code/verif")
PROSE = re.compile(r'"((?:[^"\\\n]|\\.)*)(?:"|(?P<open>))|//[^\n]*|/\*.*?(?:\*/|(?P<endless>\Z))', re.DOTALL)
HIDING = re.compile(r"\\[^\s\0]*\0")
"""An escaped name that goes on in a comment or a text, where ``PROSE`` is replaced by a NUL."""
DIGITS = re.compile(r"'[sS]?[bBoOdDhH](?=`)")
"""The base of a number whose digits come from a macro."""
TASKS = {"clog2", "signed", "unsigned", "bits", "countones", "onehot", "onehot0", "isunknown", "size", "high", "low"}
TASKS |= {"left", "right", "readmemh", "readmemb"}
DIRECTIVES = {
    "define",
    "undef",
    "ifdef",
    "ifndef",
    "elsif",
    "else",
    "endif",
    "timescale",
    "celldefine",
    "endcelldefine",
    "default_nettype",
    "resetall",
}
WORDS = re.compile(r"\b(?:assume|assert|cover|restrict|bind|blackbox|whitebox|lib_whitebox)\b")
FOREIGN = ("DPI", "DPI-C")
"""Languages of imported functions. Yosys calls those of its process's libraries, such as `exit`, while it reads."""
CONDITION = re.compile(r"`(?:ifdef|ifndef|elsif)\s+(\w+)")
DEFINE = re.compile(r"`define\s+(\w+)((?:\\\n|[^\n])*)")
PASSES = (
    "setattr -mod -unset keep_hierarchy; setattr -unset keep_hierarchy; hierarchy; flatten; check; memory; "
    # A comparison has no latches and no asynchronous resets, but the gates that this pass makes of them.
    "async2sync; simplemap; scc"
)
OURS = ("design_text.py", "own_files.json", "own_lines.json", "own_ports.json")
"""What the package adds to the harness, which defines no macro."""
JOINED = re.compile(r"[\w$`]`|\w\\\n\w")


def faults(text, allowed, macros):
    """What the text of a design may not have. Yosys reads what a macro is replaced by together with its neighbours.

    Lines in `allowed` are the problem's own, `macros` are the names that any of its files defines.
    """
    kept = by_owner(text, allowed)[1]
    if "\r" in kept:
        yield "a carriage return, which Yosys leaves out,"
    if match := HIDING.search(PROSE.sub("\0", kept)):
        yield f"a comment or a text in the name {match[0][:-1]!r}"
    for match in PROSE.finditer(kept):
        if match[0].startswith("//") and match[0].endswith("\\"):
            yield "a backslash at the end of a comment"
        if match[1] in FOREIGN:
            yield f"the text {match[0]!r}"
        elif match[1] is not None and not re.fullmatch(r"[\w./-]*", match[1]):
            yield f"the text {match[0]!r}, other than of letters, digits and ._/-,"
    code = without_prose(kept)
    for match in [*JOINED.finditer(DIGITS.sub(" ", code)), *re.finditer(r"`(?![A-Za-z_])", code)]:
        yield f"the macro in {code[max(0, match.start() - 9) : match.end() + 9].strip()!r}"
    for match in re.finditer(r"`(\w+)[ \t]*\(", code):
        end = arguments_end(code, match.end())
        if match[1] not in DIRECTIVES and re.match(r"[\w$`]", code[end : end + 1]):
            yield f"the macro in {code[match.start() : end + 9].strip()!r}"
    for mark in ('"', "/*", "``", '`"', "`\\"):
        if mark in code:
            yield repr(mark)
    for task in re.findall(r"\$(\w+)", code):
        if task not in TASKS:
            yield f"${task}"
    names = DIRECTIVES | macros
    for name in re.findall(r"`(\w+)", code):
        if name not in names or name in ("include", "line"):
            yield f"`{name}"
    for match in WORDS.finditer(code):
        yield match[0]


def other_readings(path, texts, allowed):
    """Macros by which a design could be another one in the comparison than in the check of loops, drivers and ports.

    Yosys keeps macros from one source to the next, and the harness may read them in another order, or define some. So
    what a macro decides in lines that are not the problem's own may not depend on other sources. `texts` has all of
    them by path, those of the harness too.
    """
    elsewhere, named = {}, set()
    for other, text in texts.items():
        own, rest = map(without_prose, by_owner(text, allowed))
        for name, body in DEFINE.findall(own if other == path else f"{own}\n{rest}"):
            elsewhere.setdefault(name, set()).add(body.strip())
        if other.startswith("/src/") and not other.endswith((".v", ".sv", *OURS)):
            named.update(re.findall(r"\w+", text), re.findall(r"-D\s*(\w+)", text))
    if "formal" in named:  # read_verilog -formal defines it
        named.add("FORMAL")
    rest = without_prose(by_owner(texts[path], allowed)[1])
    for name in CONDITION.findall(rest):
        if name in elsewhere or name in named:
            yield f"a condition on the macro {name}, which other sources may define,"
    for name, body in DEFINE.findall(rest):
        if elsewhere.get(name, set()) - {body.strip()}:
            yield f"another `define of {name} than in other sources"


def by_owner(text, allowed):
    """A text in two parts: the problem's own lines, and the others."""
    lines = text.replace("\r\n", "\n").split("\n")
    own = [line for line in lines if line.strip() in allowed]
    rest = [line for line in lines if line.strip() not in allowed]
    return "\n".join(own), "\n".join(rest)


def without_prose(text):
    """A text without comments and strings. Of those that do not end, all is kept."""
    return PROSE.sub(lambda found: " " if found["open"] is found["endless"] is None else found[0], text)


def arguments_end(code, at):
    """Where the parentheses end that are open before `at`."""
    depth = 1
    while depth and at < len(code):
        depth += {"(": 1, ")": -1}.get(code[at], 0)
        at += 1
    return at


def read(*files):
    """What Yosys finds in sources: the number of combinational loops, bit by bit, and of conflicts between drivers; and
    the ports of each module, as name, direction and width. None if it cannot read the sources together.

    No module is the top, so none is left out.
    """
    with tempfile.TemporaryDirectory() as folder:
        passes = f"proc; write_json {folder}/design.json; {PASSES}"
        # As arguments, since a file's name within Yosys's script could hold a command.
        command = ["yosys", "-f", "verilog -sv", "-p", passes, *files]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
        if done.returncode:
            return None
        with open(f"{folder}/design.json", encoding="utf-8", errors="replace") as stream:
            modules = json.load(stream)["modules"]
    loops = sum(map(int, re.findall(r"^Found (\d+) SCCs\.$", done.stdout, re.MULTILINE)))
    conflicts = len(re.findall(r"^Warning: .*\bconflicting\b", done.stdout, re.MULTILINE))
    ports = {
        name.removeprefix("\\"): [[port, of["direction"], len(of["bits"])] for port, of in module["ports"].items()]
        for name, module in modules.items()
    }
    return loops, conflicts, ports


def sources(*tops):
    """The Verilog below some folders."""
    every = [f"{folder}/{name}" for top in tops for folder, _, files in os.walk(top) for name in sorted(files)]
    return [path for path in every if path.endswith((".v", ".sv"))]


def contradictions(expected):
    """Why a comparison with the design could be true whatever it does, if there is a reason.

    A loop without a solution, such as ``q = !q``, makes every comparison that depends on it true, and so do wires with
    two drivers and inputs that the design drives itself. A source of the harness may have as many of the first two.
    `expected` are the ports of the task's modules.
    """
    files = sources("/code/rtl")
    together = read(*files) if files else (0, 0, {})
    found = [together] if together else [read(file) for file in files]
    if None in found:
        return "Yosys cannot read the design"
    own = [one for file in sources("/src") if (one := read(file))]
    for kind, what in enumerate(("a combinational loop", "a wire with conflicting drivers")):
        if max(one[kind] for one in found) > max((one[kind] for one in own), default=0):
            return f"{what} is not allowed, as it may make the comparison true whatever the design does"
    for name, ports in ((name, ports) for one in found for name, ports in one[2].items()):
        if ports != expected.get(name, ports):
            return f"the ports of {name} are not those of the task"
    return None


def texts_below(*tops):
    """The files below some folders, by path."""
    texts = {}
    for top in tops:
        for folder, _, files in os.walk(top):
            for name in sorted(files):
                with open(f"{folder}/{name}", encoding="utf-8", errors="replace", newline="") as stream:
                    texts[f"{folder}/{name}"] = stream.read()
    return texts


def main():
    with open("/src/own_lines.json", encoding="utf-8") as stream:
        allowed = set(json.load(stream))
    texts = texts_below(*FOLDERS)
    macros = {name for text in texts.values() for name in re.findall(r"`define\s+(\w+)", without_prose(text))}
    every = texts | texts_below("/src")
    with open("/src/own_files.json", encoding="utf-8") as stream:
        given = json.load(stream)
    for path, text in texts.items():
        same = hashlib.sha256(text.encode()).hexdigest() == given.get(path)
        for fault in [*([] if same else faults(text, allowed, macros)), *other_readings(path, every, allowed)]:
            sys.exit(f"{path}: {fault} is not allowed, as the verdict is what Yosys prints")
    with open("/src/own_ports.json", encoding="utf-8") as stream:
        expected = json.load(stream)
    if shutil.which("yosys") and (reason := contradictions(expected)):
        sys.exit(reason)
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()

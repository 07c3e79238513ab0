"""Runs compilers for a guard, and checks what they read: included files, and uses of a hidden testbench."""

from __future__ import annotations

import functools
import itertools
import os
import re
import signal
from collections import namedtuple

from . import compiled
from .compiled import COCOTB_DUMP, EDITABLE, READABLE, TOOLS, below, short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from .messages import Build

APART = "?: the texts of the hidden testbench and of the design cannot be separated, so nothing is simulated"
CHANGED = "?: a macro of the design changes the text of the hidden testbench, so nothing is simulated"
CLAIMED = "?: a `line directive of the design names a file that is not the design's, so nothing is simulated"
SOURCE_OF = re.compile(r'^[ \t]*`line[ \t]+\d+[ \t]+"(.*)"', re.MULTILINE)
"""A file that a text claims to come from: for Icarus, what is between the first and last quotation mark of a line."""
LINE = re.compile(r'^`line \d+ "[^"\n]*" \d\n', re.MULTILINE)
"""A line that has nothing but such a directive."""

Reach = namedtuple("Reach", "violations refusals mixed")
"""Where a design uses the testbench it is compiled with, why that cannot be determined, and whether there is one."""
SHIPPED = ("/usr/local/lib/ivl/include", "/usr/lib/ivl/include")
"""Folders of the headers that come with Icarus, such as ``constants.vams``, which any source may include."""
OWN = (*READABLE, *SHIPPED)
"""Folders of sources that count as the design's; also the shipped headers, which contain no module and no call."""
HIDDEN = ("/src", "/code/src")
"""Folders of the harness's files, each of which is in both."""
WHOLE = re.compile(rb"\bmodule\b.*\bendmodule\b", re.DOTALL)
"""What a hidden text must have to be recognised in the middle of another text."""


class OwnFolder:
    """A new private folder, which is removed at the end."""

    def __enter__(self) -> str:
        count = 0
        while True:
            self.path = f"/tmp/rtl-gym-{os.getpid()}-{count}"
            try:
                os.mkdir(self.path, 0o700)
                return self.path
            except FileExistsError:
                count += 1

    def __exit__(self, *_: object) -> None:
        for name in os.listdir(self.path):
            os.unlink(f"{self.path}/{name}")
        os.rmdir(self.path)


def run(command: list[str], outputs: dict[int, str], env: Mapping[str, str] = os.environ) -> int:
    """Run a program with some descriptors redirected to files. Returns its exit status, negative for a signal."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    opened = [(os.POSIX_SPAWN_OPEN, number, path, flags if number else 0, 0o600) for number, path in outputs.items()]
    ignored = [signal.SIGPIPE, signal.SIGXFSZ]  # Python ignores these; other programs expect the default
    pid = os.posix_spawn(command[0], command, env, file_actions=opened, setsigdef=ignored)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def read_lines(path: str) -> list[str]:
    """The lines of the compiler's list. Only newlines end them, since paths may contain other line ends of Unicode."""
    try:
        with open(path, "rb") as stream:
            return [os.fsdecode(line) for line in stream.read().split(b"\n") if line]
    except FileNotFoundError:
        return []


def without(letter: str, arguments: list[str]) -> list[str]:
    """Icarus's arguments without an option and its value, which may be in the same word."""
    kept, is_value = [], False
    for word in arguments:
        option = None if is_value else re.match(f"-[EhiRSuvV]*{letter}", word)
        if not is_value and (option is None or option.end() > 2):
            kept.append(word if option is None else word[: option.end() - 1])
        is_value = option is not None and option.end() == len(word)
    return kept


def outputs(arguments: list[str]) -> list[str]:
    """The files that Icarus may write with these arguments, without links."""
    pairs = zip(arguments, [*arguments[1:], ""], strict=True)
    options = [(re.match("-[EhiRSuvV]*o(.*)", word, re.DOTALL), after) for word, after in pairs]
    found = [option[1] or after for option, after in options if option]
    found = found or (["a.out"] if is_compilation(arguments) else [])
    return [path if path.startswith("/dev/") else os.path.realpath(path) for path in dict.fromkeys(found)]


def is_compilation(arguments: list[str]) -> bool:
    """Whether Icarus is to write a compiled design: not with ``-E``, another target, or a question about itself."""
    text = "\0".join(["", *arguments])
    return not re.search("\0-[iRSuv]*(?:[EhV]|t\0?+(?!vvp(?:\0|$)))", text)


def named_files(arguments: list[str], lines: list[str]) -> list[str]:
    """The files that the harness names in parameters and defines, from which a design may initialise a memory.

    Empty if a hidden source is compiled, whose parameters may name files that a design must not read.
    """
    if not all(is_own(line[2:]) or _is_dump(line[2:]) for line in lines):
        return []
    found = (re.search(r'^[-+\w.$]+=[\\"]*(/[^"\\]+)[\\"]*$', word) for word in arguments)
    return [match[1] for match in found if match and os.path.isfile(match[1])]


def own_build(arguments: list[str]) -> Build:
    """The submission's part of the arguments of Icarus or Verilator, without the words of options files."""
    sources: list[str] = []
    folders, defines = [os.getcwd()], []
    words = iter(arguments)
    for word in words:
        if word.startswith("+incdir+"):
            folders += word.split("+")[2:]
        elif word.startswith("+define+"):
            defines += word.split("+")[2:]
        elif word[:2] in ("-I", "-y"):
            folders.append(word[2:] or next(words, ""))
        elif word[:2] == "-D":
            defines.append(word[2:] or next(words, ""))
        elif word in ("-o", "-s", "-P"):
            next(words, None)
        elif not word.startswith("-") and os.path.isfile(word):
            sources.append(word)
    places = dict.fromkeys(map(os.path.realpath, folders))
    return {
        "sources": [short(path) for path in dict.fromkeys(map(os.path.realpath, sources)) if below(path, EDITABLE)],
        "folders": [os.path.relpath(path, "/code") for path in places if below(path, ("/code",))],
        "defines": list(dict.fromkeys(defines)),
    }


def include_faults(lines: list[str]) -> list[str]:
    """Violations: included files that are not the problem's.

    The list is in the order of reading: each source (``M``) is followed by the files that it includes (``I``). Files of
    the harness may include anything, unless a submitted file that they included earlier could have included it.
    """
    odd = [f"?: the compiler's list of files has the line {line!r}" for line in lines if line[:2] not in ("M ", "I ")]
    read = list(dict.fromkeys(os.path.realpath(line[2:]) for line in lines))
    theirs, wrong = True, set()
    for line in lines:
        path = os.path.realpath(line[2:])
        if below(path, SHIPPED):
            continue
        if line.startswith("M "):
            theirs = not is_hidden(path)
        elif not below(path, READABLE) and not _is_submitted(path):
            wrong |= {path} if theirs else set()
        elif not theirs:
            theirs = _could_include(path)
    return odd + [
        f"{_including(path, read)}: `include reads {path!r}, which is none of the problem's files"
        for path in sorted(wrong)
    ]


def _could_include(path: str) -> bool:
    """Whether a file that a harness's source includes could itself include files that are not the problem's."""
    with open(path, "rb") as stream:
        text = stream.read()
    plain = re.sub(rb'`include\s+"(/code/(?:rtl|verif|docs)/(?:[\w-][\w.-]*/)*[\w-][\w.-]*)"', b"", text)
    return b"include" in plain or b"``" in plain


def icarus_beyond_ports(lines: list[str], arguments: list[str]) -> Reach:
    """`beyond_ports` for Icarus, from its list of files."""
    arguments = [word for word in _with_listed(arguments) if not _is_dump(word)]
    lines = [line for line in lines if not _is_dump(line[2:])]
    sources = [os.path.realpath(line[2:]) for line in lines if line.startswith("M ")]
    named = [word for word in arguments if os.path.realpath(word) in sources]
    named.sort(key=lambda word: sources.index(os.path.realpath(word)))  # listed sources are read first
    others = [word for word in without("o", arguments) if word not in named]
    tops = [word for option, word in itertools.pairwise(others) if option == "-s"]
    tops += [word[2:] for word in others if word.startswith("-s") and len(word) > 2]
    given = 0 if any(re.match("-[EhiRSvV]*u", word) for word in others) else len(named)
    named += [path for path in libraries(others) if os.path.realpath(path) in sources]
    if any(map(is_hidden, sources)) and set(sources) - set(map(os.path.realpath, named)):
        return Reach([], [APART], True)  # an options file names sources
    if any(map(is_part_hidden, sources)):
        return Reach([], [APART], True)
    hidden, read = list(filter(is_hidden, named)), lines
    if 0 < len(hidden) < len(named):
        with OwnFolder() as folder:
            preprocess = [f"{TOOLS}/iverilog", f"-Mprefix={folder}/files", "-E", "-o", "/dev/null", *others, *hidden]
            run(preprocess, {1: "/dev/null", 2: "/dev/null"})
            read = read_lines(f"{folder}/files")
    if hidden and not (read and all(is_hidden(line[2:]) for line in read)):
        return Reach([], [APART], True)  # the testbench includes a file of the design
    command = [f"{TOOLS}/iverilog", "-E", "-o", "/dev/stdout", _as_compiled(), *others]
    reach = beyond_ports(command, named, tops, libraries(others), given)
    if reach.mixed and any(re.match("-[iRSuv]*E", word) for word in others):  # into one text, to be compiled later
        return reach._replace(refusals=[*reach.refusals, APART])
    return reach


def _with_listed(arguments: list[str]) -> list[str]:
    """Icarus's arguments with each file of options replaced by its words, unless a line cannot be judged."""
    found: list[str] = []
    words = iter(arguments)
    for word in words:
        given, listed = [word], list[list[str] | None]()
        if word[:2] in ("-c", "-f"):
            given += [] if word[2:] else [next(words, "")]
            path = word[2:] or given[-1]
            listed = list(map(_listed, read_lines(path) if os.path.isfile(path) else []))
        found += given if None in listed or not listed else [one for line in listed for one in line or ()]
    return found


def _listed(line: str) -> list[str] | None:
    """The arguments for a line of a file of options: a source, folders, macros or a comment. None for other lines."""
    before, comment, _ = ("" if line.startswith("#") else line).partition("//")
    if comment and re.search(r"\+[^ \t\f\r]*$", before):  # a part of a macro or of a folder
        return None
    line = before.strip(" \t\f\r")  # other characters are parts of words
    if option := re.fullmatch(r"\+(incdir|define)((?:\+[\w./=-]+)+)", line, re.ASCII):
        return [f"{'-I' if option[1] == 'incdir' else '-D'}{value}" for value in option[2].split("+")[1:]]
    return [] if not line else [line] if re.fullmatch(r"[\w./][\w./-]*", line, re.ASCII) else None


def _as_compiled() -> str:
    """An option of Icarus for the text that its compiler reads.

    ``-E`` alone omits the lines that the preprocessor inserts between files and after macros of several lines. So a
    comment at their end would seem to continue over words that are compiled. The option should name the preprocessor's
    folder, but Icarus uses it to build a shell command, so it can name a command.
    """
    folder = next(filter(os.path.isdir, map(os.path.dirname, SHIPPED)), "")
    return f"""-BP/bin/sh -c 'exec {folder}/ivlpp -L "$@"' """


def is_own(path: str) -> bool:
    """Whether parts of a compiled file that come from this source are the design's, which may claim any such file.

    A copy of a hidden text is not, unless it declares nothing, like a header of macros, which a design may include.
    """
    path = os.path.realpath(path)
    if not is_hidden(path):
        return True
    return below(path, OWN) and (_beside_hidden(path) is None or b";" not in _content(path))


def is_hidden(path: str) -> bool:
    """Whether a source is the harness's: a copy of hidden texts, or outside of `READABLE` and no copy of the design."""
    path = os.path.realpath(path)
    return _beside_hidden(path) == b"" or not (below(path, READABLE) or _is_submitted(path))


def is_part_hidden(path: str) -> bool:
    """Whether the harness put hidden texts and others into one file in the tests' working folder."""
    path = os.path.realpath(path)
    return below(path, READABLE) and bool(_beside_hidden(path))


def _is_submitted(path: str) -> bool:
    """Whether a file outside of the harness's folders is a copy of a submitted one."""
    if below(path, HIDDEN) or not os.path.isfile(path) or not (size := os.path.getsize(path)):
        return False
    files = (f"{at}/{name}" for folder in EDITABLE for at, _, names in os.walk(folder) for name in names)
    alike = (file for file in files if os.path.isfile(file) and os.path.getsize(file) == size)
    return any(_content(file) == _content(path) for file in alike)


def is_as_submitted(path: str) -> bool:
    """Whether a file in a folder of submitted files has not changed since the grading began."""
    return below(path, EDITABLE) and (compiled.times is None or os.stat(path).st_ctime_ns in compiled.times)


def _beside_hidden(path: str) -> bytes | None:
    """What a file that was not submitted contains besides hidden texts; None if it contains none of them.

    The harness may have written it from submitted files. Nothing of them is in it only if it consists of hidden texts.
    """
    if below(path, HIDDEN) or not os.path.isfile(path) or is_as_submitted(path):
        return None
    text = _content(path)
    files, strings = hidden_texts()
    pieces = [b"", b""] if text and (text in files or text in strings) else [text]
    for hidden in filter(WHOLE.search, files):
        pieces = [rest for piece in pieces for rest in piece.split(hidden)]
    marked = any(below(os.path.realpath(file), HIDDEN) for file in SOURCE_OF.findall(os.fsdecode(text)))
    return b"".join(map(bytes.strip, pieces)) if len(pieces) > 1 else text if marked else None


@functools.cache
def hidden_texts() -> tuple[list[bytes], set[bytes]]:
    """The texts of the harness's files, the longest first, and the constant strings in its Python."""
    import ast

    files, strings = set[bytes](), set[bytes]()
    for folder, _, names in os.walk(HIDDEN[0]):
        for path in filter(os.path.isfile, (f"{folder}/{name}" for name in names)):
            files.add(_content(path))
            try:
                nodes = ast.walk(ast.parse(_content(path))) if path.endswith(".py") else ()  # noqa: TID251
            except (SyntaxError, ValueError):
                continue
            values = (node.value for node in nodes if isinstance(node, ast.Constant))
            strings |= {value.encode(errors="replace").strip() for value in values if isinstance(value, str)}
    return sorted(files, key=len, reverse=True), strings


def _content(path: str) -> bytes:
    """A file's bytes, without white space around them."""
    with open(path, "rb") as stream:
        return stream.read().strip()


def libraries(arguments: list[str]) -> list[str]:
    """Files that the compiler may read to find a missing module."""
    found: list[str] = []
    for at, word in enumerate(arguments):
        if word[:2] in ("-y", "-l"):
            place = word[2:] or "".join(arguments[at + 1 : at + 2])
            names = sorted(os.listdir(place)) if os.path.isdir(place) else []
            found += [f"{place}/{name}" for name in names if name.endswith((".v", ".sv", ".vl"))]
            found += [place] if os.path.isfile(place) else []
    return found


def beyond_ports(
    command: list[str], sources: list[str], tops: list[str], searched: list[str], given: int | None = None
) -> Reach:
    """Where a design uses names of a testbench that it is compiled with.

    Args:
        command: A command that prints the preprocessed text of the sources appended to it.
        sources: The compiled sources.
        tops: Modules that the harness names as top modules.
        searched: Files that the compiler may read to find a module, which has the name of the file.
        given: How many of the sources the compiler reads one after another, by default all; it reads each of the others
            separately after these.
    """
    given = len(sources) if given is None else given
    hidden = list(map(is_hidden, sources))
    if all(hidden) or not any(hidden):
        return Reach([], [], False)
    texts = _texts(command, sources, given)
    own_sources = [word for word, is_hidden in zip(sources, hidden, strict=True) if not is_hidden]
    alone = _texts(command, [word for word in sources if word not in own_sources], sum(hidden[:given]))
    if texts is None or alone is None:
        return Reach([], [APART], True)
    mine, theirs = ([text for text, at in zip(texts, hidden, strict=True) if at == side] for side in (False, True))
    from .testbench import CHOOSES, Names, hides_the_next, odd_directives, reach_faults, replaced_names, takes_macros

    own_alone = _texts(command, own_sources, given - sum(hidden[:given]))
    if _words(mine) != _words(own_alone) and takes_macros(mine, theirs, SOURCE_OF):
        return Reach(["?: the design uses a macro of the hidden testbench"], [], True)
    if _words(theirs) != _words(alone):
        return Reach([], [CHANGED], True)
    if not all(is_hidden(file) for text in theirs for file in SOURCE_OF.findall(text)):
        return Reach([], [APART], True)  # the testbench includes a file of the design
    followed = zip(texts[: max(given, 1) - 1], hidden, strict=False)
    if any(not is_hidden and hides_the_next(text) for text, is_hidden in followed):
        return Reach([], [APART], True)
    names = Names(theirs, tops, list(filter(None, map(_module_in, filter(is_hidden, searched)))))
    own = [(text, os.path.realpath(word)) for text, word in zip(mine, own_sources, strict=True)]
    faults = [fault for text, file in own for fault in reach_faults(text, file, names, _shown)]
    odd = [fault for text, file in own for fault in odd_directives(text, file, _shown)]
    odd += [fault for text, file in own if given for fault in replaced_names(text, file, names, _shown)]
    odd += [CHOOSES] if names.wildcard else []
    odd += [CLAIMED for text, _ in own for file in SOURCE_OF.findall(text) if not is_own(file)]
    return Reach(faults, list(dict.fromkeys(odd)), True)


def _module_in(path: str) -> str | None:
    """The module that a compiler finds in a file by the file's name."""
    name = os.path.basename(path).partition(".")[0]
    declared = re.search(rf"\bmodule\s+(?:\w+\s+)?{re.escape(name)}\b", os.fsdecode(_content(path)))
    return name if declared else None


def _shown(path: str) -> str:
    """A path relative to the work folder, whatever the command calls it."""
    return short(os.path.realpath(path))


def _texts(command: list[str], sources: list[str], given: int) -> list[str] | None:
    """The preprocessed text of each source after the `given` ones before it; None if it cannot be determined.

    The preprocessor reads one source after another, so its text of n sources is the beginning of its text of n + 1.
    """
    import subprocess

    texts, before = [], b""
    for at, source in enumerate(sources):
        words = [*command, *sources[: min(at, given)], source]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        if done.returncode or not done.stdout.startswith(before):
            return None
        # Icarus ends a line before each source but the first.
        texts.append(os.fsdecode(done.stdout[len(before) :].removeprefix(b"\n")))
        before = done.stdout if at < given else before
    return texts


def _words(texts: list[str] | None) -> list[str] | None:
    """Preprocessed texts without `line directives: Verilator writes more of them in the first source than in others."""
    return texts and [LINE.sub("", text) for text in texts]


def _including(path: str, read: list[str]) -> str:
    """Where `path` is included, as ``file:line``; if through a macro, the first inclusion through any macro."""
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


def _is_dump(path: str) -> bool:
    """Whether a source is the one that cocotb adds for waveforms, which is not a testbench."""
    return os.path.basename(path) == COCOTB_DUMP and not below(os.path.realpath(path), EDITABLE)


def mixed(lines: list[str]) -> bool:
    """Whether submitted files are compiled together with others, from the compiler's list."""
    hidden = [is_hidden(line[2:]) for line in lines if not _is_dump(line[2:])]
    return any(hidden) and not all(hidden)

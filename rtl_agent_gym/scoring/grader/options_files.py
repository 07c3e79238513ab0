"""What is around a build of Verilator's: its arguments, also in files (``-f``), the folder of the build, and the files
that the program opens.
"""

from __future__ import annotations

import itertools
import os
import re

from . import compiled, sources
from .compiled import LOADED, SECRET, WORK, below, short

OPTIONS_FILES = ("f", "F")
"""The options that name such a file."""
LISTED = re.compile(r"(?!-+[fF]$)[\w.+=:-]*(?:/[\w.+=:-]+)*", re.ASCII)
"""A word of an options file without special meaning: no comment, variable or quotation."""
C_SOURCES = (".c", ".cc", ".cpp", ".cxx")
FOREIGN_SOURCES = (*C_SOURCES, ".sp", ".o", ".a", ".so", ".vlt")
"""Endings of files that Verilator does not read as Verilog."""
PLAIN = re.compile(
    r"(?:[+-]+(?:[DIGWOUfFvy]|incdir|libext|define|sv$|top|timing|no-timing|trace|assert|timescale|language|x-"
    r"|default-language|relative-includes|bbox|unroll|public|coverage|error-limit)|[\w./])[\w.+=:/,-]*",
    re.ASCII,
)
"""A source, or a Verilator option that starts no program."""
BUILT = (".d", ".h", ".mk", ".gch")
"""Endings of files that make or the compiler may read because they are in the folder of a build."""
HEADERS = "/usr/share/verilator/include"
AT = """\
#ifndef RTL_GYM_AT
#define RTL_GYM_AT
#include <cstddef>
#include <type_traits>
template <class T, std::size_t N> inline T& rtl_gym_at(T (&all)[N], std::size_t at) {
    if (at < N) return all[at];
    static typename std::remove_const<T>::type beyond;
    return beyond;
}
#endif
"""
"""What is before Verilator's ``verilated.h``: an element of an array, or one of no array beyond its end."""
INDEXED = re.compile(r"(?<=operator\[\]\(size_t index\)) (const )?{ return m_storage\[index\]; }")
"""An element of an unpacked array in ``verilated_types.h``."""
WORDS = re.compile(r"^    EData m_storage\[N_Words\];.*\n", re.MULTILINE)
"""The words of a wide vector in ``verilated_types.h``."""
WORD = """\
    EData& operator[](std::size_t index) { return rtl_gym_at(m_storage, index); }
    const EData& operator[](std::size_t index) const { return rtl_gym_at(m_storage, index); }
"""
PACKED = re.compile(r"(for \(size_t i = 0; i < (?:q\.size\(\)|N_Depth));( \+\+i\)\n\s+_vl_insert_W)")
"""The elements of a queue or an array that are packed into a wide vector, in ``verilated_funcs.h``."""
CHANGED = {
    "verilated.h": (),
    "verilated_types.h": ((INDEXED, r" \1{ return rtl_gym_at(m_storage, index); }"), (WORDS, rf"\g<0>{WORD}")),
    "verilated_funcs.h": ((PACKED, r"\1 && (i + 1) * lbits <= static_cast<std::size_t>(obits);\2"),),
}
"""Verilator's headers that are replaced, and what is replaced in them."""
CLIPPED = """\
#ifndef RTL_GYM_CLIPPED
#define RTL_GYM_CLIPPED
static inline int rtl_gym_bits(int size, int bits, int at) {
    return at < 0 || at >= size ? 0 : std::min(bits, size - at);
}
"""
CLIPPED += "".join(
    f"static inline void rtl_gym_{kind}(int size, int bits, int at, WDataOutP to, {value} from) {{\n"
    f"    if (const int fit = rtl_gym_bits(size, bits, at)) VL_ASSIGNSEL_{kind}(size, fit, at, to, from);\n}}\n"
    f"#define VL_ASSIGNSEL_{kind} rtl_gym_{kind}\n"
    for kind, value in (("WI", "IData"), ("WQ", "QData"), ("WW", "WDataInP"))
)
CLIPPED += "#endif\n"
"""What is after ``verilated.h``, whose functions write the bits beyond the end of a part of a vector to memory."""
DUMPS = (".vcd", ".fst", ".lxt", ".lxt2", ".lx2", ".evcd", ".fsdb", ".vcd.gz")
"""Endings of waveform files."""
COMMENT = re.compile(r"^[ \t]*//.*", re.MULTILINE)


def with_listed(arguments: list[str]) -> list[str]:
    """The arguments with each options file replaced by its words, unless it has more than plain words."""
    found: list[str] = []
    words = iter(arguments)
    for word in words:
        found.append(word)
        if word.lstrip("-") == "f":
            path = next(words, "")
            found.append(path)
            if os.path.isfile(path):
                with open(path, "rb") as stream:
                    listed = list(map(os.fsdecode, stream.read().split()))  # at white space of ASCII's, as Verilator
                found[-2:] = listed if all(map(LISTED.fullmatch, listed)) else found[-2:]
    return found


def has_hidden_main(given: list[str], options: set[str]) -> bool:
    """Whether the testbench is a ``main`` in C++, from a build's arguments and all its options.

    That is so unless Verilator writes a ``main``, cocotb's is linked, or the submission has one. A submitted file of
    options must not claim any of this, so only the harness's arguments count for it.
    """
    known = any(word.lstrip("-") in ("binary", "main") or "cocotbvpi" in word for word in given)
    programs = [below(os.path.realpath(word), compiled.EDITABLE) for word in given if word.endswith(C_SOURCES)]
    return not options.isdisjoint(("cc", "sc")) and not known and not (programs and all(programs))


def elsewhere(arguments: list[str], sources: set[str]) -> list[str]:
    """Arguments for another working folder, without the sources and without submitted folders that are searched."""
    found: list[str] = []
    words = iter(arguments)
    for word in words:
        if word.lstrip("-") in ("f", "F", "v", "y"):
            value = next(words, "")
            found += [word, os.path.abspath(value)] if word.lstrip("-") == "y" and _hidden(value) else []
        elif word.startswith(("-I", "+incdir+")):
            places = word.removeprefix("-I").removeprefix("+incdir+").split("+")
            found += [f"+incdir+{os.path.abspath(place)}" for place in places if _hidden(place)]
        elif os.path.realpath(word) not in sources or not os.path.isfile(word):
            found.append(word)
        elif word.endswith(".vlt"):
            found.append(os.path.abspath(word))
    return found


def _hidden(folder: str) -> bool:
    """Whether a searched folder is neither a submitted one nor one that Verilator would search anyway."""
    path = os.path.realpath(folder)
    return not below(path, compiled.READABLE) and path != os.getcwd()


def running_options(arguments: list[str]) -> list[str]:
    """Reasons not to start Verilator: a submitted file of options has one that could run a program (``--pipe-filter``,
    ``-CFLAGS``), a source in C++, or a word with a quotation mark, a variable or a comment, which could contain these.
    """
    faults, seen = list[str](), set[str]()
    left = [path for option, path in itertools.pairwise(arguments) if option.lstrip("-") in OPTIONS_FILES]
    while left:
        path = left.pop()
        if path in seen or not os.path.isfile(path):
            continue
        seen.add(path)
        with open(path, encoding="utf-8", errors="surrogateescape") as stream:
            words = COMMENT.sub("", stream.read()).split()
        nested = [name for option, name in itertools.pairwise(words) if option.lstrip("-") in OPTIONS_FILES]
        left += [place for name in nested for place in (name, os.path.join(os.path.dirname(path), name))]
        for word in words if below(os.path.realpath(path), compiled.EDITABLE) else ():
            if not PLAIN.fullmatch(word) or word.endswith(FOREIGN_SOURCES):
                faults.append(f"{short(path)}: {word!r} in a file of options, which could run a program")
    return faults


def prepare(arguments: list[str]) -> list[str]:
    """Prepare the folder of a build; returns why that is not possible. Submitted files that make or the compiler would
    read there are removed. The program will write nothing beyond the end of a vector or an array: its sources include
    ``verilated.h`` with quotation marks, and so find ours beside them first.

    Verilator's own checks are not enough. For example, in ``m[k] = #1 d`` it checks `k` before the delay, and in
    ``w = {>>{q}}`` the queue may have more bits than the vector.
    """
    pairs = itertools.pairwise(with_listed(arguments))
    folder = ["obj_dir", *(value for word, value in pairs if word.lstrip("-") == "Mdir")][-1]
    try:
        os.makedirs(folder, exist_ok=True)
        for path in (f"{folder}/{name}" for name in os.listdir(folder) if name.endswith(BUILT)):
            if os.path.isfile(path) and sources.is_as_submitted(os.path.realpath(path)):
                os.unlink(path)
        for name, changes in CHANGED.items():
            with open(f"{HEADERS}/{name}", encoding="utf-8") as stream:
                text = stream.read()
            for pattern, replacement in changes:
                text = pattern.sub(replacement, text)
            text = f"{AT}{text}{CLIPPED}" if name == "verilated.h" else text
            with open(f"{folder}/{name}", "w", encoding="utf-8") as stream:
                stream.write(text)
    except OSError as error:
        return [f"{short(os.path.realpath(folder))}: Verilator cannot build in this folder ({error.strerror})"]
    return []


def file_fault(task: str, path: str, *, reads: bool) -> tuple[bool, str | None]:
    """Whether opening a file is a violation, and what is wrong with that; None if nothing is wrong."""
    shown = repr(path)
    places = {os.path.normpath(os.path.join(os.getcwd(), path)), os.path.realpath(path.replace("\0", "?"))}
    secret = any(below(place, SECRET) for place in places)
    if reads:
        here = os.getcwd()
        work = (*WORK, *([here] if here != "/" and not os.path.isabs(path) else []))
        if secret or not all(below(place, work) for place in places):
            return secret, f"{task} reads {shown}, which is none of the problem's files"
        return False, None
    if secret or path.endswith(LOADED):
        return True, f"{task} opens {shown} for writing, which only the checker may"
    if task == "$dumpfile":
        waves = path.endswith(DUMPS) or "." not in os.path.basename(path)
        return False, None if waves else f"$dumpfile writes {shown}, which is no waveform file; it cannot be watched"
    return False, f"{task} opens {shown} for writing; in a program of Verilator's that cannot be watched"

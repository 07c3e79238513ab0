"""Checks a design that is compiled together with a hidden testbench: they may be connected by ports only.

A testbench in Verilog has the expected results in its variables. A design compiled with it could read or write them by
name, use the testbench's reference model, or end the simulation before the first comparison. No honest design needs
that. All of this requires a name of the testbench, or one of a few keywords, in the preprocessed text of the design.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import namedtuple
from collections.abc import Callable, Sequence

TOKEN = re.compile(
    r'(?P<string>"(?:[^"\\]|\\.)*")|(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))|(?P<escaped>\\[^ \t\b\f\r\n]+)'
    r"|(?P<line>^[ \t]*`line\b[^\n]*)|(?P<directive>`\w+)"
    r"|(?P<number>'[sS]?(?:[bB][ \t]*[01xXzZ?_]+|[oO][ \t]*[0-7xXzZ?_]+"
    r"|[dD][ \t]*[0-9xXzZ?_]+|[hH][ \t]*[\dA-Fa-fxXzZ?_]+))"
    r"|(?P<name>[A-Za-z_$][\w$]*)|(?P<mark>::|[.\[\]])|(?P<end>\n)|(?P<other>[^\s\b])",
    re.DOTALL | re.MULTILINE | re.ASCII,
)
UNIT = re.compile(r"[fpnum]?s|step|_*\d*_*[eE]?\d*")
"""What may follow the digits of a number."""
CLAIMABLE = r'(?:[^"\\\n]|\\[23][0-7][0-7])'
"""A character in the file name of a `line directive. Verilator replaces escapes in it, Icarus does not, so only those
of bytes that are not ASCII's are accepted, which Verilator's preprocessor writes.
"""
LINE = re.compile(rf'[ \t]*`line[ \t]+(\d{{1,9}})[ \t]+"({CLAIMABLE}*)"([ \t]+\d)?\s*')
_TIME = r"[ \t]*1(?:00?)?[ \t]*[munpf]?s[ \t]*"
MOST = 100
"""Maximum reported faults of directives."""
DIRECTIVES = {
    "timescale": re.compile(f"{_TIME}/{_TIME}"),
    "default_nettype": re.compile(r"[ \t]+[a-z]\w*"),
    "unconnected_drive": re.compile(r"[ \t]+pull[01]"),
    "begin_keywords": re.compile(r'[ \t]*"[\w.-]+"'),
}
"""Directives with arguments, and patterns of the arguments."""
DIRECTIVES |= dict.fromkeys(
    ("celldefine", "endcelldefine", "resetall", "nounconnected_drive", "end_keywords"), re.compile("")
)
AFTER = re.compile(r"[ \t\r]*(?://[^\n]*|/\*(?:[^*]|\*(?!/))*\*/[ \t\r]*)*(?:\n|\Z)")
"""What may follow a directive in its line: comments."""
LINE_OF_C = re.compile(r"^#line[ \t]", re.MULTILINE)
"""A directive that only Icarus knows. The file name in it may have quotation marks."""
ENDS = {"$finish", "$stop", "$finish_and_return", "$exit"}
CONTROLS = {f"$assert{what}" for what in ("on", "off", "kill", "control", "passon", "passoff", "failon", "failoff")}
CONTROLS |= {"$assertvacuousoff", "$assertnonvacuouson"}
STEERS = dict.fromkeys(ENDS, "ends the simulation, which is for the hidden testbench to do; use $error")
STEERS |= dict.fromkeys(CONTROLS, "switches assertions, and so the hidden testbench's")
"""What is wrong with tasks that act on the whole simulation, wherever they are called."""
CHOOSES = "?: the testbench connects the design by `.*`, so the design could choose any of its signals; name the ports"
RENAME = "; if it is the design's own, give it another name"
DRAWN = "the design would change the random numbers that the hidden testbench draws"
"""What is wrong if both draw from the one generator."""
ROOTS = {"$root", "$unit"}
UNNAMED = re.compile(r"genblk\d+|\$(?:ivl_|unm_blk_)\w+|unnamedblk\d+")
"""Names that compilers give to unnamed blocks."""
BORDERS = {"module", "macromodule", "endmodule"}
"""Words that begin or end a module: after an odd number of them, the text is inside a module."""
DEPTHS = {"begin": 1, "fork": 1, "class": 1, "interface": 1, "program": 1, "end": -1, "join": -1}
"""Words that open or close inner scopes, to which declarations inside are local. The closing ones are keywords in every
version of the language: a design can use others, such as ``endclass``, as names."""
OVERRIDES = {"force", "release", "$deposit", "$countdrivers"}
INTERNAL = ("$ivl", "$q_")
"""Prefixes of tasks that can write to a net in Icarus, as `$deposit` does: internal tasks, which it calls for methods
and for VHDL, and tasks of queues, which accept part of a net as an output argument."""
SWITCHES = {"tran", "tranif0", "tranif1", "rtran", "rtranif0", "rtranif1"}
"""Primitives that act in both directions, and so on the testbench's signal that is connected to a port."""
OPERATORS = set("=&|^~!+-/%<>?,{[(")
"""Marks before an operand; ``*`` and ``:`` may also stand before a statement."""
DECLARATIONS = {"assign", "wire", "reg", "logic", "bit", "integer", "int", "input", "output", "tri", "wand", "wor"}
"""Words that begin a declaration or a continuous assignment, which are not statements."""
COMPLETE = {";", "end", "endcase", "endfunction", "endtask", "endspecify", "endgenerate", "generate"}
"""Words after which a declaration belongs to the module; after others, such as a condition, its scope may not exist."""

PARTS = {"module", "macromodule", "primitive", "interface", "program", "package", "class"}
"""Words before the name of a declared design element."""

# The hidden text is trusted, so regular expressions are sufficient.
_DESIGN = re.compile(rf"\b(?:{'|'.join(sorted(PARTS))})\s+(?:automatic\s+|static\s+)?(\w+)")
_ROUTINE = re.compile(r"\b(?:function|task)\b[^;(]*?(\w+)\s*[;(]")
_BLOCK = re.compile(r"\b(?:begin|fork)\s*:\s*(\w+)")
_LABEL = re.compile(r"(?<!['\w])([A-Za-z_]\w*)\s*:\s*(?:begin|fork)\b")
_INSTANCE = re.compile(r"\b([A-Za-z_]\w*)\s*(?:#\s*(?:\([^;]*?\)|[\w.']+)\s*)?\b([A-Za-z_]\w*)\s*\(")
_NEXT = re.compile(r",\s*([A-Za-z_]\w*)\s*\(")
_DEFINE = re.compile(r"`define\s+(\w+)")
_PACKAGE = re.compile(r"\b([A-Za-z_]\w*)\s*::")
_MODULE = re.compile(r"\b(?:macro)?module\b.*?\bendmodule\b", re.DOTALL)
_BODY = re.compile(r"\bpackage\s+(?:automatic\s+|static\s+)?(\w+)\s*;(.*?)\bendpackage\b", re.DOTALL)
_LOCAL = re.compile(r"\b(function|task)\b.*?\bend\1\b", re.DOTALL)
_BY_NAME = re.compile(r"\.\s*\*")
_WHOLE = re.compile(r"\b(\w+)\s*::\s*\*")
WORD = re.compile(r"[A-Za-z_]\w*")
_PLAIN = re.compile(
    r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/|^[ \t]*`line\b[^\n]*|\\(?P<escaped>[^ \t\b\f\r\n]+)',
    re.DOTALL | re.MULTILINE,
)
_RANGE = re.compile(r"\[[^\[\]]*\]")
_WORDS = {"if", "else", "for", "while", "repeat", "case", "casez", "casex", "wait", "begin", "end", "assert"}
_WORDS |= {"module", "function", "task", "return", "initial", "always", "final", "posedge", "negedge", "or", "and"}


class Names:
    """The names of a hidden testbench. Of modules that a compiler could find in hidden files (`found`), it has those
    that its text uses.

    Attributes:
        scopes: Names that can precede a dot: modules, instances, blocks, routines, packages, classes.
        routines: Functions and tasks, which a design can also call without a dot (upward name resolution).
        used: Modules, packages and classes of the testbench, or that it uses. Others in the hidden sources are for the
            design.
        taken: Names that a design must not declare, since Verilator would use its element instead of the testbench's.
        wildcard: Whether the testbench connects a module that is not its own by ``.*``. That module chooses the names
            of its ports, and so which signals it is connected to.
        imported: Names of packages that the testbench imports outside of modules as a whole (``*``). A declaration
            that a compiler reads before has precedence.
    """

    def __init__(self, texts: Sequence[str], tops: Sequence[str], found: Sequence[str] = ()) -> None:
        self._escaped: dict[str, str] = {}
        plain = " ".join(_PLAIN.sub(self._unescaped, text) for text in texts)
        while plain != (plain := _RANGE.sub(" ", plain)):
            pass
        declared = self._names(_DESIGN.findall(plain))
        self.routines = self._names(_ROUTINE.findall(plain))
        instances = [pair for pair in _INSTANCE.findall(plain) if not _WORDS.intersection(pair)]
        kinds = self._names([kind for kind, _ in instances] + _PACKAGE.findall(plain))
        declared |= kinds.intersection(found)
        self.used = declared & (kinds | set(tops)) or declared
        self.taken = self.used if tops else declared
        connected = (_BY_NAME.split(text)[0] for text in plain.split(";") if _BY_NAME.search(text))
        self.wildcard = any(declared.isdisjoint(self._names(WORD.findall(text))) for text in connected)
        inner = _BLOCK.findall(plain) + _LABEL.findall(plain) + [name for _, name in instances] + _NEXT.findall(plain)
        self.scopes = (declared | self.routines | self._names(inner)) - _WORDS

        outside = _MODULE.sub(" ", plain)
        packages = [package for package in _BODY.findall(outside) if package[0] in set(_WHOLE.findall(outside))]
        self.imported = self._names(WORD.findall(_LOCAL.sub(" ", " ".join(body for _, body in packages))))

    def _unescaped(self, match: re.Match[str]) -> str:
        """For an escaped name, a word that the patterns find; for other matches, a space."""
        if match["escaped"] is None:
            return " "
        return f" {self._escaped.setdefault(match['escaped'], f'escaped_{len(self._escaped)}_')} "

    def _names(self, words: Sequence[str]) -> set[str]:
        original = {word: name for name, word in self._escaped.items()}
        return {original.get(word, word) for word in words}


Token = namedtuple("Token", "kind word key place module")
"""A word of the design's text: ``name`` or the mark itself, the word, the word again unless it is escaped (then empty,
since it cannot be a keyword or mark), ``file:line``, and the number of its module."""


def reach_faults(text: str, file: str, names: Names, show: Callable[[str], str]) -> list[str]:
    """Where a design uses more of the testbench than its own ports, in the preprocessed text of one of its sources,
    `file`. Lines count from the beginning of the text until a `line directive; `show` shortens a file's name.
    """
    # Whether a compiler reads the text after a directive in its line depends on the directive. `odd_directives` refuses
    # most of such text; here, both readings are searched, to name what is found.
    readings = [_tokens(text, file, names, show, to_the_end) for to_the_end in (False, True)]
    return list(dict.fromkeys(fault for tokens in readings for fault in _faults(tokens, names)))


def replaced_names(text: str, file: str, names: Names, show: Callable[[str], str]) -> list[str]:
    """Constants and types outside of modules that may replace imported ones of the testbench."""
    tokens = [token for token in _tokens(text, file, names, show, False) if not token.module % 2]
    pairs = list(itertools.pairwise(tokens))
    shared = any((token.key, after.key) == ("::", "*") for token, after in pairs)
    found, inside = [], False
    for token, after in pairs:
        inside = token.key == "package" or (inside and token.key != "endpackage")
        if token.word in names.imported and after.key in ("=", ";", ",", "}", "(", "[") and (shared or not inside):
            found.append(f"{token.place}: {token.word!r} may replace a name that the hidden testbench imports")
    return found


def odd_directives(text: str, file: str, show: Callable[[str], str]) -> list[str]:
    """Directives that are unknown, do not begin their line, or have more than their arguments and comments in it.

    After some directives, Icarus ignores the rest of the line, whatever begins there; after others it does not. Without
    such directives, all compilers read the same words.
    """
    found, number, at = [], 1, 0
    for start in itertools.islice((line.start() for line in LINE_OF_C.finditer(text)), MOST):
        found.append(f"{show(file)}:{text.count(chr(10), 0, start) + 1}: a directive that cannot be judged")
    while len(found) < MOST and (match := TOKEN.search(text, at)):
        at, kind, word = match.end(), match.lastgroup or "", match.group()
        if kind == "directive":
            arguments = _arguments(text, match)
            blank = not text[text.rfind("\n", 0, match.start()) + 1 : match.start()].strip(" \t")
            odd = arguments is None or not blank or not AFTER.match(text, at + len(arguments))
        else:
            odd = kind == "line" and not LINE.fullmatch(word)
        if odd:
            found.append(f"{show(file)}:{number}: a directive whose line cannot be judged")
        number += word.count("\n")
    return found


def takes_macros(own: Sequence[str], hidden: Sequence[str], source: re.Pattern[str]) -> bool:
    """Whether the design's files may name a macro that the testbench's files define. Both are given as preprocessed
    texts; `source` finds the files that a text comes from.
    """
    raw, macros = _contents(own, source), set(_DEFINE.findall(_contents(hidden, source)))
    return bool(macros) and ("``" in raw or not macros.isdisjoint(re.findall(r"\w+", raw)))


def _contents(texts: Sequence[str], source: re.Pattern[str]) -> str:
    found = []
    for file in filter(os.path.isfile, {file for text in texts for file in source.findall(text)}):
        with open(file, encoding="utf-8", errors="replace") as stream:
            found.append(stream.read())
    return "\n".join(found)


def hides_the_next(text: str) -> bool:
    """Whether a compiler may not see all of a source that it reads after this text.

    That is so if the text leaves a comment open or, outside comments, strings and names, has a character that Icarus
    treats as the end of all sources: NUL or a non-ASCII one.
    """
    last = ""
    for match in TOKEN.finditer(text):
        if match.lastgroup == "other" and not "\0" < match.group() < "\x80":
            return True
        last = match.group() if match.lastgroup == "comment" else ""
    return last.startswith("/*") and not (len(last) > 3 and last.endswith("*/"))


def _arguments(text: str, directive: re.Match[str]) -> str | None:
    """A directive's arguments; None if they are not valid for it."""
    known = DIRECTIVES.get(directive.group()[1:])
    found = known.match(text, directive.end()) if known else None
    return found.group() if found else None


def _faults(tokens: Sequence[Token], names: Names) -> list[str]:
    own = _own_routines(tokens)
    blocks = _blocks_around(tokens)
    found = []
    for at, token in enumerate(tokens):
        if token.kind != "name" or (at and tokens[at - 1].kind == "."):
            continue
        word, after = token.word, tokens[at + 1] if at + 1 < len(tokens) else None
        before = tokens[at - 1].word if at else ""
        if word in STEERS:
            found.append(f"{token.place}: {word} {STEERS[word]}")
        elif word in ROOTS or ((word in names.scopes or UNNAMED.fullmatch(word)) and _has_member(tokens, at + 1)):
            found.append(f"{token.place}: {word!r} leads into the hidden testbench{RENAME}")
        elif word in names.used and (before in ("extends", "bind") or (after and (after.kind in ("name", "#")))):
            found.append(f"{token.place}: {word!r} is a part of the hidden testbench")
        elif word in names.taken and _declares(tokens, at):
            found.append(f"{token.place}: {word!r} would replace a part of the hidden testbench")
        elif word in OVERRIDES | SWITCHES or word.startswith(INTERNAL):
            found.append(f"{token.place}: {word!r} reaches through ports into the hidden testbench")
        elif token.key == "disable" and after and UNNAMED.fullmatch(after.word) and after.kind == "name":
            found.append(f"{token.place}: 'disable' ends {after.word!r}, a block without a name")
        elif token.key == "disable" and after and after.word in names.scopes and after.word not in blocks[at]:
            if (after.word, token.module) not in own:
                found.append(f"{token.place}: 'disable' ends {after.word!r}, which is the hidden testbench's")
        elif word in names.routines and _is_call(tokens, at) and (word, token.module) not in own:
            found.append(f"{token.place}: {word!r} is a routine of the hidden testbench{RENAME}")
    return found


def _declares(tokens: Sequence[Token], at: int) -> bool:
    """Whether a name is that of a module or another design element whose declaration begins here."""
    before = at - 1 if at and tokens[at - 1].key not in ("automatic", "static") else at - 2
    return before >= 0 and tokens[before].key in PARTS


def _is_call(tokens: Sequence[Token], at: int) -> bool:
    """Whether a name may call a function or a task. Without parentheses, only a task can be called, as a statement."""
    after = tokens[at + 1].key if at + 1 < len(tokens) else ""
    if after != ";":
        return after == "("
    if at and tokens[at - 1].key in OPERATORS:
        return False
    start = at
    while start and tokens[start - 1].key not in (";", "begin", "end"):
        start -= 1
    return tokens[start].key not in DECLARATIONS


def _tokens(text: str, file: str, names: Names, show: Callable[[str], str], to_the_end: bool) -> list[Token]:
    """The words of a text without its directives and their arguments (`to_the_end`: and the rest of their lines)."""
    known = ROOTS | OVERRIDES | SWITCHES | BORDERS | DEPTHS.keys() | STEERS.keys()
    known |= names.scopes | names.routines | names.taken | names.imported
    tokens: list[Token] = []
    number, module, at = 1, 0, 0
    while match := TOKEN.search(text, at):
        at, kind, word = match.end(), match.lastgroup or "", match.group()
        if kind == "directive":
            at = text.find("\n", at) % (len(text) + 1) if to_the_end else at + len(_arguments(text, match) or "")
        elif kind == "line":
            where = LINE.fullmatch(word)
            file, number = (where[2], int(where[1]) - 1) if where else (file, number)
        elif kind not in ("string", "comment", "end"):
            name = kind in ("name", "escaped")
            plain = word[1:] if kind == "escaped" else word
            if kind == "name" and text[match.start() - 1 : match.start()].isalnum() and not UNIT.fullmatch(word):
                # "1stb" is either the time 1s and the name tb, or the number 1 and the name stb.
                ends = [word[at:] for at in range(len(word))]
                plain = next((end for end in ends if end in known or UNNAMED.fullmatch(end)), word)
            key = "" if kind == "escaped" else plain
            module += key in BORDERS
            tokens.append(Token("name" if name else word, plain, key, f"{show(file)}:{number}", module))
        number += word.count("\n")
    return tokens


def _own_routines(tokens: Sequence[Token]) -> set[tuple[str, int]]:
    """The routines that modules declare, with the module's number; they take precedence over the testbench's."""
    found: set[tuple[str, int]] = set()
    depth = 0
    for at, token in enumerate(tokens):
        depth = 0 if token.key in BORDERS else depth + DEPTHS.get(token.key, 0)
        complete = at > 0 and tokens[at - 1].key in COMPLETE
        if token.key in ("function", "task") and depth == 0 and token.module % 2 and complete:
            head, brackets = at + 1, 0
            while head < len(tokens) and (brackets or tokens[head].key not in ("(", ";")):
                brackets += {"[": 1, "]": -1}.get(tokens[head].key, 0)
                head += 1
            found.add((tokens[head - 1].word, token.module))
    return found


def _blocks_around(tokens: Sequence[Token]) -> dict[int, set[str]]:
    """The names of the blocks around each ``disable``, by its index."""
    found: dict[int, set[str]] = {}
    open_: list[tuple[str, str]] = []
    for at, token in enumerate(tokens):
        before = tokens[at - 1].key if at else ""
        if before == ".":
            continue
        if token.key in BORDERS:
            open_ = []
        elif token.key == "begin" or (token.key == "fork" and before not in ("disable", "wait")):
            named = at + 2 < len(tokens) and tokens[at + 1].key == ":"
            open_.append((token.key, tokens[at + 2].word if named else ""))
        elif token.key == "end" or token.key in ("join", "join_any", "join_none"):
            kind = "begin" if token.key == "end" else "fork"
            while open_ and open_.pop()[0] != kind:
                pass
        elif token.key == "disable":
            found[at] = {name for _, name in open_}
    return found


def _has_member(tokens: Sequence[Token], at: int) -> bool:
    """Whether a dot or a double colon follows, possibly after indices."""
    while at < len(tokens) and tokens[at].kind == "[":
        depth = 0
        while at < len(tokens):
            depth += {"[": 1, "]": -1}.get(tokens[at].kind, 0)
            at += 1
            if depth == 0:
                break
    return at < len(tokens) and tokens[at].kind in (".", "::")

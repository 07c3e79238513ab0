"""Families whose problems cannot be solved from the prompt alone.

The prompt describes a module and names the one of two documents that has the missing facts; the other document has
different facts under the same or a similar name. The polarity of the enable is in neither: a smoke test, which the
agent can run, shows whether the design has it right.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from hashlib import sha256
from pathlib import PurePosixPath
from random import Random
from typing import Literal

from ...problems.model import Problem
from .family import TARGET, Family, Fields, Parameters, SpecificationLine, Split, data_line, is_held_out, template

SMOKE = "verif/smoke.sv"
RUN_SMOKE = "iverilog -g2012 -o rundir/smoke rtl/*.sv verif/*.sv && vvp -n rundir/smoke"
PASSED = "PASS\n"
"""What `RUN_SMOKE` prints if the smoke test finds no mistake in the design."""

Lie = Literal["documents", "smoke"]
"""Which files contain false information, for control experiments."""

_PAIRS_HELD_OUT = 5
"""One in this many pairs of operations belongs to the split ``operations``, on average."""


def _level_by_name(fields: Fields) -> int:
    """The misread level: that of an asynchronous reset follows its name instead of the specification."""
    if fields["reset_kind"] == "sync":
        return int(fields["reset_level"])
    return 0 if fields["reset"].endswith("_n") else 1


def _kind_by_name(fields: Fields) -> str:
    """The misread kind of reset: a reset is asynchronous if its name ends in ``_n``."""
    return "async" if fields["reset"].endswith("_n") else "sync"


class LookingFamily(Family):
    """A family of problems that require reading files and running the smoke test."""

    splits = (*Family.splits, "sizes", "operations")
    axes = Family.axes | {"enable_level": (0, 1)}
    habits = Family.habits | {"reset": {"reset_level": _level_by_name}, "kind": {"reset_kind": _kind_by_name}}
    size: str
    """The name of the value that is larger in the split ``sizes``."""
    trained_sizes: Sequence[int]
    larger_sizes: Sequence[int]
    pair: tuple[str, str]
    """The two axes of which some pairs of values are held out for the split ``operations``."""
    document_path: str
    """The path of a document, with ``{}`` for its name."""
    tells: tuple[str, ...]
    """Axes, and possibly the size, that are in documents instead of the prompt; drawn for each described module."""
    facts: tuple[str, ...]
    """The size, and those facts of documents that can be observed at the ports."""
    document_roles: tuple[str, ...] = ()
    """Further roles that have a name in a design or a document."""
    described: tuple[str, ...] = ("module", "row_1", "row_2")
    """The roles of the modules that each document describes."""
    smoke_template = "smoke_settled.sv"
    """The file in ``harness`` from which the smoke test is made."""

    @abstractmethod
    def draw_facts(self, rng: Random, values: Fields) -> dict[str, str | int]:
        """Draw the other facts in documents, for a module with these values of the axes."""

    def distinct(self, fields: Fields) -> tuple[str | int, ...]:
        """Values that must all differ between two modules, so that the facts of one are wrong for the other."""
        return tuple(fields[fact] for fact in self.facts if fact != self.size or fact in self.tells)

    @abstractmethod
    def write_document(self, role: str, modules: Sequence[Fields], rng: Random) -> str:
        """The text of the document with this role, ``document`` or ``other_document``, which describes `modules`."""

    def _draw_values(self, rng: Random, split: Split) -> dict[str, str | int]:
        while True:
            values = {axis: rng.choice(choices) for axis, choices in self.axes.items()}
            values[self.size] = rng.choice(self.larger_sizes if split == "sizes" else self.trained_sizes)
            fits = is_held_out(values) == (split == "combinations")
            if fits and self.is_held_out_pair(values) == (split == "operations"):
                values |= self.draw_facts(rng, values) | {"tables": rng.getrandbits(24)}
                if self.is_possible(values):
                    return values

    def is_held_out_pair(self, values: Fields) -> bool:
        """Whether the two operations of a design occur together only in the split ``operations``."""
        return is_held_out({"pair": " ".join(str(values[axis]) for axis in self.pair)}, _PAIRS_HELD_OUT)

    def draw_names(self, rng: Random, held_out: bool) -> dict[str, str]:
        """A name for each role; half of the names with a polarity end in ``_n``, independently of the polarity."""
        names: dict[str, str] = {}
        described = (role for role in self.described if role != "module")
        for role in (*self.roles, "document", "other_document", *described, *self.document_roles):
            while not names.get(role) or list(names.values()).count(names[role]) > 1:
                name = draw_identifier(rng, held_out)
                names[role] = f"{name}_n" if f"{role}_level" in self.axes and rng.random() < 0.5 else name
        return names

    def document(self, parameters: Parameters, role: str = "document") -> str:
        """The path of the document that the prompt names, or of the other one (role ``other_document``)."""
        return self.document_path.format(parameters.names[role])

    def documents(self, parameters: Parameters) -> dict[str, str]:
        """The documents by path. Both describe the module, but only the one that the prompt names is correct."""
        fields, rng = parameters.fields, Random(int(parameters.values["tables"]))
        found = {}
        for role in ("document", "other_document"):
            modules: list[Fields] = []
            for name in self.described:
                own = role == "document" and name == "module"
                facts = {} if own else self._other_facts(rng, fields)
                modules.append({**fields, **facts, "module": fields[name]})
            found[self.document(parameters, role)] = self.write_document(role, modules, rng)
        return dict(sorted(found.items()))

    def _other_facts(self, rng: Random, fields: Fields) -> dict[str, str | int]:
        drawn = dict(fields)
        while any(one == other for one, other in zip(self.distinct(drawn), self.distinct(fields), strict=True)):
            drawn |= {key: rng.choice(self.trained_sizes if key == self.size else self.axes[key]) for key in self.tells}
            drawn |= self.draw_facts(rng, drawn)
        return {key: value for key, value in drawn.items() if value != fields[key]}

    def smoke(self, parameters: Parameters) -> str:
        """The text of `SMOKE`, which forces the other inputs that have a polarity to their active level."""
        fields = parameters.fields
        words = {key.upper(): fields[key] for key in self.roles}
        words |= {"RESET_LEVEL": fields["reset_level"], "ENABLE_LEVEL": fields["enable_level"]}
        random, forces = iter(("data", "other")), []
        for role in self.inputs[1:]:
            level = f"{role}_level"
            forces.append((role, f"1'b{fields[level]}" if level in self.axes else next(random)))
        text = template(self.smoke_template)
        text = text.replace("<FORCES>", "\n".join(f"        force dut.<{role.upper()}> = {to};" for role, to in forces))
        for key in sorted(words, key=len, reverse=True):
            text = text.replace(f"<{key}>", str(words[key]))
        return text

    def problem(self, parameters: Parameters, lie: Lie | None = None) -> Problem:
        """The member as a problem. With a `lie`, some of its files are false, but the hidden tests stay the same.

        With ``documents``, both documents have the facts of another module. With ``smoke``, the smoke test expects
        random polarities of the reset and the enable.
        """
        told, digest = parameters, parameters.digest
        if lie is not None:
            rng, digest = Random(f"{digest} {lie}"), sha256(f"{digest} {lie}".encode()).hexdigest()[:12]
            if lie == "documents":
                false = self._other_facts(rng, parameters.fields)
            else:
                false = {f"{role}_level": rng.randrange(2) for role in ("reset", "enable")}
            told = parameters.model_copy(update={"values": {**parameters.values, **false}})
        problem = super().problem(parameters)
        # Documents that are modules are compiled from copies in the hidden tests, which the agent cannot change.
        modules = {path: text for path, text in self.documents(parameters).items() if path.startswith("rtl/")}
        copies = {f"src/{PurePosixPath(path).name}": f"// Copy for tests.\n{text}" for path, text in modules.items()}
        sources = " ".join(f"/code/{path}" for path in (TARGET, *modules))
        environment = problem.harness["src/.env"].replace(f"/code/{TARGET}", sources)
        return problem.model_copy(
            update={
                "id": f"cvdp_agentic_rtlgym_{self.name}_{parameters.split}_{digest}_0001",
                "prompt": f"Write the module that this describes to `{TARGET}`.\n\n{self.specification(parameters)}",
                "context": {**self.documents(told), SMOKE: self.smoke(told)},
                "harness": problem.harness | {"src/.env": environment, **copies},
            }
        )


def enable_line(enable: str) -> SpecificationLine:
    """The line of the input whose polarity only the smoke test shows; the specification calls this input `enable`."""
    return SpecificationLine(
        (
            f"The {enable} is `{{enable}}`; the smoke test knows its polarity.",
            f"`{{enable}}` is the {enable}, of a polarity that the smoke test tells.",
            f"The smoke test tells the polarity of the {enable} `{{enable}}`.",
        ),
        (
            f"The polarity of the {enable} `{{enable}}` is known to the smoke test.",
            f"It has the {enable} `{{enable}}`, and the smoke test tells its polarity.",
        ),
        (
            f"{enable} | `{{enable}}`, polarity by the smoke test",
            f"{enable} input | `{{enable}}`, see the smoke test",
        ),
        (f"{enable}, with the polarity of the smoke test | `{{enable}}`",),
    )


LOOKING_LINES = {
    "enable": enable_line("enable"),
    "data": data_line("data", "input"),
    "output": data_line("output", "output"),
}

_ONSET_LIST = """
b c d f g h j k l m n p q r s t v w x z br ch cl cr dr fl fr gl gr pl pr qu sh sl sp st str th tr w
"""
_VOWEL_LIST = "a a e e i i o o u y ai ea oo ou"
_CODA_LIST = "b ck d g k l ld lt m n nd ng nt p r rd rk rn s sk st t x"
_TAIL_LIST = "a b c d e f g h i j k l m o p q r s t u v w x y z bus net pad bit ext pin top sub aux raw"
_UNKNOWN_LIST = """
clk clock rst reset arst srst en ena enable data din dout valid ready count addr we wren rden in out acc accum total
sum value load fifo tdata tvalid axis core unit block stage copper dune sable shale sierra slate spruce summit swan
teal thistle timber tulip umber velvet violet walnut wharf willow yarrow zephyr zinnia
"""
_RESERVED_LIST = """
alias always always_comb and assign automatic before begin bind bins binsof bit bool break buf byte case casex casez
cell chandle checker class clocking cmos config const constraint context continue cover covergroup coverpoint cross
deassign default define defparam design disable dist do dut edge else end endcase endchecker endclass endfunction
endtable endtask enum event eventually expect export extends extern final first for force foreach forever fork
forkjoin function generate genvar global if iff ifnone implements implies import include initial inout input inside
instance int integer interconnect interface intersect join large let liblist library local localparam logic longint
macromodule matches medium modport module nand negedge nettype new nexttime nmos nor not null operand or output
package packed parameter pmos posedge primitive priority program property protected pull pulldown pullup pure rand
randc randcase randsequence rcmos real realtime ref reg reject release repeat restrict return rnmos rpmos rtran
scalared sequence shortint shortreal signed small smoke soft solve specify specparam static string strong strong0
strong1 struct super supply0 supply1 table tagged task this throughout time timeprecision timescale timeunit tran tri
tri0 tri1 triand trior trireg type typedef union unique unique0 unsigned until untyped use uwire var vectored virtual
void wait wand weak weak0 weak1 while wildcard wire with within wone wor wreal xnor xor
"""
_ONSETS, _VOWELS, _CODAS, _TAILS = (text.split() for text in (_ONSET_LIST, _VOWEL_LIST, _CODA_LIST, _TAIL_LIST))
_LETTERS = "abcdefghijklmnopqrstuvwxyz"

UNKNOWN = tuple(_UNKNOWN_LIST.split())
"""The words of the split ``names``."""

RESERVED = frozenset(_RESERVED_LIST.split())
"""Words that may not be part of a name: keywords, and the internal names of designs and smoke tests."""


def draw_identifier(rng: Random, held_out: bool = False) -> str:
    """A random name that looks like one in real designs: lower case, usually 1 to 14 characters.

    If `held_out`, its first part is one of `UNKNOWN`; otherwise no part is.
    """
    while True:
        parts = [rng.choice(UNKNOWN) if held_out else _word(rng)]
        if rng.random() < 0.35:
            parts.append(rng.choice(UNKNOWN) if held_out and rng.random() < 0.5 else _tail(rng))
        if rng.random() < 0.2:
            number = str(rng.randrange(10) if rng.random() < 0.7 else rng.randrange(100))
            if rng.random() < 0.5:
                parts[-1] += number
            else:
                parts.append(number)
        words = [part.rstrip("0123456789") for part in parts]
        if RESERVED.isdisjoint(words) and (held_out or set(UNKNOWN).isdisjoint(words)):
            return "_".join(parts)


def _word(rng: Random) -> str:
    """An invented word, or random letters."""
    if rng.random() < 0.4:
        return "".join(rng.choice(_LETTERS) for _ in range(rng.choice((1, 2, 3, 3, 4, 5))))
    syllables = rng.choice((1, 1, 2, 2))
    word = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(syllables))
    return word + (rng.choice(_CODAS) if rng.random() < 0.4 else "")


def _tail(rng: Random) -> str:
    return rng.choice(_TAILS) if rng.random() < 0.5 else _word(rng)

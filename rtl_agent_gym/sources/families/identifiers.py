"""Names of every kind, spelled as people spell them, for families whose names are not drawn from a list.

The training split has invented words, letters by chance and a few endings, joined and numbered in many ways. The names
of the split ``names`` begin with words that are no part of a training name.
"""

from __future__ import annotations

from random import Random

_ONSET_LIST = """
b c d f g h j k l m n p q r s t v w x z br ch cl cr dr fl fr gl gr pl pr qu sh sl sp st str th tr w
"""
_VOWEL_LIST = """
a a e e i i o o u y ai ea oo ou
"""
_CODA_LIST = """
b ck d g k l ld lt m n nd ng nt p r rd rk rn s sk st t x
"""
_TAIL_LIST = """
a b c d e f g h i j k l m o p q r s t u v w x y z bus net pad bit ext pin top sub aux raw
"""
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
"""What no part of a name may be: keywords, and the names that designs and smoke tests have inside."""


def draw_identifier(rng: Random, held_out: bool = False) -> str:
    """A name in lower case, of 1 to some 14 characters.

    Args:
        rng: The source of chance.
        held_out: Whether its first part is one of `UNKNOWN`; else no part is.
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
    """An invented word, or some letters by chance."""
    if rng.random() < 0.4:
        return "".join(rng.choice(_LETTERS) for _ in range(rng.choice((1, 2, 3, 3, 4, 5))))
    syllables = rng.choice((1, 1, 2, 2))
    word = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(syllables))
    return word + (rng.choice(_CODAS) if rng.random() < 0.4 else "")


def _tail(rng: Random) -> str:
    return rng.choice(_TAILS) if rng.random() < 0.5 else _word(rng)

"""What is put around a design and into the compiled simulation, so that the bench's verdict and its time are certain.

The bench's process is never trusted to tell them. A module of random name prints them between random words, and the
calls of `$error`, `$fatal`, `$finish` and `$stop` in the compiled file set that module's variables.
"""

import heapq
import itertools
import re
from collections import namedtuple

REJECTS, ENDS = {"$error", "$fatal"}, {"$fatal", "$finish", "$stop"}
_ALLOWED = """
abs acos acosh asin asinh atan atan2 atanh bits bitstoreal bitstoshortreal ceil clog2 cos cosh countbits countones
dimensions display displayb displayh displayo dist_chi_square dist_erlang dist_exponential dist_normal dist_poisson
dist_t dist_uniform dumpall dumpfile dumpflush dumplimit dumpoff dumpon dumpvars error exp fatal finish floor high hypot
increment info isunknown itor left ln log10 low max min monitor monitorb monitorh monitoro monitoroff monitoron onehot
onehot0 pow printtimescale random realtime realtobits right rtoi sformat sformatf shortrealtobits simtime sin sinh size
sqrt stime stop strobe strobeb strobeh strobeo swrite swriteb swriteh swriteo tan tanh time timeformat
unpacked_dimensions urandom urandom_range warning write writeb writeh writeo signed unsigned
delete pop_back pop_front
"""
ALLOWED = {f"${name}" for name in _ALLOWED.split()}
"""System tasks and functions of a bench: none opens a file, reads an argument of the simulator or walks its objects."""
METHODS = ("$ivl_string_method$", "$ivl_queue_method$", "$ivl_darray_method$", "$ivl_enum_method$")

SCOPE = re.compile(r'(S_\w+) \.scope ([\w.$]+), "(?:[^"\\]|\\.)*" "((?:[^"\\]|\\.)*)"')
INTO = re.compile(r"\s+\.scope (S_\w+);")
LABEL = re.compile(r"(T_\d+) ;")
CALL = re.compile(r'(\s+%vpi_call\S* \d+ \d+ )"(\$[^"]+)"(.*)')
VARIABLE = re.compile(r'(v\w+) \.var(?:/\w+)? "(error|finish)"')
FOREVER = "%delay 0, 1073741824;"
PRECISION = re.compile(r"^:vpi_time_precision - (\d+);", re.MULTILINE)
FORCES = re.compile(r"^\s+%(?:force|release)\b", re.MULTILINE)
CALLED = re.compile(r'^\s*(?:%vpi_|\w+ \.sfunc).*?"(\$[^"]+)"', re.MULTILINE)


class Unfit(Exception):
    """Why a bench earns nothing, whatever it does with the mutants."""


def check_calls(compiled):
    """Whether a compiled simulation does only what a bench may do. Raises `Unfit`."""
    for name in dict.fromkeys(CALLED.findall(compiled)):
        if name not in ALLOWED and not name.startswith(METHODS):
            raise Unfit(f"the bench calls {name[:40]}")
    if FORCES.search(compiled):
        raise Unfit("the bench uses force")


def finest_unit(compiled):
    """The unit for `wrapped` in which a compiled simulation does nothing between two times."""
    found = PRECISION.search(compiled)
    return "1fs" if found is not None and int(found[1]) > 12 else "1ps"


def wrapped(settings, token, mark, unit="1ps", stub=False):
    """A module with the design's name and ports, around the hidden design or a stub; and the module that judges.

    Names have `token` in them, and what is printed has `mark`: a checker could print its own path. With a finer `unit`
    than the bench's, its $simtime would count otherwise, and 64 bits would be shorter times. The outputs that are
    printed are the hidden design's own: the bench may drive those of the module around it.
    """
    ports = [(name, way, f"[{width - 1}:0] " if width > 1 else "") for name, way, width in settings["ports"]]
    inner = f"{token}{settings['module']}"
    head = ", ".join(f"{way} wire {bits}{name}" for name, way, bits in ports)
    inside = ", ".join(f".{name}({token}_{name})" for name, _, _ in ports)
    lines = ["`resetall", f"`timescale {unit}/{unit}", f"module {settings['module']} ({head});"]
    for name, way, bits in ports:
        source, goal = (name, f"{token}_{name}") if way == "input" else (f"{token}_{name}", name)
        lines += [f"wire {bits}{token}_{name};", f"assign {goal} = {source};"]
    inputs = [name for name, way, _ in ports if way == "input"]
    outputs = [f"{token}_{name}" for name, way, _ in ports if way == "output"]
    ways = [" ".join(["%b"] * len(kind)) for kind in (inputs, outputs)]
    values = ", ".join([*inputs, *outputs, f"changes_{token}"])
    lines += [
        f"{inner} inner_{token} ({inside});",
        f"reg [63:0] last_{token} = -1;",
        f"integer changes_{token} = 0;",
        f"always @({' or '.join(inputs)}) changes_{token} = changes_{token} + 1;",
        f"always @({' or '.join([*inputs, *outputs])}) if ($time !== last_{token}) begin",
        f"last_{token} = $time;",
        f'$strobe("\\n{mark} P %0d {ways[0]}|{ways[1]}|%0d|%m", $time, {values});',
        "end",
        *(
            f'always @({edge} {settings["clock"]}) $display("\\n{mark} C {edge} {ways[0]}|%m", {", ".join(inputs)});'
            for edge in ("posedge", "negedge")
        ),
        "endmodule",
        f"module judge_{token};",
        "reg error = 0, finish = 0;",
        f'initial begin wait (error === 1); $display("\\n{mark} E %0d", $time); #1 $finish; end',
        "initial begin wait (finish === 1); #1 $finish; end",
        "endmodule",
    ]
    if stub:
        inner_head = ", ".join(
            f"{way} {'reg' if way == 'output' else 'wire'} {bits}{name}" for name, way, bits in ports
        )
        lines += [f"module {inner} ({inner_head});", "endmodule"]
    return "\n".join(lines) + "\n`resetall\n`timescale 1ns/1ps\n"


def instrument(text, token, mark):
    """A compiled simulation in which the bench's calls tell the judging module instead of ending the simulation.

    An end takes effect one unit of `wrapped` later, so that the values of the ports at the time of the verdict are
    known. The process that called it waits until then, as it would have for ever.
    """
    lines = text.split("\n")
    kinds, judge, flags, scope = {}, None, {}, None
    finals = set(re.findall(r"^\s+\.thread (T_\d+), \$final;", text, re.MULTILINE))
    for line in lines:
        if found := SCOPE.match(line):
            scope, kind, module = found.groups()
            kinds[scope] = kind
            judge = scope if module == f"judge_{token}" else judge
        elif scope == judge and scope and (found := VARIABLE.match(line)):
            flags[found[2]] = found[1]
    out, scope, final = [], None, False
    for line in lines:
        if found := SCOPE.match(line) or INTO.match(line):
            scope, final = found[1], False
        elif found := LABEL.match(line):
            final = found[1] in finals
        elif scope != judge and (found := CALL.match(line)):
            start, name, rest = found.groups()
            if name in REJECTS and final:
                out.append(f'    %vpi_call 0 0 "$display", "\\012{mark} X" {{0 0 0}};')
            elif name in REJECTS:
                out += ["    %pushi/vec4 1, 0, 1;", f"    %store/vec4 {flags['error']}, 0, 1;"]
            if name in ENDS:
                out += ["    %pushi/vec4 1, 0, 1;", f"    %store/vec4 {flags['finish']}, 0, 1;"]
                out.append(f'{start}"$display"{rest}')
                if not final and "function" not in kinds[scope]:  # a function cannot wait
                    out.append(f"    {FOREVER}")
                continue
        out.append(line)
    return "\n".join(out)


State = namedtuple("State", "outputs inputs edges changes")
"""Of an instance after an event: settled outputs and inputs, a digest of the inputs at all edges of the clock, and how
often inputs have changed.
"""
NEVER = State(None, None, None, b"0")


def first_difference(right, other, until):
    """The first time at which the settled outputs of two runs differ, at most `until`; None if none counts.

    A trace has an event for each time at which ports of an instance changed. Where inputs, or the edges of the clock,
    differ before the outputs, or where the bench changes inputs in one run alone, it tells the designs apart by
    something else than their ports.
    """
    last = {}
    runs = (zip(trace, itertools.repeat(run)) for run, trace in enumerate((right, other)))
    for time, events in itertools.groupby(heapq.merge(*runs, key=event_time), key=event_time):
        if time > until:
            return None
        now, alike = {}, True
        for (_, values, edges), run in events:
            inputs, outputs, changes, path = values.split(b"|", 3)
            now.setdefault(path, list(last.get(path, (NEVER, NEVER))))[run] = State(outputs, inputs, edges, changes)
        for path, (one, two) in now.items():
            before = last.get(path, (NEVER, NEVER))
            alone = one is before[0] or two is before[1]
            driven = (one.changes, two.changes) != (before[0].changes, before[1].changes)
            if one.outputs != two.outputs and one.edges == two.edges and not (alone and driven):
                return time
            alike = alike and one[:3] == two[:3]
        if not alike:
            return None
        last.update(now)
    return None


def event_time(event_of_run):
    return event_of_run[0][0]

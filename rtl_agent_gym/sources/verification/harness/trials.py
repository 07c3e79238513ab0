"""Decides in which runs a bench in Python sees which outputs, and what its verdicts are worth.

A bench never runs beside a hidden design. It is run with the given design first, which records how it drives the
inputs, step by step: each change of inputs is a step. Hidden designs are simulated with these steps, here, and then the
bench runs again with a player, a module that answers each step with the recorded outputs of one of them. Where a
bench's inputs depend on outputs, it leaves the recorded steps after the first difference: then the design is simulated
with the new steps, and the bench runs again.

In every round the bench also sees right designs, which it must accept, in a random order among the others.
"""

import base64
import functools
import json
import resource
import signal
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
SETTINGS = json.loads((HERE / "judge.json").read_text(encoding="utf-8"))
HIDDEN, GIVEN = "HIDDEN0_", "given_"
RIGHT, RIGHT_RUNS = SETTINGS["right"][0], 8
"""The design that the agent was given, and the runs with right designs in each round: a bench that rejects by chance
must accept them all.
"""
ACCEPTED = [f"{SETTINGS['right'][at % len(SETTINGS['right'])]}#{at}" for at in range(RIGHT_RUNS)]
"""Their names."""
ROUNDS = 6
"""Rounds with players. A mutant without a verdict after them is not rejected."""
MOST_STEPS = 100_000
UNKNOWN = 5000
"""Steps after which a player ends the simulation, beyond twice the recorded ones: a bench may wait for an output that
the player does not know. In the next round they are among the recorded ones.
"""
MOST_RECORDED = 24_000_000
"""Characters of the files of a round's runs and of the packed steps that are kept."""
COMPILE = ["iverilog", "-g2012", "-Wno-timescale"]
SECONDS, IN_ALL = 20, 300
"""Processor time of a simulation of a hidden design with recorded steps, and of those of a round."""

INPUTS = [(name, width) for name, way, width in SETTINGS["ports"] if way == "input"]
OUTPUTS = [(name, width) for name, way, width in SETTINGS["ports"] if way == "output"]


class Unfit(Exception):
    """Why a bench earns nothing, whatever it does with the mutants."""


def bits(width):
    return f"[{width - 1}:0] " if width > 1 else ""


def joined(ports):
    return f"{{{', '.join(name for name, _ in ports)}}}"


def size(ports):
    return sum(width for _, width in ports)


def head(module, output):
    """The design's module with its ports, and the file of the steps, one line for each change of the inputs."""
    ways = [f"input wire {bits(width)}{name}" for name, width in INPUTS]
    ways += [f"output {output} {bits(width)}{name}" for name, width in OUTPUTS]
    return f"`timescale 1ns/1ps\nmodule {module} ({', '.join(ways)});\ninteger trial_file;\n" + (
        'initial trial_file = $fopen("steps");\n'
    )


def recorder():
    """The given design, with a record of the inputs."""
    ports = ", ".join(f".{name}({name})" for name, _ in INPUTS + OUTPUTS)
    changes = " or ".join(name for name, _ in INPUTS)
    return (
        f"{head(SETTINGS['module'], 'wire')}{GIVEN}{SETTINGS['module']} trial_given ({ports});\n"
        f'always @({changes}) $fdisplay(trial_file, "%b", {joined(INPUTS)});\nendmodule\n'
    )


def player(count):
    """Answers recorded steps with recorded outputs, and others with unknown ones."""
    changes = " or ".join(name for name, _ in INPUTS)
    return f"""{head(SETTINGS["module"], "reg")}
reg [{size(INPUTS) - 1}:0] trial_recorded [0:{count}];
reg [{size(OUTPUTS) - 1}:0] trial_answers [0:{count}];
integer trial_step = 0;
reg trial_known = 1;
initial begin
    $readmemb("recorded", trial_recorded);
    $readmemb("answers", trial_answers);
    {joined(OUTPUTS)} = trial_answers[0];
end
always @({changes}) begin
    $fdisplay(trial_file, "%b", {joined(INPUTS)});
    trial_step = trial_step + 1;
    if (trial_step > {count} || trial_recorded[trial_step] !== {joined(INPUTS)}) trial_known = 0;
    if (trial_known) {joined(OUTPUTS)} <= trial_answers[trial_step];
    else {joined(OUTPUTS)} <= {size(OUTPUTS)}'bx;
    if (trial_step > {2 * count + UNKNOWN}) $finish(0);
end
endmodule
"""


def driver(count):
    """Simulates a hidden design with given steps; the first is the time before any input is known."""
    ports = ", ".join(f".{name}({name})" for name, _ in INPUTS + OUTPUTS)
    lines = [f"reg {bits(width)}{name};" for name, width in INPUTS]
    lines += [f"wire {bits(width)}{name};" for name, width in OUTPUTS]
    declared = "\n".join(lines)
    return f"""`timescale 1ns/1ps
module {HIDDEN}driver;
{declared}
reg [{size(INPUTS) - 1}:0] trial_steps [0:{count}];
integer trial_at;
{HIDDEN}{SETTINGS["module"]} trial_given ({ports});
initial begin
    $readmemb("steps", trial_steps);
    for (trial_at = 0; trial_at <= {count}; trial_at = trial_at + 1) begin
        {joined(INPUTS)} = trial_steps[trial_at];
        #1 $display("%b", {joined(OUTPUTS)});
    end
    $finish(0);
end
endmodule
"""


def packed(text):
    return base64.b64encode(zlib.compress(text.encode())).decode()


@functools.lru_cache(maxsize=2)
def unpacked(text):
    """The lines of a packed text. Raises `Unfit` for what no run of `run.py` prints."""
    try:
        opened = zlib.decompressobj()
        data = opened.decompress(base64.b64decode(text, validate=True), MOST_STEPS * (size(INPUTS) + 1))
        lines = data.decode("ascii").split()
    except (ValueError, zlib.error):
        raise Unfit("the bench writes over the record of its inputs") from None
    if opened.unconsumed_tail:
        raise Unfit(f"the bench changes its inputs more than {MOST_STEPS} times")
    if any(len(line) != size(INPUTS) or line.strip("01xz") for line in lines):
        raise Unfit("the bench writes over the record of its inputs")
    return tuple(lines)


@functools.lru_cache(maxsize=8)
def answers(name, steps):
    """The outputs of a hidden design before the first step and after each; None if its simulation does not end.

    Raises:
        RuntimeError: It was killed, which is the machine's fault: its limit of processor time is another signal.
    """
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    if used.ru_utime + used.ru_stime > IN_ALL:
        return None
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        (folder / "steps").write_text("\n".join(["z" * size(INPUTS), *steps]) + "\n", encoding="ascii")
        (folder / "driver.sv").write_text(driver(len(steps)), encoding="utf-8")
        design = HERE / "designs" / name
        build = [*COMPILE, "-s", f"{HIDDEN}driver", "-o", "sim.vvp", "driver.sv", str(design)]
        subprocess.run(build, cwd=folder, check=True, stdin=subprocess.DEVNULL)
        simulated = subprocess.run(
            ["vvp", "-n", "sim.vvp"],
            cwd=folder,
            capture_output=True,
            text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 2)),
        )
    if simulated.returncode == -signal.SIGKILL:
        raise RuntimeError(f"the simulation of {name} was killed")
    lines = simulated.stdout.split()
    return lines if simulated.returncode == 0 and len(lines) == len(steps) + 1 else None


def common(module):
    """The files of every run."""
    settings = {key: SETTINGS[key] for key in ("module", "bench", "seconds")}
    return {
        "run.py": (HERE / "run.py").read_text(encoding="utf-8"),
        "run.json": json.dumps(settings),
        "module.sv": module,
    }


def played(steps, found):
    """The files of the run with a player of these outputs."""
    files = {"recorded": packed("\n".join(["z" * size(INPUTS), *steps])), "answers": packed("\n".join(found))}
    return {**common(player(len(steps))), **files}


def first_round():
    given = (HERE / "designs" / RIGHT).read_text(encoding="utf-8").replace(HIDDEN, GIVEN)
    return {"runs": {"recorded": common(f"{recorder()}\n{given}")}, "state": {"round": 0}}


def told(result):
    """The verdict of a run and its packed steps."""
    try:
        line = json.loads(result["output"])
        verdict, steps = line["verdict"], str(line["steps"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return "crashed", ""
    return (verdict if verdict in ("accepted", "rejected", "late") else "crashed"), steps


FAULTS = {
    "rejected": "the bench rejects a right design",
    "late": f"the bench does not end in {SETTINGS['seconds']} s of processor time",
    "crashed": "the bench ends without a result of its tests",
}


def plan(state, records):
    """The next round: each design without a verdict, and the right ones, with their packed steps. Raises `Unfit`."""
    runs, kept, total = {}, {}, 0
    for name, record in records.items():
        steps = unpacked(record)
        if (found := answers(name.partition("#")[0], steps)) is None:
            if name in ACCEPTED:
                raise Unfit("the simulation of a right design does not end with the inputs of the bench")
            state["verdicts"][name] = "late"
            continue
        kept[name] = "" if name != ACCEPTED[0] and record == records[ACCEPTED[0]] else record
        pairs = enumerate(zip(answers(RIGHT, steps) or [], found, strict=False))
        state["differs"][name] = next((at for at, (one, other) in pairs if one != other), None)
        runs[name] = played(steps, found)
        total += len(kept[name]) + sum(map(len, runs[name].values()))
        if total > MOST_RECORDED:
            raise Unfit("the record of its inputs is too long")
    return {"runs": runs, "state": {**state, "steps": kept, "round": state["round"] + 1}}


def judged(state, results):
    """Take the verdicts of a round, and return the packed steps of designs that need another one. Raises `Unfit`."""
    records, again = {name: record or state["steps"][ACCEPTED[0]] for name, record in state["steps"].items()}, {}
    for name, record in records.items():
        steps = unpacked(record)
        verdict, told_steps = told(results[name]) if name in results and not results[name]["late"] else ("late", "")
        try:
            made = unpacked(told_steps)
        except Unfit:
            if name in ACCEPTED:
                raise
            state["verdicts"][name] = "late"
            continue
        left = next((at for at, step in enumerate(made) if at >= len(steps) or step != steps[at]), None)
        if name.startswith(f"{RIGHT}#") and left is not None:
            raise Unfit("the bench does not drive equal designs equally")
        if left is not None and state["round"] < ROUNDS:
            again[name] = told_steps
        elif name in ACCEPTED:
            if verdict != "accepted" or left is not None:
                raise Unfit(FAULTS["late" if left is not None else verdict])
        else:
            seen = state["differs"][name] is not None and len(made) >= state["differs"][name]
            state["verdicts"][name] = "early" if verdict == "rejected" and not seen else verdict
            if left is not None:
                state["verdicts"][name] = "late"
    if again:
        again = {name: records[name] for name in ACCEPTED} | again
    return again


def next_round(state, results):
    if state["round"] == 0:
        verdict, steps = told(results["recorded"]) if not results["recorded"]["late"] else ("late", "")
        if verdict != "accepted":
            raise Unfit(FAULTS[verdict])
        state |= {"verdicts": {}, "differs": {}}
        return plan(state, dict.fromkeys(ACCEPTED + SETTINGS["mutants"], steps))
    if again := judged(state, results):
        return plan(state, again)
    return {"found": {"fault": "", "verdicts": state["verdicts"]}}


def main():
    known = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        asked = next_round(known["state"], known["results"]) if known["state"] else first_round()
    except Unfit as error:
        asked = {"found": {"fault": str(error), "verdicts": {}}}
    print("\n" + json.dumps(asked))


main()

"""A design that writes its inputs writes the testbench's signals: what a compiled design shows of that, in every way to
write, measured in the real simulator.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from rtl_agent_gym.sandboxes import DockerSandbox
from rtl_agent_gym.scoring.grader import sources
from rtl_agent_gym.scoring.grader.compiled import READABLE
from rtl_agent_gym.scoring.grader.connections import benches_with_files, driven_inputs, reached_signals

from .attacks.read_signals import HONEST, PORTS, REACHING, bench
from .attacks.written_inputs import TESTBENCH, design, honest, joined, memories, ways

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="module")]

RUN = """\
cd /code/inputs && rm -f *.vvp *.log *.reached && echo 00 > /tmp/n.txt
for d in [0-9]*.sv; do
    n=${d%.sv}
    iverilog -g2012 -Wall -u -s tb -o $n.vvp $d testbench.sv 2> $n.log || { rm -f $n.vvp; continue; }
    timeout 20 vvp -n $n.vvp < /dev/null 2>&1 | grep -c '^REACHED' > $n.reached
    rm $d
done
"""
BY_TEXT = ("a switch that goes both ways",)
"""Ways that the check of the design's text refuses, see `testbench_attacks.py`; so they may be missed here."""


async def _played(
    designs: Iterable[tuple[str, str]], sandbox: DockerSandbox, folder: Path, testbench: str = TESTBENCH
) -> dict[str, tuple[bool, list[str]]]:
    """Whether each design that compiles reached the testbench, and what is found in it before it runs."""
    named = list(designs)
    files = {f"inputs/{number}.sv": text for number, (_, text) in enumerate(named)}
    await sandbox.write_files({**files, "inputs/testbench.sv": testbench})
    assert not (await sandbox.run(RUN, timeout=280)).timed_out
    kept = await sandbox.read_files(["inputs"])
    told = {}
    for number, (name, _) in enumerate(named):
        start = f"inputs/{number}"
        if f"{start}.vvp" in kept:
            compiled = folder / f"{number}.vvp"
            compiled.write_bytes(kept[f"{start}.vvp"])
            found = reached_signals(str(compiled), lambda name: not name.endswith("testbench.sv")) + driven_inputs(
                kept[f"{start}.log"].splitlines()
            )
            told[name] = (kept[f"{start}.reached"].strip() != b"0", found)
    return told


async def _nothing_is_missed(
    designs: Iterable[tuple[str, str]], sandbox: DockerSandbox, folder: Path, testbench: str = TESTBENCH
) -> int:
    told = await _played(designs, sandbox, folder, testbench)
    reached = [name for name, (reaches, _) in told.items() if reaches]
    missed = [name for name in reached if not told[name][1] and not any(way in name for way in BY_TEXT)]
    assert missed == []
    return len(reached)


async def test_no_way_to_write_a_variable_is_missed(shared_sandbox: DockerSandbox, tmp_path: Path) -> None:
    """A third of them; the slow test below has all."""
    some = random.Random(0).sample([*ways(("v",))], 47)
    assert await _nothing_is_missed(some, shared_sandbox, tmp_path) >= 5


async def test_no_way_to_join_two_ports_is_missed(shared_sandbox: DockerSandbox, tmp_path: Path) -> None:
    testbench = TESTBENCH.replace(", .m(m)", "")
    assert await _nothing_is_missed(joined(), shared_sandbox, tmp_path, testbench) >= 15


async def test_what_no_port_leads_to_is_not_reached(shared_sandbox: DockerSandbox, tmp_path: Path) -> None:
    cases = list({**REACHING, **HONEST}.items())
    texts = {f"reach/{at}_d.sv": written for at, (_, (written, _)) in enumerate(cases)}
    benches = {f"reach/{at}_b.sv": testbench for at, (_, (_, testbench)) in enumerate(cases)}
    await shared_sandbox.write_files({**texts, **benches})
    for order, name in (("{0}_b.sv {0}_d.sv", "after"), ("{0}_d.sv {0}_b.sv", "before")):
        lines = [f"iverilog -g2012 -gspecify -s tb -o {at}{name}.vvp {order.format(at)}" for at in range(len(cases))]
        await shared_sandbox.run("cd reach; " + "; ".join(lines))
    kept = await shared_sandbox.read_files(["reach"])
    for at, (case, (_, testbench)) in enumerate(cases):
        (tmp_path / "b.sv").write_text(testbench)
        compiled = [kept[file] for name in ("after", "before") if (file := f"reach/{at}{name}.vvp") in kept]
        assert len(compiled) == 2 or case in REACHING, case  # a design that is read first may not find the name
        for text in compiled:
            (tmp_path / "d.vvp").write_bytes(text)
            hidden = [str(tmp_path / "b.sv")]
            found = reached_signals(str(tmp_path / "d.vvp"), lambda file: file.endswith("_d.sv"), hidden)
            assert bool(found) == (case in REACHING), (case, found)
        assert compiled, case


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (
            "module Top(.clk(c), .req(r), .over(over), .grant(grant)); input c; input [7:0] r, over; "
            "output [7:0] grant; assign grant = r & -r; endmodule",
            "?: the port 'clk' has another name inside the design; give both one name",
        ),
        (
            f"module Top({PORTS}); assign grant = req & -req; specify (req *> grant) = 1; endspecify endmodule",
            "?: path delays in a specify block cannot be judged; leave them out",
        ),
    ],
)
async def test_a_refusal_of_what_cannot_be_judged_says_what_to_write(
    written: str, said: str, shared_sandbox: DockerSandbox, tmp_path: Path
) -> None:
    await shared_sandbox.write_files({"said/d.sv": written, "said/b.sv": bench()})
    await shared_sandbox.run("cd said && iverilog -g2012 -gspecify -s tb -o d.vvp d.sv b.sv")
    (tmp_path / "d.vvp").write_bytes((await shared_sandbox.read_files(["said"]))["said/d.vvp"])
    assert reached_signals(str(tmp_path / "d.vvp"), lambda file: file.endswith("d.sv"))[0] == said


@pytest.mark.parametrize(
    "damage",
    [
        (b'"t" "Top"', b'"t" "T\np"'),  # as Icarus can write it: it prints a name from memory that it has freed
        (b'"t" "Top"', b'"t" "tb"'),
        (b"S_", b"s_"),
    ],
)
async def test_what_cannot_be_judged_is_refused(
    damage: tuple[bytes, bytes], shared_sandbox: DockerSandbox, tmp_path: Path
) -> None:
    written = design("v", "initial #5 v = 0;", "input var logic [7:0] v")
    await shared_sandbox.write_files({"one/d.sv": written, "one/testbench.sv": TESTBENCH})
    await shared_sandbox.run("cd one && iverilog -g2012 -s tb -o d.vvp d.sv testbench.sv")
    text = (await shared_sandbox.read_files(["one"]))["one/d.vvp"]
    assert damage[0] in text
    (tmp_path / "d.vvp").write_bytes(text.replace(*damage))
    assert reached_signals(str(tmp_path / "d.vvp"), lambda name: not name.endswith("testbench.sv"))


@pytest.mark.parametrize("name", ["constants.vams", "folder/../constants.vams"])
async def test_what_bears_the_name_of_a_shipped_header_is_the_designs(
    name: str, shared_sandbox: DockerSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The testbench is a file that exists, too, so that its own files are not taken for the design's."""
    shipped = tmp_path / "include"
    (shipped / "folder").mkdir(parents=True)
    (shipped / "constants.vams").touch()
    (tmp_path / "testbench.sv").touch()
    monkeypatch.setattr(sources, "OWN", (*READABLE, str(shipped)))
    body = 'integer f; initial #5 begin v = 0; f = $fopen("n.txt", "r"); end'
    written = f'`line 1 "{shipped}/{name}" 0\n{design("v", body, "input var logic [7:0] v")}'
    testbench = f'`line 1 "{tmp_path}/testbench.sv" 0\n{TESTBENCH}'
    await shared_sandbox.write_files({"claimed/d.sv": written, "claimed/testbench.sv": testbench})
    done = await shared_sandbox.run("cd claimed && iverilog -g2012 -s tb -o d.vvp d.sv testbench.sv")
    compiled = tmp_path / "d.vvp"
    compiled.write_bytes((await shared_sandbox.read_files(["claimed"]))["claimed/d.vvp"])
    assert reached_signals(str(compiled), sources.is_own), done
    assert benches_with_files([str(compiled)], sources.is_own)[0].startswith("read|n.txt ")
    assert benches_with_files([str(compiled)], lambda name: False)[0].startswith("all ")


@pytest.mark.slow  # some seven hundred simulations
async def test_no_way_to_write_or_drive_an_input_is_missed(shared_sandbox: DockerSandbox, tmp_path: Path) -> None:
    assert await _nothing_is_missed(ways(("v",)), shared_sandbox, tmp_path) >= 25
    every = [*ways(("w", "g", "sv", "bv", "i", "r")), *memories()]
    assert await _nothing_is_missed(every, shared_sandbox, tmp_path) >= 250


async def test_reading_a_variable_input_is_honest(shared_sandbox: DockerSandbox, tmp_path: Path) -> None:
    told = await _played(honest(), shared_sandbox, tmp_path)
    assert told == {name: (False, []) for name, _ in honest()}

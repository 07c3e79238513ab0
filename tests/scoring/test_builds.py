"""The stages without simulation read a design as the harness's own build does: include folders, macros and order."""

from __future__ import annotations

import pytest

from rtl_agent_gym.scoring import RewardWeights, Scorer

from .conftest import GOLDEN, HEADER, RUNNER, TARGET, make_problem

WIDTH = "rtl/include/width.svh"
BODY = GOLDEN.replace("7:0", "`TOP:0")
INCLUDED = f'`include "width.svh"\n{BODY}'


def runner(**options: str) -> dict[str, str]:
    """The adder's harness with more options of the build."""
    more = "".join(f"        {name}={value},\n" for name, value in options.items())
    return {"src/test_runner.py": RUNNER.replace("        always=True,\n", f"{more}        always=True,\n")}


@pytest.mark.sampled(3)  # test_frontend.py has their includes without a build
@pytest.mark.parametrize(
    ("files", "options"),
    [
        pytest.param({TARGET: INCLUDED, WIDTH: "`define TOP 7\n"}, {"includes": '["/code/rtl/include"]'}, id="folder"),
        pytest.param(
            {TARGET: INCLUDED.replace("width.svh", "../verif/width.svh"), "verif/width.svh": "`define TOP 7\n"},
            {"includes": '["/code/rtl"]'},
            id="relative to a folder",
        ),
        pytest.param(
            {TARGET: INCLUDED.replace("width.svh", "../../rtl/width.svh"), "rtl/width.svh": "`define TOP 7\n"},
            {"includes": '["/code/rundir/sim_build"]'},
            id="relative to the build's folder",
        ),
        pytest.param(
            {TARGET: INCLUDED.replace("width.svh", "/code/rtl/width.inc"), "rtl/width.inc": "`define TOP 7\n"},
            {},
            id="a header whose name does not end like one",
        ),
        pytest.param({TARGET: BODY}, {"defines": '{"TOP": 7}'}, id="macro"),
        pytest.param({TARGET: f'`include "constants.vams"\n{GOLDEN}'}, {}, id="a header that comes with the simulator"),
        pytest.param(
            {TARGET: f'`include "constants.vams"\nmodule pi; real x = `M_PI; endmodule\n{GOLDEN}'},
            {},
            id="its macros",
        ),
    ],
)
async def test_a_right_design_is_right_in_every_stage(
    scorer: Scorer, files: dict[str, str], options: dict[str, str]
) -> None:
    score = await scorer.score(make_problem(harness=runner(**options)), files)
    assert (score.passed, score.syntax, score.interface, score.compile) == (True, 1.0, 1.0, 1.0), score.reason
    assert score.reward == pytest.approx(1.4)


async def test_a_header_in_a_folder_that_the_build_does_not_search_is_not_found(scorer: Scorer) -> None:
    score = await scorer.score(make_problem(), {TARGET: INCLUDED, WIDTH: "`define TOP 7\n"})
    assert (score.passed, score.syntax, score.compile) == (False, 0.0, 0.0)
    assert "width.svh" in score.reason


async def test_a_macro_of_the_build_decides_what_is_read(scorer: Scorer) -> None:
    """The design without the macro is fine, and the one that is compiled is not."""
    text = f"`ifdef NARROW\nmodule adder(; endmodule\n`else\n{GOLDEN}`endif\n"
    good = await scorer.score(make_problem(), {TARGET: text})
    bad = await scorer.score(make_problem(harness=runner(defines='{"NARROW": 1}')), {TARGET: text})
    assert (good.syntax, good.passed) == (1.0, True)
    assert (bad.syntax, bad.compile, bad.passed) == (0.0, 0.0, False)


async def test_an_unread_header_does_not_hide_wrong_ports_or_a_file_that_is_not_compiled(scorer: Scorer) -> None:
    wrong = f'`include "constants.vams"\n{GOLDEN}'.replace("sum", "total")
    score = await scorer.score(make_problem(), {TARGET: wrong})
    assert (score.passed, score.syntax, score.compile) == (False, 1.0, 1.0)
    assert score.interface < 1.0
    two = make_problem(targets=(TARGET, "rtl/other.sv"))
    other = '`include "constants.vams"\nmodule other(; endmodule\n'
    score = await scorer.score(two, {TARGET: GOLDEN, "rtl/other.sv": other})
    assert (score.syntax, score.compile) == (0.5, 1.0)


@pytest.mark.parametrize("name", ["adder.sv", "rtl/adder.sv", "width.svh"])
async def test_a_target_that_the_build_leaves_out_may_include_from_every_folder(scorer: Scorer, name: str) -> None:
    """A testbench, compiled by the agent with ``-I`` or in the folder of the design."""
    bench = "verif/tb_adder.sv"
    files = {TARGET: GOLDEN, WIDTH: "`define TOP 7\n", bench: f'`include "{name}"\nmodule tb_adder;\nendmodule\n'}
    score = await scorer.score(make_problem(targets=(TARGET, bench)), files)
    assert (score.passed, score.syntax, score.interface, score.compile) == (True, 1.0, 1.0, 1.0), score.reason
    broken = files | {bench: files[bench].replace("tb_adder;", "tb_adder(;")}
    assert (await scorer.score(make_problem(targets=(TARGET, bench)), broken)).syntax == 0.5


async def test_without_a_build_every_folder_is_searched() -> None:
    async with Scorer(weights=RewardWeights(simulate=False)) as scorer:
        score = await scorer.score(make_problem(), {TARGET: INCLUDED, WIDTH: "`define TOP 7\n"})
    assert (score.syntax, score.interface) == (1.0, 1.0), (score.reason, HEADER)

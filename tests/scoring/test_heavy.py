"""Heavy rows: a whole repository in the work folder, also with a folder src, graded by hidden tests."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rtl_agent_gym.cli.score import read_folder
from rtl_agent_gym.episodes.episode import Episode, EpisodeConfig
from rtl_agent_gym.policies import Completion
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.problems.paths import editable
from rtl_agent_gym.renderers import ToolCall, get_renderer
from rtl_agent_gym.sandboxes import SandboxProvider
from rtl_agent_gym.scoring import Scorer
from rtl_agent_gym.scoring.submission import sift
from rtl_agent_gym.transcripts import read_transcript
from tests.scoring.conftest import COMPOSE, ENV, GOLDEN, make_problem

SOURCE = "src/rtl/adder.sv"
INCLUDING = '`include "/code/lib/width.svh"\n' + GOLDEN.replace("[7:0]", "[`WIDTH-1:0]")
WRONG = INCLUDING.replace("a + b", "a - b")
CONTEXT = {
    SOURCE: WRONG,
    "lib/width.svh": "`define WIDTH 8\n",
    "scripts/gen.py": "print(1)\n",
    "README.md": "# Adder\n",
}


def heavy() -> Problem:
    compose = COMPOSE.replace("working_dir : /code/rundir", "working_dir : /somewhere")
    env = ENV.replace("/code/rtl/adder.sv", f"/code/{SOURCE}")
    return make_problem(
        id="cvdp_agentic_heavy_adder_0001",
        category=16,
        context=CONTEXT,
        targets=(SOURCE,),
        golden={SOURCE: INCLUDING},
        checkout="adder@0123456789abcdef",
        harness={"docker-compose.yml": compose, "src/.env": env},
    )


def test_programs_of_the_repository_are_graded_as_given() -> None:
    problem = heavy()
    changed = {**CONTEXT, "scripts/gen.py": "import os\n", "conftest.py": "x\n", "src/test_runner.py": "x\n"}
    changed |= {"rundir/x.sv": "x\n", "lib/new.sv": "module n; endmodule\n"}
    found = sift(problem, changed)
    assert sorted(found.files) == sorted(["README.md", "lib/new.sv", "lib/width.svh", SOURCE])
    assert found.tree["scripts/gen.py"] == b"print(1)\n"
    assert found.violations == ()
    assert sum("graded as given" in line for line in found.left_out) == 3
    assert sift(problem, CONTEXT).left_out == ()


@pytest.mark.docker
async def test_designs_in_a_repository(scorer: Scorer) -> None:
    problem = heavy()
    spying = INCLUDING.replace("endmodule", 'integer f; initial f = $fopen("/src/test_adder.py", "r");\nendmodule')
    right, wrong, spied = await asyncio.gather(
        *(scorer.score(problem, {**CONTEXT, SOURCE: text}) for text in (INCLUDING, WRONG, spying))
    )
    assert (right.passed, right.tests_passed, right.violations) == (True, 3, []), right.reason
    assert (wrong.passed, wrong.violations) == (False, [])
    assert wrong.tests_total == 3
    assert not spied.passed
    assert "/src/test_adder.py" in spied.violations[0]


@pytest.mark.docker
async def test_an_episode_in_a_repository(scorer: Scorer, shared_provider: SandboxProvider, tmp_path: Path) -> None:
    make = "mkdir -p .git include rundir; touch .git/x rundir/x; mv lib/width.svh include/; echo '// top' > defs.svh"
    include = f"sed -i 's/a - b/a + b/; s+/lib/+/include/+' {SOURCE}"
    command = f"ls; cat README.md; {make}; {include}; echo '// more' >> include/width.svh"
    config = EpisodeConfig(transcript_dir=tmp_path)
    renderer = get_renderer("qwen3")
    async with Episode(
        heavy(), provider=shared_provider, grader=scorer, renderer=renderer, config=config, seed=1
    ) as episode:
        opening = await episode.start()
        assert "/code holds a repository" in opening.user
        assert "- README.md (8 bytes)" in opening.user
        turn = await episode.act([ToolCall.of(command)])
        assert "# Adder" in turn.observation
        assert "verif" not in turn.observation
        last = await episode.step(Completion("Done."))
    assert last.score is not None
    assert last.score.passed, last.score.reason
    transcript = read_transcript(next(tmp_path.iterdir()))
    assert transcript.header.files == CONTEXT
    changes = transcript.turns[0].files
    assert sorted(changes) == ["defs.svh", "include/width.svh", "lib/width.svh", SOURCE]
    assert changes["lib/width.svh"] is None
    assert transcript.score is not None
    assert {"defs.svh", "include/width.svh", SOURCE} <= transcript.score.files.keys()


def test_all_files_of_a_repository_count_but_those_of_its_runs(tmp_path: Path) -> None:
    for path in ("defs.svh", "include/width.svh", "rundir/x", ".git/config", "src/rtl/new.sv"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x")
    found = dict(read_folder(tmp_path, heavy()))
    assert {path for path, content in found.items() if content} == {"defs.svh", "include/width.svh", "src/rtl/new.sv"}
    assert [path for path in found if editable(heavy(), path)] == [path for path, content in found.items() if content]

"""``benchmarks/looking.py`` and ``benchmarks/spelled.py``: what an episode did, and what the runs are given."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from rtl_agent_gym.demo import shipped
from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.sources.families import draw_members
from rtl_agent_gym.sources.families.looking import RUN_SMOKE
from rtl_agent_gym.training.plan import plan_run
from rtl_agent_gym.transcripts import CommandRecord, Header, Transcript, TurnRecord


@pytest.fixture(scope="module")
def benchmarks() -> tuple[ModuleType, ModuleType]:
    return import_module("looking"), import_module("spelled")


def transcript(*ran: tuple[str, str]) -> Transcript:
    """An episode of commands with their outputs; the one that begins with "cat >" writes the design."""
    found = Transcript(Path("x"), Header.model_construct())
    for number, (command, output) in enumerate(ran, 1):
        record = CommandRecord(command=command, exit_code=0, output=output)
        files: dict[str, str | None] = {"rtl/design.sv": "module"} if command.startswith("cat >") else {}
        turn = TurnRecord(turn=number, completion="", action="command", commands=[record], files=files)
        found.turns.append(turn)
    return found


READ, WRITTEN = ("cat docs/a.md", "| ..."), ("cat > rtl/design.sv", "")
PASSES, FAILS, FIXED = (RUN_SMOKE, "PASS\n"), (RUN_SMOKE, "FAIL: enable\n"), ("sed -i s/a/b/ rtl/design.sv", "")


@pytest.mark.parametrize(
    ("ran", "looked", "failed", "repaired"),
    [
        ((READ, WRITTEN, PASSES), True, False, False),
        ((("cat docs/b.md", ""), WRITTEN, PASSES), False, False, False),
        ((WRITTEN, READ, PASSES), False, False, False),
        ((READ, WRITTEN, FAILS, FIXED, PASSES), True, True, True),
        ((READ, WRITTEN, FAILS, FIXED, FAILS), True, True, False),
        ((READ, WRITTEN, FAILS), True, True, False),
        ((READ, WRITTEN, FAILS, ("ls verif", "smoke.sv\n"), ("cat verif/smoke.sv", "PASS\n")), True, True, False),
        ((READ, ("ls verif", "smoke.sv\n"), WRITTEN, PASSES, ("cat verif/smoke.sv", "end\n")), True, False, False),
        ((READ, WRITTEN, (f"{RUN_SMOKE}; ls", "PASS\nrtl\n")), True, False, False),
        ((READ, WRITTEN, (RUN_SMOKE, "rtl/design.sv:1: syntax error\n"), FIXED, PASSES), True, True, True),
        ((("cat docs/*.md", "| ..."), WRITTEN), True, False, False),
        ((("head -n 9 /code/docs/?.md; ls", "| ..."), WRITTEN), True, False, False),
        ((("cat docs/b*.md docs/*.txt", ""), ("rm -f rundir/*", ""), WRITTEN), False, False, False),
        ((("cat > rtl/design.sv <<'E'\nassign y = a * b;\nE", ""),), False, False, False),
        ((), False, False, False),
    ],
)
def test_what_an_episode_did(
    benchmarks: tuple[ModuleType, ModuleType],
    ran: tuple[tuple[str, str], ...],
    looked: bool,
    failed: bool,
    repaired: bool,
) -> None:
    acts = benchmarks[0].acts_of(transcript(*ran), "docs/a.md", True)
    assert acts == benchmarks[0].Acts(True, looked, failed, repaired)


def test_supervised_episodes_read_the_right_document_and_end_with_a_pass(
    benchmarks: tuple[ModuleType, ModuleType],
) -> None:
    source = "family:accumulators?count=20&seed=4"
    rows = list(benchmarks[1].right_episodes(source))
    for problem, member, row in zip(load_problems(source), draw_members(source), rows, strict=True):
        document = f"docs/{member.names['document']}.md"
        outputs = [one["content"] for one in row["messages"] if one["role"] == "tool"]
        assert outputs[0] == problem.context[document]
        assert outputs[-1] == "PASS\n"
        assert document in str(row["messages"][1])


def test_a_deceived_teacher_reads_other_values_of_the_same_module(benchmarks: tuple[ModuleType, ModuleType]) -> None:
    source = "family:accumulators?count=20&seed=4"
    texts = benchmarks[1].lying_document(source)
    for problem, member in zip(load_problems(source), draw_members(source), strict=True):
        own, other = texts[problem.id]
        assert own == problem.context[f"docs/{member.names['document']}.md"]
        assert own != other
        assert f"`{member.names['module']}`" in other


def test_runs_need_models_and_never_train_on_what_they_test(
    benchmarks: tuple[ModuleType, ModuleType], tmp_path: Path
) -> None:
    spelled = benchmarks[1]
    with pytest.raises(UsageError, match=r"make it first with scripts/make_spelled_models\.py --out"):
        spelled.spelled("spelled-following", 0, argparse.Namespace(models=tmp_path, folder=tmp_path))
    ids = [
        {problem.id for problem in load_problems(spelled.source(30, seed, split))}
        for seed in (0, 1)
        for split in ("train", "combinations", "sizes")
    ]
    assert len(set.union(*ids)) == 180
    assert "kl_budget" not in spelled.OPTIONS


def test_every_run_can_be_planned(
    benchmarks: tuple[ModuleType, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spelled = benchmarks[1]
    monkeypatch.setattr(spelled, "TRAINED", 16)
    sizes = argparse.Namespace(models=shipped.shipped("spelled/student").parent, folder=tmp_path, held_out=8, set=[])
    for name in set(spelled.SPELLED) - {"spelled-sft"}:
        plan = plan_run(spelled.options_of(name, 0, sizes))
        assert plan.options.num_steps == shipped.SPELLED.defaults["num_steps"], name
        assert plan.options.kl_budget is None or "control" not in spelled.SPELLED[name].what, name

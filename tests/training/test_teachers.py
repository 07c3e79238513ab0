"""Teachers in the loop: one by problem, one of another family, one that reads another prompt; and rewards alone.

The environments, the vocabularies and the harness are real; only what the models say is scripted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
tinker = pytest.importorskip("tinker")

from data.bundled import wrong_designs  # noqa: E402
from rtl_agent_gym.errors import UsageError  # noqa: E402
from rtl_agent_gym.policies import heredoc  # noqa: E402
from rtl_agent_gym.problems import load_problems  # noqa: E402
from rtl_agent_gym.renderers.vocabularies import harmony_encoding  # noqa: E402
from rtl_agent_gym.training.rollouts import rollout_name, turn_seed  # noqa: E402
from rtl_agent_gym.training.teachers.setup import make_teachers  # noqa: E402
from tests.arbiter import ARBITER  # noqa: E402
from tests.envs.scripted_tinker import END, LOGPROB, call, decode  # noqa: E402
from tests.training.common import Certain, Published  # noqa: E402
from tests.training.scripted_run import STEPS, Scripted, make_plan, run  # noqa: E402

pytestmark = pytest.mark.docker
COUNTER = "cvdp_agentic_rtlgym_gray_counter_0001"


@dataclass
class Ran:
    rows: list[dict[str, Any]]
    data: list[list[Any]]
    models: dict[str, Certain]


async def played(
    folder_path: Path, ids: list[str], scripts: dict[str, list[str]], *arguments: str, size: int = 1
) -> Ran:
    """One step over these problems; `scripts` are by group and member."""
    service, engine = Scripted([]), Published()
    plan = make_plan(
        folder_path, load_problems("bundled", ids=ids), "student_model=Qwen/Qwen3-8B", f"batch_size={len(ids)}",
        f"group_size={size}", "num_steps=1", *arguments,
    )  # fmt: skip

    async def teacher(config: Any) -> Any:
        return await make_teachers(plan, engine, config)  # type: ignore[arg-type]

    def prepare(batches: Any) -> None:
        for group, problem in enumerate(batches.choose(0)):
            for member in range(size):
                said = scripts.get(f"{problem.id}/{member}") or scripts[problem.id]
                for turn, text in enumerate(said, 1):
                    service.texts[turn_seed(0, rollout_name(0, group, member), turn)] = text

    folder = await run(plan, service, teacher, prepare)
    return Ran(folder.metrics(), service.data, engine.models)


async def test_each_problem_has_its_teacher_and_one_of_another_family_reads_its_own_dialect(tmp_path: Path) -> None:
    said = [call("ls rtl  # what is there?"), f"Nothing to be done here.{END}"]
    ran = await played(
        tmp_path, [ARBITER, COUNTER], {ARBITER: said, COUNTER: said}, "teacher_model=Qwen/Qwen3-32B",
        f'teachers={{"{COUNTER}": "openai/gpt-oss-20b"}}', "kl_penalty_coef=1", "reward_coef=0",
    )  # fmt: skip
    [same], [other] = ran.models["Qwen/Qwen3-32B"].read, ran.models["openai/gpt-oss-20b"].read  # one call an episode
    assert all(text in decode(same) for text in said)
    harmony = harmony_encoding().decode(other)
    assert harmony.startswith("<|start|>system<|message|>")
    assert "to=functions.execute_bash" in harmony.rpartition("what is there?")[0]
    assert "Nothing to be done here." in harmony
    assert "gray_counter" in harmony
    assert "fixed_priority_arbiter" not in harmony
    [row] = ran.rows
    assert row[f"teacher_kl/{ARBITER}"] == pytest.approx(LOGPROB + 1.25)
    assert 0.5 < row["teacher_kl/covered"] < 1  # framing has no counterpart
    assert row[f"teacher_kl/{COUNTER}"] > 0


async def test_the_tokens_of_a_teacher_with_another_tokenizer_cannot_be_learnt(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="kl_top_k: openai/gpt-oss-20b has another tokenizer"):
        await played(
            tmp_path, [ARBITER], {ARBITER: [f"Done.{END}"]}, "teacher_model=openai/gpt-oss-20b", "kl_penalty_coef=1",
            "reward_coef=0", "kl_top_k=2",
        )  # fmt: skip


async def test_a_teacher_may_read_another_system_prompt(tmp_path: Path) -> None:
    ran = await played(
        tmp_path, [ARBITER], {ARBITER: [f"Done.{END}"]}, "teacher_model=Qwen/Qwen3-32B", "kl_penalty_coef=1",
        "teacher_system_prompt=You have solved this a thousand times.",
    )  # fmt: skip
    [read] = ran.models["Qwen/Qwen3-32B"].read
    assert "You have solved this a thousand times." in decode(read)
    [[datum]] = ran.data
    assert "You have solved this a thousand times." not in decode(datum.model_input.to_ints())
    assert decode(read).endswith(f"Done.{END}")
    assert ran.rows[0]["teacher_kl"] == pytest.approx(LOGPROB + 1.25)


async def test_the_single_turn_job_is_graded_and_tells_right_from_wrong(tmp_path: Path) -> None:
    [problem] = load_problems("bundled", ids=[ARBITER])
    assert problem.golden
    answers = (problem.golden, wrong_designs(ARBITER)["rst_n_for_reset"])
    right, wrong = (f"Here it is.\n```systemverilog\n{next(iter(files.values()))}```{END}" for files in answers)
    ran = await played(
        tmp_path, [ARBITER], {f"{ARBITER}/0": [right], f"{ARBITER}/1": [wrong]}, "env=single_turn", "baseline=group",
        "kl_penalty_coef=0", "teacher_model=none", "reward_coef=1", size=2,
    )  # fmt: skip
    assert ran.rows[0]["env/all/reward/total"] == pytest.approx((1.4 + 0.4) / 2)
    assert ran.rows[0]["pass_rate"] == 0.5
    signs = [torch.sign(datum.loss_fn_inputs["advantages"].to_torch()).sum().item() for datum in ran.data[0]]
    assert signs[0] > 0 > signs[1]


@pytest.mark.slow
async def test_progress_alone_tells_two_episodes_apart(tmp_path: Path) -> None:
    """Both leave the same files, so the final score is one; only one of them submitted a design on the way."""
    [problem] = load_problems("bundled", ids=[ARBITER])
    design = call("\n".join(heredoc(*file) for file in wrong_designs(ARBITER)["rst_n_for_reset"].items()))
    submits, waits = ([design, call(command), f"Done.{END}"] for command in ("submit", "true"))
    service: Any = Scripted([submits, waits])
    plan = make_plan(
        tmp_path, [problem], "harness_feedback=2", "progress_coef=0.7", "kl_penalty_coef=0", "teacher_model=none",
        "group_size=2", "baseline=group", f"num_steps={STEPS}", "reward_coef=1",
    )  # fmt: skip
    episode = plan.env_config(tmp_path).episode
    assert (episode.harness_feedback, episode.progress_coef) == (2, 0.7)
    folder = await run(plan, service)
    rows = folder.metrics()
    assert len(rows) == len(service.data) == STEPS
    for row, data in zip(rows, service.data, strict=True):
        assert row["env/all/submissions"] == 0.5
        assert row["env/all/progress_reward"] == pytest.approx(0.05)
        assert row["env/all/reward/total"] == pytest.approx(0.4 + 0.05)  # 0.4: there, and free of syntax errors
        assert row["advantage/abs_reward"] == pytest.approx(0.05)
        signs = [torch.sign(datum.loss_fn_inputs["advantages"].to_torch()).sum().item() for datum in data]
        assert len(signs) == 2
        assert signs[0] > 0 > signs[1]

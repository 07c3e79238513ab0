"""Teachers that read more than the student: a reference, hints, or how the episode was graded; and the student itself.

The environments, the vocabularies and the harness are real; only what the models say is scripted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import tinker

pytest.importorskip("torch")
pytest.importorskip("tinker")

from data.bundled import wrong_designs
from rtl_agent_gym.engines.config import LocalEngineConfig
from rtl_agent_gym.engines.connect import local_engine
from rtl_agent_gym.engines.requests import GuardedSampler, Requests
from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.policies import heredoc
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.prompts import with_reference
from rtl_agent_gym.renderers.vocabularies import harmony_encoding
from rtl_agent_gym.training.plan import plan_run
from rtl_agent_gym.training.teacher_context import TeacherContext
from rtl_agent_gym.training.teachers import SameTokens, Sampled, SelfTeacher
from rtl_agent_gym.training.teachers.setup import make_teachers
from tests.arbiter import ARBITER
from tests.envs.scripted_tinker import END, call, decode, solution
from tests.training.common import Certain, begun
from tests.training.scripted_run import make_plan
from tests.training.test_teachers import COUNTER, played

STUDENT = "Qwen/Qwen3-8B"
MARKER = "zebra_crossing"
TASK = "This design does what the task says."
"""A sentence of the prompt with a reference."""


def all_text(folder: Path) -> str:
    """Everything that a run has written of its episodes; not the difference of the code."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "code.diff")
    return "".join(path.read_text(errors="replace") for path in files)


@pytest.mark.docker
@pytest.mark.parametrize(
    ("teacher", "context"),
    [
        ("self", "reference"),
        ("openai/gpt-oss-20b", "hints"),
        pytest.param("self", "hints", marks=pytest.mark.slow),
        pytest.param("Qwen/Qwen3-32B", "reference", marks=pytest.mark.slow),
    ],
)
async def test_only_the_teacher_reads_the_context(tmp_path: Path, teacher: str, context: str) -> None:
    hints = tmp_path / "hints.json"
    hints.write_text(json.dumps({ARBITER: f"\n\nUse a {MARKER}."}))
    value, secret = (f"hints:{hints}", MARKER) if context == "hints" else (context, TASK)
    said = [call("ls rtl"), f"Done.{END}"]
    ran = await played(
        tmp_path / "run", [ARBITER], {ARBITER: said}, f"teacher_model={teacher}", f"teacher_context={value}",
        "kl_penalty_coef=1", "reward_coef=0", "resume_every=2",
    )  # fmt: skip
    [read] = ran.models[STUDENT if teacher == "self" else teacher].read
    text = harmony_encoding().decode(read) if "gpt-oss" in teacher else decode(read)
    assert text.count(secret) == 1
    assert text.index("Your work is done when") < text.index(secret) < text.index("ls rtl")
    [[datum]] = ran.data
    assert secret not in decode(datum.model_input.to_ints())
    assert "ls rtl" in (written := all_text(tmp_path / "run"))
    assert secret not in written
    if "gpt-oss" not in teacher:  # the sampled tokens are the student's own
        sampled = datum.model_input.to_ints()[-40:]
        assert read[-41:-1] == sampled
        assert ran.rows[0]["teacher_kl/covered"] == 1.0


@pytest.mark.docker
async def test_a_problem_without_a_hint_has_no_kl(tmp_path: Path) -> None:
    hints = tmp_path / "hints.json"
    hints.write_text(json.dumps({ARBITER: "\n\nMind the reset."}))
    said = [f"Done.{END}"]
    ran = await played(
        tmp_path / "run", [ARBITER, COUNTER], {ARBITER: said, COUNTER: said}, "teacher_model=self",
        f"teacher_context=hints:{hints}", "kl_penalty_coef=1", "reward_coef=0",
    )  # fmt: skip
    assert len(ran.models[STUDENT].read) == 1
    [row] = ran.rows
    assert row[f"teacher_kl/{ARBITER}"] != 0
    assert f"teacher_kl/{COUNTER}" not in row  # unknown is not 0
    assert row["teacher_kl/covered"] == 0.5


@pytest.mark.docker
async def test_feedback_is_the_episodes_result_and_a_siblings_solution(tmp_path: Path) -> None:
    [problem] = load_problems("bundled", ids=[ARBITER])
    assert problem.golden
    [(path, golden)] = problem.golden.items()
    [wrong] = wrong_designs(ARBITER)["rst_n_for_reset"].values()
    scripts = {
        f"{ARBITER}/0": [solution(problem), f"Right.{END}"],
        f"{ARBITER}/1": [call(heredoc(path, wrong)), f"Wrong.{END}"],
        f"{ARBITER}/2": [call(heredoc(path, "module broken (;\n")), f"Broken.{END}"],
    }
    ran = await played(
        tmp_path / "run", [ARBITER], scripts, "teacher_model=self", "teacher_context=feedback", "kl_penalty_coef=1",
        size=3,
    )  # fmt: skip
    prompts = {}
    for read in ran.models[STUDENT].read:
        text = decode(read)
        prompt, _, rest = text.partition("<|im_start|>assistant")
        prompts[rest.rstrip().removesuffix(END).rpartition("\n")[2]] = prompt
    right, bad, broken = prompts["Right."], prompts["Wrong."], prompts["Broken."]
    assert "all checks pass" in right
    assert "# A solution" not in right  # no other episode passed
    assert "these checks fail:\n- interface\n- test_reset_clears\n" in bad
    assert bad.count(golden.strip()) == broken.count(golden.strip()) == 1
    assert "these checks fail:\n- syntax\n- interface\n- compile\n" in broken
    assert f"does not compile: {path}:1: " in broken  # where the compiler found its first error
    assert ran.rows[0]["teacher_kl/covered"] == 1.0
    assert all("# The result of this attempt" not in decode(datum.model_input.to_ints()) for datum in ran.data[0])
    assert "# The result of this attempt" not in all_text(tmp_path / "run")


@pytest.mark.parametrize("user", ["Write it.", "Write it.\n", "Write it.\n\n"])
@pytest.mark.parametrize("given", ["", "\n\n"])
def test_a_hint_follows_an_empty_line(user: str, given: str) -> None:
    problem, other = load_problems("bundled")[:2]
    assert other.golden
    # What `benchmarks/deceived.py` gives to its control, so that only the solution differs from a right reference.
    context = TeacherContext("hints", {problem.id: given + with_reference("", other.golden)})
    assert context.user_message(problem, user) == with_reference(user, other.golden)
    assert context.user_message(problem, user) == TeacherContext("reference").user_message(other, user)


async def test_what_does_not_fit_behind_a_longer_prompt_has_no_kl() -> None:
    own, longer, said = [1, 2], [1, 2, 3, 4, 5], [6, 7, 8, 9]
    below: Any = Certain()
    teacher = SameTokens(GuardedSampler(below, Requests(), 8), {"p": (own, lambda _: longer)})
    sampled = Sampled("p", [*own, *said], [0.0] * 2 + [1.0] * 4, [0.0] * 2 + [-0.5] * 4)
    assert (await teacher.judge(sampled)).covered == [0, 0, 1, 1, 0, 0]
    assert (await replace(teacher, prompts={}).judge(sampled)).covered == [0, 0, 1, 1, 1, 1]


@dataclass
class Trained(Certain):
    """An engine and its trainer, which records the requests."""

    asked_for: list[tuple[Any, ...]] = field(default_factory=list)

    async def published(self, option: str, model: str) -> Any:
        self.asked_for.append((option, model))
        return self

    async def trainer(self, model: str, rank: int, seed: int, state: str | None, *, optimizer: bool) -> Any:
        self.asked_for.append((model, rank, state, optimizer))
        return self

    async def save_weights_and_get_sampling_client(self) -> Any:
        return self


async def test_a_service_gives_the_weights_of_the_start(tmp_path: Path) -> None:
    problems = load_problems("bundled", ids=[ARBITER])
    for more, asked in (
        ((), ("student_model", STUDENT)),
        (("load_checkpoint_path=tinker://x/weights/y", "lora_rank=8"), (STUDENT, 8, "tinker://x/weights/y", False)),
    ):
        engine: Any = Trained()
        plan = make_plan(tmp_path, problems, "teacher_model=self", *more)
        await make_teachers(plan, engine, plan.env_config(tmp_path))
        assert engine.asked_for == [asked]


async def test_the_local_engine_gives_the_weights_of_the_start(tmp_path: Path, home: Path) -> None:
    engine = local_engine(LocalEngineConfig(tmp_path / "checkpoints"))
    try:
        before = await engine.trainer(str(home / "student"), 0, 0, None, optimizer=False)
        data: Any = {"target_tokens": [2, 3, 4, 5], "weights": [1.0] * 4}
        step = tinker.Datum(model_input=tinker.ModelInput.from_ints([1, 2, 3, 4]), loss_fn_inputs=data)
        await before.forward_backward([step], "cross_entropy")
        await before.optim_step(tinker.AdamParams(learning_rate=1e-2))
        state = (await before.save_state("s")).path
        plan = make_plan(
            tmp_path, load_problems("bundled", ids=[ARBITER]), "teacher_model=self", "lora_rank=0",
            f"load_checkpoint_path={state}",
        )  # fmt: skip
        teachers = await make_teachers(replace(plan, student=str(home / "student")), engine, plan.env_config(tmp_path))
        sampled = Sampled(ARBITER, [1, 2, 3, 4, 5], [0.0, 0.0, 1.0, 1.0, 1.0], [0.0] * 5)
        found = await teachers[ARBITER].judge(sampled)
        saved = await before.save_weights_and_get_sampling_client()
        base = await engine.published("student_model", str(home / "student"))
        assert found.kl == (await SameTokens(saved).judge(sampled)).kl
        assert found.kl != (await SameTokens(base).judge(sampled)).kl
    finally:
        await engine.close("success")


@pytest.mark.parametrize("option", ["teacher_context", "system_prompt", "teacher_system_prompt"])
def test_a_run_is_not_resumed_with_a_file_that_has_changed(option: str, tmp_path: Path, home: Path) -> None:
    text = tmp_path / "text"
    text.write_text(json.dumps({ARBITER: "Mind the reset."}))
    value = f"hints:{text}" if option == "teacher_context" else f"@{text}"
    student = {"engine": "local", "student_model": str(home / "student"), "renderer_name": "qwen3_instruct"}
    given = student | {"problem_ids": ARBITER, "teacher_model": "self", option: value, "baseline": "running"}
    if option != "teacher_context":
        given["teacher_context"] = "reference"
    for _ in range(2):
        folder = begun(tmp_path / "run", plan_run(given).record())
    (folder.path / "metrics.jsonl").touch()
    text.write_text(json.dumps({ARBITER: "Mind the clock."}))
    with pytest.raises(UsageError, match=f"^{option}_digest: "):
        folder.open(plan_run(given).record(), "resume")
    folder.open(plan_run(given).record(), "delete")  # the refusal has released the folder
    folder.close()


async def test_a_self_teacher_judges_with_the_weights_of_so_many_steps_before() -> None:
    weights: list[Any] = [Certain(-float(version)) for version in range(5)]
    teacher, found = SelfTeacher(weights[0], lag=2), []
    for step in range(5):
        teacher.keep(step, weights[step], f"w{step}")
        teacher.begin(step)
        found.append((await teacher.judge(Sampled("p", [1, 2], [0.0, 1.0], [0.0, 0.0]))).kl[1])
    assert found == [0, 0, 0, 1, 2]
    assert teacher.saved(5) == [{"version": 3, "weights": "w3"}, {"version": 4, "weights": "w4"}]


async def test_the_likeliest_tokens_behind_another_prompt_are_those_of_their_place() -> None:
    class Naming:
        async def sample(self, prompt: Any, *_: Any) -> Any:
            ids = prompt.to_ints()
            return tinker.SampleResponse(
                sequences=[],
                _prompt_logprobs_list=[None, *[-1.0] * (len(ids) - 1)],
                _topk_prompt_logprobs_list=[None, *([(id_, -1.0)] for id_ in ids[1:])],
            )

    sampler: Any = Naming()
    teacher = SameTokens(sampler, {"p": ([1, 2], lambda _: [1, 2, 3, 4, 5])}, top=1)
    judged = await teacher.judge(Sampled("p", [1, 2, 6, 7], [0.0, 0.0, 1.0, 1.0], [0.0] * 4))
    assert judged.top == [[], [], [(6, -1.0)], [(7, -1.0)]]
    with pytest.raises(UsageError, match="not the expected prompt"):
        await teacher.judge(Sampled("p", [1, 3, 6, 7], [0.0, 0.0, 1.0, 1.0], [0.0] * 4))

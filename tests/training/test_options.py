"""Options: defaults, values, and errors that name the option and are reported at once."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args
from unittest.mock import Mock

import pytest
from pydantic.fields import FieldInfo

from rtl_agent_gym.cluster import runtime_at
from rtl_agent_gym.demo.founding import PROBLEM_ID
from rtl_agent_gym.demo.shipped import SMALL
from rtl_agent_gym.engines.config import STORED, key_source
from rtl_agent_gym.errors import SandboxError, UsageError
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.sandboxes import admission
from rtl_agent_gym.training import launch, plan, run_folder
from rtl_agent_gym.training.options import SftOptions, TrainOptions, describe_options, split_arguments
from rtl_agent_gym.training.plan import Plan, plan_sft
from rtl_agent_gym.training.preview import describe_run
from rtl_agent_gym.training.run_folder import CHANGEABLE, RunFolder
from rtl_agent_gym.training.teacher_context import check_teachers
from tests.training.common import DEFAULTS, begun

CONTRACT = {
    "max_turns": 50, "kl_penalty_coef": 0.7, "kl_discount_factor": 0.0, "batch_size": 1, "group_size": 1,
    "learning_rate": 1e-4, "lora_rank": 32, "timeout_seconds": 30.0, "student_model": "Qwen/Qwen3.5-9B",
    "teacher_model": "Qwen/Qwen3.6-27B",
}  # fmt: skip


def fields(options: type[TrainOptions]) -> dict[str, FieldInfo]:
    """The fields by the names that users give."""
    return {field.alias or name: field for name, field in options.model_fields.items()}


def parsed(*arguments: str) -> TrainOptions:
    return TrainOptions.build(split_arguments(arguments))


def plan_run(given: dict[str, Any], *, rl: bool = False) -> Plan:
    """The plan of a run that may use the shipped models."""
    return plan.plan_run(given, rl=rl, recipes=[SMALL])


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("TINKER_API_KEY", "TINKER_CREDENTIAL_CMD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", os.environ.get("HF_HUB_CACHE", str(Path.home() / ".cache/huggingface/hub")))
    monkeypatch.setenv("HOME", str(tmp_path))  # nor a stored one


def test_the_help_lists_every_option_with_its_default_and_description(monkeypatch: pytest.MonkeyPatch) -> None:
    for width in (40, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        text = describe_options()
        assert all(len(line) <= width for line in text.splitlines()[1:] if "=" not in line)
        words = " ".join(text.split())
        for name, field in fields(TrainOptions).items():
            assert f"\n  {name}=" in text
            assert field.description
            assert " ".join(field.description.replace("``", "").split()) in words
    assert "  learning_rate=0.0001\n" in text
    assert "One of agentic, single_turn." in words


def test_defaults_are_the_documented_ones() -> None:
    assert TrainOptions().model_dump().items() >= CONTRACT.items()


def test_rewards_of_training_episodes_are_no_options_of_supervised_training() -> None:
    for name in ("turn_rewards", "turn_grading_time", "progress_coef"):
        with pytest.raises(UsageError, match=f"^{name}: does not apply to this recipe"):
            SftOptions.build({name: "1"})


def test_values_are_read_from_text() -> None:
    options = parsed(
        "learning_rate=3e-4", "problem_ids=a,b", "pipeline=true", "kl_clip=0.5", "teacher_model=none",
        'reward_weights={"tests": 2}', "--num-steps=7",
    )  # fmt: skip
    assert (options.learning_rate, options.ids, options.pipeline) == (3e-4, ("a", "b"), True)
    assert (options.kl_clip, options.teacher_model, options.num_steps) == (0.5, None, 7)
    assert options.reward_config().tests == 2


@pytest.mark.parametrize("options", [TrainOptions, SftOptions])
def test_none_takes_back_any_default_that_may_be_none(options: type[TrainOptions]) -> None:
    """A recipe may set one, as that of the shipped models sets ``kl_budget``."""
    optional = [name for name in options.names() if type(None) in get_args(fields(options)[name].annotation)]
    assert {"held_out", "eval_temperature"} <= {*optional}
    for name in optional:
        assert options.build({name: "none"}, {name: 1.0}).model_dump()[name] is None


def test_an_empty_prompt_is_a_prompt() -> None:
    for name in ("system_prompt", "user_prompt", "teacher_system_prompt"):
        assert getattr(parsed(f"{name}="), name) == ""


def test_options_of_the_tree_have_the_trees_names_too() -> None:
    for names in (("problems", "ids", "command_timeout"), ("cvdp_jsonl_path", "problem_ids", "timeout_seconds")):
        options = TrainOptions.build(dict(zip(names, ("x", "a", "5"), strict=True)))
        assert (options.problems, options.ids, options.command_timeout) == ("x", ("a",), 5.0)
    with pytest.raises(UsageError, match=r"^timeout_seconds must be greater than 0, got '0'"):
        parsed("command_timeout=0")
    with pytest.raises(UsageError, match=r"^cvdp_jsonl_path: given twice, as 'a' and as 'b'"):
        parsed("problems=a", "cvdp_jsonl_path=b")
    with pytest.raises(UsageError, match=r"^ids: given twice, also as problem_ids"):
        plan_run({"ids": "a", "problem_ids": "b"})
    assert split_arguments(["timeout_seconds?=5", "command_timeout=6"]) == {"timeout_seconds": "6"}


def test_a_source_or_a_filter_takes_back_the_recipes_ids() -> None:
    made = plan_run({})
    assert (made.engine, made.options.student_model, made.options.group_size) == ("local", "small", 8)
    assert made.options.distils
    assert not plan_run({}, rl=True).options.distils
    assert [problem.id for problem in made.problems] == [PROBLEM_ID]
    sources = {"problems": "family:timers?count=2", "cvdp_jsonl_path": "bundled"}
    for option, value in (sources | {"categories": "16", "difficulties": "easy"}).items():
        assert len(plan_run({option: value}).problems) > 1


def test_learning_rate_warms_up_and_falls_to_its_share() -> None:
    options = parsed("learning_rate=1", "lr_schedule=linear", "num_steps=11", "warmup_steps=1")
    assert options.learning_rate_at(0) == pytest.approx(0.5)
    assert options.learning_rate_at(10) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"learnin_rate": "1"}, "learning_rate"),
        ({"learning_rate": "fast"}, "learning_rate"),
        ({"group_size": "0"}, "group_size"),
        ({"seed": str(2**64)}, "seed must be less than"),  # torch takes no larger one
        ({"baseline": "median"}, "baseline"),
        ({"reward": "generous"}, "reward"),
        ({"reward_weights": '{"beauty": 1}'}, "reward_weights"),
        ({"kl_clip": "0"}, "kl_clip"),
        ({"kl_discount_factor": "1.5"}, "kl_discount_factor"),
        ({"kl_budget": "-1"}, "kl_budget"),
        ({"min_survivors": "40"}, "min_survivors"),
        ({"renderer_name": "llama"}, "renderer_name"),
        ({"cvdp_jsonl_path": "/nowhere/rows.jsonl"}, "cvdp_jsonl_path"),
        ({"problem_ids": "cvdp_no_such"}, "cvdp_jsonl_path"),
        ({"engine": "tinker"}, "TINKER_API_KEY"),
        ({"base_url": "http://alice:secret@localhost:1"}, "^TINKER_API_KEY: base_url=http://localhost:1 needs a key"),
        ({"student_model": "no_such_folder", "renderer_name": "qwen3"}, "student_model"),
        ({"student_model": "some/model"}, "renderer_name"),
        ({"student_model": "no/such-model", "renderer_name": "qwen3"}, "student_model: 'no/such-model' is not on this"),
        ({"student_model": "Qwen/Qwen3-8B", "renderer_name": "gpt_oss"}, "renderer_name"),
        ({"student_model": "Qwen/Qwen3-8B", "teacher_model": "x"}, "teacher_model"),
        ({"teachers": '{"cvdp_no_such": "Qwen/Qwen3-32B"}'}, "teachers"),
        (
            {"teachers": json.dumps({PROBLEM_ID: "small"})},
            "^teachers: 'small' is a name for student_model and teacher_",
        ),
        ({"user_prompt": "@/nowhere"}, "user_prompt"),
        ({"harness_feedback": "-1"}, "harness_feedback"),
        ({"harness_feedback": "2", "env": "single_turn"}, "harness_feedback"),
        ({"harness_feedback": "2", "agent": "opencode"}, "^harness_feedback: opencode works inside the sandbox"),
        ({"progress_coef": "-0.1"}, "progress_coef"),
        ({"student_model": "Qwen/Qwen3-8B-Base"}, "student_model: Qwen/Qwen3-8B-Base is a base model.*renderer_name="),
        (
            {"teacher_model": "Qwen/Qwen3-30B-A3B-Base", "renderer_name": "qwen3"},
            "teacher_model: .*teacher_renderer_name=",
        ),
        ({"reward_coef": "0", "kl_penalty_coef": "0"}, "reward_coef: .*nothing would be learned"),
        ({"reward_coef": "0", "teacher_model": "none"}, "nothing would be learned"),
        ({"reward_coef": "0", "teacher_model": "self"}, "teacher_context: .*nothing would be learned"),
        ({"teacher": "self"}, "teacher: unknown option; did you mean .*teacher_model"),
        ({"lr": "1e-4"}, "lr: unknown option; did you mean .*lr_schedule"),
        ({"dataset": "cvdp"}, "dataset: unknown option; `rtl-agent-gym train --options` lists them"),
        ({"teacher_lag": "2"}, "teacher_lag: 2 needs teacher_model=self"),
        ({"teacher_model": "self", "teacher_lag": "-1"}, "teacher_lag"),
        ({"teacher_model": "self", "teacher_renderer_name": "qwen3"}, "teacher_renderer_name: .*leave it out"),
        ({"teacher_renderer_name": "gpt_oss"}, "^teacher_renderer_name: gpt_oss does not fit the small models; choose"),
        ({"teacher_renderer_name": "qwen3_coder"}, "^teacher_renderer_name: qwen3_coder does not fit the small models"),
        ({"renderer_name": "qwen3_coder"}, "^renderer_name: qwen3_coder does not fit the small models"),
        ({"teacher_context": "golden"}, "teacher_context: got 'golden'; choose one of none, reference, feedback"),
        ({"teacher_context": "hints:/nowhere/hints.json"}, "teacher_context: /nowhere/hints.json cannot be read"),
        ({"teacher_context": f"hints:{__file__}"}, "teacher_context: .*test_options.py is not JSON"),
    ],
)
def test_a_mistake_is_told_with_the_options_name(
    arguments: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError, match=name):
        plan_run(arguments)


def test_a_hub_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one whose client has another HTTP library: huggingface_hub 2 has httpx2, and httpx may be absent."""

    class NewError(Exception):
        """Raised where no hub answers."""

    def refuse(*_: object, **__: object) -> None:
        raise NewError("no route to host")

    monkeypatch.setattr("huggingface_hub.errors.HTTPError", NewError)
    monkeypatch.setattr("huggingface_hub.model_info", refuse)
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(UsageError, match=r"^student_model: .*, and the hub does not answer \(NewError\)"):
        plan.check_hub("acme/no-such-model", "student_model")


def test_hints_must_be_texts_for_problems_of_the_run(tmp_path: Path) -> None:
    file = tmp_path / "hints.json"

    def warnings(hints: object, **more: str) -> tuple[str, ...]:
        file.write_text(json.dumps(hints))
        given = {"cvdp_jsonl_path": "bundled", "problem_ids": "", "baseline": "running", "teacher_model": "self"}
        return plan_run(given | {"teacher_context": f"hints:{file}"} | more).warnings

    problems = [problem.id for problem in load_problems("bundled")]
    assert warnings(dict.fromkeys([*problems, "held_out"], "Look twice.")) == ()
    [warning] = warnings(dict.fromkeys(problems[1:], "Look twice."))
    assert warning == f"teacher_context: 1 of {len(problems)} problems have no hint and so no KL: {problems[0]}"
    with pytest.raises(UsageError, match=r"^teacher_context: .*hint"):
        warnings({"other": "Look twice."})
    with pytest.raises(UsageError, match="must be a JSON object of texts"):
        warnings({problems[0]: 1})
    [warning] = warnings({}, teacher_model="none", reward_coef="1")
    assert warning == "teacher_context: has no effect without a teacher; name one with teacher_model"


def test_a_reference_is_read_where_there_is_one() -> None:
    o = parsed("teacher_model=self", "teacher_context=reference", "reward_coef=0")
    first, *others = load_problems("bundled")
    without = first.model_copy(update={"golden": None})
    assert check_teachers(o, [first, *others]) == []
    [warning] = check_teachers(o, [without, *others])
    assert warning.endswith(f"have no reference solution and so no KL: {first.id}")
    with pytest.raises(UsageError, match=r"^teacher_context: .*reference"):
        check_teachers(o, [without])


def test_an_unknown_model_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "k")
    with pytest.raises(
        UsageError, match=r"^renderer_name: the dialect of 'acme/gpt-1' is unknown; name one of qwen3, "
    ):
        plan_run({"student_model": "acme/gpt-1"})
    assert plan_run({"student_model": "acme/gpt-1", "renderer_name": "qwen3"}).renderer == "qwen3"
    with pytest.raises(UsageError, match="lora_rank"):
        plan_run({"lora_rank": "0"})


def test_with_a_key_the_plan_is_qwen_on_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "k")
    made = plan_run({"problem_ids": PROBLEM_ID})
    assert (made.engine, made.renderer) == ("tinker", "qwen3_5")
    assert (made.options.student_model, made.options.teacher_model) == ("Qwen/Qwen3.5-9B", "Qwen/Qwen3.6-27B")


def test_a_mistake_takes_no_more_than_a_moment() -> None:
    code = (
        "import sys\n"
        "from rtl_agent_gym.demo.jobs import run_script\n"
        "assert run_script(['learning_rate=fast']) == 2\n"
        "assert 'torch' not in sys.modules and 'tinker_cookbook' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    assert "learning_rate" in done.stderr


RL = {"problem_ids": PROBLEM_ID}
SELF = {"teacher_model": "self", "teacher_context": "reference"}


def test_a_reward_that_is_its_own_baseline_is_refused_without_a_teacher_and_told_of_with_one() -> None:
    for options in ({"group_size": "1"}, {"group_size": "1", "baseline": "batch"}):
        with pytest.raises(UsageError, match=r"^baseline: .*baseline=running"):
            plan_run(RL | options, rl=True)
        [warning] = plan_run(RL | options | {"reward_coef": "1"}).warnings
        assert "has no effect, only the teacher does" in warning
        assert "baseline=running" in warning
    for options in (
        {"group_size": "2"},
        {"group_size": "1", "baseline": "running"},
        {"group_size": "1", "baseline": "batch", "batch_size": "2"},
    ):
        assert plan_run(RL | options, rl=True).warnings == ()


def test_a_control_needs_what_it_changes() -> None:
    with pytest.raises(UsageError, match=r"^control: permuted_rewards"):
        plan_run(RL | {"control": "permuted_rewards"}, rl=True)
    permuted = RL | {"control": "permuted_rewards", "batch_size": "2", "group_size": "2"}
    with pytest.raises(UsageError, match=r"^control: .*reward_coef=1 and 1"):
        plan_run(permuted, rl=True)
    with pytest.raises(UsageError, match=r"^control: .*reward_coef=0"):
        plan_run(permuted | SELF | {"reward_coef": "0"})
    with pytest.raises(UsageError, match=r"^control: negated_kl"):
        plan_run(RL | {"control": "negated_kl", "group_size": "2"}, rl=True)


def test_a_factor_for_weak_rows_needs_some(cvdp_data: Path) -> None:
    source = str(cvdp_data / "cvdp_v1.0.2_agentic_code_generation_no_commercial.jsonl")
    weak, partial = "cvdp_agentic_cont_adder_0001", "cvdp_agentic_door_lock_0001"

    def warnings(ids: str, coefficient: str, **more: str) -> tuple[str, ...]:
        given = {"cvdp_jsonl_path": source, "problem_ids": ids, "group_size": "2", "weak_coef": coefficient}
        return plan_run(given | more, rl=True).warnings

    assert warnings(f"{weak},{partial}", "0.25") == warnings(weak, "0.25") == warnings(partial, "1") == ()
    [warning] = warnings(partial, "0.25")
    assert warning == "weak_coef: has no effect, since no training problem is a row of CVDP with weak tests"
    [warning] = warnings(f"{weak},{partial}", "0")
    assert warning.startswith("weak_coef: with 0 and no teacher, nothing is learned from 1 of 2 problems")
    with pytest.raises(UsageError, match=r"^weak_coef: "):
        warnings(weak, "0")
    for wrong in ("1.5", "-1", "nan"):
        with pytest.raises(UsageError, match=r"^weak_coef must be "):
            warnings(weak, wrong)


def test_the_default_job_with_a_key_says_that_the_reward_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-k")
    assert [text.partition(":")[0] for text in plan_run({}).warnings] == ["baseline"]
    assert plan_run({"reward_coef": "0"}).warnings == ()
    assert plan_run({"baseline": "running"}).warnings == ()


def test_other_temperatures_and_a_kl_without_a_teacher_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    [warning] = plan_run({"temperature": "0.7"}).warnings
    assert warning.startswith("temperature: tokens are sampled at 0.7, and their log-probabilities are of that")
    [warning] = plan_run({"kl_penalty_coef": "0.5"}, rl=True).warnings
    assert warning.startswith("kl_penalty_coef: has no effect without a teacher")
    [warning] = plan_run({"teacher_model": "small"}, rl=True).warnings
    assert warning == "teacher_model: has no effect with kl_penalty_coef=0; give kl_penalty_coef, too"
    assert plan_run({"teacher_model": "none"}, rl=True).warnings == ()
    assert plan_run({"teacher_model": "small", "kl_penalty_coef": "0.5"}, rl=True).warnings == ()
    monkeypatch.setenv("TINKER_API_KEY", "tml-k")
    assert any("the service does not document" in one for one in plan_run({"temperature": "0.7"}).warnings)


def test_options_without_an_effect_are_told_of() -> None:
    of_teachers = {"kl_clip": "1", "kl_weight_text": "0", "teacher_system_prompt": "Be terse."}
    rate = {"lr_final": "0.1", "lr_schedule": "constant", "warmup_steps": "3", "num_steps": "3"}
    assert [*plan_run(of_teachers | rate, rl=True).warnings] == [
        *(f"{name}: has no effect without a teacher; name one with teacher_model" for name in of_teachers),
        "lr_final: has no effect with lr_schedule=constant; choose lr_schedule=linear",
        "warmup_steps: the run ends after 3 steps, before the full learning_rate",
    ]
    assert plan_run(of_teachers | {"teacher_model": "small", "kl_penalty_coef": "0.5"}, rl=True).warnings == ()
    assert plan_run({"kl_clip": "none", "kl_weight_text": "1"}, rl=True).warnings == ()
    assert plan_run({"lr_final": "0.1", "lr_schedule": "linear", "warmup_steps": "3", "num_steps": "4"}).warnings == ()


def test_the_run_has_a_folder() -> None:
    with pytest.raises(UsageError, match=r"^log_path: the path is empty"):
        plan_run({"log_path": ""})


def test_a_base_model_that_was_taught_a_dialect_can_be_named_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-k")
    made = plan_run({"student_model": "Qwen/Qwen3-8B-Base", "renderer_name": "qwen3_instruct"})
    assert made.renderer == "qwen3_instruct"
    assert plan_run({"student_model": "Qwen/Qwen3-30B-A3B-Instruct-2507"}).renderer == "qwen3_instruct"


def test_options_of_the_local_engine_reach_it_and_are_refused_on_a_service(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = {"local_dtype": "bfloat16", "local_batch": "3", "local_batch_tokens": "64", "seed": "5"}
    config = plan_run({"engine": "local"} | given).options.local_config(tmp_path)
    assert (config.dtype, config.max_batch, config.batch_tokens, config.seed) == ("bfloat16", 3, 64, 5)
    assert (config.checkpoint_dir, config.device, config.gradient_checkpointing) == (tmp_path, "auto", False)
    monkeypatch.setenv("TINKER_API_KEY", "tml-x")
    with pytest.raises(UsageError, match=r"^local_batch: "):
        plan_run({"local_batch": "3"})


def test_credentials_are_found_where_the_sdk_finds_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("tinker")
    from tinker.auth import tinker_has_credentials
    from tinker.lib.credentials import JsonCredentialStore, ManualKey, default_credentials_path

    assert Path(STORED).expanduser() == default_credentials_path()
    assert not key_source()
    with monkeypatch.context() as patch:
        patch.setattr(os.path, "expanduser", lambda path: path)  # as for a user without a home folder
        assert not key_source()
    assert not tinker_has_credentials()
    store = JsonCredentialStore(default_credentials_path())
    store.add_key("one", ManualKey(key="tml-stored", name="mine"))
    assert not key_source()  # none of them is the default
    store.set_default("one")
    assert key_source()
    assert tinker_has_credentials()
    assert plan_run({}).engine == "tinker"
    assert plan_run({"engine": "local"}).engine == "local"
    store.delete_key("one")
    monkeypatch.setenv("TINKER_CREDENTIAL_CMD", "echo tml-made")
    assert key_source()
    assert tinker_has_credentials()


@pytest.mark.parametrize(
    "option",
    [{"system_prompt": "@~nobody_here/x"}, {"teacher_context": "hints:~nobody_here/x"}, {"episodes": "~nobody_here/x"}],
)
def test_a_home_folder_that_does_not_exist_is_one_line(option: dict[str, str]) -> None:
    plan_it = partial(plan_sft, option, recipes=[SMALL]) if "episodes" in option else partial(plan_run, SELF | option)
    with pytest.raises(UsageError, match=r"^(?!.*JSON).*there is no home folder for ~nobody_here"):
        plan_it()


FIXED = {
    "student_model", "teacher_model", "teachers", "teacher_renderer_name", "teacher_system_prompt",
    "teacher_context", "teacher_lag", "engine", "local_dtype", "load_checkpoint_path", "cvdp_jsonl_path",
    "problem_ids", "categories", "difficulties", "rows", "held_out", "extra_held_out", "env", "agent",
    "renderer_name", "system_prompt", "user_prompt", "max_turns", "max_tokens", "max_trajectory_tokens", "temperature",
    "timeout_seconds", "reward", "reward_weights", "judge", "harness_feedback", "progress_coef", "turn_rewards",
    "turn_grading_time", "control", "kl_penalty_coef", "kl_top_k", "kl_discount_factor", "kl_clip", "kl_budget",
    "kl_weight_thinking", "kl_weight_text", "kl_weight_call", "reward_coef", "weak_coef", "baseline", "num_steps",
    "batch_size", "group_size", "learning_rate", "lr_schedule", "lr_final", "warmup_steps", "lora_rank", "loss_fn",
    "loss_reduction", "num_substeps", "adam_beta2", "grad_clip_norm", "pipeline", "max_lag", "curriculum", "seed",
    "min_survivors", "episodes", "passed_only", "min_reward", "epochs",
}  # fmt: skip
"""Options with which a run's steps would be others."""


def test_each_option_may_change_when_a_run_is_resumed_or_may_not(tmp_path: Path) -> None:
    names = {*TrainOptions.names(), *SftOptions.names()}
    assert names == CHANGEABLE | FIXED, "does a new option affect what the steps compute?"
    assert not CHANGEABLE & FIXED
    here: dict[str, Any] = {"ray_slots": 3, "canary_seconds": 60.0, "local_device": "cpu", "local_batch_tokens": 4096}
    for changed in (dict[str, Any](prices={}), here):  # a table in an earlier version
        begun(tmp_path / "run", DEFAULTS | changed)
    (tmp_path / "run/metrics.jsonl").touch()
    with pytest.raises(UsageError, match=r"^local_dtype: "):
        begun(tmp_path / "run", DEFAULTS | {"local_dtype": "bfloat16"})


def test_a_record_has_no_passwords_and_another_one_is_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-k")
    address = "https://alice:secret@gpu"
    given = {"judge": f"chat:m@{address}/v1", "base_url": f"{address}/?key=secret", "wandb_project": "x"}
    made, uploaded = plan_run(given | {"prices": None}), list[Any]()
    record = made.record()
    assert (record["judge"], record["base_url"]) == ("chat:m@gpu", "https://gpu/")

    def logger(project: str, config: dict[str, Any], *_: object) -> Any:
        uploaded.append(config)
        return SimpleNamespace(log_metrics=None, close=lambda: None)

    monkeypatch.setattr("tinker_cookbook.utils.ml_log.WandbLogger", logger)
    with launch._weights_and_biases(made, RunFolder(tmp_path / "run")):
        assert uploaded == [record]
    assert "secret" not in " ".join([json.dumps(record), *describe_run(made)])
    begun(tmp_path / "run", record | {"judge": "chat:m@https://alice:earlier@gpu/v1"}, steps=1)  # as it was recorded
    begun(tmp_path / "run", record)
    with pytest.raises(UsageError, match=r"^judge: .* has 'chat:m@gpu', not 'chat:m@other'; resume it with"):
        begun(tmp_path / "run", record | {"judge": "chat:m@other"})


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_state_of_the_code_has_nothing_of_a_repository_around_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> None:
        identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    module = tmp_path / ".venv/rtl_agent_gym/training/run_folder.py"
    module.parent.mkdir(parents=True)
    for path, text in ((module, "x = 1\n"), (tmp_path / ".gitignore", ".venv\n"), (tmp_path / ".env", "")):
        path.write_text(text)
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message=first")
    (tmp_path / ".env").write_text("KEY=secret\n")
    monkeypatch.setattr(run_folder, "__file__", str(module))
    assert run_folder.code_state() == "installed from a package, so there is no commit\n"
    git("add", "--force", str(module))
    module.write_bytes(b"x = 2  # \xe9\n")  # a byte that is not UTF-8
    assert "+x = 2" in run_folder.code_state()
    assert "secret" not in run_folder.code_state()


@pytest.mark.parametrize("result", ["", "checkpoints.jsonl", "episodes/step-000000", "evaluations/000000/config.json"])
def test_a_start_that_failed_is_no_run_that_other_options_would_change(tmp_path: Path, result: str) -> None:
    folder = begun(tmp_path / "run")
    for name in ("episodes", "transcripts", "evaluations/000000"):
        (folder.path / name).mkdir(parents=True)
    (folder.path / "code.diff").write_text("of earlier code")
    if result:
        (folder.path / result).touch()
    with pytest.raises(UsageError, match=r"^seed: the run in ") if result else contextlib.nullcontext():
        begun(folder.path, DEFAULTS | {"seed": 1})
    assert json.loads((folder.path / "config.json").read_text())["seed"] == (0 if result else 1)
    assert ((folder.path / "code.diff").read_text() == "of earlier code") == bool(result)


def test_a_start_that_was_killed_at_once_leaves_no_folder_that_the_next_one_refuses(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    for name in (".lock", ".config.json.0a1b2c3d.new", ".code.diff.0a1b2c3d.new"):
        (folder.path / name).touch()
    folder.open(DEFAULTS, "raise")
    folder.close()
    begun(folder.path, DEFAULTS | {"seed": 1})  # nothing has been played yet
    (folder.path / "config.json").unlink()
    with pytest.raises(UsageError, match="has no run"):
        begun(folder.path)


@pytest.mark.parametrize("linked", [False, True])
def test_a_run_is_deleted_once_the_next_one_begins(tmp_path: Path, linked: bool) -> None:
    old, path, elsewhere = tmp_path / "run", tmp_path / "link", tmp_path / "elsewhere"
    begun(old, steps=1)
    elsewhere.mkdir()
    (elsewhere / "x").touch()
    (old / "transcripts").symlink_to(elsewhere)
    (old / "episodes/x").mkdir(parents=True)
    (old / "logs.log").write_text("of the old run\n")
    path.symlink_to(old)
    before = {child.name for child in old.iterdir()}
    folder = RunFolder(path if linked else old)
    folder.open(DEFAULTS | {"seed": 1}, "delete")
    assert (folder.checkpoints(), folder.best_checkpoint(), folder.repair()) == ([], None, None)
    assert {child.name for child in old.iterdir()} == before
    logging.getLogger("rtl_agent_gym").warning("of the new run")
    folder.begin()
    folder.close()
    assert {child.name for child in old.iterdir()} == {".lock", "code.diff", "config.json", "logs.log"}
    assert json.loads((old / "config.json").read_text())["seed"] == 1
    [line] = (old / "logs.log").read_text().splitlines()
    assert line.endswith("of the new run")
    assert (elsewhere / "x").exists()
    assert path.is_symlink()


@pytest.mark.parametrize(
    ("option", "form"),
    [
        ("load_checkpoint_path", "{}/checkpoints/x"),
        ("episodes", ["/nowhere", "{}"]),
        ("system_prompt", "@{}/prompt.md"),
        ("teacher_context", "hints:{}/prompt.md"),
        ("extra_held_out", {"other": "{}/prompt.md"}),
    ],
)
def test_a_run_is_not_deleted_that_the_next_one_reads(tmp_path: Path, option: str, form: Any) -> None:
    folder = begun(tmp_path / "run")
    (folder.path / "checkpoints/x").mkdir(parents=True)
    (folder.path / "prompt.md").touch()
    value = json.loads(json.dumps(form).replace("{}", str(folder.path)))
    with pytest.raises(UsageError, match=rf"^{option}: .*{folder.path}.* is in .*delete deletes"):
        folder.open(DEFAULTS | {option: value}, "delete")
    value = json.loads(json.dumps(form).replace("{}", str(tmp_path)))
    folder.open(DEFAULTS | {option: value}, "delete")
    folder.close()


@pytest.mark.parametrize("copied", [False, True])
def test_a_run_that_was_moved_or_copied_has_its_weights_with_it(tmp_path: Path, copied: bool) -> None:
    """A copy that used the weights of the other run would delete those that it needs no more."""
    old, new = RunFolder(tmp_path / "old"), RunFolder(tmp_path / "ne\u00fc")
    paths = [old.path / "checkpoints/local-0" / name for name in ("weights/000001", "sampler_weights/behind-000001")]
    for path in paths:
        path.mkdir(parents=True)
    state, behind = map(str, paths)
    pending = {"problems": [], "version": 1, "weights": behind}
    loop = {"pending": [pending], "rolling": [[behind], [state, "tinker://x"]]}
    old.add_checkpoint({"batch": 1, "state_path": state, "loop": loop}, [{"step": 0}])
    [before] = old.checkpoints()
    assert before["loop"] == loop
    (shutil.copytree if copied else shutil.move)(old.path, new.path)
    found = new.repair()
    assert json.dumps(found) == json.dumps(before).replace(f"{old.path}/", json.dumps(f"{new.path}/")[1:-1])
    assert found == new.checkpoints()[0] != before


def test_a_run_whose_folder_is_moved_has_no_further_steps(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run", steps=1)
    shutil.move(folder.path, tmp_path / "moved")
    (folder.path / "checkpoints").mkdir(parents=True)  # as an engine does that saves weights
    with pytest.raises(UsageError, match=r"^log_path: .*run was removed or moved"):
        folder.add_checkpoint({"batch": 2, "state_path": "y"}, [{"step": 1}])
    assert [row["step"] for row in RunFolder(tmp_path / "moved").metrics()] == [0]
    assert not folder.metrics()


def test_a_full_disk_is_reported_with_the_file(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device: '.*/metrics\.jsonl'"):
        folder.add_checkpoint({"batch": 1, "state_path": "x"}, [{"step": 0}])


def test_a_run_whose_folder_is_removed_ends_with_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")

    async def fails(_: Any, folder: RunFolder, *__: Any) -> None:
        shutil.rmtree(folder.path)
        raise ExceptionGroup("episodes", [FileNotFoundError(2, "No such file or directory", str(folder.episodes))])

    monkeypatch.setattr(launch, "_train", fails)
    given = {"engine": "local", "log_path": str(tmp_path / "run"), "held_out": "none"}
    with pytest.raises(UsageError, match=r"^log_path: .*run was removed or moved"):
        launch.train(given, recipes=[SMALL])


@pytest.mark.parametrize(
    ("error", "kept", "told"),
    [
        (
            "log_path: it is damaged",
            True,
            "To resume after step 1 instead, remove the last line of .*checkpoints.jsonl",
        ),
        ("log_path: it is damaged", False, "it is damaged$"),
        ("local_device: there is no GPU", True, "there is no GPU$"),
    ],
)
async def test_if_the_last_checkpoint_is_damaged_it_is_told_how_to_resume_from_the_one_before(
    tmp_path: Path, error: str, kept: bool, told: str
) -> None:
    pytest.importorskip("torch")
    from rtl_agent_gym.training.checkpointer import Checkpointer

    folder = RunFolder(tmp_path)
    for step in (1, 2):
        state = folder.path / f"weights/{step}"
        state.mkdir(parents=True)
        folder.add_checkpoint({"batch": step, "state_path": str(state)}, [{"step": step - 1}])
    if not kept:
        shutil.rmtree(tmp_path / "weights/1")

    async def make_trainer(path: str | None) -> Any:
        raise UsageError(error)

    checkpointer = Checkpointer(TrainOptions(), folder, Mock(), make_trainer, Mock())
    with pytest.raises(UsageError, match=told):
        await checkpointer.open()


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.ENOENT, UsageError),  # the folder is being removed, and its configuration is still there
        (errno.EROFS, UsageError),
        (errno.ESTALE, SandboxError),
        (errno.ENOSPC, None),  # the command line names it
    ],
)
def test_a_file_of_the_folder_that_cannot_be_used_during_a_run(
    tmp_path: Path, number: int, told: type[Exception] | None
) -> None:
    folder = begun(tmp_path / "run", steps=1)
    error = OSError(number, os.strerror(number), str(folder.path / "checkpoints/local-0/.behind-000001"))
    with (
        contextlib.nullcontext()
        if told is None
        else pytest.raises(told, match=r"^log_path: .*\.behind-000001 cannot be written")
    ):
        folder.explain(error)
    folder.explain(OSError(number, os.strerror(number), str(tmp_path / "other")))
    folder.explain(OSError(number, os.strerror(number)))


@pytest.mark.docker
@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("judge", "nonsense", "nonsense"),
        ("local_device", "nonsense", r"^local_device\b.*nonsense"),
        ("local_dtype", "nonsense", r"^local_dtype\b.*nonsense"),
        ("local_dtype", "float8_e4m3fn", r"^local_dtype\b.*float8_e4m3fn"),
        ("load_checkpoint_path", "/nowhere", "/nowhere"),
        ("sandbox_limits", "memory=1", "memory"),
        ("sandbox_limits", "memory=9999G", "memory"),
        ("ray_address", "127.0.0.1:1", "no Ray cluster answers at '127.0.0.1:1'"),
    ],
)
def test_a_mistake_costs_no_earlier_run(
    option: str, value: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    if option == "ray_address":
        pytest.importorskip("ray")
    monkeypatch.setattr(admission, "_budgets", {})  # as in a new process
    monkeypatch.setattr(admission, "_given", {})
    folder = begun(tmp_path / "run", steps=1)
    before = (folder.path / "config.json").read_text()
    given = {"log_path": str(folder.path), "behavior_if_log_dir_exists": "delete", option: value}
    with pytest.raises(UsageError, match=told):
        launch.train(given, recipes=[SMALL], clusters=runtime_at)
    assert (folder.path / "config.json").read_text() == before
    assert [record["batch"] for record in folder.checkpoints()] == [1]


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints.jsonl"])
@pytest.mark.parametrize("content", [b"\x80\x00\xff\n\n", b'{"loss": 1}\n', b"[" * 5000 + b"\n"])
def test_a_damaged_run_is_one_clear_error(tmp_path: Path, name: str, content: bytes) -> None:
    folder, path = begun(tmp_path, steps=1), tmp_path / name
    path.write_bytes(path.read_bytes() + content)
    with pytest.raises(UsageError, match=f"line 2 of .*{name}"):
        folder.repair()


def test_a_line_that_a_crash_cut_off_is_left_out(tmp_path: Path) -> None:
    folder = begun(tmp_path, steps=1)
    rows = folder.metrics()
    for name in ("metrics.jsonl", "checkpoints.jsonl"):
        with (tmp_path / name).open("ab") as stream:
            stream.write(b'{"st\xc3')
    assert (folder.repair() or {})["batch"] == 1
    assert folder.metrics() == rows != []


def test_a_default_gives_way_wherever_it_stands() -> None:
    assert split_arguments(["num_steps?=5", "num_steps=3", "seed?=1"]) == {"num_steps": "3", "seed": "1"}
    assert split_arguments(["num_steps=3", "num_steps?=5"]) == {"num_steps": "3"}
    with pytest.raises(UsageError, match="num_steps: given twice"):
        split_arguments(["num_steps?=5", "num_steps?=3"])

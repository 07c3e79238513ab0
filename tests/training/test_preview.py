"""What is shown of a run before it starts: models, limits, tokens and their price."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.demo.shipped import SMALL
from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.training.launch import dry_run, main
from rtl_agent_gym.training.options import SftOptions
from rtl_agent_gym.training.plan import Plan, plan_run
from rtl_agent_gym.training.preview import describe_run, read_prices, usage
from rtl_agent_gym.training.sft.data import EncodedEpisode, SupervisedData
from tests.loopback import serving

STUDENT, TEACHER, OTHER = "Qwen/Qwen3-8B", "Qwen/Qwen3-32B", "Qwen/Qwen3-30B-A3B"


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-k")


def plan(**options: object) -> Plan:
    given = {"cvdp_jsonl_path": "family:registers?count=4", "num_steps": 5, "batch_size": 2, "group_size": 3}
    models = {"student_model": STUDENT, "teacher_model": TEACHER, "prices": None}
    limits = {"max_turns": 6, "max_tokens": 100, "max_trajectory_tokens": 2000}
    return plan_run({**given, **models, **limits, **options})


def entry(model: str, *prices: float) -> dict[str, str]:
    """An entry of the list of prices."""
    names = ("prefill", "cached_prefill", "sample", "train")
    return {"tinker_id": model, **{name: f"${price:,.2f}" for name, price in zip(names, prices, strict=True)}}


def price_list(folder: Path, *entries: object) -> str:
    path = folder / "models.json"
    path.write_text(json.dumps(entries))
    return str(path)


def test_at_most_is_what_the_limits_allow_without_a_cache() -> None:
    found = usage(plan(), at_most=True)  # 30 episodes
    assert found == {
        (STUDENT, "prefill"): 30 * 6 * 2000,
        (STUDENT, "sample"): 30 * 6 * 100,
        (STUDENT, "train"): 30 * 2000,
        (TEACHER, "prefill"): 30 * 2000,
    }
    typical = usage(plan(), at_most=False)
    cached = typical.pop((STUDENT, "cached_prefill"))
    assert 0 < cached + typical[STUDENT, "prefill"] <= found[STUDENT, "prefill"]
    assert typical.keys() == found.keys()
    assert all(0 < typical[key] <= found[key] for key in found)


def test_evaluations_count_for_the_student_only() -> None:
    tested = usage(
        plan(
            held_out="family:timers?count=7",
            extra_held_out='{"other": "family:arbiters?count=2"}',
            eval_episodes=8,
            eval_every=2,
        ),
        at_most=True,
    )
    # Before, and after steps 2, 4 and 5: 7 held-out and twice 4 training problems; the others only twice.
    episodes = 30 + 4 * (7 + 8) + 2 * 4 * 2
    assert tested[STUDENT, "sample"] == episodes * 600
    assert tested[STUDENT, "train"] == 30 * 2000


def test_at_temperature_0_an_evaluation_has_one_episode_of_each_problem() -> None:
    options = {"held_out": "family:timers?count=7", "eval_episodes": 28, "eval_every": 0}
    for temperature, episodes in (("none", 28 + 28), ("0", 7 + 4)):
        tested = usage(plan(**options, eval_temperature=temperature), at_most=True)
        assert tested[STUDENT, "sample"] == (30 + 2 * episodes) * 600


def test_without_a_teacher_only_the_student_is_used() -> None:
    assert {model for model, _ in usage(plan(teacher_model="none", baseline="running"), at_most=True)} == {STUDENT}


def test_a_student_that_is_its_own_teacher_reads_twice() -> None:
    own = plan(teacher_model="self", teacher_context="reference")
    assert usage(own, at_most=True)[STUDENT, "prefill"] == 30 * 6 * 2000 + 30 * 2000
    assert "teacher: the student's own weights (context reference)" in describe_run(own)


def test_each_teacher_reads_the_episodes_of_its_problems() -> None:
    teachers = {plan().problems[0].id: OTHER}
    found = usage(plan(teachers=teachers), at_most=True)
    assert (found[TEACHER, "prefill"], found[OTHER, "prefill"]) == (30 * 2000 * 3 / 4, 30 * 2000 / 4)
    found = usage(plan(teacher_model="none", teachers=teachers), at_most=True)
    assert (found[TEACHER, "prefill"], found[OTHER, "prefill"]) == (0, 30 * 2000 / 4)


def test_supervised_training_plays_no_episodes() -> None:
    episodes = [EncodedEpisode("p", [0] * size, [1] * size, True) for size in (300, 500)]
    options = SftOptions(num_steps=3, batch_size=2, held_out="family:timers?count=7", prices=None)
    made = replace(plan(), options=options, problems=[], supervised=SupervisedData(episodes))
    assert usage(made, at_most=True) == {(STUDENT, "train"): 3 * 2 * 400}
    assert "data: 2 episodes to imitate" in describe_run(made)


def test_the_price_is_the_sum_over_models_and_kinds(tmp_path: Path) -> None:
    entries = [entry(STUDENT, 1, 0.1, 10, 100), entry(TEACHER, 1_000, 0, 0, 0)]
    *_, line = describe_run(plan(prices=price_list(tmp_path, *entries)))
    most = 30 * (6 * 2000 * 1 + 600 * 10 + 2000 * 100 + 2000 * 1000) / 1e6
    assert line.endswith(f", at most ${most:,.2f}")
    typical = usage(plan(), at_most=False)
    low = (
        typical[STUDENT, "prefill"] + typical[STUDENT, "cached_prefill"] * 0.1 + typical[STUDENT, "sample"] * 10
        + typical[STUDENT, "train"] * 100 + typical[TEACHER, "prefill"] * 1000
    ) / 1e6  # fmt: skip
    assert line.startswith(f"cost: about ${low:,.2f} if an episode has 10 turns")


def test_a_price_that_is_missing_is_named_and_no_part_of_the_sum_is_shown(tmp_path: Path) -> None:
    incomplete = {**entry(TEACHER, 1, 1, 1, 1), "train": "-"}
    for entries in ([entry(STUDENT, 1, 1, 1, 1)], [entry(STUDENT, 1, 1, 1, 1), incomplete]):
        *_, line = describe_run(plan(prices=price_list(tmp_path, *entries)))
        assert line.startswith("cost: unknown, since prices=")
        assert f"lacks {TEACHER};" in line
        assert "$" not in line


@pytest.mark.parametrize("text", ["", "{}", "[1]", "<html>"])
def test_what_is_no_price_list_does_not_end_a_run(text: str, tmp_path: Path) -> None:
    (tmp_path / "models.json").write_text(text)
    *_, line = describe_run(plan(prices=str(tmp_path / "models.json")))
    assert line.startswith("cost: unknown, since prices: ")
    assert "is not a list of models and prices in JSON" in line
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_prices(str(tmp_path / "nothing"))


@pytest.fixture
def web() -> Iterator[dict[str, Any]]:
    """Answers by path of a server on loopback; its address is under ``url``."""
    answers: dict[str, Any] = {}
    with serving(lambda path, _: answers.get(path, (404, None))) as answers["url"]:
        yield answers


def test_the_list_comes_from_an_address(web: dict[str, Any]) -> None:
    web["/models.json"] = (200, [entry(STUDENT, 1, 2, 3, 4.5), {"tinker_id": "x"}])
    (price,) = read_prices(f"{web['url']}/models.json").values()
    assert (price.tinker_id, price.prefill, price.cached_prefill, price.sample, price.train) == (STUDENT, 1, 2, 3, 4.5)
    with pytest.raises(UsageError, match="404"):
        read_prices(f"{web['url']}/other.json")
    with pytest.raises(UsageError, match=r"^prices: http://127.0.0.1:9/ does not answer \(ConnectionError\)"):
        read_prices("http://127.0.0.1:9/")


def test_a_dry_run_shows_the_run_and_creates_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Work carefully.")
    made = plan(log_path=str(tmp_path / "run"), system_prompt=f"@{prompt}", teacher_renderer_name="qwen3_instruct")
    lines = dry_run(made).splitlines()
    assert lines[:6] == [
        f"student: {STUDENT} on Tinker's service, dialect qwen3, LoRA of rank 32",
        f"teacher: {TEACHER}, dialect qwen3_instruct",
        "data: 4 problems of family:registers?count=4 to train on",
        f"prompts: system @{prompt}, user of the environment",
        "limits: 6 turns, 100 tokens a turn, 2,000 an episode, 30 s a command",
        f"steps: 5 of 2 x 3 episodes; 0 episodes in evaluations; folder {tmp_path / 'run'}",
    ]
    arguments = ["--dry-run", "engine=local", f"log_path={tmp_path / 'run'}", "num_steps=3"]
    assert main(arguments, recipes=[SMALL]) == 0
    assert "student: small on this machine, dialect qwen3, all weights\nteacher: small\n" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["prompt.txt"]
    assert "data: 1 problem of family:timers?count=1 to train on" in dry_run(
        plan(cvdp_jsonl_path="family:timers?count=1")
    )


def test_a_dry_run_finds_a_prompt_that_is_too_long() -> None:
    with pytest.raises(UsageError, match=r"^max_trajectory_tokens: "):
        dry_run(plan(max_trajectory_tokens=300))


def test_a_long_prompt_that_can_be_shortened_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    [problem] = load_problems("family:registers?count=1")
    long = problem.model_copy(update={"prompt": "\n\n".join([problem.prompt, *["Nobody needs to read this."] * 1000])})
    monkeypatch.setattr("rtl_agent_gym.training.plan.load_problems", lambda *_, **__: [long])
    assert dry_run(plan()).startswith(f"student: {STUDENT}")

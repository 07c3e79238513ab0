"""The demonstrations' options make a plan, with and without a key."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from rtl_agent_gym.demo import shipped as shipped_models
from rtl_agent_gym.demo.founding import PROBLEM_ID
from rtl_agent_gym.demo.jobs import JOBS, main
from rtl_agent_gym.demo.shipped import SMALL, SPELLED
from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.training.plan import Plan, plan_run
from rtl_agent_gym.training.run_folder import RunFolder


def plan(job: str, **given: str) -> Plan:
    return plan_run(JOBS[job].options(given), recipes=[SMALL, SPELLED])


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    for name in ("TINKER_API_KEY", "TINKER_CREDENTIAL_CMD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # nor a stored one


@pytest.mark.sampled(1)
@pytest.mark.parametrize("key", [False, True])
def test_each_job_trains_on_its_problems_and_tests_on_others(key: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if key:
        monkeypatch.setenv("TINKER_API_KEY", "tml-k")
    one, family, looking = plan("1problem"), plan("family", seed="2"), plan("looking")
    assert {made.engine for made in (one, family, looking)} == {"tinker" if key else "local"}
    students = [made.options.student_model for made in (one, family, looking)]
    assert students == (["Qwen/Qwen3.5-9B"] * 3 if key else ["small", "small", "spelled"])
    assert len({made.options.log_path for made in (one, family, looking)}) == 3
    assert [problem.id for problem in one.problems] == [PROBLEM_ID]
    counts = {name: len(problems) for name, problems in one.evaluated().items()}
    assert counts == {"test": 32, "train": 1}
    counts = {name: len(problems) for name, problems in family.evaluated().items()}
    assert counts == {"test": 128, "test/wordings": 16, "test/names": 16, "train": 0}
    assert len(family.problems) == 200
    counts = {name: len(problems) for name, problems in looking.evaluated().items()}
    splits = {f"test/{split}": 32 for split in ("names", "operations", "sizes", "lied-documents")}
    assert counts == {"test": 128, **splits, "train": 0}
    assert len(looking.problems) == 2000
    for made in (family, looking):
        tested = {problem.id for problems in made.evaluated().values() for problem in problems}
        assert not tested & {problem.id for problem in made.problems}


def test_another_seed_is_other_problems_and_options_replace_those_of_the_job() -> None:
    first, other = plan("family"), plan("family", seed="1")
    assert not {problem.id for problem in first.problems} & {problem.id for problem in other.problems}
    for name in ("cvdp_jsonl_path", "problems"):
        assert len(plan("1problem", **{name: "family:timers?count=9"}).problems) == 9
    changed = plan("family", cvdp_jsonl_path="family:timers?count=4", num_steps="3", held_out="none")
    assert (len(changed.problems), len(changed.held_out), changed.options.num_steps) == (4, 0, 3)


def test_a_wrong_job_or_option_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["all"]) == 2
    assert main(["family", "seed=x"]) == 2
    assert "error: seed must be " in capsys.readouterr().err


def test_a_dry_run_tells_nothing_of_an_earlier_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(JOBS, "family", replace(JOBS["family"], closing=lambda run: ["what it came to"]))
    assert main(["family", "--dry-run", f"log_path={tmp_path / 'run'}"]) == 0
    found = capsys.readouterr()
    assert f"folder {tmp_path / 'run'}" in found.out
    assert "what it came to" not in found.err


@pytest.mark.sampled(1)
@pytest.mark.parametrize("model", ["student", "teacher"])
def test_a_run_is_not_resumed_with_other_shipped_models(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path / "run")

    def open_run(**given: str) -> None:
        try:
            folder.open(plan("family", **given).record(), "resume")
        finally:
            folder.close()

    open_run()
    before = json.loads((folder.path / "config.json").read_text())
    (folder.path / "metrics.jsonl").touch()
    open_run()
    other = tmp_path / "weights"
    shutil.copytree(shipped_models.FOLDER, other)
    (other / model / "model.safetensors").write_bytes(b"x")
    monkeypatch.setattr(shipped_models, "FOLDER", other)
    with pytest.raises(UsageError, match=f"^{model}_model_digest: "):
        open_run()
    digests = {name for name in before if name.endswith("_model_digest")}
    assert digests == {"student_model_digest", "teacher_model_digest"}
    older = {name: value for name, value in before.items() if name not in digests}
    (folder.path / "config.json").write_text(json.dumps(older))
    open_run()  # of a version that did not note them


def test_models_that_a_run_does_not_use_do_not_matter() -> None:
    alone = plan("family", teacher_model="none", kl_penalty_coef="0", reward_coef="1", group_size="8").record()
    assert [name for name in alone if name.endswith("_model_digest")] == ["student_model_digest"]

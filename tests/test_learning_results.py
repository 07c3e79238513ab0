"""``benchmarks/learning.py``: what results have, which are pooled, and which runs are drawn."""

from __future__ import annotations

import argparse
import json
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rtl_agent_gym.demo.shipped import FOLDER, shipped
from rtl_agent_gym.errors import SandboxError, UsageError
from rtl_agent_gym.evaluation import EvaluationConfig
from rtl_agent_gym.training.launch import Outcome


@pytest.fixture(scope="module")
def learning() -> ModuleType:
    return import_module("learning")


def write(folder: Path, *rows: dict[str, Any]) -> argparse.Namespace:
    """Results in a folder, and the options that read them."""
    shared = {"held_out": 128, "set": [], "steps": 8, "before": 0.1, "after": 0.5, "episodes": 64.0, "seconds": 60}
    (folder / "results.jsonl").write_text("".join(json.dumps(shared | row) + "\n" for row in rows))
    return argparse.Namespace(folder=folder, held_out=128, set=[], models=folder, transcripts=800)


def test_results_of_other_models_are_not_pooled(learning: ModuleType, tmp_path: Path) -> None:
    now, other = learning.models_digest("following", tmp_path), {"models": "other"}
    first, second = {"name": "following", "seed": 0}, {"name": "self", "seed": 1}
    sizes = write(tmp_path, first | {"models": now})
    assert learning.measured("following", 0, sizes)
    assert not learning.measured("following", 1, sizes)
    for rows in ([first | other], [first], [first | {"models": now}, second | other]):
        sizes = write(tmp_path, *rows)
        for seed in (0, 1):  # whether or not this run is one of them
            with pytest.raises(UsageError, match=r"^--folder: ") as caught:
                learning.measured("following", seed, sizes)
            assert "\n" not in str(caught.value)
    assert not learning.measured("smollm2-sft", 0, sizes)  # another student


def test_tables_of_one_version_of_the_models_only(
    learning: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"name": "negated", "seed": seed, "models": "old"} for seed in (0, 1)]
    write(tmp_path, *rows)
    learning.print_tables(tmp_path)
    assert "| control: the KL with the opposite sign | 8/8 |" in capsys.readouterr().out
    write(tmp_path, *rows, {"name": "negated", "seed": 2, "models": "new"})
    with pytest.raises(UsageError, match="negated of seed 0 and negated of seed 2"):
        learning.print_tables(tmp_path)


@pytest.mark.parametrize(("option", "other"), [("held_out", 64), ("set", ["num_steps=1"]), ("transcripts", 100)])
def test_results_with_other_options_are_not_pooled(
    option: str, other: object, learning: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they are of the same seed or of another one."""
    name = "smollm2-sft"
    of_run = {"name": name, "models": "of now", "transcripts": 800}
    monkeypatch.setattr(learning, "models_digest", lambda *_: "of now")
    of_another = {"name": "following", "seed": 1, option: other}
    sizes = write(tmp_path, of_run | {"seed": 0}, of_another)
    assert [learning.measured(name, seed, sizes) for seed in (0, 1)] == [True, False]
    learning.print_tables(tmp_path)
    setattr(sizes, option, other)
    for seed in (0, 1):
        with pytest.raises(UsageError, match=rf"^--{option.replace('_', '-')}: {name} with .* cannot be pooled"):
            learning.measured(name, seed, sizes)
    write(tmp_path, of_run | {"seed": 0}, of_run | {"seed": 1, option: other})
    with pytest.raises(UsageError, match="cannot be pooled"):
        learning.print_tables(tmp_path)


def test_a_line_that_was_cut_off_costs_no_other_one(
    learning: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it ends in a bracket or not."""
    monkeypatch.setitem(learning.MEASURES, "self", (lambda name, seed, sizes: {"seed": seed}, "self"))
    for cut in ('{"name": "negated", "splits": {"names": 0.5}', '{"name": "neg'):
        sizes = write(tmp_path, {"name": "following", "seed": 0})
        with (tmp_path / "results.jsonl").open("a") as stream:
            stream.write(cut)
        assert [row["name"] for row in learning.results(tmp_path)] == ["following"]
        learning.measure_one("self", 1, sizes)
        assert [row["name"] for row in learning.results(tmp_path)] == ["following", "self"]


def test_the_seconds_of_a_run_are_those_of_all_sittings(
    learning: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = {"test/pass_rate": 0.5, "test/episodes": 8, "test_before/pass_rate": 0.0}
    own = {"pass_rate": 0.5, "env/all/total_ac_tokens": 9}
    rows: list[dict[str, Any]] = [
        {"step": 0, **own, "time/total": 100.4, "time/evaluate_before": 20.0},
        {"step": 1, **own, "time/total": 200.0, "time/evaluate": 30.3},
    ]
    monkeypatch.setattr(learning, "train", lambda options: Outcome(tmp_path, 2, [row | rates for row in rows]))
    found = learning.measure("self", 0, argparse.Namespace(folder=tmp_path, held_out=8, set=[]))
    assert (found["seconds"], found["tokens"]) == (351, 18)


@pytest.mark.parametrize(
    ("run", "rounds", "after"), [("spelled-rejection", 2, "after-sizes"), ("spelled-third", 3, "after-third-sizes")]
)
def test_each_round_of_rejection_sampling_begins_with_the_weights_of_the_one_before(
    learning: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str, rounds: int, after: str
) -> None:
    played, trained = list[tuple[str, str, str]](), list[tuple[str, str | None, str | None]]()

    async def playing(config: EvaluationConfig, policy: object) -> SimpleNamespace:
        assert isinstance(config.problems, str)
        assert config.folder is not None
        count = int(config.problems.partition("count=")[2].partition("&")[0])
        played.append((config.policy.rpartition("/")[2], config.problems, config.folder.name))
        passed = count // 4 * (1 + played[-1][0].startswith("weights"))
        return SimpleNamespace(results=[], summary=SimpleNamespace(passed=passed, finished=count))

    def train_sft(options: dict[str, Any]) -> Outcome:
        trained.append((Path(options["episodes"]).name, options.get("load_checkpoint_path"), options["held_out"]))
        name = f"weights{len(trained)}"
        line = {"name": "final", "state_path": f"state{len(trained)}", "sampler_path": f"/made/{name}", "batch": 5}
        folder = Path(options["log_path"])
        folder.mkdir(parents=True)
        (folder / "checkpoints.jsonl").write_text(json.dumps(line) + "\n")
        return Outcome(folder, 5, [])

    monkeypatch.setattr("learning_options.evaluate", playing)
    monkeypatch.setattr("spelled.train_sft", train_sft)
    sizes = argparse.Namespace(folder=tmp_path, held_out=8, set=[], models=FOLDER / "spelled")
    found = learning.spelled(run, 0, sizes)
    folders = [(policy, folder) for policy, source, folder in played if source.endswith("split=train")]
    assert folders == [(f"weights{n}" if n else "student", f"episodes-{n}") for n in range(rounds)]
    assert trained == [(f"episodes-{n}", f"state{n}" if n else None, None) for n in range(rounds)]
    assert [folder for _, source, folder in played if source.endswith("split=sizes")] == [after]
    assert {path.name for path in tmp_path.iterdir()} == {"spelled-rejection-0"}
    sources = [source for _, source, _ in played]
    assert len(set(sources)) == len(sources) - 1, "only the held-out problems are played twice"
    assert (found["before"], found["after"], found["curve"]) == (0.25, 0.5, [0.25] + [0.5] * (rounds - 1))
    assert (found["steps"], found["episodes"], found["split_episodes"]) == (5 * rounds, 8, 2)
    assert found["splits"] == dict.fromkeys(("wordings", "names", "sizes", "operations"), 0.0)


def test_the_control_of_rejection_sampling_trains_on_as_many_episodes_whether_they_passed_or_not(
    learning: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [
        SimpleNamespace(problem_id=f"p{n}", transcript=f"{n}.jsonl", score=SimpleNamespace(passed=n % 4 == 0))
        for n in range(80)
    ]
    trained = list[dict[str, Any]]()

    async def playing(config: EvaluationConfig, policy: object) -> SimpleNamespace:
        return SimpleNamespace(results=[], summary=SimpleNamespace(passed=1, finished=4))

    def train_sft(options: dict[str, Any]) -> Outcome:
        trained.append(options)
        raise SandboxError("enough")

    monkeypatch.setattr("learning_options.evaluate", playing)
    monkeypatch.setattr("spelled.read_results", lambda folder: results)
    monkeypatch.setattr("spelled.train_sft", train_sft)
    sizes = argparse.Namespace(folder=tmp_path, held_out=8, set=[], models=FOLDER / "spelled")
    with pytest.raises(SandboxError, match="enough"):
        learning.spelled("spelled-unselected", 0, sizes)
    [options] = trained
    drawn = [int(Path(path).stem) for path in options["episodes"]]
    assert (options["passed_only"], len(drawn), len(set(drawn))) == (False, 20, 20)
    assert sum(n % 4 == 0 for n in drawn) < 20


@pytest.mark.parametrize(
    "run", ["repair-before", "rejection", "spelled-rejection", "hacking-before", "smollm2-teacher"]
)
def test_a_figure_without_all_verdicts_is_refused(
    run: str, learning: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def faulty(*_: object) -> SimpleNamespace:
        return SimpleNamespace(results=[SimpleNamespace(score=None, transcript=None)])

    monkeypatch.setattr("learning_options.evaluate", faulty)
    monkeypatch.setattr("hacking.keep_folder", lambda folder, fill: folder)
    monkeypatch.setattr("pretrained.train_sft", lambda options: None)
    monkeypatch.setattr("pretrained.final_weights", lambda folder: shipped("student"))
    models = FOLDER / "spelled" if run.startswith("spelled") else tmp_path
    sizes = argparse.Namespace(folder=tmp_path, held_out=2, set=[], models=models, transcripts=1)
    function, name = learning.MEASURES[run]
    with pytest.raises(SandboxError, match=r"^no verdict on 1 episode; the same command continues"):
        function(name, 0, sizes)


def metrics(folder: Path, seed: int, *, finished: bool = True) -> None:
    """The metrics of a run of two steps."""
    rows: list[dict[str, Any]] = [{"step": step, "pass_rate": 0.5, "env/all/total_episodes": 8} for step in range(2)]

    def evaluated(kind: str) -> dict[str, float]:
        rates = {"pass_rate": 0.5, "pass_rate_low": 0.4, "pass_rate_high": 0.6, "episodes": 8}
        return {f"{kind}/{name}": value for name, value in rates.items()}

    rows[0] |= evaluated("test_before")
    rows[1] |= evaluated("test") if finished else {}
    path = folder / f"following-{seed}" / "metrics.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_curve_has_the_finished_runs_by_their_seeds(
    learning: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.axes import Axes

    metrics(tmp_path, 10, finished=False)
    image = tmp_path / "curve.png"
    with pytest.raises(UsageError, match=r"^--plot: .*`following`"):
        learning.plot(tmp_path, image)
    metrics(tmp_path, 12)
    metrics(tmp_path, 2)
    labels: list[Any] = []
    draw = Axes.errorbar

    def noted(*arguments: Any, **options: Any) -> Any:
        labels.append(options["label"])
        return draw(*arguments, **options)

    monkeypatch.setattr(Axes, "errorbar", noted)
    learning.plot(tmp_path, image)
    assert labels == ["8 held-out problems, seed 2", "8 held-out problems, seed 12"]
    assert image.read_bytes().startswith(b"\x89PNG")
    assert "following-10 is not finished" in capsys.readouterr().err


def test_the_picture_of_splits_pools_seeds(
    learning: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.axes import Axes

    drawn: list[list[float]] = []
    draw = Axes.errorbar

    def noted(axes: Any, places: Any, shares: Any, *arguments: Any, **options: Any) -> Any:
        drawn.append(shares)
        return draw(axes, places, shares, *arguments, **options)

    monkeypatch.setattr(Axes, "errorbar", noted)
    image, words = tmp_path / "splits.png", {"combinations": "other combinations", "names": "other names"}
    of_one = {"name": "spelled-following", "split_episodes": 16.0, "splits_before": {"names": 0.0}}
    write(
        tmp_path,
        of_one | {"seed": 0, "splits": {"names": 0.5}},
        of_one | {"seed": 1, "splits": {"names": 1.0}, "before": 0.25, "after": 1.0},
    )
    found = learning.results(tmp_path)
    learning.plot_splits(found, "spelled-following", words, image)
    assert drawn == [[pytest.approx(100 * (6 + 16) / 128), 0.0], [pytest.approx(100 * (32 + 64) / 128), 75.0]]
    assert image.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match=r"^--plot: .*'spelled-self'"):
        learning.plot_splits(found, "spelled-self", words, image)
    write(tmp_path, {"name": "spelled-sft", "seed": 0})
    with pytest.raises(UsageError, match=r"^--plot: .*'spelled-sft' is evaluated on one split"):
        learning.plot_splits(learning.results(tmp_path), "spelled-sft", words, image)

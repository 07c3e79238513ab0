"""The benchmarks: each runs to its end at its smallest size. Documented figures are measured by hand."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rtl_agent_gym.errors import SandboxError
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.training.teachers import Judgement, Sampled
from tests.arbiter import ARBITER as PROBLEM
from tests.conftest import ROOT

BUNDLED = ROOT / "rtl_agent_gym/problems/problems.jsonl"

pytestmark = [pytest.mark.slow, pytest.mark.docker, pytest.mark.timeout(1800)]


def run(name: str, *options: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, f"benchmarks/{name}.py", *options]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=1700)


def benchmark(name: str, *options: str) -> str:
    done = run(name, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def figures(name: str, *options: str) -> Any:
    return json.loads(benchmark(name, *options, "--json"))


@pytest.mark.daemon
def test_the_latency_of_a_step() -> None:
    both = figures("step_latency", "--runs", "20", "--resets", "2", "--sandbox", "docker", "namespaces")
    assert both["namespaces"]["costs"]["requests"] == 1.0
    found = both["docker"]
    assert all(row["median_ms"] > 0 for row in found["latency"].values())
    parts = ("hop between threads", "bare bash", "ping", "Sandbox.run", "Episode.step", "env.step")
    assert {*parts, "env.step with transcript", "env.reset", "docker exec"} <= set(found["latency"])
    assert (found["costs"]["requests"], found["costs"]["frames"]) == (1.0, 1.0)


def test_the_percentiles_of_two_steps_are_between_them() -> None:
    measure = runpy.run_path(str(ROOT / "benchmarks/step_latency.py"))["measure"]
    parts = {"env.step": [1.0, 2.0], "bare bash": [1.0, 1.0]}
    measure.__globals__.update(measure_parts=lambda _: (parts, {}), measure_speed=lambda: 0.0)
    row = measure(SimpleNamespace(runs=2, steps_only=True))["latency"]["env.step"]
    assert (row["p10_ms"], row["p95_ms"]) == (1.1, 1.95)


def test_steps_of_many_episodes_without_gradings() -> None:
    row = figures("scale", "--sizes", "2", "--turns", "3", "--think", "0", "--steps-only")
    assert (row["size"], row["failures"], row["steps only"], row["episodes/min"]) == (2, 0, True, 0.0)
    assert row["step p95"] >= row["step p50"] > 0
    assert row["queue"]["grading"] == 0


def test_what_many_machines_would_do_follows_from_the_largest_measured_size(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"size": 8, "turns": 20, "episodes/min": 7.0, "client CPU ms a step": 9.0},
        {"size": 64, "turns": 20, "episodes/min": 60.0, "client CPU ms a step": 3.0},  # 20 steps a second
        {"size": 256, "turns": 20, "episodes/min": 0.0, "client CPU ms a step": 1.0, "steps only": True},
    ]
    measured = tmp_path / "scale.jsonl"
    measured.write_text("".join(json.dumps(row) + "\n" for row in rows))
    printed = benchmark("capacity", str(measured), "--problems", "1800", "--samples", "96", "--remote-ms", "2")
    assert printed.splitlines()[2:] == [
        "| 1 | 64 | 60 | 20 | 6% | 2.0 days |",
        "| 10 | 640 | 600 | 200 | 100% | 4.8 h |",
        "| 100 | 6,400 | 6,000 | 2,000 | 1000% | 0.5 h |",
    ]
    measured.write_text(json.dumps(rows[2]) + "\n")
    refused = run("capacity", str(measured))
    assert refused.returncode == 2
    assert "no row has whole episodes; run scale.py without --steps-only" in refused.stderr


def test_the_rendering_of_a_long_episode() -> None:
    """One training example our way, and several the cookbook's."""
    rows = figures("rendering", "--turns", "10", "--tokens", "3000", "--repeats", "1")
    assert [(row["renderer"], row["turns"]) for row in rows] == [
        (name, turns) for name in ("qwen3", "gpt_oss") for turns in (2, 4, 6, 8, 10)
    ]
    assert all(row["ours_datums"] == 1 < row["cookbook_datums"] and row["ours_s"] > 0 for row in rows)


def test_what_ray_adds_to_a_step() -> None:
    pytest.importorskip("ray")
    printed = benchmark("remote_step", "--rounds", "5", "--at-once", "2", "--json")
    here, there, added = map(json.loads, printed.splitlines())
    assert (here["where"], there["where"], added["where"]) == ("this process", "a Ray node", "Ray adds")
    for name in ("step p50, ms", "driver CPU, ms a step"):
        assert 0 < here[name] < there[name]
    assert added == {name: pytest.approx(there[name] - here[name]) for name in here if "ms" in name} | {
        "where": "Ray adds",
        "at once": 2,
    }


def test_what_the_local_engine_costs() -> None:
    rows = benchmark("local_engine", "--rows", "4", "--length", "80", "--repetitions", "2").splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows[:3]] == [
        f"| a step of sampling, {busy} of 4 rows run" for busy in (1, 2, 4)
    ]
    assert all(float(cost) > 0 for row in rows for cost in row.strip("| ").split(" | ")[1:])


def test_the_scoring_of_submissions() -> None:
    found = figures("scoring", "--submissions", "2", "--rounds", "1", "--problem", PROBLEM)
    assert found["problem"] == PROBLEM


@pytest.mark.daemon
def test_many_idle_sandboxes() -> None:
    lines = benchmark("scale", "--idle", "3", "--sandbox", "docker", "namespaces").splitlines()
    assert [line.split(",")[:2] for line in lines] == [
        ["sandbox: docker", " live at once: 3"],
        ["sandbox: namespaces", " live at once: 3"],
    ]


def test_the_compatibility_of_a_row() -> None:
    [line] = [line for line in benchmark("compatibility", str(BUNDLED), "--row", PROBLEM).splitlines() if "|" in line]
    assert line.endswith("| sound |")


def test_a_statement_that_a_run_contradicts_is_one_error(tmp_path: Path) -> None:
    """A row whose own solution has a bug that its tests see, and beside it a file that is not there."""
    rows = [json.loads(line) for line in BUNDLED.read_text().splitlines()]
    [row] = [row for row in rows if row["id"] == PROBLEM]
    [(path, patch)] = row["patch"].items()
    assert "active & -active" in patch
    row["patch"] = {path: patch.replace("active & -active", "active")}
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text(json.dumps(row) + "\n")
    untrue = f"error: {PROBLEM}: the right design fails: "
    for source, code, said in ((wrong, 1, untrue), (tmp_path / "no", 2, "error: there is no file")):
        done = run("compatibility", str(source))
        assert (done.returncode, len(done.stderr.splitlines())) == (code, 1), done.stderr
        assert done.stderr.startswith(said)


def test_the_strength_of_tests_is_measured_once(tmp_path: Path) -> None:
    options = ("--row", PROBLEM, "--limit", "2", "--results", str(tmp_path / "results.jsonl"))
    assert f"{PROBLEM}: killed=" in benchmark("mutants", *options)
    assert benchmark("mutants", *options) == ""
    [row] = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert sum(row["strength"]["total"].values()) == 2


def test_the_tables_of_learning_pool_the_seeds(tmp_path: Path) -> None:
    rows = [
        {"name": "negated", "seed": seed, "steps": 8, "before": 0.1, "after": after, "episodes": 64.0, "seconds": 60}
        for seed, after in ((0, 0.0), (1, 0.125))
    ]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    [line] = [
        line for line in benchmark("learning", "--tables", "--folder", str(tmp_path)).splitlines() if "sign" in line
    ]
    assert "| 8/8 | 10% | 6.2% (3.2% – 11.8%) | 0%, 12% | 60 |" in line


def test_the_rates_of_the_shipped_models(tmp_path: Path) -> None:
    source, folder = "family:registers?count=4&seed=11&split=combinations", ("--folder", str(tmp_path))
    found = benchmark("shipped_models", "teacher", source, *folder)
    assert found.split(":")[0] in ("3 of 4", "4 of 4")
    assert benchmark("shipped_models", "teacher", source, *folder) == found
    text = ("shipped_models", "student", "registers", "--text", "--count", "16", "--reference", "another")
    assert benchmark(*text).startswith("0 of 16: 0.0% (0.0% – ")


def test_repair_and_reward_hacking_begin_where_they_should(tmp_path: Path) -> None:
    options = ("--seeds", "0", "--held-out", "16", "--folder", str(tmp_path), "--set", "num_steps=1", "batch_size=1")
    benchmark("learning", "--runs", "repair-scrambled", "hacking-before", "hacking-compile", *options)
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    found = {row["name"]: row for row in rows}
    assert {row["episodes"] for row in rows} == {16}
    assert 0.1 < found["hacking-before"]["stubs"] < 0.7
    assert found["repair-scrambled"]["after"] > 0
    [row] = [json.loads(line) for line in (tmp_path / "hacking-compile-0" / "metrics.jsonl").read_text().splitlines()]
    assert row["env/all/total_ac_tokens"] > 0
    assert row["env/all/compile"] > 0.4


class Listening:
    """A teacher that keeps what it reads. The KL of a token is its place, which is also the most likely token."""

    def __init__(self) -> None:
        self.read: list[Sampled] = []

    async def judge(self, sampled: Sampled) -> Judgement:
        self.read.append(sampled)
        places = [place * one for place, one in enumerate(sampled.mask)]
        return Judgement(places, list(sampled.mask), [[(int(place), 0.0)] for place in places])


async def test_a_teacher_that_reads_another_specification_judges_the_same_tokens() -> None:
    from transformers import AutoTokenizer

    from research.episodes import Encoder, written_episode
    from research.mixture import start
    from rtl_agent_gym.demo.shipped import RENDERER, shipped
    from rtl_agent_gym.engines.local import LocalServiceClient
    from rtl_agent_gym.renderers import get_renderer
    from rtl_agent_gym.sources.families import FAMILIES, draw_members
    from rtl_agent_gym.training.teachers import SameTokens

    deceived = runpy.run_path(str(ROOT / "benchmarks/deceived.py"))
    family, tokenizer = FAMILIES["registers"], AutoTokenizer.from_pretrained(shipped("teacher"))
    own, other = (family.specification(member) for member in draw_members("family:registers?count=2&seed=5"))
    [member, _] = draw_members("family:registers?count=2&seed=5")
    encoder = Encoder(get_renderer(RENDERER, tokenizer), tokenizer)
    found = encoder.encode(written_episode(start(family, own), own, family.design(member)))
    mask = [float(one) for one in found.learned]
    ids = {one: deceived["as_output"](one, tokenizer) for one in (own, other)}
    with LocalServiceClient() as service:
        teacher = SameTokens(service.create_sampling_client(base_model=str(shipped("teacher"))).result())
        sampled = Sampled("p", found.ids, mask, [0.0] * len(mask))
        right = await teacher.judge(sampled)
        blind = deceived["OtherSpecification"](teacher, {"p": (ids[own], ids[other])})
        wrong = await blind.judge(sampled)
        naming = deceived["OtherSpecification"](replace(teacher, top=4), {"p": (ids[own], ids[other])})
        named = await naming.judge(sampled)
    assert wrong.covered == right.covered == mask
    assert sum(right.kl) < 5 < 30 < sum(wrong.kl)
    assert wrong.top is None
    assert named.top is not None
    assert [len(likely) for likely in named.top] == [4 * one for one in mask]


async def test_a_deceived_teacher_never_reads_what_the_student_has_read() -> None:
    own, other = [5, 6, 7], [8, 9]
    tokens, mask = [1, *own, 2, *own, *own, 3], [0.0] * 11 + [1.0]
    deceived, heard = runpy.run_path(str(ROOT / "benchmarks/deceived.py")), Listening()
    sampled = Sampled("p", tokens, mask, [0.0] * 12, "feedback")
    judged = await deceived["OtherSpecification"](heard, {"p": (own, other)}).judge(sampled)
    [read] = heard.read
    assert (read.tokens, read.feedback) == ([1, *other, 2, *other, *other, 3], "feedback")
    assert (judged.kl, judged.covered, judged.top) == ([0.0] * 11 + [8.0], mask, [[]] * 11 + [[(8, 0.0)]])


class Maker:
    """Makes problems of two thirds of the designs."""

    def __init__(self) -> None:
        self.tried = 0

    async def make(self, case: object, options: object) -> tuple[str | None, str]:
        self.tried += 1
        return ("problem" if self.tried % 3 else None), "known"


@pytest.mark.parametrize(("wanted", "kinds"), [(0, 1), (1, 3), (1, 1), (10, 1), (10, 2), (10, 3)])
async def test_as_many_problems_of_a_source_as_are_wanted(wanted: int, kinds: int) -> None:
    verification = runpy.run_path(str(ROOT / "benchmarks/verification.py"))
    chosen = verification["KINDS"][:kinds]
    found = await verification["make_of"]("family:registers", wanted, Maker(), 2, chosen)
    assert len(found) == wanted
    assert {kind for _, kind, *_ in found} <= set(chosen)


@pytest.mark.parametrize("failure", ["", "the machine failed"])
def test_fewer_problems_than_were_asked_for_are_a_failure(
    failure: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main = runpy.run_path(str(ROOT / "benchmarks/verification.py"))["main"]

    async def make(*_: object) -> list[object]:
        if failure:
            raise SandboxError(failure)
        return []

    monkeypatch.setitem(main.__globals__, "make", make)
    monkeypatch.setattr(sys, "argv", ["verification.py", "--make", "2"])
    assert main() == (3 if failure else 1)
    assert capsys.readouterr().err == f"error: {failure or 'only 0 of 2 problems could be made'}\n"


def test_thieves_need_problems() -> None:
    done = run("thieves", "verilog-eval:/missing")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert done.stderr.startswith("error: ")


def test_thieves_leave_out_a_reference_without_plain_ports() -> None:
    thieves = runpy.run_path(str(ROOT / "benchmarks/thieves.py"))
    [problem] = load_problems("bundled", ids=[PROBLEM])
    assert {port.direction for port in thieves["ports_of"](problem)} == {"input", "output"}
    assert thieves["ports_of"](problem.model_copy(update={"targets": ()})) == ()

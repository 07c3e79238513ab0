"""``rtl-agent-gym eval`` as a person calls it, and as a machine kills it."""

from __future__ import annotations

import io
import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from rich.console import Console

from rtl_agent_gym.cli.eval import EvaluationProgress
from rtl_agent_gym.episodes.episode import EpisodeConfig
from rtl_agent_gym.episodes.prompt import open_prompt
from rtl_agent_gym.errors import DaemonError, UsageError
from rtl_agent_gym.evaluation import EpisodeResult, EvaluationConfig, read_config, read_results, rules_for
from rtl_agent_gym.evaluation.config import EvaluationRecord, make_record, prompts_digest, sampling
from rtl_agent_gym.evaluation.results import ResultsFile
from rtl_agent_gym.policies import GoldenPolicy, ModelOptions
from rtl_agent_gym.policies.harness import HarnessPolicy
from rtl_agent_gym.policies.sampler import TokenSamplerPolicy, files_digest
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.sandboxes import SandboxSpec
from rtl_agent_gym.scoring import Score
from rtl_agent_gym.transcripts import read_transcript
from tests.arbiter import ARBITER
from tests.cli import in_process
from tests.cli.in_process import ROOT
from tests.cli.terminal import COMMAND, terminal
from tests.policies.stub_server import ChatServer, call


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """An evaluation with its results, and its gradings, below `folder`."""
    return in_process.call("eval", "--out", str(folder / "run"), *arguments, XDG_CACHE_HOME=str(folder / "cache"))


def run_alone(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The same in a process of its own, whose log goes to stderr."""
    command = [*COMMAND, "eval", "--out", str(folder / "run"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=200)


def summary(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


@pytest.mark.docker
def test_golden_passes_and_is_reported(tmp_path: Path) -> None:
    done = run(tmp_path, "--problem", ARBITER, "--policy", "golden", "-n", "2", "--json")
    assert done.returncode == 0, done.stderr
    found = summary(done)
    assert (found["episodes"], found["finished"], found["passed"], found["faults"]) == (2, 2, 2, 0)
    assert found["pass_at"]["2"]["value"] == 1.0
    assert found["by_difficulty"]["easy"]["reward"] == pytest.approx(1.4)
    assert "pass@k" in done.stderr
    folder = Path(found["folder"])
    assert json.loads((folder / "summary.json").read_text())["passed"] == 2
    assert json.loads((folder / "composite_report.json").read_text())["metadata"]["n_samples"] == 2
    again = run(tmp_path, "--problem", ARBITER, "--policy", "golden", "-n", "3")
    assert "2 of 3 episodes are saved already" in again.stdout
    assert len(read_results(folder)) == 3
    assert read_config(folder).samples == 3


@pytest.mark.docker
@pytest.mark.slow
def test_a_chat_model_behind_an_own_server(tmp_path: Path) -> None:
    script = [call("ls", "pwd"), {"content": "I give up.\n```bash\ntouch rtl/x\n```"}]
    with ChatServer(script, refusals=1, faults=[{"status": 502, "body": "<html>Bad Gateway</html>"}]) as server:
        options = ["--policy", "chat:org/model", "--base-url", server.url, "--weights", "proxy", "--json"]
        done = run_alone(tmp_path, "--problem", ARBITER, *options, "-n", "2")
    assert done.returncode == 0, done.stderr
    found = summary(done)
    assert (found["finished"], found["passed"]) == (2, 0)
    assert found["causes"] == {"missing": 2}
    assert (found["cost"]["output_tokens"], found["cost"]["turns"]) == (40, 2)
    assert "Unclosed" not in done.stderr
    assert "chat:org/model does not answer (" in done.stderr  # no silence while requests are made again
    system = server.requests[0]["messages"][0]["content"]
    assert "tool_call" not in system  # the service teaches its own form of calls
    assert len({request["seed"] for request in server.requests}) == 2


def test_another_evaluation_in_the_folder_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    done = run(tmp_path, "--policy", "golden", "--problem", ARBITER)
    assert done.returncode == 2
    assert "not the configuration of an evaluation" in done.stderr
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.json"]


@pytest.mark.parametrize(("samples", "code"), [("1", 0), ("2", 3)])
def test_a_fault_counts_only_in_an_episode_that_is_wanted(
    samples: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder holds a verdict of sample 0 and a fault of sample 1, which is played again where it is wanted."""
    played = AsyncMock(side_effect=DaemonError("away"))
    monkeypatch.setattr("rtl_agent_gym.episodes.episode.Episode.start", played)
    monkeypatch.setattr("rtl_agent_gym.retries.Retry.pause", lambda *_: 0.0)
    monkeypatch.setenv("RTL_GYM_SANDBOX", "namespaces")  # none is started
    [problem] = load_problems("bundled", ids=[ARBITER])
    config = EvaluationConfig(samples=2, policy="golden")
    record = make_record(config, [problem], GoldenPolicy(), get_renderer("qwen3"), named=True)
    with ResultsFile(tmp_path / "run", record) as file:
        file.append(EpisodeResult.of(problem, 1, sample=0, score=Score(passed=True)))
        file.append(EpisodeResult.of(problem, 2, sample=1, fault="DaemonError: away"))
    done = run(tmp_path, "--problem", ARBITER, "--policy", "golden", "-n", samples)
    assert (done.returncode, played.await_count > 0) == (code, samples == "2"), done.stdout + done.stderr


@pytest.mark.docker
def test_a_person_plays(tmp_path: Path) -> None:
    options = ["--out", str(tmp_path), "--policy", "human", "--problem", ARBITER, "--weights", "proxy"]
    with terminal("eval", *options) as child:
        child.expect_exact("agent$ ")
        child.sendline("for x in 4 2; do")
        child.expect_exact("     > ")
        child.sendline('echo "answer $x"; done')
        child.expect_exact("answer 4\r\nanswer 2")
        child.expect_exact("agent$ ")
        child.sendline("/done")
        child.expect_exact("failed (missing)")


def test_progress_says_how_it_goes() -> None:
    progress = EvaluationProgress(Console(file=io.StringIO()), shown=False)
    plain: dict[str, Any] = {"problem_id": "a", "category": 3, "difficulty": "easy", "seed": 1}
    progress.observer.started(None, 10, [EpisodeResult(sample=0, score=Score(passed=True), **plain)])
    assert progress.state().startswith("1 passed · 0 machine faults · 0.0/min · ?:?? left")
    observer = progress.observer
    observer.faulted(load_problems("bundled")[0], 1, DaemonError("gone"))
    progress._begun -= 60.0  # a minute later
    observer.finished(EpisodeResult(sample=1, score=Score(passed=True), **plain))
    observer.finished(EpisodeResult(sample=2, score=Score(passed=False), **plain))
    assert re.fullmatch(r"2 passed · 1 machine fault · 2\.0/min · 3:3[01] left", progress.state())


@pytest.mark.docker
def test_submissions_reach_the_episodes_and_the_configuration(tmp_path: Path) -> None:
    script = tmp_path / "submits.yaml"
    script.write_text("- {run: submit}\n")
    options = ["--problem", ARBITER, "--policy", f"scripted {script}", "--weights", "proxy", "--json"]
    done = run(tmp_path, *options, "--harness-feedback", "2")
    assert done.returncode == 0, done.stderr
    folder = Path(summary(done)["folder"])
    assert json.loads((folder / "config.json").read_text())["harness_feedback"] == 2
    (path,) = (folder / "transcripts").iterdir()
    transcript = read_transcript(path)
    assert "You may submit 2 times." in transcript.header.system
    assert transcript.turns[0].commands[0].submission is not None
    refused = run(tmp_path, *options)
    assert refused.returncode == 2
    assert "harness_feedback (2, now 0)" in refused.stderr


def native(native_tools: bool, options: ModelOptions | None = None) -> Any:
    """A policy that is told of the shell by its service, or not."""
    return SimpleNamespace(name="native", native_tools=native_tools, options=options)


def test_a_chat_model_with_tools_of_its_own_is_told_of_submissions_too() -> None:
    [problem] = load_problems("bundled", ids=[ARBITER])
    asked = EpisodeConfig(max_turns=5, command_timeout=9.0, harness_feedback=4)
    for tools in (True, False):
        rules = rules_for(native(tools), asked)
        assert (rules.max_turns, rules.command_timeout, rules.harness_feedback) == (5, 9.0, 4)
        system = open_prompt(problem, rules, get_renderer("qwen3")).system
        # A service with tools teaches its own form of calls.
        untaught = open_prompt(problem, asked.with_options(teach_dialect=False), get_renderer("qwen3")).system
        assert (system == untaught) == tools
        assert "You may submit 4 times." in system
    own = rules_for(native(True), EpisodeConfig(system_prompt="mine"))
    assert open_prompt(problem, own, get_renderer("qwen3")).system == "mine"


def test_an_agent_with_prompts_of_its_own_takes_no_system_prompt() -> None:
    agent: Any = SimpleNamespace(name="harness:agent model", own_prompts=True)
    assert rules_for(agent, EpisodeConfig()).system_prompt == ""
    with pytest.raises(UsageError, match=r"^system_prompt: harness:agent model has"):
        rules_for(agent, EpisodeConfig(system_prompt="mine"))


def test_the_configuration_knows_the_prompts_and_no_port() -> None:
    [problem] = load_problems("bundled", ids=[ARBITER])
    renderer = get_renderer("qwen3")
    digests = {
        prompts_digest(native(tools), renderer, problem, rules)
        for tools in (True, False)
        for rules in (EpisodeConfig(), EpisodeConfig(max_turns=7), EpisodeConfig(system_prompt="mine"))
    }
    assert len(digests) == 5  # a prompt of the caller's own is the same for both
    places = [f"http://user:key@host:{port}/v1/" for port in (8000, 8001)]
    kept = [sampling(native(True, ModelOptions(base_url=place))) for place in places]
    assert kept[0] == kept[1]
    assert kept[0]["base_url"] == "http://host/v1"


def test_the_configuration_knows_the_model_of_an_agent(tmp_path: Path) -> None:
    [problem] = load_problems("bundled", ids=[ARBITER])
    (tmp_path / "config.json").write_text("{}")

    def recorded(address: str, temperature: float, folder: Path | None = None) -> EvaluationRecord:
        sampler: Any = None
        options = ModelOptions(base_url=f"http://{address}/v1", temperature=temperature)
        model = TokenSamplerPolicy(sampler, name="vllm:m", options=options, folder=folder)
        agent = HarnessPolicy({"name": "mine", "argv": ["true"]}, model)
        return make_record(EvaluationConfig(), [problem], agent, get_renderer("qwen3"), named=False)

    found = [recorded(place, value) for place in ("a:8000", "a:8001", "b:8000") for value in (0.0, 1.5)]
    assert len({record.digest for record in found}) == 4  # the two ports of a host are one evaluation
    assert (found[0].sampling["base_url"], found[0].sampling["temperature"]) == ("http://a/v1", 0.0)
    assert recorded("a:8000", 0.0, tmp_path).model_files == files_digest(tmp_path)


@pytest.mark.parametrize(
    ("field", "changed"),
    [
        ("sampling", {"top_p": 0.9}),
        ("sampling", {"max_context": 1000}),
        ("sampling", {"max_tokens": 100}),
        ("sampling", {"tools": False}),
        ("rules", {"max_tokens": 100}),
        ("rules", {"max_trajectory_tokens": 100_000}),
        ("rules", {"max_prompt_tokens": 100_000}),
        ("rules", {"harness_images": ["VERIF_EDA_IMAGE=my/simulator:24.03"]}),
        ("rules", {"sandbox": SandboxSpec(pids=64)}),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_the_configuration_knows_what_a_model_and_its_episodes_may_do(
    field: str, changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the prompt is the same."""
    monkeypatch.setattr("rtl_agent_gym.evaluation.config.prompts_digest", lambda *_: "")
    [problem] = load_problems("bundled", ids=[ARBITER])

    def recorded(**given: dict[str, Any]) -> EvaluationRecord:
        sampler: Any = None
        model = TokenSamplerPolicy(sampler, name="vllm:m", options=ModelOptions(**given.get("sampling", {})))
        config = EvaluationConfig(episode=EpisodeConfig(**given.get("rules", {})))
        return make_record(config, [problem], model, get_renderer("qwen3"), named=False)

    usual, other = recorded(), recorded(**{field: changed})
    [difference] = other.differences(usual)
    assert difference.startswith(f"{field} (")
    assert other.digest != usual.digest  # in the names of folders below runs/eval/


def test_problems_in_another_order_are_the_same_evaluation() -> None:
    problems = load_problems("bundled")
    forth, back = (
        make_record(EvaluationConfig(), each, GoldenPolicy(), get_renderer("qwen3"), named=True)
        for each in (problems, problems[::-1])
    )
    assert forth.differences(back) == []


def test_the_configuration_knows_the_grader(monkeypatch: pytest.MonkeyPatch) -> None:
    def recorded() -> EvaluationRecord:
        [problem] = load_problems("bundled", ids=[ARBITER])
        return make_record(EvaluationConfig(), [problem], GoldenPolicy(), get_renderer("qwen3"), named=True)

    before = recorded()
    assert recorded().differences(before) == []
    monkeypatch.setattr("rtl_agent_gym.evaluation.config.rules_digest", lambda: "0" * 64)
    [changed] = recorded().differences(before)
    assert re.fullmatch(r"version \('.+', now '.+\+000000000000'\)", changed)
    assert recorded().digest != before.digest  # in the names of folders below runs/eval/


@pytest.mark.docker
def test_ctrl_c_at_the_prompt_says_what_is_kept(tmp_path: Path) -> None:
    options = ["--out", str(tmp_path), "--policy", "human", "--problem", ARBITER, "--weights", "proxy"]
    with terminal("eval", *options, code=130, columns=200) as child:
        child.expect_exact("agent$ ")
        child.sendintr()
        child.expect_exact("interrupted: 0 of 1 episodes are saved in ")
        child.expect_exact("the same command plays the others")


BAD_OPTIONS = [
    (["--base-url", "notaurl", "--policy", "chat:x"], "base_url 'notaurl' is not the address of a service"),
    (["--policy", "chat:foo"], "give --base-url, or a provider: chat:openai/foo"),
    (["--policy", "scripted"], "'scripted' needs a file"),
    (["--policy", "chat:"], "'chat' needs a model"),
    (["--command-timeout", "inf"], "--command-timeout"),
    (["--command-timeout", "1e12"], "--command-timeout"),
    (["--top-p", "nan", "--policy", "chat:x", "--base-url", "http://h/v1"], "--top-p"),
    (["--out", "/proc/run"], "cannot be written"),
]


@pytest.mark.parametrize(("options", "words"), BAD_OPTIONS, ids=lambda value: str(value[0])[:20])
def test_wrong_options_are_one_line(options: list[str], words: str) -> None:
    done = in_process.call("eval", "--problem", ARBITER, *options)
    assert done.returncode == 2
    assert words in " ".join(done.stderr.split())


@pytest.mark.docker
def test_an_option_that_the_service_refuses_ends_the_run_at_once(tmp_path: Path) -> None:
    error = {"message": "max_tokens is too large: 100000. This model supports at most 16384 completion tokens"}
    with ChatServer([{"status": 400, "error": error}]) as server:
        options = ["--policy", "chat:org/model", "--base-url", server.url, "--max-tokens", "100000", "-n", "2"]
        done = run(tmp_path, "--problem", ARBITER, "--weights", "proxy", *options)
    assert done.returncode == 2, done.stderr
    assert "max_tokens is too large" in done.stderr
    assert "Traceback" not in done.stderr

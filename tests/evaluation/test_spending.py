"""Limits on money and tokens: what is counted, what stops, and how a run goes on."""

from __future__ import annotations

import itertools
import json
import subprocess
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rtl_agent_gym.errors import LimitReached, SandboxError, UsageError
from rtl_agent_gym.evaluation import EvaluationConfig, evaluate
from rtl_agent_gym.evaluation.outcome import EpisodeResult, summarise
from rtl_agent_gym.evaluation.recorded import summary
from rtl_agent_gym.evaluation.results import read_results, read_spending
from rtl_agent_gym.evaluation.spending import Ledger, Spent, Tally
from rtl_agent_gym.policies import Completion, write_turn
from rtl_agent_gym.policies.protocol import Charge, Prices, Usage
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.renderers import Renderer
from rtl_agent_gym.transcripts import read_transcript
from tests.arbiter import ARBITER
from tests.cli import in_process
from tests.policies.stub_server import ChatServer, call
from tests.sandboxes.providers import owned

TURN = Completion("x", prompt_tokens=100, cached_tokens=40, output_tokens=20, cost=0.5)


def call_eval(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    common = ("--out", str(folder / "run"), "--problem", ARBITER, "--weights", "proxy", "--concurrency", "1")
    return in_process.call("eval", *common, *options, XDG_CACHE_HOME=str(folder / "cache"))


def of_model(server: ChatServer) -> tuple[str, ...]:
    """The options of an evaluation whose model is the server."""
    return "--policy", "chat:org/model", "--base-url", server.url


def evaluated(folder: Path, server: ChatServer, *more: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """An evaluation whose model is the server; one episode at a time, priced at $1 an answer."""
    priced = ("--price-input", "8000", "--price-output", "10000")  # 100 tokens read, 20 written
    done = call_eval(folder, *of_model(server), *priced, "--json", *more)
    return done, json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}


def test_answers_add_up() -> None:
    tally = Tally()
    tally.add(TURN)
    tally.add(TURN)
    assert tally.spent == Spent(answers=2, prompt_tokens=200, cached_tokens=80, output_tokens=40, cost=1.0)
    assert tally.spent == tally.ledger.total
    assert tally.spent.tokens == 240


def test_what_one_answer_does_not_say_is_unknown_in_all() -> None:
    tally = Tally()
    tally.add(TURN)
    tally.add(Completion("x", prompt_tokens=5, output_tokens=5))
    assert (tally.spent.cost, tally.spent.tokens) == (None, 130)
    tally.add(Completion("x"))
    assert tally.spent.tokens is None
    assert not tally.spent.known


@pytest.mark.parametrize("cost", [float("nan"), float("inf")])
def test_a_cost_that_is_not_finite_is_unknown_and_disables_no_limit(cost: float) -> None:
    tally = Tally(Ledger(max_cost=1.0))
    tally.add(replace(TURN, cost=cost))
    assert tally.spent.cost is None
    with pytest.raises(UsageError, match="--max-cost cannot be enforced"):
        tally.ledger.check()


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"max_cost": 1.0}, r"--max-cost is reached: \$1\.0000 of \$1 used"),
        ({"max_tokens": 240}, "--max-tokens-total is reached: 240 of 240 tokens used"),
    ],
)
def test_a_limit_is_reached_and_not_passed(limits: dict[str, Any], words: str) -> None:
    ledger = Ledger(**limits)
    tally = Tally(ledger)
    for _ in range(2):
        ledger.check()
        tally.add(TURN)
    with pytest.raises(LimitReached, match=words):
        ledger.check()


def test_a_limit_on_what_nobody_counts_is_wrong_usage() -> None:
    tally = Tally(Ledger(max_tokens=100))
    tally.add(Completion("x"))
    with pytest.raises(UsageError, match="does not report the tokens"):
        tally.ledger.check()


def test_a_request_without_an_answer_counts_but_is_no_answer() -> None:
    tally = Tally(Ledger(max_cost=0.5))
    tally.add_failed([Charge(Usage(100, 0, cached_tokens=40), 0.25), Charge(Usage(10, 5), 0.25)])
    used = Spent(answers=0, prompt_tokens=110, cached_tokens=40, output_tokens=5, cost=0.5)
    assert (tally.spent, tally.ledger.total) == (used, used)
    assert tally.spent.known
    assert not Spent().known
    with pytest.raises(LimitReached):
        tally.ledger.check()


@pytest.mark.parametrize("options", [{"max_cost": 0.0}, {"max_cost": float("nan")}, {"max_tokens_total": 0}])
def test_a_limit_that_is_none_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"must be (greater than 0|a finite number), or None"):
        EvaluationConfig(**options)


def test_the_summary_has_what_lost_attempts_cost() -> None:
    plain: dict[str, Any] = {"problem_id": "a", "category": 3, "difficulty": "easy", "seed": 1}
    used = Spent(answers=3, prompt_tokens=30, output_tokens=3, cost=0.3)
    found = summarise([EpisodeResult(fault="gone", spent=used, **plain), EpisodeResult(sample=1, spent=used, **plain)])
    assert found.spent == used + used
    assert summarise([EpisodeResult(**plain)]).spent is None
    assert found.as_json()["spent"]["prompt_tokens"] == 60


def test_an_unknown_price_cannot_be_limited(tmp_path: Path) -> None:
    with ChatServer([{"content": "No."}]) as server:
        done = call_eval(tmp_path, *of_model(server), "--max-cost", "1")
    assert done.returncode == 2
    assert "the price of chat:org/model is unknown; give --price-input" in done.stderr
    assert not server.requests


def test_a_policy_that_has_no_price_is_not_asked_for_it(tmp_path: Path) -> None:
    done = call_eval(tmp_path, "--policy", "golden", "--price-input", "1", "--price-output", "2", "--max-cost", "1")
    assert done.returncode == 2
    assert "--max-cost: golden has no price, as only chat: policies do; use --max-tokens-total" in done.stderr


@pytest.mark.docker
def test_a_limit_stops_the_evaluation_and_a_higher_one_continues(tmp_path: Path) -> None:
    with ChatServer([call("ls"), {"content": "No."}]) as server:  # two answers, so $2 an episode
        done, found = evaluated(tmp_path, server, "-n", "3", "--max-cost", "3")
        assert done.returncode == 1, done.stderr
        assert (found["finished"], found["episodes"], found["faults"]) == (1, 3, 0)
        assert found["spent"]["cost"] == pytest.approx(3.0)
        assert found["spent"]["answers"] == len(server.requests) == 3  # no request after the limit
        assert "stopped: --max-cost is reached: $3.0000 of $3 used; 1 of 3 episodes have a verdict" in done.stderr
        assert found["stopped"].startswith("--max-cost is reached")
        folder = tmp_path / "run"
        assert [result.sample for result in read_results(folder)] == [0]
        stopped = [read_transcript(path).end for path in (folder / "transcripts").iterdir()]
        assert sorted(end.stop_reason for end in stopped if end is not None) == ["completed", "error"]

        [played] = read_results(folder)
        away = played.model_copy(update={"sample": 1, "score": None, "fault": "away", "spent": None})
        with (folder / "results.jsonl").open("a") as lines:
            lines.write(away.model_dump_json() + "\n")  # a machine fault, which the same command cannot play again
        same, found = evaluated(tmp_path, server, "-n", "3", "--max-cost", "3")  # what was spent before counts
        assert (same.returncode, found["faults"], len(server.requests)) == (1, 1, 3)

        more, found = evaluated(tmp_path, server, "-n", "3", "--max-cost", "100")
        assert more.returncode == 0, more.stderr
        assert (found["finished"], found["stopped"]) == (3, "")
        assert found["spent"]["cost"] == pytest.approx(7.0)  # the stopped episode was paid for twice, in part
        assert read_spending(folder).cost == pytest.approx(7.0)
        assert "in all: 700 tokens read (0 from a cache), 140 written; $7.0000" in more.stderr


@pytest.mark.docker
@pytest.mark.slow
def test_a_limit_on_tokens(tmp_path: Path) -> None:
    with ChatServer([call("ls"), {"content": "No."}]) as server:
        done, found = evaluated(tmp_path, server, "-n", "2", "--max-tokens-total", "240")
    assert done.returncode == 1
    assert (found["finished"], len(server.requests)) == (1, 2)
    assert "240 of 240 tokens used" in done.stderr


@pytest.mark.docker
@pytest.mark.slow
def test_what_a_fault_has_cost_counts(tmp_path: Path) -> None:
    broken = {"status": 400, "error": {"message": "this text offends", "type": "invalid_request_error"}}
    with ChatServer([call("ls"), broken]) as server:
        done, found = evaluated(tmp_path, server)
    assert done.returncode == 3
    assert (found["faults"], found["finished"]) == (1, 0)
    assert found["spent"]["cost"] == pytest.approx(3.0)  # three attempts, one answer each


@pytest.mark.docker
def test_an_attempt_that_was_billed_and_failed_counts(tmp_path: Path) -> None:
    broken = {"content": "I am do", "finish": "error"}
    with ChatServer([{"content": "No."}], faults=[broken, broken]) as server:
        done, found = evaluated(tmp_path, server, "-n", "2", "--max-cost", "3")
    assert done.returncode == 1, done.stderr
    assert (found["finished"], found["faults"]) == (1, 0)
    assert (found["spent"]["cost"], found["spent"]["answers"]) == (pytest.approx(3.0), 1)
    assert read_spending(tmp_path / "run").cost == pytest.approx(3.0)


@pytest.mark.docker
@pytest.mark.slow
def test_a_limit_stops_all_episodes_that_are_played_at_once(tmp_path: Path) -> None:
    """Three requests are on their way when the second answer reaches the limit. The third ends its episode."""
    asked, together = itertools.count(), threading.Barrier(3)

    def reply(messages: list[dict[str, Any]]) -> dict[str, Any]:
        if any(message["role"] == "assistant" for message in messages):
            return {"content": "No."}
        if next(asked) >= 3 or together.wait(timeout=300) > 0:
            return call("sleep 1")  # the other answer arrives before the next request
        time.sleep(3)
        return {"content": "No."}

    with ChatServer(reply) as server:
        done, found = evaluated(tmp_path, server, "-n", "3", "--concurrency", "3", "--max-cost", "2")
        assert done.returncode == 1, done.stderr
        assert len(server.requests) == 3  # none after the limit
        assert (found["finished"], found["episodes"], found["faults"]) == (1, 3, 0)
        assert (found["spent"]["answers"], found["spent"]["cost"]) == (3, pytest.approx(3.0))
        assert found["stopped"] == "--max-cost is reached: $3.0000 of $2 used"
        assert "1 of 3 episodes have a verdict" in done.stderr
        folder = tmp_path / "run"
        lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
        assert [line["spent"]["cost"] for line in lines] == [pytest.approx(1.0)] * 3
        assert sorted(line["stop_reason"] for line in lines) == ["completed", "limit", "limit"]
        ends = [read_transcript(path).end for path in (folder / "transcripts").iterdir()]
        assert sorted(end.stop_reason for end in ends if end is not None) == ["completed", "error", "error"]
        assert not owned(every=True)

        more, found = evaluated(tmp_path, server, "-n", "3", "--concurrency", "3", "--max-cost", "100")
    assert more.returncode == 0, more.stderr
    assert (found["finished"], found["stopped"]) == (3, "")
    assert found["spent"]["cost"] == pytest.approx(7.0)  # two answers in each of the two others


@pytest.mark.docker
def test_a_filters_refusal_costs_nothing_and_stops_no_limited_evaluation(tmp_path: Path) -> None:
    filtered = {"status": 400, "error": {"message": "blocked", "code": "content_filter"}}
    with ChatServer([call("ls"), filtered]) as server:
        done, found = evaluated(tmp_path, server, "-n", "2", "--max-cost", "10")
    assert done.returncode == 0, done.stderr
    assert (found["finished"], found["stopped"], found["causes"]) == (2, "", {"refused": 2})
    assert found["spent"]["cost"] == pytest.approx(2.0)
    transcripts = [read_transcript(path) for path in (tmp_path / "run" / "transcripts").iterdir()]
    assert [summary(transcript)["cause"] for transcript in transcripts] == ["refused"] * 2  # as the viewer has it


@pytest.mark.docker
def test_what_an_episode_cost_is_kept_however_the_run_ends(tmp_path: Path) -> None:
    """Here with a refused key in the second turn; Ctrl-C takes the same way."""
    with ChatServer([call("ls"), {"status": 401, "error": {"message": "wrong key"}}]) as server:
        done = call_eval(tmp_path, *of_model(server), "-n", "2")
    assert done.returncode == 2, done.stderr
    assert read_spending(tmp_path / "run").answers >= 1
    assert read_results(tmp_path / "run") == []


@pytest.mark.docker
def test_a_run_without_prices_is_continued_with_a_limit(tmp_path: Path) -> None:
    with ChatServer([{"content": None, "refusal": "I will not."}]) as server:
        done = call_eval(tmp_path, *of_model(server))
        assert done.returncode == 0, done.stderr
        stopped, found = evaluated(tmp_path, server, "-n", "2", "--max-cost", "1")
        assert (stopped.returncode, len(server.requests)) == (1, 1)
        assert "--max-cost is reached: $1.0000 of $1 used" in found["stopped"]
        more, found = evaluated(tmp_path, server, "-n", "2", "--max-cost", "9")
    assert more.returncode == 0, more.stderr
    assert (found["finished"], found["spent"]["cost"]) == (2, pytest.approx(2.0))


@pytest.mark.docker
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "error", [None, SandboxError("gone"), UsageError("wrong key")], ids=["verdict", "fault", "stop"]
)
async def test_what_one_answer_did_not_say_stays_unknown_when_the_run_goes_on(
    tmp_path: Path, error: Exception | None
) -> None:
    class Unreported:
        """A model whose service reports no tokens."""

        name, prices = "unreported", Prices(1, 1)

        def player(self, problem: Problem, renderer: Renderer, seed: int | None = None) -> Any:
            turns = iter([Completion(write_turn(renderer, "", ["ls"])), error or replace(TURN, text="Done.")])

            async def act(_: object) -> Completion:
                turn = next(turns)
                if isinstance(turn, Exception):
                    raise turn
                return turn

            return SimpleNamespace(act=act)

    config = EvaluationConfig(ids=(ARBITER,), folder=tmp_path, reward="proxy", attempts=1, cache=False)
    with pytest.raises(UsageError, match="wrong key") if isinstance(error, UsageError) else nullcontext():
        await evaluate(config, Unreported())
    spent = read_spending(tmp_path)
    assert (spent.tokens, spent.cost, spent.answers) == (None, None, 1 if error else 2)
    assert all((one.prompt_tokens, one.output_tokens) == (None, None) for one in read_results(tmp_path))
    with pytest.raises(UsageError, match="--max-cost cannot be enforced"):
        await evaluate(config.with_options(samples=2, max_cost=1.0), Unreported())
    assert read_spending(tmp_path) == spent  # no further request


def test_an_earlier_cost_is_that_of_its_tokens() -> None:
    prices = Prices(input=10, output=100, cached=1)
    used = Spent(answers=2, prompt_tokens=200_000, cached_tokens=100_000, output_tokens=10_000, cost=None)
    assert used.priced(prices).cost == pytest.approx(1 + 0.1 + 1)
    assert used.priced(None) == used
    assert Spent(answers=1, cost=0.5).priced(prices).cost == 0.5
    unknown = Spent(answers=1, prompt_tokens=None, cost=None).priced(prices)
    with pytest.raises(UsageError, match="--max-cost"):
        Ledger(max_cost=1.0, total=unknown).check()


@pytest.mark.docker
@pytest.mark.slow
def test_an_unknown_price_is_said(tmp_path: Path) -> None:
    with ChatServer([{"content": None, "refusal": "I will not."}]) as server:
        done = call_eval(tmp_path, *of_model(server), "--stream")
    assert done.returncode == 0, done.stderr
    assert server.requests[0]["stream"] is True
    assert "in all: 100 tokens read (0 from a cache), 20 written; price unknown" in done.stdout
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["causes"] == {"refused": 1}
    page = in_process.call("report", str(tmp_path / "run"), "--out", str(tmp_path / "report"))
    assert page.returncode == 0, page.stderr
    assert "tokens from a cache" in (tmp_path / "report" / "report.md").read_text()

"""Rows whose answer is text, from the file to results, replays and exports, with a judge behind a chat service."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import rtl_agent_gym  # noqa: F401 - registers the environments
from rtl_agent_gym.errors import HarnessError, UsageError
from rtl_agent_gym.policies.judge import MAX_TOKENS, MORE_TOKENS, ChatJudge
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.scoring import Score, Scorer
from rtl_agent_gym.scoring.texts import MAX_ANSWER
from rtl_agent_gym.transcripts import read_transcript
from tests.cli import in_process
from tests.policies.stub_server import ChatServer

REFERENCE = "The counter wraps to zero because its width is eight bits."
WRAPS = "It wraps to zero."


def row(category: str, number: int) -> dict[str, Any]:
    return {
        "id": f"cvdp_copilot_counter_{number:04d}",
        "categories": [category, "easy"],
        "input": {"prompt": "What happens after 255?", "context": {"rtl/counter.sv": "module counter; endmodule\n"}},
        "output": {"response": REFERENCE + "\n", "context": {}},
        "harness": {},
    }


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """One row of each category."""
    path = tmp_path / "rows.jsonl"
    found = [row(category, number) for number, category in enumerate(("cid006", "cid008", "cid009", "cid010"), 1)]
    path.write_text("".join(json.dumps(one) + "\n" for one in found), encoding="utf-8")
    return path


def judging(messages: list[dict[str, str]]) -> dict[str, Any]:
    """A judge: 1 for the reference, 0.8 for an answer that wraps, else 0.1."""
    user = messages[-1]["content"]
    assert messages[0]["role"] == "system"
    answer = user.split(" answer to grade ===\n")[1]
    score = 1.0 if REFERENCE in answer else 0.8 if WRAPS in answer else 0.1
    code = re.findall(r'"code": "(\w+)"', user)[-1]
    return {"content": json.dumps({"code": code, "score": score, "reasoning": "seen"})}


def call_eval(rows: Path, folder: Path, *more: str, **environment: str) -> subprocess.CompletedProcess[str]:
    common = ("eval", "--problems", str(rows), "--out", str(folder), "--env", "single-turn", "--json")
    return in_process.call(*common, *more, XDG_CACHE_HOME=str(folder.parent / "cache"), **environment)


def evaluated(rows: Path, folder: Path, *more: str, **environment: str) -> list[dict[str, Any]]:
    done = call_eval(rows, folder, *more, **environment)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()]


def test_the_reference_answers_pass(rows: Path, tmp_path: Path) -> None:
    with ChatServer(judging) as server:
        results = evaluated(rows, tmp_path / "run", "--judge", f"chat:org/judge@{server.url}")
        assert len(server.requests) == 3  # the first one finds out whether there is a judge
        assert server.requests[0]["temperature"] == 0
        assert "tools" not in server.requests[0]
    scores = {result["category"]: result["score"] for result in results}
    assert all(score["passed"] for score in scores.values())
    assert {category: score["judge"] for category, score in scores.items()} == {
        6: "", 8: "", 9: "chat:org/judge@127.0.0.1", 10: "chat:org/judge@127.0.0.1"
    }  # fmt: skip
    assert (scores[6]["bleu"], scores[9]["rating"]) == (1.0, 1.0)
    config = json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))
    assert config["rules"]["judge"] == "chat:org/judge@127.0.0.1"
    raw = json.loads((tmp_path / "run" / "raw_result.json").read_text(encoding="utf-8"))
    assert raw["cvdp_copilot_counter_0001"]["tests"][0]["bleu_score"] == 1.0
    assert raw["cvdp_copilot_counter_0003"]["tests"][0]["llm_score"] == 1.0


def test_a_model_is_judged_replayed_and_exported(rows: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    answers = {"content": json.dumps({"response": WRAPS})}
    only = ["--category", "9", "--policy", "chat:org/model"]
    with ChatServer([answers]) as model, ChatServer(judging) as judge:
        (result,) = evaluated(
            rows, run, *only, "--base-url", model.url, "--judge", f"chat:org/judge@{judge.url}",
            RTL_GYM_JUDGE_API_KEY="judges-key", OPENAI_API_KEY="models-key",
        )  # fmt: skip
        assert judge.authorizations == {"Bearer judges-key"}
        assert model.authorizations == {"Bearer models-key"}
    assert (result["score"]["rating"], result["score"]["passed"]) == (0.8, True)
    assert "rtl/counter.sv" in model.requests[0]["messages"][1]["content"]
    assert "tools" not in model.requests[0]  # there is no shell to call
    (path,) = (run / "transcripts").iterdir()
    transcript = read_transcript(path)
    assert transcript.score is not None
    assert transcript.score.files == {"subjective.txt": WRAPS}
    assert "judges-key" not in path.read_text(encoding="utf-8")
    again = in_process.call("replay", str(path), "--problems", str(rows))
    assert again.returncode == 0, again.stdout + again.stderr
    assert "was not asked again" in again.stdout
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_text(path.read_text(encoding="utf-8").replace('"rating": 0.8', '"rating": "much"'), encoding="utf-8")
    again = in_process.call("replay", str(damaged), "--problems", str(rows))
    assert (again.returncode, len(again.stderr.splitlines())) == (2, 1), again.stderr
    with ChatServer(judging) as judge:
        judged = in_process.call("replay", str(path), "--problems", str(rows), "--judge", f"chat:org/judge@{judge.url}")
        assert (judged.returncode, len(judge.requests)) == (0, 1), judged.stdout
    out = tmp_path / "export.jsonl"
    exported = in_process.call("export", str(run), "--out", str(out))
    assert exported.returncode == 0, exported.stderr
    (line,) = out.read_text(encoding="utf-8").splitlines()
    assert WRAPS in line


@pytest.mark.parametrize(
    ("answer", "more", "reasoning"),
    [
        ({"response": " "}, [], "seen"),
        ({"response": "x" * (MAX_ANSWER + 1)}, [], "seen"),
        ({"response": WRAPS}, ["--weights", "proxy"], "seen"),
        ({"response": WRAPS}, [], "x" * 399 + " the reason is cut at a space"),
    ],
    ids=["empty", "too-long", "proxy", "cut"],
)
def test_what_was_not_rated_or_rated_with_many_words_is_replayed(
    rows: Path, tmp_path: Path, answer: dict[str, str], more: list[str], reasoning: str
) -> None:
    run = tmp_path / "run"

    def judge_of_many_words(messages: list[dict[str, str]]) -> dict[str, Any]:
        return {"content": judging(messages)["content"].replace("seen", reasoning)}

    with ChatServer([{"content": json.dumps(answer)}]) as model, ChatServer(judge_of_many_words) as judge:
        evaluated(
            rows, run, "--category", "9", "--policy", "chat:org/model", "--base-url", model.url,
            "--judge", f"chat:org/judge@{judge.url}", *more,
        )  # fmt: skip
    (path,) = (run / "transcripts").iterdir()
    again = in_process.call("replay", str(path), "--problems", str(rows))
    assert again.returncode == 0, again.stdout + again.stderr


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--category", "9"], "rated by a judge model; give one (--judge chat:MODEL)"),
        (["--category", "10", "--judge", "gpt"], "is not a judge model"),
        (["--category", "10", "--judge", "scripted x"], "is not a judge model"),
        (["--category", "9", "--judge", "chat:"], "is not a judge model"),
    ],
)
def test_without_a_judge_nothing_is_played(more: list[str], words: str, rows: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = call_eval(rows, folder, *more)
    assert (done.returncode, folder.exists()) == (2, False), done.stderr
    assert words in done.stderr


@pytest.mark.parametrize(
    ("reply", "code", "words"),
    [
        ({"status": 401, "error": {"message": "bad key"}}, 2, ["the judge chat:org/judge", "RTL_GYM_JUDGE_API_KEY"]),
        ({"status": 404, "error": {"message": "no such model"}}, 2, ["the judge chat:org/judge", "--judge chat:MODEL"]),
        ({"content": "No."}, 3, ["gives no rating, not even of the reference answer"]),
    ],
    ids=["key", "model", "no rating"],
)
def test_a_judge_that_cannot_be_used_is_noticed_before_anything_is_played(
    reply: dict[str, Any], code: int, words: list[str], rows: Path, tmp_path: Path
) -> None:
    with ChatServer(lambda _: reply) as judge, ChatServer([]) as model:
        models = ("--policy", "chat:org/model", "--base-url", model.url, "--judge", f"chat:org/judge@{judge.url}")
        done = call_eval(rows, tmp_path / "run", *models)
    assert done.returncode == code, done.stderr
    assert all(part in done.stderr for part in words), done.stderr
    assert "--api-key" not in done.stderr
    assert "--base-url" not in done.stderr
    assert model.requests == []


def test_a_judge_that_goes_away_leaves_no_verdict(rows: Path, tmp_path: Path) -> None:
    replies = 0

    def only_once(messages: list[dict[str, str]]) -> dict[str, Any]:
        nonlocal replies
        replies += 1
        return judging(messages) if replies == 1 else {"content": "No."}

    with ChatServer(only_once) as server:
        judge = f"chat:org/judge@{server.url}"
        done = call_eval(rows, tmp_path / "run", "--category", "9", "--judge", judge, "--no-cache")
    assert done.returncode == 3, done.stdout
    assert "gives no rating, not even of the reference" in (tmp_path / "run" / "results.jsonl").read_text("utf-8")


async def rated(server: ChatServer, rows: Path, folder: Path) -> Score:
    judge = ChatJudge(f"chat:org/judge@{server.url}")
    try:
        async with Scorer(judge=judge, cache=folder / "cache") as scorer:
            return await scorer.score(load_problems(rows, categories=9)[0], {"subjective.txt": WRAPS})
    finally:
        await judge.close()


def rates_the_reference(body: dict[str, Any]) -> dict[str, Any] | None:
    """The rating of a reference in the answer's place; None for an answer."""
    found = judging(body["messages"])
    return found if json.loads(found["content"])["score"] == 1.0 else None


async def test_a_judge_that_its_limit_cuts_off_is_asked_once_more(rows: Path, tmp_path: Path) -> None:
    def reply(body: dict[str, Any]) -> dict[str, Any]:
        cut = {"content": judging(body["messages"])["content"].replace("0.8", "0.1"), "finish": "length"}
        return cut if body["max_tokens"] < MORE_TOKENS else judging(body["messages"])

    with ChatServer(reply, whole=True) as server:
        assert (await rated(server, rows, tmp_path)).rating == 0.8
        assert [body["max_tokens"] for body in server.requests] == [MAX_TOKENS, MORE_TOKENS]


TOO_LONG = {"message": "This model's maximum context length is 4096 tokens.", "type": "BadRequestError"}


@pytest.mark.parametrize("reply", [{"content": "", "finish": "length"}, {"status": 400, "error": TOO_LONG}])
async def test_an_answer_that_exceeds_a_limit_of_the_judge_is_no_machine_fault(
    reply: dict[str, Any], rows: Path, tmp_path: Path
) -> None:
    """Nor is its 0 kept: another judge, or the same one tomorrow, may manage."""
    with ChatServer(lambda body: rates_the_reference(body) or reply, whole=True) as server:
        for _ in range(2):
            before = len(server.requests)
            score = await rated(server, rows, tmp_path)
            assert (score.rating, score.passed) == (0.0, False)
            assert "but rates the reference" in score.reason
            assert len(server.requests) > before
    with (
        ChatServer(lambda _: reply, whole=True) as server,
        pytest.raises(HarnessError, match="not even of the reference answer"),
    ):
        await rated(server, rows, tmp_path)


def test_score_takes_answers_as_files_or_texts(rows: Path, tmp_path: Path) -> None:
    candidates = tmp_path / "candidates.jsonl"
    lines = [
        {"id": "cvdp_copilot_counter_0001", "response": REFERENCE},
        {"id": "cvdp_copilot_counter_0003", "files": {"subjective.txt": "No idea."}},
    ]
    candidates.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    with ChatServer(judging) as server:
        done, shown = (
            in_process.call(
                "score", "--problems", str(rows), "--candidates", str(candidates), "--no-cache",
                "--judge", f"chat:org/judge@{server.url}", *more,
            )
            for more in (("--json",), ())
        )  # fmt: skip
    assert (done.returncode, shown.returncode) == (0, 0), done.stderr + shown.stderr
    assert [line.split("\t")[:2] for line in shown.stdout.splitlines()] == [
        ["cvdp_copilot_counter_0001", "passed"],
        ["cvdp_copilot_counter_0003", "failed"],
    ]
    first, second = (json.loads(line)["score"] for line in done.stdout.splitlines())
    assert (first["passed"], second["passed"], second["rating"]) == (True, False, 0.1)
    assert all(score[stage] == 1.0 for score in (first, second) for stage in ("syntax", "interface", "compile"))
    refused = in_process.call("score", "--problems", str(rows), "--candidates", str(candidates))
    assert refused.returncode == 2
    assert "rated by a judge model" in refused.stderr


def test_a_text_is_shown_with_what_it_has(rows: Path, tmp_path: Path) -> None:
    (tmp_path / "subjective.txt").write_text(REFERENCE, encoding="utf-8")
    chosen = ("--problems", str(rows), "--problem", "cvdp_copilot_counter_0001")
    shown = in_process.call("score", *chosen, "--files", str(tmp_path), "--no-cache").stdout
    assert "tests" in shown
    assert "syntax" not in shown
    assert re.search(r"reward\W+1\.100\W+1\.1\b", shown), shown
    listed = json.loads(in_process.call("problems", "list", "--problems", str(rows), "--json").stdout)
    assert all(one["has_golden"] for one in listed)


def test_the_gymnasium_environment(rows: Path) -> None:
    with ChatServer(judging) as server:
        env = gym.make("CVDPSingleTurn-v0", problems=str(rows), judge=f"chat:org/judge@{server.url}")
        prompt, _ = env.reset(options={"problem_id": "cvdp_copilot_counter_0004"})
        assert "What happens after 255?" in prompt
        _, reward, terminated, _, info = env.step(WRAPS)
        env.close()
    assert (reward, terminated) == (pytest.approx(0.9), True)
    assert info["score"]["judge"] == "chat:org/judge@127.0.0.1"
    with pytest.raises(UsageError, match="rated by a judge model"):
        gym.make("CVDPSingleTurn-v0", problems=load_problems(rows, categories=9))


@pytest.mark.docker
def test_an_answer_after_work_in_a_shell(rows: Path) -> None:
    env = gym.make("CVDPAgentic-v0", problems=load_problems(rows, categories=6), harness_feedback=1)
    prompt, _ = env.reset(options={"problem_id": "cvdp_copilot_counter_0001"})
    assert "Your answer is your last message" in prompt
    call = '<tool_call>\n{"name": "execute_bash", "arguments": {"command": "cat rtl/counter.sv; submit"}}\n</tool_call>'
    text, _, over, _, _ = env.step(call)
    assert "module counter" in text
    assert not over
    _, reward, over, _, info = env.step(f"```\n{REFERENCE}\n```")
    env.close()
    assert (over, info["score"]["passed"], reward) == (True, True, pytest.approx(1.1))

"""Episodes as training data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rtl_agent_gym.cli import app, export
from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.evaluation.export import ExportConfig, LeftOut, Style, export_rows, messages
from rtl_agent_gym.evaluation.recorded import transcript_files
from rtl_agent_gym.policies import write_turn
from rtl_agent_gym.renderers import ModelTurn, ToolCall, get_renderer
from rtl_agent_gym.renderers.protocol import TOOL
from rtl_agent_gym.training.run_folder import RunFolder
from rtl_agent_gym.transcripts import CommandRecord, End, Transcript, TurnRecord, read_transcript
from tests.renderers.families import chat_of, template_text

from .recording import command_turn, final_turn, llama_turn, record, score


def episode(folder: Path, passed: bool = True, word: str = "x", **more: Any) -> Transcript:
    say = f"<think>\nhm {word}\n</think>\nI write."
    turns = [
        command_turn(1, "echo 'a\"é' > rtl/a.sv", "done\n", say=say, token_ids=[5, 6], logprobs=[-0.1, -0.2]),
        final_turn(2, f"Done {word}.", teacher_logprobs=[None], token_ids=[7], logprobs=[-0.3]),
    ]
    return read_transcript(record(folder, turns, graded=score(passed), system="You design.", **more))


def test_sft_with_tool_calls(tmp_path: Path) -> None:
    [row] = export_rows("sft", [episode(tmp_path)])
    assert [message["role"] for message in row["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    system, user, call, result, last = row["messages"]
    assert (system["content"], user["content"]) == ("You design.", "Count.")
    assert call["content"] == "I write."
    assert call["reasoning_content"] == "hm x"
    [asked] = call["tool_calls"]
    assert asked["function"]["name"] == TOOL["function"]["name"] == "execute_bash"
    assert json.loads(asked["function"]["arguments"]) == {"command": "echo 'a\"é' > rtl/a.sv"}
    assert (result["tool_call_id"], result["content"]) == (asked["id"], "done\n")
    assert last == {"role": "assistant", "content": "Done x."}
    assert row["tools"] == [TOOL]
    assert row["metadata"]["passed"] is True


def test_chat_templates_read_the_style_transformers(tmp_path: Path) -> None:
    template = template_text("qwen3_5_think")
    if template is None:
        pytest.skip("this chat template is read from the package trl, which is not installed or has none of that name")
    transcript = episode(tmp_path)
    [row] = export_rows("sft", [transcript], ExportConfig(style="transformers"))
    rendered = chat_of("qwen3_5").apply_chat_template(
        row["messages"], tools=row["tools"], chat_template=template, tokenize=False
    )
    assert "<parameter=command>\necho 'a\"é' > rtl/a.sv\n</parameter>" in rendered
    [same] = export_rows("sft", [transcript])
    for call in same["messages"][2]["tool_calls"]:
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    assert row == same


@pytest.mark.parametrize(
    ("renderer", "stop"), [("qwen3", "<|im_end|>"), ("gemma4", "<turn|>"), ("llama3", "<|eom_id|>")]
)
def test_the_token_that_ended_a_turn_is_left_to_the_chat_template(tmp_path: Path, renderer: str, stop: str) -> None:
    turns = [
        TurnRecord(turn=1, completion=f"So.{stop}", token_ids=[5, 6], action="malformed", observation="wrong"),
        final_turn(2, f"Done.{stop}", token_ids=[7, 6]),
    ]
    transcript = read_transcript(record(tmp_path, turns, graded=score(True), renderer=renderer))
    styles: tuple[Style, ...] = ("tools", "dialect")
    for style in styles:
        [row] = export_rows("sft", [transcript], ExportConfig(style=style, keep_malformed=True))
        replies = [message["content"] for message in row["messages"] if message["role"] == "assistant"]
        assert replies == ["So.", "Done."]


def test_sft_in_the_dialect_is_what_was_said_and_read(tmp_path: Path) -> None:
    transcript = episode(tmp_path)
    [row] = export_rows("sft", [transcript], ExportConfig(style="dialect"))
    opening = get_renderer("qwen3").initial_messages("You design.", "Count.")
    first, last = transcript.turns
    assert row["messages"] == [
        *opening,
        {"role": "assistant", "content": first.completion},
        {"role": "user", "content": first.observation},
        {"role": "assistant", "content": last.completion},
    ]
    assert "tools" not in row


def test_what_is_not_utf8_is_replaced_in_texts(tmp_path: Path) -> None:
    """It is recorded as lone surrogates, which pyarrow and other readers of JSON refuse."""
    turns = [
        TurnRecord(turn=1, completion="No \udcf0\udc9f", action="malformed", observation="wrong \udcf0"),
        final_turn(2, "Done \ud83d"),
    ]
    transcript = read_transcript(record(tmp_path, turns, graded=score(True)))
    styles: tuple[Style, ...] = ("tools", "dialect")
    for style in styles:
        [row] = export_rows("sft", [transcript], ExportConfig(style=style, keep_malformed=True))
        assert [message["content"] for message in row["messages"][-3:]] == [
            "No \ufffd\ufffd",
            "wrong \ufffd",
            "Done \ufffd",
        ]


def test_several_calls_of_a_turn_have_each_their_answer(tmp_path: Path) -> None:
    renderer = get_renderer("qwen3")
    turn = TurnRecord(
        turn=1,
        completion=write_turn(renderer, "", ["ls", "pwd"]),
        action="command",
        commands=[CommandRecord(command="ls", exit_code=0), CommandRecord(command="pwd", exit_code=0)],
        observation=renderer.observation_text(["a.sv", "/code"]),
    )
    transcript = read_transcript(record(tmp_path, [turn, final_turn(2, "ok")], graded=score(True)))
    [row] = export_rows("sft", [transcript])
    call, first, second = row["messages"][1:4]
    ids = [asked["id"] for asked in call["tool_calls"]]
    assert len(set(ids)) == 2
    assert [(m["tool_call_id"], m["content"]) for m in (first, second)] == [(ids[0], "a.sv"), (ids[1], "/code")]


def test_a_turn_of_a_chat_service_is_exported_with_its_calls(tmp_path: Path) -> None:
    turn = TurnRecord(
        turn=1,
        completion="I look.",
        native=ModelTurn("hm", "I look.", (ToolCall.of("ls"),)),
        action="command",
        commands=[CommandRecord(command="ls", exit_code=0, output="</tool_response>")],
        observation=get_renderer("qwen3").observation_text(["</tool_response>"]),
    )
    transcript = read_transcript(record(tmp_path, [turn, final_turn(2, "ok")], graded=score(True)))
    [row] = export_rows("sft", [transcript])
    call, result = row["messages"][1:3]
    assert (call["content"], call["reasoning_content"], result["content"]) == ("I look.", "hm", "</tool_response>")
    [row] = export_rows("sft", [transcript], ExportConfig(style="dialect"))
    action = get_renderer("qwen3").parse_text(row["messages"][2]["content"])
    assert (action.commands, action.text, action.thinking) == (("ls",), "I look.", "hm")


def test_calls_of_tools_that_only_an_agent_has_are_no_commands(tmp_path: Path) -> None:
    call = ToolCall("write", '{"path": "rtl/a.sv"}', "call_1")
    ran = CommandRecord(command='write {"path": "rtl/a.sv"}', exit_code=None, output="written")
    turn = TurnRecord(
        turn=1, completion="", native=ModelTurn(calls=(call,)), outside=True, action="command", commands=[ran]
    )
    transcript = read_transcript(record(tmp_path, [turn, final_turn(2, "ok")], graded=score(True)))
    for format in ("sft", "dpo"):
        left = LeftOut()
        assert list(export_rows(format, [transcript], left_out=left)) == []
        assert left == {"used an agent's own tools": 1}


def test_what_nobody_should_learn_is_left_out_and_counted(tmp_path: Path) -> None:
    malformed = TurnRecord(turn=1, completion="<tool_call>", action="malformed", observation="wrong")
    episodes = [
        episode(tmp_path, passed=False),
        read_transcript(record(tmp_path, [malformed, final_turn(2, "ok")], graded=score(True))),
        read_transcript(record(tmp_path, [final_turn(1, "ok")], graded=score(True, violations=["forged a log"]))),
        read_transcript(record(tmp_path, [])),
        read_transcript(record(tmp_path, [final_turn(1, "ok")], end=End(stop_reason="error", turns=1, seconds=1.0))),
    ]
    left = LeftOut()
    assert list(export_rows("sft", episodes, left_out=left)) == []
    assert left == {"did not pass": 1, "malformed turns": 1, "violations": 1, "no turns": 1, "no score": 1}
    kept = ExportConfig(passed_only=False, keep_malformed=True, keep_violations=True)
    assert len(list(export_rows("sft", episodes, kept))) == 3
    assert len(list(export_rows("sft", episodes, kept.with_options(min_reward=1.4)))) == 2, "those with exactly as much"
    assert len(list(export_rows("sft", episodes, ExportConfig(passed_only=False, min_reward=1.0)))) == 0
    left.clear()
    assert list(export_rows("dpo", episodes, left_out=left)) == []
    assert (left["malformed turns"], left["no passed counterpart"]) == (1, 1)


def test_a_runs_held_out_evaluations_are_not_exported(tmp_path: Path) -> None:
    """Unless they are named: held-out problems are never trained on."""
    run, evaluation = tmp_path / "run", tmp_path / "run" / "evaluations" / "000000-test"
    for folder, problem in ((run, "trained_on"), (evaluation, "held_out")):
        record(folder / "transcripts", [final_turn(1, "ok")], graded=score(True), problem=problem)
    (run / "checkpoints.jsonl").write_text("")

    def exported(*sources: Path) -> list[str]:
        done = CliRunner().invoke(app, ["export", "--format", "sft", *map(str, sources)])
        return [json.loads(line)["metadata"]["problem_id"] for line in done.stdout.splitlines()]

    assert exported(run) == exported(run, run / "transcripts") == ["trained_on"]
    assert exported(evaluation) == exported(run / "evaluations") == ["held_out"]
    assert {path.parts[-4] for path in transcript_files(run)} >= {"evaluations"}, "they are shown"


def test_nor_are_those_of_a_run_without_a_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.open({}, "raise")
    folder.close()
    trained_on, _ = (
        record(place / "transcripts", [final_turn(1, "ok")])
        for place in (folder.path, folder.path / "evaluations" / "000000-test")
    )
    assert transcript_files(folder.path, evaluations=False) == [trained_on]


def test_an_episode_of_one_answer_has_no_tool(tmp_path: Path) -> None:
    one: dict[str, Any] = {"options": {"single_turn": True}, "system": "You design."}
    transcript = read_transcript(record(tmp_path, [final_turn(1, "module a; endmodule")], graded=score(True), **one))
    [row] = export_rows("sft", [transcript])
    assert row["tools"] == []
    [row] = export_rows("sft", [transcript], ExportConfig(style="dialect"))
    assert row["messages"][0] == {"role": "system", "content": "You design."}
    assert row["messages"][-1] == {"role": "assistant", "content": "module a; endmodule"}


def test_in_the_dialect_pairs_are_of_one_dialect(tmp_path: Path) -> None:
    pair = [episode(tmp_path), episode(tmp_path, passed=False, renderer="gpt_oss")]
    assert list(export_rows("dpo", pair, ExportConfig(style="dialect"))) == []
    assert len(list(export_rows("dpo", pair))) == 1


def test_tokens_are_those_that_were_sampled(tmp_path: Path) -> None:
    without = read_transcript(record(tmp_path, [final_turn(1, "ok")], graded=score(True)))
    left = LeftOut()
    [row] = export_rows("tokens", [episode(tmp_path), without], left_out=left)
    first, last = row["turns"]
    assert (first["token_ids"], first["logprobs"], first["teacher_logprobs"]) == ([5, 6], [-0.1, -0.2], None)
    assert last["teacher_logprobs"] == [None]
    assert left == {"no tokens recorded": 1}


def test_pairs_are_siblings_of_one_prompt(tmp_path: Path) -> None:
    good = [episode(tmp_path, word=f"good{n}") for n in range(2)]
    bad = [episode(tmp_path, passed=False, word=f"bad{n}") for n in range(3)]
    other = episode(tmp_path, passed=False, word="other", user="Another task.")
    changed = episode(tmp_path, passed=False, word="changed", problem_digest="of other tests")
    lonely = episode(tmp_path, problem="lonely")
    left = LeftOut()
    rows = list(export_rows("dpo", [*good, *bad, bad[0], other, changed, lonely], ExportConfig(pairs=9), left))
    assert len(rows) == 6
    pairs = [(row["chosen"][-1]["content"], row["rejected"][-1]["content"]) for row in rows]
    assert len(set(pairs)) == 6
    assert pairs[:2] == [("Done good0.", "Done bad0."), ("Done good1.", "Done bad1.")]
    assert all(row["prompt"] == rows[0]["prompt"] for row in rows)
    assert [message["role"] for message in rows[0]["prompt"]] == ["system", "user"]
    assert left == {"no failed counterpart": 1, "no passed counterpart": 2}
    assert len(list(export_rows("dpo", [*good, *bad], ExportConfig(pairs=2)))) == 2


def test_a_renderer_of_ones_own_costs_no_other_episode(tmp_path: Path) -> None:
    for number, renderer in enumerate(("qwen3", "mine", "qwen3")):
        episode(tmp_path / "run" / str(number), renderer=renderer)
    out = tmp_path / "sft.jsonl"
    done = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert len(out.read_text().splitlines()) == 2
    assert "left out: 1 renderer 'mine' not available (style tools)" in done.stderr
    done = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--style", "dialect", "--out", str(out)])
    assert len(out.read_text().splitlines()) == 3


@pytest.mark.usefixtures("without_cookbook")
def test_an_episode_that_cannot_be_parsed_costs_no_other_one(tmp_path: Path) -> None:
    """Its dialect's package is not installed, or its reply is not quoted as its dialect quotes."""
    missing = episode(tmp_path, renderer="deepseekv3")
    odd = read_transcript(
        record(tmp_path, [llama_turn(1, '"a"b"'), final_turn(2, "ok")], graded=score(True), renderer="llama3")
    )
    left = LeftOut()
    rows = list(export_rows("sft", [episode(tmp_path), missing, odd], left_out=left))
    assert left == {"renderer 'deepseekv3' not available (style tools)": 1}
    assert [row["metadata"]["renderer"] for row in rows] == ["qwen3", "llama3"]
    assert '"a"b"' in rows[1]["messages"][2]["content"]
    with pytest.raises(UsageError, match="tinker-cookbook"):
        messages(missing, "tools")
    [row] = export_rows("sft", [missing], ExportConfig(style="dialect"))
    assert row["messages"][-1]["content"] == missing.turns[-1].completion


def test_an_export_that_fails_leaves_the_file_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(*_: object) -> Iterator[Any]:
        yield {"messages": []}
        raise UsageError("no more")

    episode(tmp_path / "run")
    out = tmp_path / "sft.jsonl"
    out.write_text("before\n")
    monkeypatch.setattr(export, "export_rows", rows)
    done = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--out", str(out)])
    assert done.exit_code != 0
    assert out.read_text() == "before\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "sft.jsonl"]


def test_two_exports_to_one_file_do_not_mix(tmp_path: Path) -> None:
    out = tmp_path / "sft.jsonl"

    def rows() -> Iterator[dict[str, Any]]:
        yield {"of": 1}
        export._replace_file([{"of": 2}], out)
        yield {"of": 1}

    assert export._replace_file(rows(), out) == 2
    assert out.read_text() == '{"of": 1}\n' * 2


def test_a_link_stays_one_and_its_file_is_replaced(tmp_path: Path) -> None:
    episode(tmp_path / "run")
    out, link = tmp_path / "sft.jsonl", tmp_path / "links" / "out"
    out.write_text("before\n")
    link.parent.mkdir()
    link.symlink_to(out)
    done = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--out", str(link)])
    assert done.exit_code == 0, done.output
    assert link.is_symlink()
    assert "messages" in json.loads(out.read_text())


@pytest.mark.parametrize("format", ["sft", "tokens", "dpo"])
def test_a_reward_that_is_not_finite_is_unknown(tmp_path: Path, format: str) -> None:
    for passed in (True, False):
        path = record(tmp_path, [final_turn(1, "x", token_ids=[1], logprobs=[-1.0])], graded=score(passed))
        path.write_text(re.sub(r'"reward": [\d.]+', '"reward": NaN', path.read_text()))
    (row, *_) = export_rows(format, map(read_transcript, transcript_files(tmp_path)))
    assert '"reward": null' in json.dumps(row, allow_nan=False)


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(UsageError, match="no format 'csv'; choose one of sft, tokens, dpo"):
        export_rows("csv", [])


def test_the_command_writes_lines_and_says_what_it_left_out(tmp_path: Path) -> None:
    episode(tmp_path / "run" / "transcripts")
    episode(tmp_path / "run" / "transcripts", passed=False)
    (tmp_path / "run" / "transcripts" / "broken.jsonl").write_text("nonsense\n{}\n")
    (tmp_path / "run" / "transcripts" / "loop.jsonl").symlink_to("loop.jsonl")
    out = tmp_path / "data" / "sft.jsonl"
    done = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert len([json.loads(line) for line in out.read_text().splitlines()]) == 1
    assert "left out: 1 did not pass" in done.stderr
    assert "broken.jsonl: not a transcript" in done.stderr
    assert "loop.jsonl: cannot be read" in done.stderr
    done = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--format", "dpo"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["metadata"]["rejected"]["passed"] is False
    before = out.read_text()
    for place in (out, tmp_path / "new.jsonl"):
        command = ["export", str(tmp_path / "run"), "--min-reward", "9", "--out", str(place)]
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 1
        assert done.stderr.startswith("0 lines of sft; left out: ")
    assert out.read_text() == before
    assert [path.name for path in tmp_path.glob("*.jsonl")] == []

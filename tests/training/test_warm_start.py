"""Supervised training with real shells: the environment's own tokens, and the complete way with the shipped models."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.cli import main as cli
from rtl_agent_gym.demo.shipped import RENDERER, SYSTEM_PROMPT, shipped
from rtl_agent_gym.episodes.episode import Episode, EpisodeConfig
from rtl_agent_gym.evaluation import EvaluationConfig, evaluate
from rtl_agent_gym.policies import Completion, ModelOptions
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.renderers import ModelTurn, ToolCall, get_renderer
from rtl_agent_gym.renderers.vocabularies import qwen3_tokenizer
from rtl_agent_gym.sandboxes import DockerSandboxes
from rtl_agent_gym.scoring.score import Score
from rtl_agent_gym.training.options import SftOptions
from rtl_agent_gym.training.run_folder import RunFolder
from rtl_agent_gym.training.sft.data import encode, read_demonstrations
from tests.evaluation.recording import score

pytestmark = pytest.mark.docker
pytest.importorskip("tinker_cookbook")


class Passes:
    """A grader that passes everything."""

    async def score(self, *_: Any, **__: Any) -> Score:
        return score(True)


async def test_the_tokens_are_those_of_the_episode(tmp_path: Path, provider: DockerSandboxes) -> None:
    renderer = get_renderer("qwen3", qwen3_tokenizer())
    turns = [
        ModelTurn("Look.", "", (ToolCall.of("ls rtl docs"), ToolCall.of("echo '<|im_end|></tool_response>'; false"))),
        ModelTurn("", "Long.", (ToolCall.of("seq 3000"),)),
        ModelTurn("", "Done."),
    ]
    config = EpisodeConfig(transcript_dir=tmp_path, max_output=500)
    episode = Episode(load_problems("bundled")[0], grader=Passes(), renderer=renderer, provider=provider, config=config)
    async with episode:
        await episode.start()
        for turn in turns:
            ids = renderer.turn_ids(turn)
            await episode.step(Completion(renderer.decode(ids), token_ids=ids))
        expected = episode.tokens
    [one] = read_demonstrations(SftOptions(episodes=(str(tmp_path),)), Counter())
    found = encode(one, renderer)
    assert found is not None
    assert found.exact
    assert found.tokens == expected.tokens
    assert found.mask == expected.mask


def run_cli(*words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        cli(list(words))
    assert ended.value.code == 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_from_a_teachers_episodes_to_distillation(tmp_path: Path) -> None:
    teacher, held_out = shipped("teacher"), "family:registers?count=8&seed=9&split=combinations"
    config = EvaluationConfig(
        problems="family:registers?count=16&seed=4",
        policy=f"local:{teacher}",
        renderer=RENDERER,
        episode=EpisodeConfig(max_turns=6, system_prompt=SYSTEM_PROMPT, command_timeout=10),
        model=ModelOptions(max_tokens=220, max_context=900),
        folder=tmp_path / "teacher",
        concurrency=4,
    )
    passed = asyncio.run(evaluate(config)).summary.passed
    assert passed >= 14
    run_cli("export", str(tmp_path / "teacher"), "--format", "tokens", "--out", str(tmp_path / "teacher.jsonl"))

    (tmp_path / "system.txt").write_text(SYSTEM_PROMPT)
    common = [
        "engine=local", f"renderer_name={RENDERER}", f"system_prompt=@{tmp_path / 'system.txt'}",
        "max_turns=6", "max_tokens=220", "max_trajectory_tokens=900", "lora_rank=0",
        "max_concurrent=4",
    ]  # fmt: skip
    run_cli(
        "train", "sft", *common, f"student_model={shipped('student')}", f"episodes={tmp_path / 'teacher.jsonl'}",
        f"held_out={held_out}", "batch_size=8", "epochs=12", "learning_rate=7e-4", "eval_every=0", "grad_clip_norm=1",
        f"log_path={tmp_path / 'sft'}",
    )  # fmt: skip
    folder = RunFolder(tmp_path / "sft")
    rows, log = folder.metrics(), (tmp_path / "sft" / "logs.log").read_text()
    assert f"{passed} episodes to train on" in log
    assert f"; {passed} with recorded tokens" in log
    assert rows[-1]["sft/nll"] < 0.5 * rows[0]["sft/nll"]
    rates = [row[name] for row in rows for name in row if name.endswith("pass_rate")]
    print("NLL", [round(row["sft/nll"], 3) for row in rows], "pass rates", rates)
    assert len(rates) == 2

    run_cli("export-model", str(tmp_path / "sft"), "--out", str(tmp_path / "student"))
    run_cli(
        "train", "distill", *common, f"student_model={tmp_path / 'student'}", f"teacher_model={teacher}",
        f"teacher_renderer_name={RENDERER}", "cvdp_jsonl_path=family:registers?count=2&seed=5", "num_steps=1",
        "group_size=2", "reward_coef=0", "eval_every=0", f"log_path={tmp_path / 'distill'}",
    )  # fmt: skip
    [row] = RunFolder(tmp_path / "distill").metrics()
    print("KL", row["teacher_kl"])
    assert abs(row["teacher_kl"]) < 1

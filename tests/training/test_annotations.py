"""Training adds tokens and log-probabilities to transcripts; the viewer shows each token's KL to the teacher."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
tinker = pytest.importorskip("tinker")

from rtl_agent_gym.errors import TranscriptError  # noqa: E402
from rtl_agent_gym.evaluation.recorded import mean_kl, token_kl, token_texts  # noqa: E402
from rtl_agent_gym.problems import load_problems  # noqa: E402
from rtl_agent_gym.training.rollouts import Batch, RolloutProducer  # noqa: E402
from rtl_agent_gym.training.run_folder import RunFolder  # noqa: E402
from rtl_agent_gym.training.teachers import SameTokens, Teacher  # noqa: E402
from rtl_agent_gym.transcripts import Transcript, read_transcript  # noqa: E402
from tests.arbiter import ARBITER  # noqa: E402
from tests.envs.scripted_tinker import END, LOGPROB, call, encode  # noqa: E402
from tests.training.common import Certain  # noqa: E402
from tests.training.scripted_run import STEPS, Scripted, make_plan, run  # noqa: E402

pytestmark = pytest.mark.docker
TURNS = [call("echo 'ä' > rtl/a.sv; ls"), f"Done.{END}"]


async def episodes(folder_path: Path, teacher: Teacher | None, *more: str) -> list[Transcript]:
    [problem] = load_problems("bundled", ids=[ARBITER])
    plan = make_plan(
        folder_path, [problem], f"teacher_model={'none' if teacher is None else 't'}",
        f"kl_penalty_coef={int(teacher is not None)}", "group_size=2", f"num_steps={STEPS}", *more,
    )  # fmt: skip

    async def made(_: Any) -> dict[str, Teacher]:
        return {problem.id: teacher} if teacher is not None else {}

    folder = await run(plan, Scripted([TURNS, TURNS]), made)
    return [read_transcript(path) for path in sorted(folder.transcripts.glob("*.jsonl"))]


async def test_tokens_and_the_teachers_opinion_are_in_every_transcript(tmp_path: Path) -> None:
    teacher = Certain()
    made = await episodes(tmp_path, SameTokens(teacher))  # type: ignore[arg-type]
    assert len(made) == len(teacher.read) == 2 * STEPS  # one call an episode
    for transcript in made:
        assert [len(turn.token_ids or ()) for turn in transcript.turns] == [len(encode(text)) for text in TURNS]
        assert mean_kl(transcript) == pytest.approx(LOGPROB + 1.25)
        for turn, text in zip(transcript.turns, TURNS, strict=True):
            assert "".join(token_texts(turn)) == text
            assert token_kl(turn) == [pytest.approx(LOGPROB + 1.25)] * len(turn.token_ids or ())
        assert transcript.score is not None  # what was there stays


@pytest.mark.slow
async def test_without_a_teacher_the_students_own_are_there(tmp_path: Path) -> None:
    made = await episodes(tmp_path, None)
    assert len(made) == 2 * STEPS
    for transcript in made:
        assert [turn.teacher_logprobs for turn in transcript.turns] == [None, None]
        assert all(set(turn.logprobs or ()) == {LOGPROB} for turn in transcript.turns)


@pytest.mark.slow
async def test_it_can_be_left_out(tmp_path: Path) -> None:
    made = await episodes(tmp_path, SameTokens(Certain()), "annotate_transcripts=false")  # type: ignore[arg-type]
    assert [turn.teacher_logprobs for transcript in made for turn in transcript.turns] == [None] * 4 * STEPS


async def test_a_transcript_that_cannot_be_added_to_does_not_end_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken: list[Path] = []
    real = RolloutProducer.collect

    async def spoil(self: RolloutProducer, step: int) -> Batch:
        batch = await real(self, step)
        for path, text in zip(sorted((tmp_path / "transcripts").glob("*.jsonl")), ("[1]\n", None), strict=False):
            path.unlink() if text is None else path.write_text(text)
            broken.append(path)
        return batch

    monkeypatch.setattr(RolloutProducer, "collect", spoil)
    with caplog.at_level("WARNING"), pytest.raises(TranscriptError):  # reading them back, when the run is over
        await episodes(tmp_path, SameTokens(Certain()))  # type: ignore[arg-type]
    assert len(RunFolder(tmp_path).metrics()) == STEPS
    assert "not annotated" in caplog.text
    assert broken

"""What a transcript holds of an episode's last files."""

from __future__ import annotations

from pathlib import Path

from rtl_agent_gym.episodes.recording import MAX_RECORDED_FILE, MAX_RECORDED_TOTAL, Recording
from rtl_agent_gym.episodes.rules import EpisodeConfig
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.scoring import Score
from rtl_agent_gym.transcripts import Header, TranscriptWriter, read_transcript


def test_the_last_files_have_the_limits_of_those_after_each_turn(tmp_path: Path) -> None:
    """An agent that leaves much in its folders must not fill the host's disk."""
    [problem, *_] = load_problems("bundled")
    target = problem.targets[0]
    recording = Recording(problem, EpisodeConfig(transcript_dir=tmp_path))
    recording._writer = TranscriptWriter.in_folder(tmp_path, problem.id)
    recording._write(Header(problem_id=problem.id, problem_digest="d", renderer="qwen3", category=3, difficulty="easy"))
    dumps = {f"verif/{number:02}.vcd": b"x" * MAX_RECORDED_FILE for number in range(40)}
    files = {target: b"module m; endmodule\n", "verif/large": b"x" * (MAX_RECORDED_FILE + 1), "verif/binary": b"\xff"}
    recording.score(Score(passed=False), {**files, **dumps})
    recording.end("completed", 0, 0.0, None)
    found = read_transcript(tmp_path / recording.path.name).score if recording.path else None
    assert found is not None
    assert found.files[target] == "module m; endmodule\n"
    assert not {"verif/large", "verif/binary"} & found.files.keys()
    assert MAX_RECORDED_TOTAL / 2 < sum(map(len, found.files.values())) <= MAX_RECORDED_TOTAL

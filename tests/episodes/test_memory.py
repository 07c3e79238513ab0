"""What a live episode keeps in this process's memory."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.episodes.episode import Episode, EpisodeConfig
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.sandboxes.choice import make_provider
from tests.arbiter import call

TURNS = 50
LONGEST = f"yes 🙂 | head -c {5 * 16_000}"
"""Prints more than the model may read, in characters that take four bytes each."""
FILES = "for n in $(seq 16); do head -c 200000 /dev/zero | tr '\\0' x > rtl/$n.sv; done"
"""3.2 MB, which the transcript records."""


@pytest.mark.docker
async def test_an_episode_with_much_output_and_many_files_takes_little_memory(tmp_path: Path, arbiter: Problem) -> None:
    grader: Any = None
    renderer, config = get_renderer("qwen3"), EpisodeConfig(max_turns=TURNS + 2, transcript_dir=tmp_path)
    say = call(LONGEST)
    async with (
        make_provider() as provider,
        Episode(arbiter, provider=provider, grader=grader, renderer=renderer, config=config) as episode,
    ):
        await episode.start()
        last = await episode.step(say)
        gc.collect()
        tracemalloc.start()
        try:
            for _ in range(TURNS - 1):
                last = await episode.step(say)
            await episode.step(call(FILES))
            assert len(last.observation) > 15_000
            del last
            gc.collect()
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(episode.turns) == TURNS + 1
        assert {turn.observation for turn in episode.turns[:-1]} == {""}
        assert [turn.action.commands for turn in episode.turns[:2]] == [(LONGEST,), (LONGEST,)]
    assert kept < 2e6

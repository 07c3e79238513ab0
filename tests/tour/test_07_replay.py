"""A replay: a recorded episode is run again in fresh containers and must give the same observations and verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rtl_agent_gym import Episode, EpisodeConfig, Scorer, load_problems
from rtl_agent_gym.evaluation import play, replay
from rtl_agent_gym.policies import GoldenPolicy
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.sandboxes.choice import make_provider
from rtl_agent_gym.transcripts import read_transcript


@pytest.mark.docker
async def test_a_replay(tmp_path: Path) -> None:
    [problem] = load_problems("bundled", ids=["cvdp_agentic_rtlgym_fixed_priority_arbiter_0001"])
    async with make_provider() as provider, Scorer(provider) as scorer:
        machine = {"provider": provider, "grader": scorer, "renderer": get_renderer("qwen3")}
        episode = Episode(problem, config=EpisodeConfig(transcript_dir=tmp_path), seed=7, **machine)
        await play(episode, GoldenPolicy(), seed=7)
        assert episode.transcript_path is not None

        again = await replay(read_transcript(episode.transcript_path), problem, **machine)
        assert again.identical
        assert again.score_compared

        # A record that says something else is found out, with the turn.
        text = episode.transcript_path.read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        turn = next(line for line in lines if line["event"] == "turn" and line["turn"] == 2)
        turn["observation"] = "something else"
        episode.transcript_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        changed = await replay(read_transcript(episode.transcript_path), problem, **machine)
        assert changed.divergence is not None
        assert (changed.divergence.turn, changed.divergence.what) == (2, "observation")

"""Whatever the model samples stays in the next prompt as it was, and an episode is one training example."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.renderers import Renderer
from rtl_agent_gym.renderers.transcript import TokenTranscript

from .families import OWN, decoded, renderer_of, sampled
from .fuzzing import fuzz

TURNS = 50

# Ids of each vocabulary that mean something, or nothing at all.
ADVERSARIAL = {
    "qwen3": [*range(151_643, 151_669), 151_669, 151_935, 200_000],
    "gpt_oss": [*range(199_998, 200_019), 201_087, 201_088, 250_000],
}


def adversarial(name: str) -> list[int]:
    return ADVERSARIAL["gpt_oss" if name == "gpt_oss" else "qwen3"]


@st.composite
def actions(draw: st.DrawFn, name: str) -> list[list[int]]:
    """Fifty actions: a few drawn ones, repeated in a random order, which is quicker than drawing fifty."""
    ids = st.integers(0, 199_997) | st.sampled_from(adversarial(name))
    drawn = draw(st.lists(st.lists(ids, max_size=12), min_size=1, max_size=8))
    rng = random.Random(draw(st.integers(0, 2**32)))
    return [rng.choice(drawn) for _ in range(TURNS)]


def reply(renderer: Renderer, ids: list[int], output: str = "ok\n") -> list[int]:
    """What an episode appends for an action: results of its commands, or a correction."""
    action = renderer.parse_ids(ids)
    if action.kind == "command":
        return renderer.observation_ids([output] * len(action.commands), ids)
    return renderer.correction_ids(action.correction or "Go on.", ids)


@pytest.mark.parametrize("name", OWN)
@given(data=st.data())
@settings(fuzz, max_examples=30)
def test_each_prompt_is_the_last_one_plus_exactly_the_sampled_ids(name: str, data: st.DataObject) -> None:
    renderer = renderer_of(name)
    transcript = TokenTranscript(renderer.initial_ids("Be good.", "Do it."))
    expected_mask = [0] * len(transcript)
    for ids in data.draw(actions(name)):
        before = transcript.tokens
        transcript.add_action(ids, [-1.0] * len(ids))
        appended = reply(renderer, ids)
        transcript.append(appended)
        after = transcript.tokens
        assert after[: len(before)] == before
        assert after[len(before) : len(before) + len(ids)] == ids
        assert after[len(before) + len(ids) :] == appended
        expected_mask += [1] * len(ids) + [0] * len(appended)
    assert transcript.mask == expected_mask
    assert len(transcript) == len(expected_mask)


@pytest.mark.parametrize("name", OWN)
@given(data=st.data())
@settings(fuzz, max_examples=10)
def test_the_cookbook_makes_one_datum_of_an_episode(name: str, cookbook: Any, data: st.DataObject) -> None:
    from tinker_cookbook.completers import TokensWithLogprobs
    from tinker_cookbook.rl.data_processing import trajectory_to_data
    from tinker_cookbook.rl.types import Trajectory, Transition

    renderer = renderer_of(name)
    transcript = TokenTranscript(renderer.initial_ids("Be good.", "Do it."))
    transitions = []
    for turn, ids in enumerate(data.draw(actions(name))):
        prompt = transcript.model_input()
        logprobs = [-0.25 - turn] * len(ids)
        transcript.add_action(ids, logprobs)
        sampled = TokensWithLogprobs(tokens=ids, maybe_logprobs=logprobs)
        transitions.append(Transition(ob=prompt, ac=sampled, reward=0.0, episode_done=turn == TURNS - 1))
        if turn < TURNS - 1:
            transcript.append(reply(renderer, ids))
    data_of_cookbook = trajectory_to_data(Trajectory(transitions=transitions, final_ob=transcript.model_input()), 0.5)
    assert len(data_of_cookbook) == 1
    theirs, ours = data_of_cookbook[0], transcript.to_datum(advantage=0.5)
    assert theirs.model_input.to_ints() == ours.model_input.to_ints()
    for field in ("target_tokens", "logprobs", "advantages", "mask"):
        assert list(theirs.loss_fn_inputs[field].data) == list(ours.loss_fn_inputs[field].data), field
    assert list(ours.loss_fn_inputs["mask"].data) == transcript.mask[1:]


@pytest.mark.parametrize("name", OWN)
def test_a_turn_that_did_not_end_is_closed_before_the_next_opens(name: str) -> None:
    renderer = renderer_of(name)
    closing = "<|end|>" if name == "gpt_oss" else "<|im_end|>"
    open_body = "<|channel|>analysis<|message|>hm" if name == "gpt_oss" else "<think>hm"
    appends: list[Callable[[list[int]], list[int]]] = [
        lambda ids: renderer.observation_ids(["x"], ids),
        lambda ids: renderer.correction_ids("x", ids),
    ]
    for append in appends:
        assert decoded(name, append(sampled(name, open_body))).startswith(closing)
        assert decoded(name, append([])).startswith(closing)
        for stop in renderer.stop:
            assert isinstance(stop, int)
            assert not decoded(name, append([*sampled(name, open_body), stop])).startswith(closing)
    if name == "gpt_oss":
        assert not decoded(name, renderer.correction_ids("x", sampled(name, open_body + "<|end|>"))).startswith(closing)


@pytest.mark.parametrize("name", OWN)
def test_what_is_appended_depends_on_the_end_of_the_action_alone(name: str) -> None:
    renderer, rng = renderer_of(name), random.Random(1)
    stop = renderer.stop[0]
    assert isinstance(stop, int)
    first = renderer.observation_ids(["x"], [stop])
    for _ in range(20):
        ids = [rng.randrange(150_000) for _ in range(30)]
        assert renderer.observation_ids(["x"], [*ids, stop]) == first


def test_a_prompt_shares_what_was_there_before() -> None:
    transcript = TokenTranscript([1, 2])
    first = transcript.model_input()
    transcript.add_action([3])
    transcript.append([4])
    second = transcript.model_input()
    assert second.to_ints() == [1, 2, 3, 4]
    assert second.chunks[0] is first.chunks[0]  # so a turn costs what is new in it
    transcript.add_action([])
    assert transcript.model_input().to_ints() == [1, 2, 3, 4]


def test_a_transcript_refuses_what_would_break_it() -> None:
    with pytest.raises(UsageError, match="must not be empty"):
        TokenTranscript([])
    transcript = TokenTranscript([1])
    with pytest.raises(UsageError, match="before the model has acted"):
        transcript.append([2])
    with pytest.raises(UsageError, match="2 tokens came with 1"):
        transcript.add_action([2, 3], [-1.0])
    transcript.add_action([2, 3])
    with pytest.raises(UsageError, match="two actions in a row"):
        transcript.add_action([4])
    with pytest.raises(UsageError, match="without log-probabilities"):
        _ = transcript.logprobs
    assert (transcript.tokens, transcript.mask, len(transcript)) == ([1, 2, 3], [0, 1, 1], 3)


def test_a_transcript_keeps_its_own_copy() -> None:
    prompt, action = [1, 2], [3]
    transcript = TokenTranscript(prompt)
    transcript.add_action(action, [-0.5])
    prompt.append(9)
    action.append(9)
    assert transcript.tokens == [1, 2, 3]
    assert [segment.sampled for segment in transcript.segments] == [False, True]
    assert transcript.logprobs == [0.0, 0.0, -0.5]


def test_the_response_ends_with_the_last_sampled_token() -> None:
    transcript = TokenTranscript([1, 2])
    assert (transcript.prompt, transcript.response) == ([1, 2], ([], [], []))
    transcript.add_action([7, 8], [-0.5, -0.25])
    transcript.append([3, 4])
    transcript.add_action([9], [-1.0])
    whole = ([7, 8, 3, 4, 9], [1, 1, 0, 0, 1], [-0.5, -0.25, 0.0, 0.0, -1.0])
    assert transcript.response == whole
    transcript.append([5])  # the model never read it
    assert transcript.response == whole
    transcript.add_action([6])
    with pytest.raises(UsageError, match="without log-probabilities"):
        _ = transcript.response


def test_a_response_may_have_no_log_probabilities() -> None:
    transcript = TokenTranscript([1])
    transcript.add_action([7])
    assert transcript.response == ([7], [1], [])

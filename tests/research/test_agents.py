"""The conversations that models learn are those that the real mini-swe-agent holds, token for token."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("minisweagent", reason="mini-swe-agent is not installed: pip install 'rtl-agent-gym[agents]'")
torch = pytest.importorskip("torch", reason="the extra `local` is not installed")

from research import mixture  # noqa: E402
from research.agents import AGENT, END, FAMILY, Conversations, Lessons, make, words  # noqa: E402
from research.episodes import TextEpisode, written_episode  # noqa: E402
from research.mixture import Mix  # noqa: E402
from research.recipe import Phase  # noqa: E402
from research.tokenizer import widened, with_words  # noqa: E402
from rtl_agent_gym import evaluate  # noqa: E402
from rtl_agent_gym.demo.shipped import shipped  # noqa: E402
from rtl_agent_gym.evaluation import EvaluationConfig  # noqa: E402
from rtl_agent_gym.policies import ModelOptions  # noqa: E402
from rtl_agent_gym.policies.harness import HarnessPlayer, HarnessPolicy  # noqa: E402
from rtl_agent_gym.policies.sampler import TokenSamplerPolicy  # noqa: E402
from rtl_agent_gym.sources.families.family import Parameters  # noqa: E402


@pytest.fixture(scope="module")
def plain() -> Any:
    import transformers

    library: Any = transformers
    return library.AutoTokenizer.from_pretrained(shipped("student"))


@pytest.fixture(scope="module")
def chosen(plain: Any) -> dict[str, str]:
    return words(plain, 60)


@pytest.fixture(scope="module")
def tokenizer(plain: Any, chosen: dict[str, str]) -> Any:
    return with_words(plain, list(chosen))


def episode(member: Parameters) -> TextEpisode:
    specification = FAMILY.specification(member)
    return written_episode(mixture.start(FAMILY, specification), specification, FAMILY.design(member))


@pytest.mark.slow  # plays an episode with an agent's program
@pytest.mark.docker
async def test_a_conversation_is_that_of_a_real_episode(tokenizer: Any, tmp_path: Path) -> None:
    member = FAMILY.draw(random.Random(3), "combinations")
    expected = await asyncio.to_thread(Conversations(tokenizer).encode, episode(member))
    turns = [id_ for id_, learned in zip(expected.ids, expected.learned, strict=True) if learned]
    end = tokenizer.eos_token_id
    coming = [[*one, end] for one in _split(turns, end)]

    class Sampler:
        async def sample(self, *_: Any) -> Any:
            ids = coming.pop(0)
            return SimpleNamespace(sequences=[SimpleNamespace(tokens=ids, logprobs=[-0.1] * len(ids))])

    sampler: Any = Sampler()
    model = TokenSamplerPolicy(sampler, name="script", tokenizer=tokenizer, options=ModelOptions(max_tokens=300))
    agent, players = HarnessPolicy(AGENT, model, "qwen3"), []
    made = agent.player

    def noted(*arguments: Any, **options: Any) -> Any:
        players.append(made(*arguments, **options))
        return players[-1]

    agent.player = noted  # type: ignore[method-assign]
    try:
        evaluation = await evaluate(
            EvaluationConfig(problems=[FAMILY.problem(member)], attempts=1, folder=tmp_path / "out"), agent
        )
    finally:
        await agent.close()
    assert evaluation.results[0].score is not None
    assert evaluation.results[0].score.passed
    [player] = [one for one in players if isinstance(one, HarnessPlayer) and one.started]
    [transcript] = player.streams.transcripts()
    assert list(transcript.tokens) == expected.ids
    assert list(map(bool, transcript.mask)) == expected.learned


def _split(ids: list[int], end: int) -> list[list[int]]:
    found: list[list[int]] = [[]]
    for id_ in ids:
        if id_ == end:
            found.append([])
        else:
            found[-1].append(id_)
    return found[:-1]


def test_what_all_conversations_share_is_a_token(plain: Any, tokenizer: Any, chosen: dict[str, str]) -> None:
    one = episode(FAMILY.draw(random.Random(4), "names"))
    before, after = (Conversations(each).encode(one) for each in (plain, tokenizer))
    assert tokenizer.decode(after.ids) == plain.decode(before.ids)
    assert len(before.ids) > 2000
    assert len(after.ids) < 400
    pieces = [tokenizer.decode([id_]) for id_ in after.ids]
    assert [piece for piece in pieces if END in piece and piece.startswith("\n{")]
    for text, other in chosen.items():
        assert len(tokenizer.encode(text, add_special_tokens=False)) == 1
        assert text == other or json.loads(f'"{text}"') == other
    names = set(one.turns[1].text.replace("\\n", " ").split())
    assert not [piece for piece in chosen if piece.strip() in names]


def test_a_separator_in_json_is_read_as_the_plain_one(plain: Any, tokenizer: Any, chosen: dict[str, str]) -> None:
    import transformers

    library: Any = transformers
    model = library.AutoModelForCausalLM.from_pretrained(shipped("student")).float()
    rows = model.get_input_embeddings().weight.detach().clone()
    after = widened(model, plain, tokenizer, chosen).get_input_embeddings().weight
    separators = {text: other for text, other in chosen.items() if text != other}
    assert ".\\n-" in separators
    for text, other in chosen.items():
        [place] = tokenizer.encode(text, add_special_tokens=False)
        sources = plain.encode(other, add_special_tokens=False)
        assert (len(sources) == 1) == (text in separators)
        torch.testing.assert_close(after[place], rows[sources].mean(0))


@pytest.mark.slow  # trains models twice
def test_models_are_made_again_the_same(tmp_path: Path) -> None:
    recipe = {"student": Lessons(5, Mix(reference=0, feedback=0), Phase(2, 0.005, 0.001, batch=2))}
    for name in ("first", "second"):
        make(tmp_path / name, lambda line: None, recipe, episodes=20)
    first, second = (tmp_path / name / "student/model.safetensors" for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()
    assert len(first.read_bytes()) > (shipped("student") / "model.safetensors").stat().st_size

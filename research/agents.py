"""Models that can act through mini-swe-agent: the pair `small` after further training on such conversations.

The real agent and `TokenStreams` turn an episode of `mixture` into a conversation, so its tokens are those of a real
one. Texts that all conversations share become tokens, as in the original tokenizer. A separator of the specification
that is escaped in JSON gets the embedding of the plain separator.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from research import mixture
from research.episodes import TextEpisode, TokenEpisode
from research.lessons import EPISODES, frequent, teach
from research.mixture import Mix
from research.recipe import Phase
from research.tokenizer import CONTROLS, longest_first, pieces, varying
from rtl_agent_gym.demo.shipped import RENDERER
from rtl_agent_gym.policies import ModelOptions
from rtl_agent_gym.policies.apis.completions import ChatCompletions
from rtl_agent_gym.policies.harness import check_agent, mini_swe_agent
from rtl_agent_gym.policies.sampler import TokenSamplerPolicy
from rtl_agent_gym.policies.streams import TokenStreams
from rtl_agent_gym.renderers.chat import ChatDialect
from rtl_agent_gym.sources.families import FAMILIES

AGENT = "mini-swe-agent"
END = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""The output of the agent's last command."""
FAMILY = FAMILIES["registers"]


@dataclass(frozen=True)
class Lessons:
    """How one of the models is trained on the conversations."""

    seed: int
    mix: Mix
    phase: Phase


LESSONS = {
    "teacher": Lessons(30, Mix(reference=0, feedback=0), Phase(450, 0.005, 0.0001)),
    "student": Lessons(31, Mix(follow=0.53, reference=0, feedback=0), Phase(300, 0.005, 0.0001)),
}
"""The recipe; training starts from the shipped models of these names."""
_BYTES = re.compile(r"(?<=\()[\d,]+(?= bytes)")


class Conversations:
    """Encodes episodes as mini-swe-agent's conversations.

    Args:
        tokenizer: The models' tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        check_agent(AGENT, RENDERER)
        self._tokenizer = tokenizer
        self._coming: list[str] = []
        options = ModelOptions(max_tokens=1 << 16, max_context=1 << 20)
        self._policy = TokenSamplerPolicy(self, name="script", tokenizer=tokenizer, options=options)  # type: ignore[arg-type]

    async def sample(self, *_: Any) -> Any:
        """The next scripted turn. This method lets the object serve as a sampler."""
        ids = self._tokenizer.encode(self._coming.pop(0), add_special_tokens=False)
        return SimpleNamespace(sequences=[SimpleNamespace(tokens=ids, logprobs=[0.0] * len(ids))])

    def streams(self, one: TextEpisode) -> TokenStreams:
        """Play an episode through the agent, and return the conversation."""
        from openai.types.chat import ChatCompletion

        streams, api = TokenStreams(self._policy, ChatDialect(RENDERER, self._tokenizer)), ChatCompletions()
        commands = [json.loads(turn.text.split("\n")[1])["arguments"]["command"] for turn in one.turns[:-1]]
        self._coming = [_turn(command) for command in (*commands, f"echo {END}")]
        outputs = [turn.output for turn in one.turns[:-1]] + [f"{END}\n"]

        def ask(**request: Any) -> Any:
            asked = api.read(request)
            answer = asyncio.run(streams.answer(asked.messages, asked.tools))
            return ChatCompletion.model_validate(api.written(answer, asked))

        mini_swe_agent(ask, lambda command: outputs.pop(0)).run(one.user)
        return streams

    def encode(self, one: TextEpisode) -> TokenEpisode:
        """The conversation as token ids."""
        [transcript] = self.streams(one).transcripts()
        parts = [(list(segment.ids), segment.sampled) for segment in transcript.segments]
        return TokenEpisode([id_ for ids, _ in parts for id_ in ids], [sampled for ids, sampled in parts for _ in ids])

    def stream(self, lessons: Lessons) -> Iterator[TokenEpisode]:
        """Endless random conversations."""
        rng = random.Random(lessons.seed)
        while True:
            yield self.encode(mixture.draw(FAMILY, lessons.mix, rng))


def _turn(command: str) -> str:
    arguments = json.dumps({"name": "bash", "arguments": {"command": command}})
    return f"<tool_call>\n{arguments}\n</tool_call><|im_end|>"


def words(tokenizer: Any, episodes: int) -> dict[str, str]:
    """The texts that become tokens, the longest first, each with the text that initialises its embedding."""
    conversations, rng = Conversations(tokenizer), random.Random(0)
    names = varying("|".join(pieces([FAMILY])))
    count, separators = Counter[str](), Counter[str]()
    for _ in range(episodes):
        one = mixture.draw(FAMILY, Mix(follow=0.6, reference=0, feedback=0), rng)
        body = (one.turns[0].output or "").split(f"{FAMILY.heading}\n\n", 1)[-1]
        separators.update(
            part
            for id_ in tokenizer.encode(body, add_special_tokens=False)
            if "\n" in (part := tokenizer.decode([id_]))
        )
        ids = conversations.encode(one).ids
        text = tokenizer.decode(ids).replace(_in_json(body), "\0")
        for part in re.split(f"{CONTROLS.pattern}|\0", text):
            count.update(piece for piece in (names if r"\nmodule " in part else _BYTES).split(part) if piece)
    known = tokenizer.get_vocab()
    found = {text: text for text in frequent(count, tokenizer, episodes)}
    found |= {_in_json(text): text for text in separators if _in_json(text) not in known}
    return {text: found[text] for text in longest_first(found)}


def _in_json(text: str) -> str:
    return json.dumps(text)[1:-1]


def make(
    folder: Path,
    log: Callable[[str], None],
    recipe: Mapping[str, Lessons] = LESSONS,
    episodes: int = EPISODES,
) -> None:
    """Make models as `teach` does; the new tokens are chosen from `episodes` episodes."""

    def conversations(tokenizer: Any, lessons: Lessons) -> Iterator[TokenEpisode]:
        return Conversations(tokenizer).stream(lessons)

    teach(folder, log, recipe, partial(words, episodes=episodes), conversations)

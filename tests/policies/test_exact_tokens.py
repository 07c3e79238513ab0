"""Exactness over many episodes: agents of all APIs that grow, compact and repair their conversations at the endpoint.

Whatever they do, training sees each sampled turn once, behind exactly the tokens that the model read. The sampler is
scripted; the clients are OpenAI's and Anthropic's.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("anthropic", reason="Anthropic's client is not installed")
openai = pytest.importorskip("openai", reason="the extra `agents` is not installed")

from rtl_agent_gym.policies import ModelOptions  # noqa: E402
from rtl_agent_gym.policies.endpoint import Line, ModelEndpoint  # noqa: E402
from rtl_agent_gym.policies.sampler import TokenSamplerPolicy  # noqa: E402

from .test_apis import SYSTEM, TASK, Answered, Anthropic, Responses  # noqa: E402
from .test_streams import BASH, DIALECTS, OUTPUTS, Scripted, as_sent_back, assert_exact, call, vocabulary  # noqa: E402

EPISODES = 200


@dataclass
class Chat:
    """An agent with OpenAI's client and chat completions."""

    line: Line
    system: str = SYSTEM
    messages: list[dict[str, Any]] = field(default_factory=lambda: [{"role": "user", "content": TASK}])

    def __post_init__(self) -> None:
        self.client = openai.AsyncOpenAI(base_url=self.line.url, api_key="none", max_retries=0)

    async def ask(self, *, stream: bool = False) -> Answered:
        system = {"role": "system", "content": self.system}
        asked: Any = {"model": "any", "messages": [system, *self.messages], "tools": [BASH]}
        if stream:
            chunks = [one async for one in await self.client.chat.completions.create(stream=True, **asked)]
            message = chunks[0].choices[0].delta.model_dump(exclude_none=True)
            for one in message.get("tool_calls", ()):
                del one["index"]
            message.setdefault("content", None)
        else:
            message = (await self.client.chat.completions.create(**asked)).choices[0].message.model_dump()
            message = {key: value for key, value in message.items() if value is not None or key == "content"}
        self.messages.append(message)
        calls = [(one["id"], "bash", one["function"]["arguments"]) for one in message.get("tool_calls", ())]
        return Answered(message["content"] or "", message.get("reasoning_content") or "", calls, "", 0)

    def results(self, answer: Answered, output: str, rng: random.Random) -> None:
        self.messages[-1] = as_sent_back(self.messages[-1], rng)
        self.messages += [{"role": "tool", "tool_call_id": id_, "content": output} for id_, _, _ in answer.calls]

    def repair(self, command: str) -> None:
        calls = next(one["tool_calls"] for one in self.messages if one.get("tool_calls"))
        calls[0]["function"]["arguments"] = f'{{"command": "{command}"}}'

    def shorten(self, text: str) -> None:
        next(one for one in self.messages if one["role"] == "tool")["content"] = text


AGENTS: Sequence[Any] = (Chat, Anthropic, Responses)
REWRITES = ("repair", "compact", "shorten", "sub-agent", "left out", "again")


class Episode:
    """One agent, what its model says, and why its streams must break."""

    def __init__(self, line: Line, sampler: Scripted, dialect: str, rng: random.Random, number: int) -> None:
        self.line, self.sampler, self.dialect, self.rng = line, sampler, dialect, rng
        self.agent = AGENTS[number % len(AGENTS)](line)
        self.expected: Counter[str] = Counter()
        self.number = 0

    async def play(self) -> None:
        async with self.agent.client:
            for rewrite in [*self.rng.choices(REWRITES, k=self.rng.randint(1, 3)), None]:
                for _ in range(2):
                    await self.work()
                if rewrite is not None:
                    await self.rewrite(rewrite)
            await self.says("Done.")

    async def says(self, text: str, agent: Any = None) -> Answered:
        """Ask the model, which says this."""
        agent, thought = agent or self.agent, ""
        if self.dialect == "qwen3_5":
            thought = "Hm.\n</think>\n\n"
        elif self.dialect == "qwen3" and self.rng.random() < 0.5:
            thought = "<think>\nHm.\n</think>\n\n"
        self.sampler.texts.append(thought + text.removesuffix("<|im_end|>") + "<|im_end|>")
        found = await agent.ask(stream=self.rng.random() < 0.5)
        assert not self.sampler.texts
        return found

    async def work(self) -> None:
        """A turn with a call."""
        text = self.rng.choice(["", "Now I look.\n"]) + call(self.dialect, self.rng.choice(["ls", "cat <<'E'\n</x>"]))
        answer = await self.says(text)
        assert len(answer.calls) == 1
        self.agent.results(answer, self.rng.choice(OUTPUTS), self.rng)

    def user_says(self, text: str) -> None:
        self.agent.messages.append({"role": "user", "content": text})

    async def rewrite(self, kind: str) -> None:
        """What agents do to their history, each time in other words, and the next request."""
        self.number += 1
        place = len(self.agent.messages)
        match kind:
            case "repair":
                self.agent.repair(f"dir {self.number}")
                self.expected["answer"] += 1
            case "shorten":
                self.agent.shorten(f"… {self.number}")
                self.expected["history"] += 1
            case "compact":
                self.user_says("Summarize what you have done.")
                # Qwen3.5's template drops earlier thinking once the user writes.
                self.expected["template"] += self.dialect == "qwen3_5"
                summary = await self.says(f"I have looked around, {self.number}.")
                del self.agent.messages[1:]
                self.user_says(f"What you have done: {summary.text}")
                self.expected["answer"] += 1
            case "sub-agent":
                other = type(self.agent)(self.line, system=f"You summarize, {self.number}.")
                async with other.client:
                    await self.says("It is fine.", other)
                self.expected["conversation"] += 1
            case "left out":
                await self.says("I have no call.")
                del self.agent.messages[place:]
                self.user_says(f"There was no call, {self.number}.")
                self.expected["answer"] += 1
            case "again":
                await self.says("This answer is lost.")
                del self.agent.messages[place:]
                self.expected["repeated"] += 1
        await self.work()


@pytest.mark.slow  # more than a minute: some 2,000 requests, each with a prompt that is rendered and encoded
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_training_sees_what_was_sampled_where_it_was_sampled(dialect: str) -> None:
    """Over 50 random episodes of each dialect, each of which rewrites its history at least once."""
    rng, broken = random.Random(f"{dialect} exact"), Counter[str]()
    for number in range(EPISODES // len(DIALECTS)):
        sampler: Any = Scripted(vocabulary(dialect), [])
        policy = TokenSamplerPolicy(sampler, name="scripted", options=ModelOptions())
        async with ModelEndpoint(policy, dialect) as endpoint:
            line = endpoint.open(seed=number)
            episode = Episode(line, sampler, dialect, rng, number)
            await episode.play()
        assert line.streams.breaks == +episode.expected, (number, episode.agent)
        assert_exact(line.streams, sampler)
        broken += line.streams.breaks
    assert broken["answer"] >= 30, broken  # most are calls that were repaired, and conversations that were compacted
    assert all(broken[reason] >= 5 for reason in ("history", "conversation", "repeated")), broken

"""The token sampler: what is sampled is never re-rendered. Its sampler is scripted, as Tinker's service is not here."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import pytest
import tinker
from tinker.lib.public_interfaces.api_future import AwaitableConcurrentFuture

from rtl_agent_gym.demo.shipped import shipped
from rtl_agent_gym.engines.catalogue import renderer_for
from rtl_agent_gym.episodes.rules import EpisodeConfig
from rtl_agent_gym.errors import ModelError, UsageError
from rtl_agent_gym.evaluation import EvaluationConfig, evaluate
from rtl_agent_gym.policies import ModelOptions, write_turn
from rtl_agent_gym.policies.protocol import MIN_TURN_TOKENS
from rtl_agent_gym.policies.sampler import (
    TokenSamplerPlayer,
    TokenSamplerPolicy,
    files_digest,
    local_policy,
    tinker_policy,
)
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.renderers.transcript import TokenTranscript
from rtl_agent_gym.renderers.vocabularies import qwen3_tokenizer
from rtl_agent_gym.scoring import Score

from .test_streams import Scripted

RENDERER = get_renderer("qwen3", qwen3_tokenizer())


def scripted(*texts: str | Exception) -> Scripted:
    """A sampler that says these texts."""
    return Scripted(qwen3_tokenizer(), list(texts))


def opened(sampler: Scripted, **options: Any) -> tuple[TokenSamplerPlayer, TokenTranscript]:
    """A player, and the tokens of an episode that has begun."""
    policy = TokenSamplerPolicy(sampler, name="test", options=ModelOptions(**options))  # type: ignore[arg-type]
    player = policy.player(load_problems("bundled")[0], RENDERER, 5)
    return player, TokenTranscript(RENDERER.initial_ids("be an engineer", "design it"))


async def act(sampler: Scripted) -> None:
    player, tokens = opened(sampler)
    await player.sample(tokens)


async def test_what_is_sampled_is_returned_unchanged_and_the_tokens_are_the_episodes() -> None:
    odd = "<think>\n\nhm</think>" + write_turn(RENDERER, "é  ", ["ls  -la"]) + "<|im_end|>"
    sampler = scripted(odd, "All done.<|im_end|>")
    player, tokens = opened(sampler, temperature=0.7, top_p=0.9, max_tokens=300)
    first = await player.sample(tokens)
    assert first is not None
    ids = list(first.token_ids or [])
    assert RENDERER.parse_ids(ids).commands == ("ls  -la",)
    assert first.text == odd
    assert first.logprobs == [-0.5] * len(ids)
    tokens.add_action(ids, first.logprobs)
    tokens.append(RENDERER.observation_ids(["docs <|im_end|>"], ids))
    second = await player.sample(tokens)
    assert second is not None
    assert sampler.prompts[1] == tokens.tokens
    assert (second.prompt_tokens, second.cut_off) == (len(tokens), False)
    assert [parameters.seed for parameters in sampler.parameters] == [6, 7]
    parameters = sampler.parameters[0]
    assert (parameters.temperature, parameters.top_p, parameters.stop) == (0.7, 0.9, RENDERER.stop)


async def test_turns_shrink_to_the_context_and_end_where_no_useful_one_fits() -> None:
    sampler = scripted("word " * 500)
    player, tokens = opened(sampler, max_tokens=300, max_context=1000)
    tokens.add_action([], [])
    tokens.append([1] * (1000 - MIN_TURN_TOKENS - len(tokens)))
    completion = await player.sample(tokens)
    assert completion is not None
    assert sampler.parameters[0].max_tokens == MIN_TURN_TOKENS < 300
    assert completion.cut_off
    tokens.add_action([], [])
    tokens.append([1])
    assert await player.sample(tokens) is None


class Zero:
    """A grader that runs nothing."""

    async def score(self, *_: Any, **__: Any) -> Score:
        return Score(passed=False, reward=0.0)


async def test_the_rules_of_an_evaluation_limit_the_policy_that_it_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler: Any = scripted(*["word " * 2000] * 4)

    def made(_: str, options: ModelOptions) -> TokenSamplerPolicy:
        return TokenSamplerPolicy(sampler, name="local:x", options=options)

    async def asked(policy: TokenSamplerPolicy | None = None, **rules: Any) -> int:
        """The most tokens that the model was asked for."""
        episode = EpisodeConfig(workspace="answer", **rules)
        config = EvaluationConfig(policy="local:x", problems=load_problems("bundled")[:1], episode=episode, keep=False)
        await evaluate(config, policy, grader=Zero())
        return int(sampler.parameters[-1].max_tokens)

    monkeypatch.setattr("rtl_agent_gym.policies.sampler.local_policy", made)
    assert await asked(max_tokens=8) == 8
    assert await asked(max_trajectory_tokens=3000) + len(sampler.prompts[-1]) == 3000
    assert await asked() == 4096
    assert await asked(made("x", ModelOptions()), max_tokens=8) == 4096


async def test_a_renderer_without_vocabulary_is_refused() -> None:
    policy = TokenSamplerPolicy(scripted(), name="test")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="without a vocabulary"):
        policy.player(load_problems("bundled")[0], get_renderer("qwen3"), 0)


async def test_a_failing_service_is_a_fault() -> None:
    with pytest.raises(ModelError, match="did not answer: gone"):
        await act(scripted(tinker.TinkerError("gone")))


def refused(kind: type[tinker.APIStatusError], status: int) -> Exception:
    request = httpx.Request("POST", "http://127.0.0.1/")
    return kind("no", response=httpx.Response(status, request=request), body=None)


@pytest.mark.parametrize(
    ("error", "first", "later"),
    [
        (refused(tinker.AuthenticationError, 401), UsageError, UsageError),
        (refused(tinker.BillingError, 402), UsageError, UsageError),
        (refused(tinker.NotFoundError, 404), UsageError, ModelError),
        (refused(tinker.RateLimitError, 429), ModelError, ModelError),
        (refused(tinker.InternalServerError, 500), ModelError, ModelError),
    ],
)
async def test_a_refusal_is_wrong_usage_where_another_request_would_be_refused_too(
    error: Exception, first: type[Exception], later: type[Exception]
) -> None:
    with pytest.raises(first):
        await act(scripted(error))
    player, tokens = opened(scripted("Done.<|im_end|>", error))
    await player.sample(tokens)
    with pytest.raises(later):
        await player.sample(tokens)


class PublishedSampler(Scripted, tinker.SamplingClient):  # type: ignore[misc]
    """The SDK's own class, whose futures also raise plain exceptions."""


@pytest.mark.parametrize("error", [ValueError("no tokens"), RuntimeError("the session ended"), OSError("reset")])
async def test_plain_exceptions_of_the_sdk_are_the_services(error: Exception) -> None:
    with pytest.raises((UsageError, ModelError), match=str(error)):
        await act(PublishedSampler(qwen3_tokenizer(), [error]))
    with pytest.raises(type(error)) as raised:  # of another engine they are faults of ours
        await act(scripted(error))
    assert raised.value is error


def test_a_key_that_is_malformed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "no-such-form")
    with pytest.raises(UsageError, match=r"^(policy|TINKER_API_KEY): "):
        tinker_policy("Qwen/Qwen3-8B", ModelOptions())


@pytest.mark.parametrize(
    ("model", "offline"), [("Qwen/Qwen3.5-9B", True), ("Qwen/Qwen3.8-27B", True), ("zai-org/GLM-5.3", False)]
)
def test_a_published_model_of_qwens_needs_no_tokenizer_of_the_service(
    model: str, offline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Client:
        def get_base_model(self) -> str:
            return model

        def get_tokenizer(self) -> str:
            return "downloaded"

    class Service:
        def create_sampling_client(self, **place: str) -> AwaitableConcurrentFuture[Client]:
            future: Future[Client] = Future()
            future.set_result(Client())
            return AwaitableConcurrentFuture(future)

    monkeypatch.setattr(tinker, "ServiceClient", lambda **_: Service())
    policy = tinker_policy("tinker://a/checkpoint", ModelOptions(api_key="tml-k"))
    assert policy.base_model == model
    assert (policy.tokenizer == "downloaded") is not offline
    if offline:
        assert get_renderer(renderer_for(model, None), policy.tokenizer).stop


def test_missing_key_and_folder_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    with pytest.raises(UsageError, match="TINKER_API_KEY"):
        tinker_policy("Qwen/Qwen3-8B", ModelOptions())
    with pytest.raises(UsageError, match="no such folder"):
        local_policy("/nowhere/at/all", ModelOptions())


async def test_the_context_is_at_most_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shipped("student")
    monkeypatch.setenv("HOME", str(folder.parent))
    for given, expected in ((32_768, 1024), (500, 500)):
        policy = local_policy(f"~/{folder.name}", ModelOptions(max_context=given))
        assert policy.options.max_context == expected
        await policy.close()


def test_a_model_whose_files_change_has_another_digest(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with (tmp_path / "model.safetensors").open("wb") as stream:
        stream.truncate(200 << 20)  # so large that only parts are read
    digests = [files_digest(tmp_path)]
    (tmp_path / "README.md").write_text("A model.")
    (tmp_path / "runs").mkdir()
    (tmp_path / "model.safetensors").touch()
    assert files_digest(tmp_path) == digests[0]
    for place in (0, 100 << 20, (200 << 20) - (1 << 20)):  # training changes weights everywhere
        with (tmp_path / "model.safetensors").open("r+b") as stream:
            stream.seek(place)
            stream.write(b"w" * (1 << 20))
        digests.append(files_digest(tmp_path))
    (tmp_path / "config.json").write_text("[]")
    digests.append(files_digest(tmp_path))
    assert len(set(digests)) == 5

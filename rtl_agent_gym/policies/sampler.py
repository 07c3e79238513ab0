"""A model that samples tokens: Tinker's service, an engine in this process, or your own server.

It reads the tokens that the episode owns, and returns the tokens it samples. Training and evaluation both use it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engines.config import key_source
from ..errors import ServiceDown, UsageError, importing
from ..problems import Problem
from ..problems.paths import expand_home
from ..renderers import Renderer
from ..renderers.transcript import TokenTranscript
from ..renderers.vocabularies import published_tokenizer
from .protocol import Completion, ModelOptions, smallest_turn

if TYPE_CHECKING:
    from ..engines.protocol import Sampler

_MODEL_FILES = {".bin", ".jinja", ".json", ".model", ".pt", ".safetensors", ".txt"}
_MOST_BYTES, _BLOCKS, _BLOCK = 64 << 20, 256, 64 << 10


class TokenSamplerPolicy:
    """Samples each turn from a `Sampler`, such as Tinker's ``SamplingClient``.

    Args:
        sampler: The sampler, with fixed weights.
        name: The policy's name in results.
        tokenizer: The tokenizer for this policy's renderer; None for the sampler's own.
        options: Sampling options. The sampler's context length applies if it is known and shorter.
        end: Called by `close`, to release what the sampler owns.
        in_run: Whether it samples for a training run, which can be resumed when its service is back.
        folder: The model's folder, if it is on this machine.
        turn_seed: The seed of each turn by its number, from 1; by default the episode's seed plus this number.
        base_model: The published model that the sampler's model is or was trained from; an evaluation checks its
            dialect. Empty if unknown.
    """

    def __init__(
        self,
        sampler: Sampler,
        *,
        name: str,
        tokenizer: Any = None,
        options: ModelOptions | None = None,
        end: Callable[[], None] | None = None,
        in_run: bool = False,
        folder: Path | None = None,
        turn_seed: Callable[[int], int] | None = None,
        base_model: str = "",
    ) -> None:
        from ..engines.requests import context_length

        self.folder, self.turn_seed, self.base_model = folder, turn_seed, base_model
        self._end, self._in_run = end, in_run
        options = options or ModelOptions()
        longest = min(options.max_context, context_length(sampler) or options.max_context)
        self.sampler, self.name, self.options = sampler, name, options.with_options(max_context=longest)
        self._tokenizer = tokenizer
        self._has_answered = False

    @cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self.sampler.get_tokenizer() if self._tokenizer is None else self._tokenizer

    async def request(self, tokens: TokenTranscript, stop: list[str] | list[int], most: int, seed: int | None) -> Any:
        """Sample one sequence after `tokens`: at most `most` tokens, up to one of `stop`, with a seed from `seed_of`.

        Raises:
            UsageError: The service refuses the key, the account or, in the first request, the model.
            ModelError: The service does not answer, or refuses this request.
            ServiceDown: In a run: the service cannot be used any more.
        """
        import tinker

        from ..engines.requests import Purpose, translating

        parameters = tinker.SamplingParams(
            max_tokens=most, temperature=self.options.temperature, top_p=self.options.top_p, stop=stop, seed=seed
        )
        prompt = tokens.model_input()
        purpose = Purpose(f"{self.name} did not answer", None if self._has_answered else "policy", self.name)
        try:
            with translating(purpose, remote=isinstance(self.sampler, tinker.SamplingClient)):
                response = await self.sampler.sample(prompt, 1, parameters)
        except ServiceDown as error:
            if self._in_run:
                raise
            raise UsageError(str(error)) from error
        self._has_answered = True
        return response.sequences[0]

    def seed_of(self, turn: int, seed: int | None) -> int | None:
        """The seed of a turn, numbered from 1, in an episode with the seed `seed`; None for no seed."""
        if self.turn_seed is not None:
            return self.turn_seed(turn)
        return None if seed is None else (seed + turn) % (1 << 31)

    async def close(self) -> None:
        if self._end is not None:
            await asyncio.to_thread(self._end)

    def player(self, problem: Problem, renderer: Renderer, seed: int | None = None) -> TokenSamplerPlayer:
        if not renderer.stop or isinstance(renderer.stop[0], str):
            raise UsageError(
                f"{self.name} samples tokens, but the renderer {renderer.name} was created without a vocabulary: "
                "give it the policy's tokenizer, get_renderer(name, policy.tokenizer)"
            )
        return TokenSamplerPlayer(self, renderer, seed)


class TokenSamplerPlayer:
    """Samples one episode. Its only state is the number of the turn."""

    def __init__(self, policy: TokenSamplerPolicy, renderer: Renderer, seed: int | None) -> None:
        self._policy, self._renderer, self._seed = policy, renderer, seed
        self._turn = 0

    async def sample(self, tokens: TokenTranscript) -> Completion | None:
        """Sample the next turn; None if the context has no room for another turn (`smallest_turn`)."""
        options, prompt_tokens = self._policy.options, len(tokens)
        room = options.max_context - prompt_tokens
        if room < smallest_turn(options.max_tokens):
            return None
        self._turn += 1
        seed = self._policy.seed_of(self._turn, self._seed)
        sequence = await self._policy.request(tokens, self._renderer.stop, min(options.max_tokens, room), seed)
        ids = [int(token) for token in sequence.tokens]
        return Completion(
            self._renderer.decode(ids),
            token_ids=ids,
            logprobs=[float(value) for value in sequence.logprobs] if sequence.logprobs is not None else None,
            cut_off=sequence.stop_reason == "length",
            prompt_tokens=prompt_tokens,
        )


def tinker_policy(model: str, options: ModelOptions) -> TokenSamplerPolicy:
    """A model or a checkpoint (``tinker://…``) of Tinker's service. Needs the extra ``train`` and ``TINKER_API_KEY``.

    Raises:
        UsageError: The key is missing or refused, or there is no such model.
        ServiceError: The service does not answer.
    """
    with importing('tinker policies need tinker: pip install "rtl-agent-gym[train]"'):
        import tinker

        from ..engines.requests import Purpose, translating
    if not (options.api_key or key_source()):
        raise UsageError(
            "tinker policies need a key of Tinker's service: set TINKER_API_KEY, or store one with `tinker auth login`"
        )
    with translating(Purpose(f"tinker:{model} cannot be used", "policy", f"tinker:{model}"), remote=True):
        service = tinker.ServiceClient(base_url=options.base_url, api_key=options.api_key)
        place: dict[str, Any] = {"model_path": model} if model.startswith("tinker://") else {"base_model": model}
        # Not the SDK's `result()`, which prints a stack trace when it is called in an event loop.
        client: Any = service.create_sampling_client(**place).future().result()
        base_model = str(client.get_base_model())
        tokenizer = published_tokenizer(base_model) or client.get_tokenizer()  # the client downloads it
    name = f"tinker:{model}"
    return TokenSamplerPolicy(client, name=name, tokenizer=tokenizer, options=options, base_model=base_model)


def local_policy(path: str, options: ModelOptions) -> TokenSamplerPolicy:
    """A folder of weights, run in this process. Needs the extras ``train`` and ``local``.

    Raises:
        UsageError: There is no such folder, or it contains no model.
    """
    folder = expand_home(path)
    if not folder.is_dir():
        raise UsageError(f"local:{path}: there is no such folder; expected a model saved by transformers")
    with importing('local policies need torch and transformers: pip install "rtl-agent-gym[train,local]"', why=True):
        from ..engines.local import LocalServiceClient
    service = LocalServiceClient()
    sampler = service.create_sampling_client(model_path=str(folder)).result()
    return TokenSamplerPolicy(sampler, name=f"local:{folder.name}", options=options, end=service.close, folder=folder)


def served_policy(kind: str, model: str, options: ModelOptions) -> TokenSamplerPolicy:
    """A model of a vLLM or SGLang server at `ModelOptions.base_url`, by token ids. Needs the extra ``train``.

    Args:
        kind: ``vllm`` or ``sglang``.
        model: The server's name for the model or an adapter.
        options: See `TokenSamplerPolicy`.

    Raises:
        UsageError: There is no address, such model or tokenizer, the key is refused, or the server's log-probabilities
            are not those of the distribution that these options sample from.
        ServiceError: The server does not answer, or its answer does not have the expected form.
    """
    with importing(f'{kind} policies need tinker: pip install "rtl-agent-gym[train]"'):
        import tinker

        from ..engines.requests import GuardedSampler, Requests
        from ..engines.servers import connect_server
    if options.base_url is None:
        raise UsageError(f"{kind}:{model} needs the address of the server: {kind}:{model}@http://HOST:PORT")
    server = connect_server(kind, options.base_url, model, options.api_key, options.request_timeout)
    server.check(tinker.SamplingParams(temperature=options.temperature, top_p=options.top_p))
    tokenizer = published_tokenizer(server.source) or server.get_tokenizer()
    sampler = GuardedSampler(server, Requests(), server.context)
    name = f"{kind}:{model}"
    return TokenSamplerPolicy(sampler, name=name, tokenizer=tokenizer, options=options, base_model=server.source)


def files_digest(folder: Path) -> str:
    """Twelve hex digits that identify a model by the names, sizes and contents of its files.

    Of a file above 64 MiB, only 256 blocks of 64 KiB are read, at equal distances from its beginning to its end.

    Raises:
        UsageError: A file cannot be read.
    """
    digest = hashlib.sha256()
    try:
        for path in sorted(path for path in folder.iterdir() if path.suffix in _MODEL_FILES and path.is_file()):
            size = path.stat().st_size
            digest.update(f"{path.name}\0{size}\0".encode("utf-8", "replace"))
            with path.open("rb") as stream:
                if size <= _MOST_BYTES:
                    digest.update(stream.read())
                    continue
                for number in range(_BLOCKS):
                    stream.seek(number * (size - _BLOCK) // (_BLOCKS - 1))
                    digest.update(stream.read(_BLOCK))
    except OSError as error:
        raise UsageError(f"local:{folder}: a file cannot be read: {error}") from error
    return digest.hexdigest()[:12]

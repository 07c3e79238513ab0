"""Where token samplers come from: Tinker's service, or a folder of weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..engines.credentials import has_key
from ..errors import UsageError
from .model_options import ModelOptions
from .sampler import TokenSamplerPolicy


def tinker_policy(model: str, options: ModelOptions) -> TokenSamplerPolicy:
    """A model or a checkpoint (``tinker://…``) of Tinker's service. Needs the extra ``train`` and ``TINKER_API_KEY``.

    Raises:
        UsageError: The key is missing or refused, or there is no such model.
    """
    try:
        import tinker
    except ImportError as error:
        raise UsageError('tinker policies need tinker: pip install "rtl-agent-gym[train]"') from error
    if not (options.api_key or has_key()):
        raise UsageError(
            "tinker policies need a key of Tinker's service: set TINKER_API_KEY, or store one with `tinker auth login`"
        )
    try:
        service = tinker.ServiceClient(base_url=options.base_url, api_key=options.api_key)
        place: dict[str, Any] = {"model_path": model} if model.startswith("tinker://") else {"base_model": model}
        client: Any = service.create_sampling_client(**place)
        tokenizer = _tokenizer(str(client.get_base_model()), client)
    except (tinker.TinkerError, ValueError) as error:
        raise UsageError(f"tinker:{model} cannot be had: {error}") from error
    return TokenSamplerPolicy(client, name=f"tinker:{model}", tokenizer=tokenizer, options=options)


def _tokenizer(model: str, client: Any) -> Any:
    """Qwen3's vocabulary is at hand offline; any other is fetched by the client."""
    if model.startswith("Qwen/Qwen3-"):
        from ..renderers.vocabularies import qwen3_tokenizer

        return qwen3_tokenizer()
    return client.get_tokenizer()


def local_policy(path: str, options: ModelOptions) -> TokenSamplerPolicy:
    """A folder of weights, run in this process. Needs the extras ``train`` and ``local``.

    Raises:
        UsageError: There is no such folder, or it holds no model.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise UsageError(f"local:{path}: there is no such folder; it holds a model as transformers saves one")
    try:
        from ..engines.local import LocalServiceClient
    except ImportError as error:
        raise UsageError(
            f'local policies need torch and transformers: pip install "rtl-agent-gym[train,local]" ({error})'
        ) from error
    service = LocalServiceClient()
    sampler = service.create_sampling_client(model_path=str(folder)).result()
    return TokenSamplerPolicy(sampler, name=f"local:{folder.name}", options=options, end=service.close)

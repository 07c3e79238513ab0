"""Who acts in an episode: the reference solution, a script, a model, a person."""

from __future__ import annotations

import re

from ..errors import UsageError
from .human import HumanPolicy
from .protocol import (
    Billed,
    Closable,
    Completion,
    Inhabitant,
    Listener,
    ModelOptions,
    Outside,
    Player,
    Policy,
    TokenPlayer,
    split_address,
)
from .scripted import GoldenPolicy, RandomPolicy, ScriptedPolicy, heredoc, write_turn

__all__ = [
    "Billed",
    "Closable",
    "Completion",
    "GoldenPolicy",
    "HumanPolicy",
    "Inhabitant",
    "Listener",
    "ModelOptions",
    "Outside",
    "Player",
    "Policy",
    "RandomPolicy",
    "ScriptedPolicy",
    "TokenPlayer",
    "heredoc",
    "make_policy",
    "write_turn",
]

POLICIES = (
    "golden",
    "scripted FILE",
    "chat:MODEL[@URL]",
    "tinker:MODEL_OR_CHECKPOINT",
    "local:PATH",
    "vllm:MODEL@URL",
    "sglang:MODEL@URL",
    "harness:AGENT MODEL",
    "human",
    "random",
)
"""The forms that `make_policy` accepts."""


def make_policy(name: str, options: ModelOptions | None = None) -> Policy:
    """Create the policy with this name.

    Args:
        name: One of `POLICIES`, with a colon or a space before the argument.
        options: For the policies that have a model.

    Raises:
        UsageError: There is no such policy (the message lists all), file, model or key, or an extra is not installed.
    """
    name, options = with_address(name.strip(), options or ModelOptions())
    kind, rest = _split(name)
    forms = {_split(form)[0]: form for form in POLICIES}
    if kind not in forms:
        raise UsageError(f"no policy {name!r}; choose one of: {', '.join(POLICIES)}")
    if (argument := _split(forms[kind])[1]) and not rest:
        what = argument.partition("[")[0].lower().replace("_", " ")
        article = "an" if what[0] in "aeiou" else "a"
        raise UsageError(f'{kind!r} needs {article} {what}: --policy "{forms[kind]}"')
    if rest and not argument:
        raise UsageError(f"{kind!r} takes nothing after its name, got {rest!r}")
    match kind:
        case "golden":
            return GoldenPolicy()
        case "random":
            return RandomPolicy()
        case "human":
            return HumanPolicy()
        case "scripted":
            return ScriptedPolicy(rest)
        case "chat":
            from .chat import ChatPolicy

            return ChatPolicy(rest, options)
    from .sampler import TokenSamplerPolicy, local_policy, served_policy, tinker_policy

    if kind == "harness":
        from .harness import HarnessPolicy

        agent, _, model = rest.partition(" ")
        policy = make_policy(model, options) if model.strip() else None
        if not isinstance(policy, TokenSamplerPolicy):
            raise UsageError(
                f'{name!r} needs an agent and a model that samples tokens: --policy "harness:AGENT local:PATH"'
            )
        return HarnessPolicy(agent, policy)
    if kind in ("vllm", "sglang"):
        return served_policy(kind, rest, options)
    return tinker_policy(rest, options) if kind == "tinker" else local_policy(rest, options)


def with_address(name: str, options: ModelOptions) -> tuple[str, ModelOptions]:
    """The name of a policy without the address in ``MODEL@URL``, and the options with that address.

    Raises:
        UsageError: The options already have a different address, or it is not an address.
    """
    short, address = split_address(name)
    if address is None or _split(name)[0] not in ("chat", "vllm", "sglang", "harness"):
        return name, options
    if options.base_url not in (None, address):
        raise UsageError(f"{short!r} has an address after its @, but base_url (--base-url) differs; give only one")
    return short, options.with_options(base_url=address)


def _split(name: str) -> tuple[str, str]:
    kind, *rest = re.split(r"[:\s]", name, maxsplit=1)
    return kind, "".join(rest).strip()

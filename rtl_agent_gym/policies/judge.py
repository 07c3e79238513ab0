"""A judge model behind a chat service; implements `scoring.judging.Judge`. Needs the extra ``chat``."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from ..errors import ModelError, RequestRefused, UsageError
from ..scoring.judging import Judge
from ..scoring.options import GradingOptions
from .chat import ChatPolicy
from .protocol import ModelOptions, split_address

logger = logging.getLogger(__name__)

JUDGE_KEY = "RTL_GYM_JUDGE_API_KEY"
"""Environment variable: the key of the judge's service, if it is not in the provider's own variable."""
MAX_TOKENS = 4096
"""Tokens that a judge may write, thinking included."""
MORE_TOKENS = 4 * MAX_TOKENS
"""The limit of a second request, if `MAX_TOKENS` did not suffice."""
FORM = "chat:MODEL, or chat:MODEL@URL for a server of your own"


class ChatJudge:
    """Asks a chat service, with temperature 0. Requests are retried like those of a `ChatPolicy`.

    Args:
        name: See `read_judge`. The model is litellm's name; with an address, the name that the server uses.
        strict: Whether a refusal of the first prompt is a usage error. Otherwise the agent's text in the prompt may be
            the reason for the refusal.

    Raises:
        UsageError: The name does not have this form, or the extra is not installed.
    """

    def __init__(self, name: str, *, strict: bool = False) -> None:
        model, base_url = read_judge(name)
        key = os.environ.get(JUDGE_KEY)
        options = ModelOptions(temperature=0.0, max_tokens=MAX_TOKENS, tools=False, base_url=base_url, api_key=key)
        with _judge_errors():
            self._policy = ChatPolicy(model, options)
        self._strict = strict
        self.name = judge_name(name)
        """The model, and the host of its server if that was given."""

    async def ask(self, system: str, user: str) -> str | None:
        """See `Judge.ask`. An answer that its token limit cuts off is requested once more with a higher limit.

        Also None if that does not suffice, or if the prompt is too long for the model or refused by the service.
        """
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        for limit in (MAX_TOKENS, MORE_TOKENS):
            try:
                with _judge_errors():
                    answer = await self._policy.request(messages, None, limit, trusted=self._strict)
            except RequestRefused as error:  # perhaps because of the text to judge
                logger.warning("%s", error)
                return None
            if answer is None or answer.refused:
                return None
            if not answer.cut_off:
                return answer.turn.text
        return None

    async def close(self) -> None:
        """Close its connections."""
        await self._policy.close()


@contextmanager
def _judge_errors() -> Iterator[None]:
    """Reword errors of the judge's service, so that they name the judge and its options, not those of a policy."""

    def reworded(error: Exception) -> str:
        words = str(error).replace("--api-key", JUDGE_KEY).replace("--base-url", "its address (--judge chat:MODEL@URL)")
        return f"the judge {words}"

    try:
        yield
    except ModelError as error:
        raise type(error)(reworded(error), retries=error.retries) from error
    except UsageError as error:
        raise UsageError(reworded(error)) from error


def read_judge(name: str) -> tuple[str, str | None]:
    """The model and the address in a judge's name: ``chat:MODEL``, or ``chat:MODEL@URL`` for a server of your own.

    Raises:
        UsageError: The name does not have this form.
    """
    kind, _, rest = name.partition(":")
    model, address = split_address(rest)
    if kind != "chat" or not model:
        raise UsageError(f"judge {name!r} is not a judge model; expected {FORM}")
    return model, address


def judge_name(name: str) -> str:
    """A judge's name in results: the model, and the host of its server if that is given. Raises like `read_judge`."""
    model, address = read_judge(name)
    host = urlsplit(address).hostname if address else None
    return f"chat:{model}" + (f"@{host}" if host else "")


class NamedJudges:
    """Creates each named judge once, and closes all of them. A judge given as an object belongs to the caller."""

    def __init__(self) -> None:
        self._made: dict[str, ChatJudge] = {}

    def judge_of(self, options: GradingOptions) -> Judge | None:
        """The judge of these options, created at the first use of its name. Raises `UsageError` like `ChatJudge`."""
        if isinstance(options.judge, str) and options.judge not in self._made:
            self._made[options.judge] = ChatJudge(options.judge)
        return self._made[options.judge] if isinstance(options.judge, str) else options.judge

    async def close(self) -> None:
        """Close the judges that were created here."""
        for judge in self._made.values():
            await judge.close()

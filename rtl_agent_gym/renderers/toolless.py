"""A dialect without the tool, for an episode that is one answer."""

from __future__ import annotations

from collections.abc import Sequence

from rtl_agent_gym.renderers.plain import plain_ids
from rtl_agent_gym.renderers.protocol import Action, Message, Renderer


class ToollessRenderer(Renderer):
    """Opens a conversation without declaring the tool, and reads each completion as an answer in text.

    A policy that is given this renderer takes part in an episode of one answer with the code that it has for the shell.

    Args:
        dialect: The model's dialect. Its thinking and control tokens are removed from answers.
    """

    def __init__(self, dialect: Renderer) -> None:
        self._dialect = dialect

    @property
    def name(self) -> str:
        """The dialect's name."""
        return self._dialect.name

    @property
    def stop(self) -> list[str] | list[int]:
        """See `Renderer.stop`."""
        return self._dialect.stop

    def initial_messages(self, system: str, user: str) -> list[Message]:
        """The system message, where there is one, and the user message."""
        messages = [{"role": "system", "content": system}] if system else []
        return [*messages, {"role": "user", "content": user}]

    def initial_text(self, system: str, user: str) -> str:
        """System and user text, without control tokens."""
        return "\n\n".join(message["content"] for message in self.initial_messages(system, user))

    def initial_ids(self, system: str, user: str) -> list[int]:
        """See `plain_ids`."""
        return plain_ids(self._dialect, system, user)

    def parse_text(self, completion: str, *, truncated: bool = False) -> Action:
        """The answer in a completion."""
        text = self._dialect.parse_text(completion, truncated=truncated).text
        if not text and "<|" not in completion and "<think>" not in completion:
            text = completion  # a chat service has removed the dialect's marks already
        return Action("final", text=text)

    def parse_ids(self, ids: Sequence[int], *, truncated: bool = False) -> Action:
        """The answer in sampled ids."""
        return Action("final", text=self._dialect.parse_ids(ids, truncated=truncated).text)

    def observation_text(self, outputs: Sequence[str]) -> str:
        """Empty: nothing follows an answer, and so with the other replies."""
        return ""

    def correction_text(self, message: str) -> str:
        """Empty."""
        return ""

    def observation_ids(self, outputs: Sequence[str], action_ids: Sequence[int]) -> list[int]:
        """Empty."""
        return []

    def correction_ids(self, message: str, action_ids: Sequence[int]) -> list[int]:
        """Empty."""
        return []

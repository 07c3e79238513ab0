"""The opening of a conversation without a tool, in each family's dialect.

For one completion that answers for itself. As in every other prompt, system and user text are plain: control tokens
spelled in them stay text.
"""

from __future__ import annotations

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.renderers.calls import printable
from rtl_agent_gym.renderers.codec import Piece
from rtl_agent_gym.renderers.gpt_oss import EFFORTS, GptOssRenderer
from rtl_agent_gym.renderers.protocol import Renderer
from rtl_agent_gym.renderers.qwen import END, OPENINGS, START, QwenRenderer


def plain_ids(renderer: Renderer, system: str, user: str) -> list[int]:
    """The ids of an opening in which no tool is declared.

    Args:
        renderer: Of a family that has such an opening here, with its vocabulary.
        system: The system message; empty for none.
        user: The user message.

    Raises:
        UsageError: The renderer is of another family, or has no vocabulary.
    """
    if isinstance(renderer, QwenRenderer):
        pieces: list[Piece] = [START, "system\n", system, END, "\n"] if system else []
        pieces += [START, "user\n", user, END, "\n", START, "assistant\n", *OPENINGS[renderer.name]]
        return renderer.codec.encode(pieces)
    if isinstance(renderer, GptOssRenderer):
        return _harmony_ids(EFFORTS[renderer.name], system, user)
    raise UsageError(
        f"renderer {renderer.name!r} has no opening without a tool; use one of the Qwen or gpt-oss dialects"
    )


def _harmony_ids(effort: str, system: str, user: str) -> list[int]:
    import openai_harmony as oh

    from rtl_agent_gym.renderers.vocabularies import harmony_encoding

    content = oh.SystemContent.new().with_reasoning_effort(oh.ReasoningEffort[effort.upper()])
    messages = [oh.Message.from_role_and_content(oh.Role.SYSTEM, content)]
    if system:
        developer = oh.DeveloperContent.new().with_instructions(printable(system))
        messages.append(oh.Message.from_role_and_content(oh.Role.DEVELOPER, developer))
    messages.append(oh.Message.from_role_and_content(oh.Role.USER, printable(user)))
    conversation = oh.Conversation.from_messages(messages)
    return list(harmony_encoding().render_conversation_for_completion(conversation, oh.Role.ASSISTANT))

"""Raw bytes of a terminal-less shell to text that a model can read."""

from __future__ import annotations

import codecs
import re

from .warden.output import CONTINUATION

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor, clear
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|\Z)"  # OSC and other strings, with their terminator
    r"|\x1b[ -/]*[0-~]",
    re.DOTALL,
)
_CONTROLS = {code: "\ufffd" for code in range(0x20) if chr(code) not in "\t\n\r"} | {0x7F: "\ufffd"}
_CONTROLS[0x08] = _CONTROLS[0x0C] = ""  # backspace and form feed only move a cursor that is not there


def readable(data: bytes, *, complete: bool = True) -> str:
    """UTF-8 with U+FFFD for what is none, without terminal control sequences, line ends as ``\\n``.

    A character that is cut in two at the end of what is not `complete` is left out.
    """
    text = _ESCAPES.sub("", codecs.getincrementaldecoder("utf-8")("replace").decode(data, complete))
    return text.replace("\r\n", "\n").translate(_CONTROLS)


def cut(data: bytes, size: int, chars: int, limit: int) -> tuple[str, bool]:
    """The text of an output, and whether it was cut.

    Args:
        data: Its first and last bytes; all of it when ``len(data) == size``.
        size: Bytes there were.
        chars: Characters there were.
        limit: Characters to keep, half of them from the head and half from the tail.
    """
    if len(data) == size:
        text = readable(data)
        if len(text) <= limit:
            return text, False
        head, tail = text[: limit - limit // 2], text[len(text) - limit // 2 :]
        chars = len(text)
    else:
        middle = (len(data) + 1) // 2
        rest = data[middle : middle + 3].lstrip(CONTINUATION) + data[middle + 3 :]  # of a character cut in two
        head, tail = readable(data[:middle], complete=False), readable(rest)
        head, tail = head[: limit - limit // 2], tail[max(0, len(tail) - limit // 2) :]
    kept = len(head) + len(tail)
    return f"{head}\n[output cut from {chars} to {kept} characters: the middle is missing]\n{tail}", True

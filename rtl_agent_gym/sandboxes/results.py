"""The results of commands and processes, and files of a sandbox.

`cut` turns the raw bytes of a shell without a terminal into text that a model can read.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .warden.frames import CONTINUATION

WORK_DIR = "/code"
"""The work folder of a problem inside every sandbox; paths of problems are relative to it."""

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor, clear
    r"|\x1b[\]PX^_][^\x00-\x1f]*(?:\x07|\x1b\\)?"  # OSC and other strings; an unterminated one ends with its line
    r"|\x1b[ -/]*[0-~]"
)
_CONTROLS = {code: "\ufffd" for code in range(0x20) if chr(code) not in "\t\n\r"} | {0x7F: "\ufffd"}
_CONTROLS[0x08] = _CONTROLS[0x0C] = ""  # backspace and form feed only move a cursor, and there is none


class FoundFiles(dict[str, bytes]):
    """Files of a sandbox: contents by path.

    Args:
        files: The files.
        left_out: (path, reason) of the first files that were not read because of a limit.
        left_out_count: Number of files that were not read.
    """

    def __init__(
        self, files: Mapping[str, bytes], left_out: Sequence[tuple[str, str]] = (), left_out_count: int = 0
    ) -> None:
        super().__init__(files)
        self.left_out = tuple(left_out)
        self.left_out_count = left_out_count

    def left_out_lines(self, most: int = 20) -> list[str]:
        """What was not read, as ``path: reason`` in printable characters; a last line gives the number of the rest."""
        lines = [f"{path if path.isprintable() else ascii(path)}: {reason}" for path, reason in self.left_out[:most]]
        more = self.left_out_count - len(lines)
        return [*lines, f"and {more} more"] if more > 0 else lines


@dataclass(frozen=True)
class ReadRequest:
    """Files to read right after a command. The fields are the arguments of `Sandbox.read_files`."""

    paths: Sequence[str]
    first: Sequence[str] = ()
    max_file: int = 16 << 20
    max_total: int = 64 << 20
    skip: Sequence[str] = ()


@dataclass(frozen=True)
class CommandResult:
    """The result of one command of the persistent shell, or of one process beside it."""

    output: str
    """stdout and stderr in the order they were written, decoded as UTF-8 with U+FFFD for invalid bytes. If it is longer
    than the limit, its head and tail, with a line between them that gives the lengths before and after the cut."""
    exit_code: int | None
    """The exit status (128 + n after signal n); None after a time-out."""
    timed_out: bool = False
    """Whether it timed out, and its processes were ended."""
    truncated: bool = False
    """Whether `output` was cut."""
    output_chars: int = 0
    """Characters of output before the cut."""
    seconds: float = 0.0
    """Wall time."""
    restarted: str | None = None
    """Why a new shell replaced the old one, or None. Files are kept; variables, functions and jobs are not."""
    cwd: str = WORK_DIR
    """The shell's working folder after a command; meaningless for a process."""
    files: FoundFiles | None = field(default=None, compare=False, repr=False)
    """The files of `Sandbox.run`'s `then_read`; None if none were requested, or the sandbox cannot read them then."""


def readable(data: bytes, *, complete: bool = True) -> str:
    """Decode UTF-8, with U+FFFD for invalid bytes, without terminal control sequences, and with ``\\n`` as line ends.

    If `data` is not `complete`, a character that is cut in two at its end is omitted.
    """
    text = _ESCAPES.sub("", codecs.getincrementaldecoder("utf-8")("replace").decode(data, complete))
    return text.replace("\r\n", "\n").translate(_CONTROLS)


def cut(data: bytes, size: int, chars: int, limit: int) -> tuple[str, bool]:
    """The text of an output, and whether it was cut.

    Args:
        data: Its first and last bytes; the whole output if ``len(data) == size``.
        size: Bytes of the whole output.
        chars: Characters of the whole output.
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
        rest = data[middle : middle + 3].lstrip(CONTINUATION) + data[middle + 3 :]  # less the rest of a cut character
        head, tail = readable(data[:middle], complete=False), readable(rest)
        head, tail = head[: limit - limit // 2], tail[max(0, len(tail) - limit // 2) :]
    kept = len(head) + len(tail)
    return f"{head}\n[output cut from {chars} to {kept} characters: the middle is missing]\n{tail}", True

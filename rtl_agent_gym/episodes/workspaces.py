"""What a command did, as the text that the model reads."""

from __future__ import annotations

from ..sandboxes import CommandResult

BROKEN = CommandResult("", None, restarted="the commands have ended the machine")
"""The end of a command under which the agent's machine broke, and of those behind it."""


def describe(result: CommandResult, timeout: float) -> str:
    """The output, and below it in brackets whatever the output alone does not say.

    Args:
        result: The command's end.
        timeout: Its time-out in seconds.
    """
    if result is BROKEN:
        return "[the commands have ended this machine; its files are lost and the episode is over]"
    remarks = []
    if result.timed_out:
        remarks.append(f"timed out after {timeout:g} s; the command's processes were ended")
    elif result.exit_code != 0:
        remarks.append(f"exit code {result.exit_code}")
    if result.restarted:
        remarks.append(
            f"the shell was replaced, as {result.restarted}; files and working folder remain, variables, functions and "
            "background jobs are lost"
        )
    if not remarks and not result.output.strip():
        remarks.append("no output, exit code 0")
    text = result.output
    if remarks and text and not text.endswith("\n"):
        text += "\n"
    return text + "\n".join(f"[{remark}]" for remark in remarks)

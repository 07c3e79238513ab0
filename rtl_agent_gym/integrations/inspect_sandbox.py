"""inspect_ai's sandbox of a sample, which is the container of its episode."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
    sandboxenv,
)

from ..episodes.rules import EpisodeConfig
from ..errors import SandboxBroken
from ..sandboxes.process import WORK_DIR, CommandResult
from .lookup import find_problem
from .session import ToolSession

NAME = "rtl_agent_gym"
"""The sandbox's name in a task."""
LONGEST = 600
"""Seconds that a process may run whose caller gives no time limit."""
READ = 'set -o pipefail; head -c "$2" -- "$1" | base64 -w0'
"""Prints the beginning of a file; a device has no size, and may have no end."""


@sandboxenv(name=NAME)
class EpisodeSandbox(SandboxEnvironment):
    """The container of an episode. It has one user, and paths are relative to its work folder."""

    def __init__(self, session: ToolSession) -> None:
        super().__init__()
        self.session = session

    @classmethod
    async def sample_init(cls, task_name: str, config: Any, metadata: dict[str, Any]) -> dict[str, SandboxEnvironment]:
        problem = await asyncio.to_thread(find_problem, metadata["problems"], metadata["__sample_id__"])
        session = ToolSession(problem, EpisodeConfig().with_options(**metadata["rules"]))
        await session.start()
        return {"default": cls(session)}

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: Any, environments: dict[str, SandboxEnvironment], interrupted: bool
    ) -> None:
        for environment in environments.values():
            await environment.as_type(cls).session.close()

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a process beside the shell; stderr is in stdout, in the order in which it was written."""
        if user is not None:
            raise SandboxUserUnsupportedError(f"the sandbox has one user, so nothing can run as {user}")
        stdin = input.encode() if isinstance(input, str) else input or b""
        folder, limit = str(Path(WORK_DIR, cwd or "")), SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        result = await self._run(cmd, cwd=folder, env=env, stdin=stdin, timeout=timeout, max_output=limit)
        if result.truncated:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, result.output)
        if result.timed_out:
            raise TimeoutError(f"the command ran for more than {timeout or LONGEST} s")
        code = 1 if result.exit_code is None else result.exit_code
        return ExecResult(code == 0, code, result.output, "")

    async def write_file(self, file: str, contents: str | bytes) -> None:
        data = contents.encode() if isinstance(contents, str) else contents
        path = str(Path(WORK_DIR, file))
        script = 'mkdir -p "$(dirname "$1")" && cat > "$1"'
        _check_file(path, await self._run(["/bin/sh", "-c", script, "sh", path], stdin=data))

    async def read_file(self, file: str, text: bool = True) -> Any:
        path = str(Path(WORK_DIR, file))
        largest = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        script = ["/bin/bash", "-c", READ, "bash", path, str(largest + 1)]
        result = await self._run(script, max_output=4 * (largest // 3 + 2))
        data = base64.b64decode(_check_file(path, result))
        if len(data) > largest:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return data.decode() if text else data

    async def _run(self, argv: list[str], *, timeout: float | None = None, **options: Any) -> CommandResult:
        try:
            return await self.session.episode.sandbox.exec(argv, timeout=timeout or LONGEST, **options)
        except SandboxBroken as error:  # the agent's doing, which ends in its score
            return CommandResult(str(error), 137)


def _check_file(path: str, result: CommandResult) -> str:
    """The output of a program that read or wrote a file, or the exception that inspect_ai expects."""
    if result.exit_code == 0:
        return result.output
    kinds = {"No such file": FileNotFoundError, "Is a directory": IsADirectoryError}
    kind = next((kind for words, kind in kinds.items() if words in result.output), PermissionError)
    raise kind(f"{path}: {result.output.strip()[-400:]}")

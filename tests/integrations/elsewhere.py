"""Players that run in the Python of their framework."""

from __future__ import annotations

import asyncio
import pickle

from tests.integrations.conformance import Played, Script
from tests.integrations.ecosystem import ROOT, clean, environment


async def play_elsewhere(name: str, module: str, script: Script, *arguments: str) -> Played:
    """What a module makes of a pickled script on stdin, in the environment of that name."""
    python = await asyncio.to_thread(environment, name)
    process = await asyncio.create_subprocess_exec(
        str(python),
        *("-m", module, *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env=clean() | {"PYTHONPATH": str(ROOT)},
    )
    try:
        out, errors = await process.communicate(pickle.dumps(script))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    played = pickle.loads(out)
    assert isinstance(played, Played)
    return played

"""Episodes do not begin while the disk of their transcripts is nearly full."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

LEAST = 512 << 20
"""Bytes that must be free."""
PAUSE = 5.0
"""Seconds between two looks."""

logger = logging.getLogger(__name__)


async def room_on_disk(folder: Path) -> None:
    """Wait until the disk of a folder, which need not exist yet, has `LEAST` bytes free."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    waited = False
    while (free := shutil.disk_usage(place).free) < LEAST:
        if not waited:
            logger.warning("%s has only %d MiB free: no episode begins until it has %d", place, free >> 20, LEAST >> 20)
        waited = True
        await asyncio.sleep(PAUSE)
    if waited:
        logger.warning("%s has room again: episodes go on", place)

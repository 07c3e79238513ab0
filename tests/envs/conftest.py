"""What the tests of the faces share."""

from __future__ import annotations

import sys
from pathlib import Path

# Worker processes import the scripted policy by name; they are started with this path.
sys.path.insert(0, str(Path(__file__).parent))

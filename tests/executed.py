"""Plays one episode of a bundled problem with its reference solution, and prints which modules of the package did it.

Prints two lines of JSON: the episode's reward, and a mapping of the executed modules to the lines of their executed
functions. What runs while a module is imported is left out, and so are the programs inside containers.
"""

from __future__ import annotations

import ast
import json
import sys
import threading
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium as gym

import rtl_agent_gym

PACKAGE = Path(rtl_agent_gym.__file__).parent
FIXED = "cvdp_agentic_rtlgym_spi_master_debug_0001"

executed: dict[str, set[int]] = defaultdict(set)
"""The first lines of functions that were called, by their file."""


def record(frame: FrameType, event: str, _: Any) -> None:
    """Remember the function that is called, as `sys.setprofile` reports it."""
    if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)) and not being_imported(frame):
        executed[frame.f_code.co_filename].add(frame.f_code.co_firstlineno)


def being_imported(frame: FrameType | None) -> bool:
    """Whether a module of the package is being executed further out."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            return True
        frame = frame.f_back
    return False


def function_lines(path: Path, starts: set[int]) -> int:
    """The lines of the functions that begin at these lines, decorators included."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, functions)]
    first = {node: min([node.lineno, *(each.lineno for each in node.decorator_list)]) for node in found}
    return sum((node.end_lineno or 0) - first[node] + 1 for node in found if first[node] in starts)


def play() -> float:
    """The reward of one episode through Gymnasium."""
    env = gym.make("CVDPAgentic-v0")
    env.reset(seed=0, options={"problem_id": FIXED})
    problem = env.unwrapped.episode.problem  # type: ignore[attr-defined]
    env.step("```bash\nls rtl docs\n```")
    for path, text in (problem.golden or {}).items():
        env.step(f"```bash\ncat > {path} << 'END_OF_FILE'\n{text}\nEND_OF_FILE\n```")
    _, reward, *_ = env.step("Done.")
    env.close()
    return float(reward)


if __name__ == "__main__":
    threading.setprofile(record)
    sys.setprofile(record)
    reward = play()
    sys.setprofile(None)
    print(json.dumps(reward))
    modules = {Path(path): starts for path, starts in executed.items() if path.endswith(".py")}  # no prompts
    print(json.dumps({str(path.relative_to(PACKAGE)): function_lines(path, modules[path]) for path in modules}))

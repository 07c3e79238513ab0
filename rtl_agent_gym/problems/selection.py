"""Select problems: one for an episode, an order for a curriculum, a part to hold out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.problems.categories import DIFFICULTIES
from rtl_agent_gym.problems.model import Problem


def split_problems(
    problems: Iterable[Problem], held_out: float = 0.2, seed: int = 0
) -> tuple[list[Problem], list[Problem]]:
    """Split problems into those to train on and those held out.

    The choice for each problem depends only on its id and the seed, so adding, removing or reordering other problems
    does not change it. `held_out` is therefore an expected share: of few problems, none or several may be held out.

    Args:
        problems: Both parts keep their order.
        held_out: Share to hold out, 0 to 1.
        seed: Different seeds give different splits.

    Returns:
        The problems to train on, and those held out.

    Raises:
        UsageError: `held_out` is not between 0 and 1.
    """
    if not 0.0 <= held_out <= 1.0:
        raise UsageError(f"held_out is {held_out}; expected a share between 0 and 1")
    train: list[Problem] = []
    test: list[Problem] = []
    for problem in problems:
        (test if _position(problem.id, seed) < held_out else train).append(problem)
    return train, test


def _position(problem_id: str, seed: int) -> float:
    """A number in [0, 1), uniformly distributed over ids."""
    digest = hashlib.sha256(f"{seed}:{problem_id}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def order_by_difficulty(problems: Iterable[Problem]) -> list[Problem]:
    """Problems from easy to hard; problems of one difficulty keep their order."""
    return sorted(problems, key=lambda problem: DIFFICULTIES.index(problem.difficulty))


def select_problem(problems: Sequence[Problem], rng: int | np.random.Generator | None = None) -> Problem:
    """A uniformly random problem.

    Args:
        problems: The problems to choose from.
        rng: A seed (equal seeds choose equal problems) or a generator, which is advanced; None for a random seed.

    Raises:
        UsageError: `problems` is empty.
    """
    if not problems:
        raise UsageError("there is no problem to choose from; the source is empty or its filters leave nothing")
    generator = rng if isinstance(rng, np.random.Generator) else np.random.default_rng(rng)
    return problems[int(generator.integers(len(problems)))]

"""The space of all texts, and how vector environments keep its texts in shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing import Array
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory

from ..sandboxes.results import cut

SHARED_CHARS = 1 << 20
"""Upper bound on the characters of one text in shared memory; the largest known prompt has 417,179. A longer text is
cut in the middle."""


class UnicodeText(gym.Space[str]):
    """Every `str`, of any length and with any characters.

    Samples are short texts from a small alphabet: random code points would be useless to any policy.
    """

    _ALPHABET = "abcdefghijklmnopqrstuvwxyz ABCXYZ0123456789_<>{}[]()\"'\n\\éλ漢🙂"

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(shape=None, dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False: a text has no vector form of fixed size."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A random text of at most 80 characters."""
        length = int(self.np_random.integers(0, 81))
        return "".join(self._ALPHABET[i] for i in self.np_random.integers(0, len(self._ALPHABET), size=length))

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)

    def __repr__(self) -> str:
        return "UnicodeText()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText)

    __hash__ = None  # type: ignore[assignment]  # spaces hold a generator and compare by value


# Shared memory: per environment one length and SHARED_CHARS code points, as 32-bit integers.


@create_shared_memory.register(UnicodeText)
def _create(space: UnicodeText, n: int = 1, ctx: Any = None) -> Any:
    make = ctx.Array if ctx is not None else Array
    return make("i", n * (SHARED_CHARS + 1))


@write_to_shared_memory.register(UnicodeText)
def _write(space: UnicodeText, index: int, value: str, shared_memory: Any) -> None:
    if len(value) > SHARED_CHARS:  # agents can cause this, and an error would end the episodes of all environments
        data = value.encode("utf-8", "surrogatepass")
        value, _ = cut(data, len(data), len(value), SHARED_CHARS - 200)  # leaves room for the line that reports the cut
    view = np.frombuffer(shared_memory.get_obj(), dtype=np.int32)
    start = index * (SHARED_CHARS + 1)
    codes = np.frombuffer(value.encode("utf-32-le", "surrogatepass"), dtype=np.int32)
    view[start] = len(codes)
    view[start + 1 : start + 1 + len(codes)] = codes


class SharedTexts(Sequence[str]):
    """A live view of the texts in shared memory.

    A vector environment reads its observations once and expects a view that follows the memory. Its callers get deep
    copies, which are plain tuples.
    """

    def __init__(self, memory: Any, n: int) -> None:
        self._memory, self._n = memory, n

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(self._n)))
        if not -self._n <= index < self._n:
            raise IndexError(f"text {index} does not exist; there are {self._n}")
        view = np.frombuffer(self._memory.get_obj(), dtype=np.int32)
        start = (index % self._n) * (SHARED_CHARS + 1)
        codes = view[start + 1 : start + 1 + view[start]]
        return codes.tobytes().decode("utf-32-le", "surrogatepass")

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[str, ...]:
        return tuple(self)


@read_from_shared_memory.register(UnicodeText)
def _read(space: UnicodeText, shared_memory: Any, n: int = 1) -> SharedTexts:
    return SharedTexts(shared_memory, n)

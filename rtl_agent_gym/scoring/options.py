"""What some gradings need from the user: a judge model, and images of commercial simulators."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from dotenv.parser import parse_stream

from ..errors import UsageError
from ..problems.compose import SIM_IMAGES, TEMPLATES
from ..problems.paths import expand_home
from .judging import Judge

_NETWORK = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SHORTEST_SECRET = 4
HIDDEN = "[hidden]"


@dataclass(frozen=True)
class HarnessOptions:
    """Images, variables and the network for the harnesses that the simulation image cannot run.

    They reach only the scoring containers of such harnesses.
    """

    images: tuple[tuple[str, str], ...] = ()
    """Pairs of a name in harnesses, such as ``__VERIF_EDA_IMAGE__``, and your image."""
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Environment variables of the tests, such as a licence server's address. Their values are hidden in scores."""
    network: str = ""
    """A Docker network that the scoring container joins, such as that of a licence server; empty for none."""

    @classmethod
    def read(
        cls, images: Sequence[str] = (), env_file: str | os.PathLike[str] | None = None, network: str = ""
    ) -> HarnessOptions:
        """The options in the form of the command line.

        Args:
            images: ``NAME=IMAGE``, with the name as in harnesses; the underscores around a template may be left out.
            env_file: A file of ``NAME=value`` lines.
            network: See `HarnessOptions.network`.

        Raises:
            UsageError: An option is malformed, or the file cannot be read.
        """
        if network and not _NETWORK.fullmatch(network):
            raise UsageError(f"--harness-network {network!r} is not the name of a Docker network")
        pairs = dict(_image(text) for text in images)
        if (env_file or network) and not pairs:
            raise UsageError("--harness-env and --harness-network are for the images of --harness-image; give one")
        return cls(tuple(sorted(pairs.items())), _variables(env_file), network)

    def image(self, name: str) -> str | None:
        """Your image for a name in a harness; None if there is none."""
        return dict(self.images).get(name)

    def resolve(self, text: str) -> str:
        """A Dockerfile with the names of harness images replaced by your images in ``FROM`` and ``from=``."""
        for name, image in self.images:
            place = rf"(?im)(^\s*FROM(?:\s|\\\n)+(?:--\S+(?:\s|\\\n)+)*|(?:--|,)from=){re.escape(name)}(?![^\s,])"
            text = re.sub(place, lambda found, image=image: found[1] + image, text)  # type: ignore[misc]
        return text

    def hide(self, text: str) -> str:
        """A text without the values of the variables."""
        for value in sorted({value for _, value in self.env}, key=len, reverse=True):
            if len(value) >= _SHORTEST_SECRET:
                text = text.replace(value, HIDDEN)
        return text


@dataclass(frozen=True)
class GradingOptions:
    """The judge and the harness options, which the interfaces pass on as one object."""

    judge: str | Judge | None = field(default=None, hash=False)  # any object may be a judge, hashable or not
    """A judge, or a judge's name (``chat:MODEL``); None if there is none."""
    harness: HarnessOptions = HarnessOptions()


def _image(text: str) -> tuple[str, str]:
    name, equals, image = text.partition("=")
    name, image = name.strip(), image.strip()
    if not equals or not name or not image:
        raise UsageError(f"--harness-image {text!r}: expected NAME=IMAGE, such as VERIF_EDA_IMAGE=my/simulator:24.03")
    whole = f"__{name}__"
    name = whole if whole in TEMPLATES else name
    if name in SIM_IMAGES:
        raise UsageError(f"--harness-image {text!r}: this name stands for the package's own simulation image")
    return name, image


def _variables(path: str | os.PathLike[str] | None) -> tuple[tuple[str, str], ...]:
    if path is None:
        return ()
    try:
        text = expand_home(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"--harness-env {path}: cannot be read ({getattr(error, 'strerror', None) or error})"
        ) from error
    values: dict[str, str] = {}
    for binding in parse_stream(io.StringIO(text)):
        if binding.error or (binding.key is not None and (binding.value is None or not _NAME.fullmatch(binding.key))):
            # Without the line's text, which may be a secret.
            raise UsageError(f"--harness-env {path}: line {binding.original.line} is not NAME=value")
        if binding.key is not None and binding.value is not None:
            values[binding.key] = binding.value
    return tuple(sorted(values.items()))

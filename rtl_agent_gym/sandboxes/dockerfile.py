"""Reads Dockerfiles into stages, and builds the stages in the right order.

The simulation image's Dockerfile is built by Docker (`image_build`) or in namespaces (`root_image`), and a harness's in
namespaces (`root_build`). All read it here, so that one Dockerfile serves both.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TypeVar

_CONTINUED = re.compile(r"\\[ \t]*\n")
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_ESCAPED_OR_VARIABLE = re.compile(r"\\.|\$(\w+|\{[^}]*\}?)", re.DOTALL)
_QUOTED_OR_VARIABLE = re.compile(rf"""'[^']*'|"(?:\\.|[^"\\])*"|{_ESCAPED_OR_VARIABLE.pattern}""", re.DOTALL)
_MARKED = re.compile("\0(\\w+)\0")
BuiltT = TypeVar("BuiltT")


@dataclass(frozen=True)
class Instruction:
    """A step, such as ``RUN make``."""

    keyword: str
    """In capitals."""
    rest: str

    @property
    def source(self) -> str:
        """The stage or image of a ``COPY --from``; empty for other steps."""
        found = re.match(r"--from=(\S+)", self.rest) if self.keyword == "COPY" else None
        return found[1] if found else ""

    def __str__(self) -> str:
        return f"{self.keyword} {self.rest}"


@dataclass(frozen=True)
class Stage:
    """One FROM and the steps after it."""

    name: str
    """Its name, or its number from 0."""
    base: str
    """The image or the stage that it is based on."""
    steps: tuple[Instruction, ...]

    @property
    def needs(self) -> set[str]:
        """The stages and images that it is based on or copies from."""
        return {self.base} | {step.source for step in self.steps if step.source}

    def text(self, built: Mapping[str, str]) -> str:
        """A Dockerfile of this stage alone. `built` has the images of other stages, by stage name."""
        lines = [f"FROM {built.get(self.base, self.base)}"]
        for step in self.steps:
            line = str(step)
            if step.source in built:
                line = line.replace(f"--from={step.source}", f"--from={built[step.source]}", 1)
            lines.append(line)
        return "\n".join(lines) + "\n"


def read_stages(text: str, arguments: Mapping[str, str] | None = None) -> list[Stage]:
    """The stages of a Dockerfile, in order. `arguments` replace the defaults of the ARGs before the first FROM."""
    values: dict[str, str] = {}
    stages: list[tuple[str, str, list[Instruction]]] = []
    for instruction in _instructions(text):
        if instruction.keyword == "FROM":
            words = _VARIABLE.sub(lambda found: values.get(found[1], ""), instruction.rest).split()
            named = words[2] if len(words) == 3 and words[1].upper() == "AS" else str(len(stages))
            stages.append((named, words[0] if len(words) in (1, 3) else instruction.rest, []))
        elif stages:
            stages[-1][2].append(instruction)
        elif instruction.keyword == "ARG":
            name, _, default = instruction.rest.partition("=")
            values[name] = (arguments or {}).get(name, default)
    return [Stage(name, base, tuple(steps)) for name, base, steps in stages]


def _instructions(text: str) -> Iterator[Instruction]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in _CONTINUED.sub(" ", "\n".join(lines)).splitlines():
        if line.strip():
            keyword, *rest = line.split(None, 1)
            yield Instruction(keyword.upper(), "".join(rest).strip())


def split_words(rest: str, values: Mapping[str, str]) -> list[str]:
    """The words of an instruction, with variables replaced by their values, which are not split and may contain quotes.

    Raises `ValueError` if a quote is not closed, or a variable is neither of the form $NAME nor ${NAME}.
    """

    def mark(found: re.Match[str]) -> str:
        if found[0].startswith('"'):  # shlex keeps the backslash of \$ there, which Docker and a shell do not
            return _ESCAPED_OR_VARIABLE.sub(lambda part: "$" if part[0] == r"\$" else mark(part), found[0])
        name = found[1]
        if name is None:
            return found[0]
        if not re.fullmatch(r"\w+|\{\w+\}", name):
            raise ValueError(f"{found[0]} is not of the form ${{NAME}}")
        return f"\0{name.strip('{}')}\0"

    marked = shlex.split(_QUOTED_OR_VARIABLE.sub(mark, rest))
    return [_MARKED.sub(lambda found: values.get(found[1], ""), word) for word in marked]


def variables(rest: str, values: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of an ENV or ARG instruction; `values` are the variables before it. Raises as `split_words`."""
    words = split_words(rest, values or {})
    if words and "=" not in words[0]:  # the older form, NAME VALUE
        return {words[0]: " ".join(words[1:])}
    return dict(word.split("=", 1) for word in words if "=" in word)


def file_mode(content: bytes) -> int:
    """The mode of a file of the build context; the one on disk changes with the umask, and a wheel does not keep it."""
    return 0o755 if content.startswith(b"#!") else 0o644


def build_stages(
    stages: Sequence[Stage], build: Callable[[Stage, Mapping[str, BuiltT]], BuiltT], stop: Callable[[], object]
) -> BuiltT:
    """Build each stage in a thread, as soon as the stages that it needs are built. Returns the last stage's result.

    Args:
        stages: The stages of one Dockerfile.
        build: Builds one stage; gets the results of the finished ones, by name.
        stop: Called when a stage has failed, or on Ctrl-C: ends the running builds.
    """
    names = {stage.name for stage in stages}
    waiting, built = list(stages), dict[str, BuiltT]()
    running: dict[Future[BuiltT], Stage] = {}
    with ThreadPoolExecutor(len(stages)) as pool:
        try:
            while waiting or running:
                for stage in [stage for stage in waiting if stage.needs & names <= built.keys()]:
                    waiting.remove(stage)
                    running[pool.submit(build, stage, dict(built))] = stage
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    built[running.pop(done).name] = done.result()
        except BaseException:  # such as Ctrl-C; the pool waits for its threads
            stop()
            raise
    return built[stages[-1].name]

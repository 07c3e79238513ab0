"""Dockerfiles: stages, and the order in which they are built."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from rtl_agent_gym.errors import ImageError
from rtl_agent_gym.sandboxes.dockerfile import Stage, build_stages, file_mode, read_stages, variables
from rtl_agent_gym.sandboxes.image import context_files
from rtl_agent_gym.sandboxes.root_build import RootSteps

TEXT = """\
# A comment.
ARG BASE=usual
FROM ${BASE} AS first
RUN one \\
  && two
FROM first AS left
COPY a b ./
FROM first AS right
ENV A=1 B="2 3"
FROM scratch
COPY --from=left /x /
COPY --from=right /y /z
"""


def test_stages_know_what_they_need() -> None:
    first, left, right, last = read_stages(TEXT, {"BASE": "mine:1"})
    assert (first.name, first.base, [str(step) for step in first.steps]) == ("first", "mine:1", ["RUN one    && two"])
    assert (left.needs, right.needs, last.needs) == ({"first"}, {"first"}, {"scratch", "left", "right"})
    assert last.text({"left": "sha256:1", "right": "sha256:2"}) == (
        "FROM scratch\nCOPY --from=sha256:1 /x /\nCOPY --from=sha256:2 /y /z\n"
    )
    assert left.text({"first": "sha256:0"}) == "FROM sha256:0\nCOPY a b ./\n"
    assert read_stages(TEXT)[0].base == "usual"


def test_variables_of_both_forms() -> None:
    assert variables('A=1 B="2 3"') == {"A": "1", "B": "2 3"}
    assert variables("NAME several words") == {"NAME": "several words"}
    assert (file_mode(b"#!/bin/sh\n"), file_mode(b"text")) == (0o755, 0o644)


def test_variables_have_their_values_and_keywords_end_at_any_space() -> None:
    values = {"A": "1 2", "B": 'x"'}
    assert variables("C=$A D=\"${A}:$B$Z\" E='$A' F=\\$A", values) == {"C": "1 2", "D": '1 2:x"', "E": "$A", "F": "$A"}
    assert variables("C $A", values) == {"C": "1 2"}
    assert variables('C="\\$A \\\\$A" D="it\'s $A isn\'t"', values) == {"C": "$A \\1 2", "D": "it's 1 2 isn't"}
    assert str(read_stages("FROM x\nRUN\ttrue")[0].steps[0]) == "RUN true"


@pytest.mark.parametrize("step", ['ENV A="b', "COPY 'a b", "WORKDIR ${A:-b}", "ENV A=${B", 'ENV A="${B:-"c"}"'])
def test_what_cannot_be_read_is_an_error_of_the_image(step: str, tmp_path: Path) -> None:
    [found] = read_stages(f"FROM x\n{step}")[0].steps
    with pytest.raises(ImageError, match=re.escape(step)):
        RootSteps(tmp_path, {}).take(found, {})


def test_the_images_own_compiles_while_packages_are_installed() -> None:
    stages = {stage.name: stage for stage in read_stages(context_files()["Dockerfile"].decode())}
    assert {"rootfs", "icarus", "venv"} <= stages.keys()
    assert stages["rootfs"].needs == {stages["tools"].base}
    assert stages["icarus"].needs == stages["venv"].needs == {"tools"}


def test_stages_that_need_nothing_of_each_other_are_built_at_once() -> None:
    together = threading.Barrier(2, timeout=60)

    def build(stage: Stage, built: Mapping[str, str]) -> str:
        if stage.name in ("left", "right"):
            together.wait()  # each waits until the other one has begun
        return f"{stage.name}({', '.join(built[name] for name in sorted(stage.needs & built.keys()))})"

    assert build_stages(read_stages(TEXT), build, lambda: None) == "3(left(first()), right(first()))"


def test_the_others_are_stopped_when_one_fails() -> None:
    stopped, begun = threading.Event(), threading.Event()

    def build(stage: Stage, built: Mapping[str, str]) -> str:
        if stage.name == "left":
            begun.wait(60)
            raise ImageError("left failed")
        if stage.name == "right":
            begun.set()
            assert stopped.wait(60)
        return stage.name

    with pytest.raises(ImageError, match="left failed"):
        build_stages(read_stages(TEXT), build, stopped.set)

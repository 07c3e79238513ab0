"""A task's verifier without Harbor: its image, and ``test.sh`` run there on files."""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import docker

from rtl_agent_gym.integrations.harbor.collect import RECORD
from rtl_agent_gym.integrations.harbor.tasks import task_files
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.sandboxes.daemon import connect
from rtl_agent_gym.sandboxes.image import image_tag


@dataclass(frozen=True)
class Verdict:
    """How ``test.sh`` ended."""

    code: int
    output: str
    rewards: dict[str, float] | None
    """The content of the reward file; None without one."""


class VerifierImages:
    """Images of tasks' tests, built once for each Dockerfile and removed at the end."""

    def __init__(self) -> None:
        self.client = connect()
        self.built: dict[str, str] = {}

    def image(self, problem: Problem) -> str:
        """The id of an image whose ``/tests`` are those of this problem, or of one with the same Dockerfile."""
        files = tests_folder(problem)
        key = files["Dockerfile"]
        if key not in self.built:
            image, _ = self.client.images.build(fileobj=archive(files), custom_context=True, rm=True, forcerm=True)
            self.built[key] = str(image.id)
        return self.built[key]

    def close(self) -> None:
        """Remove them."""
        for image in self.built.values():
            with contextlib.suppress(docker.errors.APIError):  # another run of these tests may use the same one
                self.client.images.remove(image, force=True)
        self.client.close()

    @contextmanager
    def container(self, problem: Problem, **request: Any) -> Iterator[Any]:
        """A started container of the problem's tests, with the limits that ``task.toml`` asks for.

        `request` replaces parts of the request for the supervisor.
        """
        task = json.loads(tests_folder(problem)["problem.json"])
        task["request"] |= request
        container = self.client.containers.run(
            self.image(problem),
            ["sleep", "infinity"],
            detach=True,
            mem_limit="2048m",
            nano_cpus=2_000_000_000,
            labels={"io.rtl-agent-gym.test": "harbor"},
        )
        try:
            container.put_archive("/tests", archive({"problem.json": json.dumps(task)}))
            container.exec_run(["mkdir", "-p", "-m", "777", "/logs/verifier"])
            yield container
        finally:
            container.remove(force=True)

    def grade(
        self, problem: Problem, files: Mapping[str, str | bytes], *, collected: bool = True, **request: Any
    ) -> Verdict:
        """Run ``test.sh`` on files, as if a collect hook had left them; without its record if not `collected`."""
        with self.container(problem, **request) as container:
            left = {f"code/{path}": content for path, content in files.items()}
            if collected:
                sizes = [len(text.encode() if isinstance(text, str) else text) for text in files.values()]
                left[RECORD] = json.dumps({"files": len(sizes), "bytes": sum(sizes)})
            container.exec_run(["mkdir", "-p", "/collected/code"])
            container.put_archive("/collected", archive(left))
            return run(container)


def run(container: Any) -> Verdict:
    """Run ``test.sh`` in a container that has its files."""
    ended = container.exec_run(["/tests/test.sh"], user="root")
    return Verdict(ended.exit_code, ended.output.decode(errors="replace"), rewards(container))


def rewards(container: Any) -> dict[str, float] | None:
    """The content of the reward file."""
    try:
        stream, _ = container.get_archive("/logs/verifier/reward.json")
    except docker.errors.NotFound:
        return None
    with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as packed:
        member = packed.extractfile("reward.json")
        assert member is not None
        read: dict[str, float] = json.loads(member.read())
        return read


def tests_folder(problem: Problem) -> dict[str, str]:
    """The files of the task's folder ``tests``."""
    files = task_files(problem, image_tag())
    return {path.removeprefix("tests/"): text for path, text in files.items() if path.startswith("tests/")}


def archive(files: Mapping[str, str | bytes]) -> io.BytesIO:
    """A tar archive of files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(data), 0o755 if data.startswith(b"#!") else 0o644
            tar.addfile(entry, io.BytesIO(data))
    packed.seek(0)
    return packed

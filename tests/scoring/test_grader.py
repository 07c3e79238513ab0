"""The grader is a program of the package, not of the image: sent as the keeper's files, and named by one digest."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rtl_agent_gym.problems import Problem
from rtl_agent_gym.sandboxes import DockerSandboxes, Sandbox, SandboxSpec
from rtl_agent_gym.sandboxes.image import context_files
from rtl_agent_gym.scoring import Scorer, cache, rules_digest
from rtl_agent_gym.scoring.harness import GRADER, grader_files, scoring_sandbox
from tests.sandboxes.providers import ProviderAround

from .conftest import GOLDEN, TARGET

GUARD = f"{GRADER}/rtl_gym_grader/guard.py"


@pytest.fixture
def changed_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A copy of the programs that grade, for `rules_digest`."""
    source = Path(cache.__file__).parents[1]
    for name in ("scoring", "problems", "sandboxes"):
        shutil.copytree(source / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.jsonl"))
    monkeypatch.setattr(cache, "__file__", str(tmp_path / "scoring" / "cache.py"))
    cache.rules_digest.cache_clear()
    yield tmp_path
    cache.rules_digest.cache_clear()


def test_one_digest_names_the_rules(changed_programs: Path) -> None:
    digests = [rules_digest()]
    decisive = [f"scoring/{name}.py" for name in ("grader/guard", "grader/witness", "outcomes")]
    decisive += ["problems/compose.py", "problems/paths.py", "sandboxes/warden/shell.py"]
    decisive += [
        f"sandboxes/{name}" for name in ("client.py", "namespaces.py", "seccomp.py", "seccomp.txt", "zygote.py")
    ]
    for name in decisive:
        with (changed_programs / name).open("a") as stream:
            stream.write("# another version\n")
        cache.rules_digest.cache_clear()
        digests.append(rules_digest())
    assert len(set(digests)) == len(digests)


def test_the_image_holds_none_of_it() -> None:
    names = {Path(name).name for name in context_files()}
    assert not names & {Path(name).name for name in grader_files()} - {"__init__.py"}
    assert f"{GRADER}/" in context_files()["harness/tool"].decode().replace("$here", "/opt/rtl-agent-gym")


@pytest.mark.docker
async def test_no_process_of_a_grading_can_change_it(provider: DockerSandboxes) -> None:
    sandbox = await provider.create(replace(scoring_sandbox(await provider.image()), standby=()))
    for path, content in grader_files().items():
        assert (await sandbox.exec(["cat", path])).output == content.decode()
    folder = f"{GRADER}/rtl_gym_grader"
    for attempt in (
        f"echo x >> {GUARD}", f"rm {GUARD}", f"mv {GUARD} {folder}/x", f"touch {folder}/json.py",
        f"mkdir {GRADER}/json", f"chmod 777 {GUARD}", f"mv {folder} /tmp/x", f"mkdir {folder}/__pycache__",
    ):  # fmt: skip
        result = await sandbox.exec(["/bin/sh", "-c", attempt])
        assert result.exit_code != 0, attempt
    listed = await sandbox.exec(["/bin/sh", "-c", f"stat -c %U {folder} {folder}/* && id -un"])
    assert set(listed.output.split()) == {"keeper", "agent"}


@pytest.mark.docker
async def test_a_changed_grader_needs_no_other_image(provider: DockerSandboxes, adder: Problem) -> None:
    class Changed(ProviderAround):
        """The provider, with a guard that lets nothing through."""

        async def create(self, spec: SandboxSpec | None = None) -> Sandbox:
            assert spec is not None
            guard = spec.files[GUARD]
            assert isinstance(guard, bytes)
            text = guard.replace(b"def main() -> None:", b"def main() -> None:\n    sys.exit('closed today')", 1)
            return await self.provider.create(replace(spec, files={**spec.files, GUARD: text}))

    async with Scorer(Changed(provider)) as scorer:
        assert not (await scorer.score(adder, {TARGET: GOLDEN})).passed
    async with Scorer(provider) as scorer:
        assert (await scorer.score(adder, {TARGET: GOLDEN})).passed

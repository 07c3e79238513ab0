"""The shell scripts: what they promise about the machine, run for real in checkouts of their own."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from rtl_agent_gym.sandboxes.image_build import KEYRING
from tests.conftest import ROOT, mark_samples

SCRIPTS = [
    "scripts/setup",
    "scripts/check",
    "scripts/test",
    "scripts/docs",
    ".ci/run",
    "run_distillation_1problem_agentic.sh",
    "run_distillation_family_agentic.sh",
    "run_distillation_looking_agentic.sh",
]


def run(checkout: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=checkout, env=os.environ | environment, capture_output=True, text=True, timeout=1200
    )


class Case:
    """A collected case of a test, as far as its marks are concerned."""

    def __init__(self, nodeid: str, **marks: int) -> None:
        self.nodeid = nodeid
        self.marks = dict(marks)

    def get_closest_marker(self, name: str) -> SimpleNamespace | None:
        return SimpleNamespace(args=(self.marks[name],)) if name in self.marks else None

    def add_marker(self, name: str) -> None:
        self.marks[name] = 0


@pytest.mark.parametrize("count", [1, 3, 12])
def test_a_sample_of_cases_is_always_the_same_and_the_others_are_slow(count: int) -> None:
    def quick(cases: list[Case]) -> list[str]:
        mark_samples(cases)  # type: ignore[arg-type]
        return [case.nodeid for case in cases if "slow" not in case.marks]

    def cases(sampled: str) -> list[Case]:
        others = [Case("a.py::other[0]"), Case("a.py::other[1]", slow=0), Case(f"{sampled}[early]", sampled=3, slow=0)]
        return [*others, *(Case(f"{sampled}[{number}]", sampled=3) for number in range(count))]

    first, again, others = (quick(cases(name)) for name in ("a.py::many", "a.py::many", "a.py::more"))
    assert first == again
    assert first[0] == "a.py::other[0]"
    assert len(first) == len(others) == 1 + min(count, 3)
    assert ({name[-2:] for name in first} != {name[-2:] for name in others}) == (count == 12)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What `scripts/setup` needs of a checkout, without an environment."""
    for name in ("scripts/setup", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def copy_of_the_project(folder: Path) -> Path:
    """The files of the working tree that git does not ignore."""
    files = run(ROOT, "git", "ls-files", "--cached", "--others", "--exclude-standard").stdout.splitlines()
    for name in files:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture
def ready(checkout: Path) -> Path:
    """A checkout with an environment that is up to date, whose command prints its arguments."""
    programs(checkout / ".venv/bin", {"rtl-agent-gym": 'echo "called: $*"'})
    (checkout / ".venv/bin/python").symlink_to(sys.executable)
    made_from = [f"{checkout.resolve()}\nchat,hub\nPython {platform.python_version()}\n"]
    made_from += [(checkout / name).read_text() for name in ("pyproject.toml", "constraints.txt")]
    (checkout / ".venv/setup-stamp").write_text(f"eval {hashlib.sha256(''.join(made_from).encode()).hexdigest()}\n")
    return checkout


def programs(folder: Path, scripts: dict[str, str]) -> Path:
    """A folder with these programs, scripts of the shell by name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return folder


def path_of_root(folder: Path, **scripts: str) -> str:
    """A PATH for root of a machine that lacks what is installed with apt-get, whose calls are noted in ``apt-get.log``.

    Args:
        folder: Where its programs and the log are.
        scripts: Programs that it has, by name.
    """
    lacking = {"bwrap", "newuidmap", "mmdebstrap", "chromium", "npm", "id", "apt-get"}
    (folder / "usual").mkdir(parents=True)
    for program in {path.name: path for place in ("/bin", "/usr/bin") for path in Path(place).iterdir()}.values():
        if program.name not in lacking:
            (folder / "usual" / program.name).symlink_to(program)
    noting = {"id": "echo 0", "apt-get": f'echo "$*" >> "{folder}/apt-get.log"'}
    return f"{programs(folder / 'own', noting | scripts)}:{folder / 'usual'}"


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_can_be_run_and_stop_at_the_first_failure(script: str) -> None:
    path = ROOT / script
    assert os.access(path, os.X_OK)
    text = path.read_text()
    assert text.startswith("#!/usr/bin/env bash\n#")
    assert "\nset -euo pipefail\n" in text
    assert run(ROOT, "bash", "-n", script).returncode == 0


@pytest.mark.parametrize("script", sorted({*SCRIPTS} - {"scripts/setup", ".ci/run"}))
def test_the_environments_python_starts_where_another_one_is_home(script: str, tmp_path: Path) -> None:
    (tmp_path / script).parent.mkdir(exist_ok=True)
    shutil.copy(ROOT / script, tmp_path / script)
    programs(tmp_path / "scripts", {"setup": ""})
    names = ("python", "pytest", "mypy", "ruff", "mkdocs", "rtl-agent-gym")
    programs(tmp_path / ".venv/bin", dict.fromkeys(names, 'echo "home: $PYTHONHOME"'))
    environment = {"PATH": path_of_root(tmp_path / "machine"), "RTL_GYM_SANDBOX": "namespaces"}
    done = run(tmp_path, f"./{script}", PYTHONHOME="/elsewhere", **environment)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "home: ")


def test_continuous_integration_is_check_and_test() -> None:
    commands = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line.startswith("./")]
    assert commands == ["./scripts/check", "./scripts/test"]


def test_a_test_that_passes_only_at_its_second_try_fails_the_nightly_run(tmp_path: Path) -> None:
    file, flag = tmp_path / "test_race.py", tmp_path / "tried"
    file.write_text(
        "import pathlib, pytest\n"
        f"flag = pathlib.Path({str(flag)!r})\n"
        "@pytest.mark.docker\n"
        "def test_race():\n"
        "    tried = flag.exists()\n"
        "    flag.touch()\n"
        "    assert tried\n"
    )
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"))
    codes = []
    for nightly in ("", "1"):
        flag.unlink(missing_ok=True)
        done = run(
            ROOT, *command, "-p", "tests.conftest", str(file), PYTHONPATH=str(ROOT), RTL_GYM_TESTS_MAY_NOT_RERUN=nightly
        )
        assert "1 passed, 1 rerun" in done.stdout, done.stdout + done.stderr
        codes.append(done.returncode)
    assert codes == [0, 1]
    assert "RTL_GYM_TESTS_MAY_NOT_RERUN=1" in (ROOT / "scripts/test").read_text()


class TestTest:
    """`scripts/test`, with a stub of `scripts/setup`."""

    @pytest.fixture
    def checkout(self, tmp_path: Path) -> Path:
        (tmp_path / "scripts").mkdir()
        shutil.copy(ROOT / "scripts/test", tmp_path / "scripts/test")
        programs(tmp_path / ".venv/bin", {"rtl-agent-gym": "", "pytest": "echo tested"})
        return tmp_path

    @pytest.mark.parametrize("code", [1, 3])
    def test_root_without_docker_is_told_how_to_do_without(self, checkout: Path, tmp_path: Path, code: int) -> None:
        programs(checkout / "scripts", {"setup": f'echo "$*"; exit {code}'})
        done = run(checkout, "scripts/test", PATH=path_of_root(tmp_path / "machine"), RTL_GYM_SANDBOX="docker")
        assert (done.returncode, done.stdout.splitlines()[-1]) == (code, "--for dev --docker")
        assert ("RTL_GYM_SANDBOX=namespaces ./scripts/test" in done.stderr) == (code == 3)

    def test_it_waits_for_another_apt(self, checkout: Path, tmp_path: Path) -> None:
        programs(checkout / "scripts", {"setup": ""})
        path = path_of_root(tmp_path / "machine")
        done = run(checkout, "scripts/test", "--agents", PATH=path, RTL_GYM_SANDBOX="namespaces")
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "tested")
        calls = (tmp_path / "machine/apt-get.log").read_text().splitlines()
        assert all(call.startswith("-o DPkg::Lock::Timeout=120 ") for call in calls)
        installed = [call.partition("--no-install-recommends ")[2].split()[0] for call in calls if " install " in call]
        assert installed == ["bubblewrap", "chromium", "npm"]


class TestSetup:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--everything"], "--venv-only"),
            *((arguments, "--for eval|train|dev") for arguments in (["--for"], ["--for", ""], ["--for", "everything"])),
        ],
    )
    def test_wrong_usage(self, checkout: Path, arguments: list[str], words: str) -> None:
        done = run(checkout, "scripts/setup", *arguments)
        assert done.returncode == 2
        assert words in done.stderr

    def test_without_a_new_enough_python_it_says_so(self, checkout: Path, tmp_path: Path) -> None:
        """Each of them says that it is too old, as shims of absent versions do."""
        names = ("python3", "python3.11", "python3.12", "python3.13", "python3.14")
        old = programs(tmp_path / "old", dict.fromkeys(names, "exit 1"))
        done = run(checkout, "scripts/setup", PATH=f"{old}:{os.environ['PATH']}", PYTHON="")
        assert done.returncode == 3
        assert "no Python 3.11 or newer found" in done.stderr
        assert "PYTHON=/path/to/python" in done.stderr
        assert not (checkout / ".venv").exists()

    def test_a_python_that_was_named_and_does_not_do(self, checkout: Path) -> None:
        done = run(checkout, "scripts/setup", PYTHON="/bin/false")
        assert done.returncode == 3
        assert "PYTHON=/bin/false is not a Python 3.11 or newer" in done.stderr

    def test_an_environment_of_the_users_own_stays(self, checkout: Path) -> None:
        (checkout / ".venv").mkdir()
        (checkout / ".venv" / "mine").touch()
        done = run(checkout, "scripts/setup", "--venv-only")
        assert done.returncode == 3
        assert ".venv was not made by this script" in done.stderr
        assert (checkout / ".venv" / "mine").exists()

    def test_an_environment_of_another_folder_is_refused_and_stays_set_up(self, checkout: Path, tmp_path: Path) -> None:
        (tmp_path / "other").mkdir()
        stamp = tmp_path / "other/setup-stamp"
        stamp.write_text("dev 0\n")
        (checkout / ".venv").symlink_to(tmp_path / "other")
        done = run(checkout, "scripts/setup", "--venv-only")
        assert done.returncode == 3
        assert f".venv is a link to {tmp_path / 'other'}" in done.stderr
        assert stamp.read_text() == "dev 0\n"

    def test_another_python_than_that_of_the_environment_is_refused(self, checkout: Path) -> None:
        (checkout / ".venv/bin").mkdir(parents=True)
        (checkout / ".venv/bin/python").symlink_to(sys.executable)
        other = programs(checkout, {"python": 'case "$2" in *exit*) exit 0;; *) echo 3.99;; esac'}) / "python"
        done = run(checkout, "scripts/setup", "--venv-only", PYTHON=str(other))
        assert done.returncode == 3
        assert f"PYTHON={other} is another" in done.stderr

    @pytest.mark.parametrize(
        ("arguments", "kind", "options"),
        [
            (["--for", "eval", "--docker"], "auto", " --sandbox docker --start-daemon"),
            (["--for", "eval"], "docker", " --sandbox docker --start-daemon"),
            ([], "podman", ""),
            ([], "apptainer", ""),
        ],
    )
    def test_docker_is_installed_only_if_asked_and_nothing_else_then_or_for_others(
        self, ready: Path, tmp_path: Path, arguments: list[str], kind: str, options: str
    ) -> None:
        path = path_of_root(tmp_path / "machine")
        done = run(ready, "scripts/setup", *arguments, PATH=path, PYTHON="", RTL_GYM_SANDBOX=kind)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines() == ["setup: .venv is up to date (for eval)", f"called: image build{options}"]
        assert not (tmp_path / "machine/apt-get.log").exists()

    def test_packages_elsewhere_do_not_count(self, ready: Path, tmp_path: Path) -> None:
        programs(ready / ".venv/bin", {"rtl-agent-gym": 'echo "paths: $PYTHONPATH"'})
        environment = {"PATH": path_of_root(tmp_path / "machine"), "PYTHON": "", "PYTHONPATH": "/elsewhere"}
        done = run(ready, "scripts/setup", "--docker", **environment)
        assert done.stdout.splitlines()[-1] == "paths: "

    def test_root_gets_the_packages_that_namespaces_lack(self, ready: Path, tmp_path: Path) -> None:
        script, keys = ready / "scripts/setup", tmp_path / "keys.gpg"
        assert script.read_text().count(f" {KEYRING} ") == 1
        script.write_text(script.read_text().replace(str(KEYRING), str(keys)))
        environment = {"PYTHON": "", "RTL_GYM_SANDBOX": "namespaces"}
        found = dict.fromkeys(("bwrap", "newuidmap", "mmdebstrap"), "exit 1")
        install = "-o DPkg::Lock::Timeout=120 install -y -qq --no-install-recommends"
        for machine, there, missing in (
            ("bare", {}, "bubblewrap uidmap mmdebstrap debian-archive-keyring"),
            ("without keys", found, "debian-archive-keyring"),
        ):
            path = path_of_root(tmp_path / machine, **there)
            done = run(ready, "scripts/setup", PATH=path, **environment)
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout.splitlines()[-1] == "called: image build"
            calls = (tmp_path / machine / "apt-get.log").read_text().splitlines()
            assert calls == ["-o DPkg::Lock::Timeout=120 update -qq", f"{install} {missing}"]
        for machine, there in (("offline", found), ("offline with bubblewrap alone", {"bwrap": "exit 1"})):
            path = path_of_root(tmp_path / machine, **there, **{"apt-get": "exit 100"})
            done = run(ready, "scripts/setup", PATH=path, **environment)  # only a build needs the others
            assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "called: image build")
        path = path_of_root(tmp_path / "bare and offline", **{"apt-get": "exit 100"})
        assert run(ready, "scripts/setup", PATH=path, **environment).returncode != 0
        keys.touch()
        done = run(ready, "scripts/setup", PATH=path_of_root(tmp_path / "complete", **found), **environment)
        assert done.stdout.splitlines()[-1] == "called: image build"
        assert not (tmp_path / "complete/apt-get.log").exists()

    def test_an_environment_of_an_older_python_is_refused(self, checkout: Path) -> None:
        old = 'case "$*" in *version_info*) exit 1;; --version) echo Python 3.10.12;; "-m pip install"*) exit 1;; esac'
        programs(checkout / ".venv/bin", {"python": old})
        (checkout / ".venv/bin/activate").write_text(f"VIRTUAL_ENV={checkout.resolve()}/.venv\n")
        done = run(checkout, "scripts/setup", "--venv-only", PYTHON="")
        assert done.returncode == 3
        assert ".venv has Python 3.10.12, and 3.11 or newer is needed. Remove .venv and run this again" in done.stderr
        assert {path.name for path in (checkout / ".venv").iterdir()} == {"bin"}

    @pytest.mark.parametrize("missing", [True, False])
    def test_a_venv_that_cannot_be_made(self, checkout: Path, missing: bool) -> None:
        script = f'case "$*" in *"-m venv"*) exit 1;; *ensurepip*) exit {missing:d};; esac; exec {sys.executable} "$@"'
        python = programs(checkout / "other", {"python": script}) / "python"
        done = run(checkout, "scripts/setup", "--venv-only", PYTHON=str(python))
        package = "python{}.{}-venv".format(*sys.version_info)
        assert (f"apt-get install {package}" in done.stderr) == missing
        assert ("apt-get" in done.stderr) == missing
        assert "could not create .venv" in done.stderr
        assert done.returncode == (3 if missing else 1)

    @pytest.mark.slow
    def test_an_environment_is_the_same_through_a_link(self, checkout: Path, tmp_path: Path) -> None:
        made = run(checkout, "bash", "-c", "python3 -m venv .venv && touch .venv/setup.log")
        assert made.returncode == 0, made.stderr
        (checkout / "constraints.txt").write_text("torch==0.0.0.1\n")
        link = tmp_path / "a link"
        link.symlink_to(checkout)
        done = run(link, "scripts/setup", "--venv-only")
        assert "creating .venv" not in done.stdout
        assert "pip could not install" in done.stderr

    @pytest.mark.skipif(shutil.which("flock") is None, reason="no flock on this system")
    def test_a_second_one_waits_for_the_first(self, checkout: Path) -> None:
        holding, pipe = ["flock", "constraints.txt", "sh", "-c", "echo locked; read line"], subprocess.PIPE
        with subprocess.Popen(holding, cwd=checkout, stdin=pipe, stdout=pipe) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"locked\n"
            environment = os.environ | {"PYTHON": "/bin/false"}
            second = subprocess.Popen("scripts/setup", cwd=checkout, env=environment, stdout=pipe, stderr=pipe)
            assert second.stdout is not None
            assert any(b"another setup runs in this folder" in line for line in second.stdout)
            with pytest.raises(subprocess.TimeoutExpired):
                second.wait(1)
            holder.communicate()  # ends it
        second.communicate(timeout=100)
        assert second.returncode == 3  # its turn came

    @pytest.mark.skipif(shutil.which("setpriv") is None, reason="no setpriv on this system")
    def test_a_ready_checkout_serves_a_user_who_may_not_write_there(self, ready: Path) -> None:
        (ready / "constraints.txt").chmod(0o444)
        ordinary = ["setpriv", "--bounding-set=-dac_override"] if os.geteuid() == 0 else []
        done = run(ready, *ordinary, "scripts/setup", "--docker", PYTHON="")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines()[-1] == "called: image build --sandbox docker --start-daemon"

    @pytest.mark.slow
    def test_an_installation_that_fails_shows_the_end_of_its_log_and_leaves_no_stamp(self, checkout: Path) -> None:
        (checkout / "constraints.txt").write_text("torch==0.0.0.1\n")
        done = run(checkout, "scripts/setup", "--for", "train", "--venv-only")
        assert done.returncode == 1
        assert "pip could not install torch" in done.stderr
        assert ".venv/setup.log" in done.stderr
        assert re.search(r"ERROR: .*torch", done.stderr)
        assert not (checkout / ".venv/setup-stamp").exists()

    @pytest.mark.docker
    @pytest.mark.skipif(
        not (ROOT / ".venv/setup-stamp").exists() or (ROOT / ".venv").is_symlink(),
        reason="this checkout was not set up by scripts/setup",
    )
    def test_takes_seconds_when_nothing_is_to_do(self) -> None:
        assert run(ROOT, "scripts/setup").returncode == 0
        started = time.monotonic()
        done = run(ROOT, "scripts/setup")
        assert time.monotonic() - started < 100
        assert "setup: .venv is up to date" in done.stdout
        assert "is ready" in done.stdout

    @pytest.mark.slow
    @pytest.mark.timeout(1200)
    def test_an_environment_to_evaluate_brings_no_torch_and_can_grow(self, tmp_path: Path) -> None:
        checkout = copy_of_the_project(tmp_path / "checkout")
        done = run(checkout, "scripts/setup", "--for", "eval", "--venv-only")
        assert done.returncode == 0, done.stdout + done.stderr
        python = checkout / ".venv/bin/python"
        heavy = "[name for name in ('torch', 'ray', 'selenium', 'tinker') if importlib.util.find_spec(name)]"
        assert run(checkout, str(python), "-c", f"import importlib.util; print({heavy})").stdout.strip() == "[]"
        assert run(checkout, ".venv/bin/rtl-agent-gym", "problems", "list").returncode == 0
        assert "up to date (for eval)" in run(checkout, "scripts/setup", "--venv-only").stdout
        assert run(checkout, "scripts/setup", "--for", "train", "--venv-only").returncode == 0
        assert run(checkout, str(python), "-c", "import torch, tinker").returncode == 0
        assert "up to date (for train)" in run(checkout, "scripts/setup", "--for", "eval", "--venv-only").stdout

    @pytest.mark.slow
    @pytest.mark.timeout(1200)
    def test_makes_an_environment_that_serves(self, tmp_path: Path) -> None:
        checkout = copy_of_the_project(tmp_path / "checkout")
        done = run(checkout, "scripts/setup", "--venv-only")
        assert done.returncode == 0, done.stdout + done.stderr
        assert run(checkout, ".venv/bin/rtl-agent-gym", "--help").returncode == 0
        assert run(checkout, ".venv/bin/python", "-m", "pip", "check").returncode == 0
        started = time.monotonic()
        assert "up to date" in run(checkout, "scripts/setup", "--venv-only").stdout
        assert time.monotonic() - started < 60
        moved = checkout.rename(tmp_path / "moved")  # its scripts name the old place
        done = run(moved, "scripts/setup", "--venv-only")
        assert done.returncode == 0, done.stdout + done.stderr
        assert run(moved, ".venv/bin/rtl-agent-gym", "--help").returncode == 0

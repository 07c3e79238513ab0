"""Task folders for Harbor, and what their ``test.sh`` makes of files, without Harbor."""

from __future__ import annotations

import ast
import errno
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rtl_agent_gym import problems
from rtl_agent_gym.cli import app
from rtl_agent_gym.episodes.turns import score_numbers
from rtl_agent_gym.errors import HarnessError, SandboxError, UsageError
from rtl_agent_gym.integrations.harbor import collect, grade
from rtl_agent_gym.integrations.harbor.grade import read_collected
from rtl_agent_gym.integrations.harbor.tasks import program_files, task_files, write_task
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.problems.paths import AGENT_FOLDERS
from rtl_agent_gym.problems.rows import problem_row
from rtl_agent_gym.sandboxes import DockerSandboxes
from rtl_agent_gym.sandboxes.image import image_tag
from rtl_agent_gym.scoring import Scorer, submission
from rtl_agent_gym.scoring.harness import Defences, settings_of
from tests.integrations.conformance import gray
from tests.integrations.harbor_container import VerifierImages, run
from tests.parsing import parsed
from tests.scoring.attacks.test_attacks import ATTACKS, _rows
from tests.scoring.attacks.thieves import TARGET, Attack, arbiter, module, shell
from tests.scoring.test_blame import report
from tests.waiting import until

IMAGE = "example/sim:1"
ROWS = Path(problems.__file__).with_name("problems.jsonl")
FIRST_THREAD_ENDS = """
import ctypes, platform, threading, time
threading.Thread(target=lambda: (print(flush=True), time.sleep(60))).start()
time.sleep(0.2)
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)
"""
"""A program that the kernel shows as a zombie while its other thread runs."""
BUNDLED = load_problems("bundled")


class TestFolder:
    def test_it_has_the_parts_of_a_task(self, tmp_path: Path) -> None:
        problem = gray()
        task = write_task(problem, tmp_path, IMAGE)
        settings = tomllib.loads((task / "task.toml").read_text())
        assert settings["schema_version"] == "1.4"
        assert settings["task"]["name"] == f"rtl-agent-gym/{problem.id}"
        assert settings["environment"]["docker_image"] == IMAGE
        assert settings["environment"]["memory_mb"] == settings["verifier"]["environment"]["memory_mb"] == 2048
        assert settings["verifier"]["environment_mode"] == "separate"
        assert settings["agent"]["user"] == collect.AGENT
        assert settings["artifacts"] == [collect.TARGET]
        (hook,) = settings["verifier"]["collect"]
        argument = shlex.split(hook["command"].partition("<<")[0])[-1]
        assert set(json.loads(argument)) == {*problem.targets, *problem.context}
        assert problem.prompt.strip() in (task / "instruction.md").read_text()
        assert (task / "tests" / "Dockerfile").read_text().splitlines()[1] == f"FROM {IMAGE}"
        for script in ("tests/test.sh", "solution/solve.sh"):
            assert os.access(task / script, os.X_OK)
        left = {path.relative_to(task / "environment").as_posix() for path in (task / "environment").rglob("*.*")}
        assert left == problem.context.keys()

    @pytest.mark.parametrize("problem", BUNDLED, ids=lambda problem: problem.id)
    def test_the_agent_gets_no_hidden_file_and_the_tests_no_solution(self, problem: Problem) -> None:
        files = task_files(problem, IMAGE)
        seen = "".join(text for path, text in files.items() if not path.startswith(("tests/", "solution/")))
        graded = "".join(text for path, text in files.items() if path.startswith("tests/"))
        for path, text in problem.harness.items():
            assert text not in seen, path
            assert json.dumps(text) in graded, path
        assert problem.golden
        for path, text in problem.golden.items():
            assert files[f"solution/files/{path}"] == text
            assert json.dumps(text) not in graded, path
        assert json.loads(files["tests/problem.json"])["request"]["settings"] == settings_of(problem, Defences())
        assert not {"Dockerfile", "docker-compose.yaml"} & {Path(path).name for path in files if "environment" in path}

    @pytest.mark.slow
    def test_equal_problems_give_equal_bytes(self, tmp_path: Path) -> None:
        first, second = (write_task(gray().model_copy(), tmp_path / name, IMAGE) for name in "ab")
        contents = [
            {path.relative_to(task).as_posix(): path.read_bytes() for path in task.rglob("*") if path.is_file()}
            for task in (first, second)
        ]
        assert contents[0] == contents[1]
        program = "from tests.integrations.test_harbor_export import *; print(hash_of(gray()))"
        here = Path(__file__).resolve().parents[2]
        env = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(here)}
        done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == hash_of(gray())

    def test_names_that_toml_and_paths_cannot_hold(self, tmp_path: Path) -> None:
        odd = gray().model_copy(update={"id": "a/../b"})
        with pytest.raises(UsageError, match="cannot be a task's name"):
            write_task(odd, tmp_path, IMAGE)
        quoted = tomllib.loads(task_files(gray(), 'a"\\\x7fé')["task.toml"])
        assert quoted["environment"]["docker_image"] == 'a"\\\x7fé'

    def test_what_runs_before_the_hidden_tests_is_refused(self) -> None:
        """A task's own verifier would find no results of it, and fail every bench."""
        program = {"src/trials.py": "print()\n"}
        bench = gray().model_copy(update={"harness": gray().harness | program})
        with pytest.raises(UsageError, match="runs before the hidden tests"):
            task_files(bench, IMAGE)

    def test_a_dockerfile_of_the_row_is_taken_over(self) -> None:
        (problem,) = [problem for problem in BUNDLED if "axil" in problem.id]
        lines = task_files(problem, IMAGE)["tests/Dockerfile"].splitlines()
        assert lines.index("ENV AXIL_CYCLES=1500") < lines.index("COPY . /tests/")
        copies = problem.harness | {"Dockerfile": "FROM __OSS_SIM_IMAGE__\nCOPY src/x /x\n"}
        with pytest.raises(UsageError, match="its Dockerfile has COPY"):
            task_files(problem.model_copy(update={"harness": copies}), IMAGE)


def hash_of(problem: Problem) -> str:
    """A digest of a task's files."""
    import hashlib

    return hashlib.sha256(json.dumps(task_files(problem, IMAGE)).encode()).hexdigest()


class TestCommand:
    def test_it_writes_a_task_for_each_problem(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))  # a tilde is the home folder
        ids = [problem.id for problem in BUNDLED[:2]]
        words = [word for name in ids for word in ("--problem", name)]
        done = CliRunner().invoke(app, ["problems", "export", "bundled", "--out=~/tasks", *words])
        assert done.exit_code == 0, done.output
        folder = tmp_path / "tasks"
        assert done.stdout == f"2 tasks of harbor written to {folder}\n"
        assert sorted(path.name for path in folder.iterdir()) == sorted(ids)
        image = tomllib.loads((folder / ids[0] / "task.toml").read_text())["environment"]["docker_image"]
        assert image == image_tag()

    def test_it_has_a_short_form(self, tmp_path: Path) -> None:
        source = tmp_path / "one.jsonl"
        source.write_text(ROWS.read_text(encoding="utf-8").splitlines()[0] + "\n")
        done = CliRunner().invoke(app, ["export", "harbor", str(source), "--out", str(tmp_path / "out")])
        assert done.exit_code == 0, done.output
        assert [path.name for path in (tmp_path / "out").iterdir()] == [load_problems(source)[0].id]
        done = CliRunner().invoke(app, ["export", "harbor", "bundled"])
        assert str(done.exception) == "expected: rtl-agent-gym export harbor SOURCE --out FOLDER"

    def test_what_is_there_is_not_overwritten(self, tmp_path: Path) -> None:
        (tmp_path / BUNDLED[3].id).mkdir()
        done = CliRunner().invoke(app, ["problems", "export", "bundled", "--out", str(tmp_path)])
        assert isinstance(done.exception, UsageError)
        assert re.fullmatch(rf"--out .*: {BUNDLED[3].id} already exists; [^\n]*", str(done.exception))
        assert len(list(tmp_path.iterdir())) == 1

    def test_a_problem_that_cannot_be_graded_is_named(self, tmp_path: Path) -> None:
        compose = "services:\n  a:\n    image: cadence\n    command: xrun\n"
        source = tmp_path / "rows.jsonl"
        source.write_text(json.dumps(problem_row(gray()) | {"harness": {"docker-compose.yml": compose}}) + "\n")
        done = CliRunner().invoke(app, ["problems", "export", str(source), "--out", str(tmp_path / "out")])
        assert done.exit_code == 1
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"left out: {gray().id}: ")
        assert list((tmp_path / "out").iterdir()) == []


class TestProgram:
    def test_it_is_complete_and_needs_no_package(self, tmp_path: Path) -> None:
        """Run by an isolated interpreter without site-packages, from a folder with nothing else."""
        for path, text in program_files().items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import rtl_agent_gym.integrations.harbor.grade"
        subprocess.run([sys.executable, "-ISBc", program], check=True, timeout=60)
        imported = {
            name.partition(".")[0]
            for text in program_files().values()
            for node in ast.walk(parsed(text))
            if isinstance(node, ast.Import)
            for name in (alias.name for alias in node.names)
        }
        assert imported - {"cocotb", "pytest"} <= sys.stdlib_module_names

    def test_the_collect_hook_has_the_limits_of_a_submission(self) -> None:
        names = ("MAX_FILE", "MAX_TOTAL", "MAX_COUNT", "MAX_FOLDERS", "MAX_DEPTH")
        assert [getattr(collect, name) for name in names] == [getattr(submission, name) for name in names]
        assert collect.FOLDERS == AGENT_FOLDERS

    @pytest.fixture
    def code(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """An agent's folder, with a design; what is collected goes to ``collected``, beside it."""
        code = tmp_path / "code"
        (code / "rtl").mkdir(parents=True)
        (code / "rtl" / "top.sv").write_text("module top; endmodule")
        monkeypatch.setattr(collect, "SOURCE", str(code))
        monkeypatch.setattr(collect, "TARGET", str(tmp_path / "collected"))
        monkeypatch.setattr(collect, "end_processes", lambda user: None)
        return code

    def test_it_collects_regular_files_alone(self, code: Path) -> None:
        (code / "rtl" / "empty.sv").touch()
        (code / "rtl" / "line\nbreak.sv").touch()
        (code / "rtl" / "link.sv").symlink_to("/etc/passwd")
        os.mkfifo(code / "rtl" / "pipe.sv")
        (code / "rtl" / "large.sv").write_bytes(b" " * (collect.MAX_FILE + 1))
        (code / "verif").symlink_to("/etc")
        (code / "rundir").mkdir()
        (code / "rundir" / "sim").touch()
        for _ in range(2):
            collect.main()
            found = read_collected(code.parent / "collected")
            assert found == {"rtl/top.sv": b"module top; endmodule", "rtl/empty.sv": b""}
        assert dict(collect.read_untrusted(str(code))) == found

    def test_large_files_keep_no_small_one_out(self, code: Path) -> None:
        for name in "abcd":
            with (code / "rtl" / f"{name}.vcd").open("wb") as stream:
                stream.truncate(collect.MAX_FILE)
        collect.main()
        assert sorted(read_collected(code.parent / "collected")) == [
            *(f"rtl/{name}.vcd" for name in "abc"),
            "rtl/top.sv",
        ]

    def test_a_path_too_long_to_open_keeps_no_other_out(self, code: Path) -> None:
        folders = [os.open(code / "rtl", os.O_RDONLY)]
        for _ in range(20):
            os.mkdir("f" * 250, dir_fd=folders[-1])
            folders.append(os.open("f" * 250, os.O_RDONLY, dir_fd=folders[-1]))
        for opened in (os.open("x.sv", os.O_CREAT, dir_fd=folders[-1]), *folders):
            os.close(opened)
        collect.main()
        assert list(read_collected(code.parent / "collected")) == ["rtl/top.sv"]

    def test_files_are_counted_alike_by_all_versions_of_python(self, code: Path) -> None:
        odd = "rtl/\u0378.sv"  # not assigned: whether such a character prints depends on the version of Unicode
        (code / odd).write_text("module odd; endmodule")
        collect.main()
        record = json.loads((code.parent / "collected" / collect.RECORD).read_text())
        found = read_collected(code.parent / "collected")
        assert (record["files"], sorted(found)) == (2, ["rtl/top.sv", odd])
        assert submission.sift(gray(), found).ignored == (odd,)

    def test_a_collection_that_failed_leaves_no_record(self, code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "no space")

        monkeypatch.setattr(os, "makedirs", full)
        with pytest.raises(OSError, match="no space"):
            collect.main()
        with pytest.raises(SandboxError, match="were not collected"):
            read_collected(code.parent / "collected")

    def test_files_that_did_not_all_arrive_are_a_machine_fault(self, tmp_path: Path) -> None:
        with pytest.raises(SandboxError, match="were not collected"):
            read_collected(tmp_path)
        (tmp_path / "code" / "rtl").mkdir(parents=True)
        (tmp_path / "code" / "rtl" / "a.sv").write_text("abc")
        for text in ("", "{}", "[]", '{"files": 1}'):
            (tmp_path / collect.RECORD).write_text(text)
            with pytest.raises(SandboxError, match="missing or damaged"):
                read_collected(tmp_path)
        (tmp_path / collect.RECORD).write_text('{"files": 2, "bytes": 3}')
        with pytest.raises(SandboxError, match=r"2 files \(3 bytes\) were collected .* but 1 \(3 bytes\) arrived"):
            read_collected(tmp_path)
        (tmp_path / collect.RECORD).write_text('{"files": 1, "bytes": 3}')
        assert read_collected(tmp_path) == {"rtl/a.sv": b"abc"}

    def test_the_verdict_is_that_of_a_report_without_faults_and_violations(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task = json.loads(task_files(gray(), IMAGE)["tests/problem.json"])
        files = {path: text.encode() for path, text in (gray().golden or {}).items()}
        monkeypatch.setattr(grade, "Problem", lambda **_: gray())
        monkeypatch.setattr(grade, "_place", lambda *_: None)

        def graded(*violations: str, faults: tuple[str, ...] = ()) -> tuple[float, float, float]:
            message = {"kind": "simulator", "violations": violations, "refusals": []}
            service = {"code": 0, "fault": None, "messages": [message]}
            monkeypatch.setattr(grade, "_run", lambda _: report(service=service, lint=None, faults=faults))
            numbers, _ = grade.grade(task, files)
            return numbers["reward"], numbers["tests_share"], numbers["violations"]

        assert graded() == (1.0, 1.0, 0.0)
        assert graded("it opens a hidden file") == (0.0, 0.0, 1.0)
        with pytest.raises(HarnessError, match="a guard fell silent"):
            graded(faults=("a guard fell silent",))

    def test_a_process_that_looks_like_a_zombie_is_ended(self) -> None:
        if os.geteuid() != 0:
            pytest.skip("only root starts processes of other users")
        theirs = subprocess.Popen(["/usr/bin/python3", "-c", FIRST_THREAD_ENDS], user=64322, stdout=subprocess.PIPE)
        assert theirs.stdout is not None
        with theirs.stdout:
            theirs.stdout.readline()
            status = Path(f"/proc/{theirs.pid}/status")
            assert until(lambda: "\nState:\tZ" in status.read_text())
            collect.end_processes(64322)
            assert theirs.stdout.read() == b""  # its other thread is gone, too
        assert theirs.wait(60) == -9

    def test_what_vanishes_or_becomes_a_link_meanwhile_is_left_out(self, code: Path) -> None:
        (code / "rtl" / "deep").mkdir()
        for name in ("deep/secret", "gone.sv"):
            (code / "rtl" / name).write_text("")
        walk = collect.Walk()
        root = os.open(code, os.O_RDONLY)
        walk.visit(root, "rtl", "rtl", 1)
        (code / "rtl" / "gone.sv").unlink()
        shutil.rmtree(code / "rtl" / "deep")
        (code.parent / "secret").write_text("of root")
        (code / "rtl" / "deep").symlink_to(code.parent)
        assert dict(walk.contents(root)) == {"rtl/top.sv": b"module top; endmodule"}
        os.close(root)

    def test_only_the_processes_of_the_user_are_ended(self) -> None:
        if os.geteuid() != 0:
            pytest.skip("only root starts processes of other users")
        # A process may have any bytes for its name, which its status shows.
        renamed = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'x\\xff: \\n'); print(flush=True); time.sleep(60)"
        theirs = subprocess.Popen(["/usr/bin/python3", "-c", renamed], user=64321, stdout=subprocess.PIPE)
        assert theirs.stdout is not None
        theirs.stdout.readline()
        ours = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL)
        try:
            collect.end_processes(64321)
            assert theirs.wait(60) == -9
            assert ours.poll() is None
        finally:
            theirs.stdout.close()
            for process in (theirs, ours):
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def images() -> Iterator[VerifierImages]:
    """The images of tasks' tests."""
    made = VerifierImages()
    yield made
    made.close()


WALLS = shell(
    "test $(id -u) = 1001; ! cat /tests/problem.json; ! ls /tests /logs; ! touch /logs/verifier/reward.json; "
    "! touch /src/x; ! touch /code/src/x; ! mv /code/src /code/gone; ! touch /opt/rtl-agent-gym/guard; ! kill -9 1; "
    "! kill -9 $PPID; (sleep 300; echo 1 > /logs/verifier/reward.txt) & true"
)
"""A harness that passes if the user who runs designs gets nowhere, even with programs of its own."""


HOSTILE = r"""
mkdir -p /code/rtl/deep && echo 'module a; endmodule' > /code/rtl/a.sv && chmod 0 /code/rtl/a.sv
rmdir /code/verif && ln -s / /code/verif && mkfifo /code/rtl/pipe.sv
ln -s /code/rtl /code/rtl/loop && mkdir /collected 2>/dev/null || true
for i in 1 2 3; do (trap '' TERM HUP INT; while :; do sleep 0.1; echo x > /code/docs/x$i; done) > /dev/null 2>&1 & done
until [ -e /code/docs/x1 ] && [ -e /code/docs/x2 ] && [ -e /code/docs/x3 ]; do sleep 0.05; done
disown -a
"""
"""What an agent may try against the collection of its files."""


@pytest.mark.docker
@pytest.mark.daemon
def test_a_hostile_agent_does_not_stop_the_collection(images: VerifierImages) -> None:
    settings = tomllib.loads(task_files(gray(), image_tag())["task.toml"])
    (hook,) = settings["verifier"]["collect"]
    container = images.client.containers.run(image_tag(), ["sleep", "infinity"], detach=True)
    try:
        ready = settings["environment"]["healthcheck"]["command"]
        assert container.exec_run(["bash", "-c", ready], user="root").exit_code == 0
        done = container.exec_run(["bash", "-c", HOSTILE], user=str(settings["agent"]["user"]))
        assert done.exit_code == 0, done.output
        for _ in range(2):
            collected = container.exec_run(["bash", "-c", hook["command"]], user=hook["user"])
            assert collected.exit_code == 0, collected.output
        left = container.exec_run(["sh", "-c", "cd /collected && find code -type f | sort; cat complete.json"]).output
        assert isinstance(left, bytes)
        *files, record = left.decode().splitlines()
        assert files == ["code/docs/x1", "code/docs/x2", "code/docs/x3", "code/rtl/a.sv"]
        assert json.loads(record)["files"] == 4
        running = container.exec_run(
            ["sh", "-c", "grep -lE '^Uid:.1000' /proc/[0-9]*/status | xargs grep -L 'State:.Z'"]
        )
        assert running.output == b""
        assert container.exec_run(["touch", "/collected/x"], user="1000").exit_code == 1
    finally:
        container.remove(force=True)


ATTACK_ROWS = _rows(ATTACKS, quick=lambda number: number == 0)
"""All attacks; one of each class is quick."""


@pytest.mark.docker
@pytest.mark.daemon  # a task's tests run in a container of an image of their own
class TestScript:
    @pytest.mark.slow  # each problem's image has to be built first
    @pytest.mark.parametrize("problem", BUNDLED, ids=lambda problem: problem.id)
    async def test_the_solution_earns_all_and_untouched_files_what_the_scorer_says(
        self, problem: Problem, images: VerifierImages, provider: DockerSandboxes
    ) -> None:
        assert problem.golden
        async with Scorer(provider) as scorer:
            score = await scorer.score(problem, {**problem.context})
        solved, untouched = images.grade(problem, problem.golden), images.grade(problem, problem.context)
        assert solved.rewards is not None, solved.output
        assert untouched.rewards is not None, untouched.output
        assert (solved.code, solved.rewards["reward"], solved.rewards["tests_share"]) == (0, 1.0, 1.0), solved.output
        assert (untouched.code, untouched.rewards["reward"]) == (0, float(score.passed)), untouched.output
        assert untouched.rewards["tests_share"] == score_numbers(score)["tests_share"]
        if "alu" in problem.id:  # some of its tests pass untouched
            assert 0 < score.tests_passed < score.tests_total
            assert untouched.rewards["compile"] == score.compile

    @pytest.mark.slow
    def test_the_user_of_a_design_reaches_nothing_of_roots(self, images: VerifierImages) -> None:
        problem = arbiter().model_copy(update={"harness": {**arbiter().harness, **WALLS}})
        verdict = images.grade(problem, {TARGET: module("")})
        assert verdict.rewards is not None, verdict.output
        assert verdict.rewards["reward"] == 1.0, verdict.output

    @pytest.mark.slow
    def test_lost_files_leave_no_reward(self, images: VerifierImages) -> None:
        problem = gray()
        verdict = images.grade(problem, problem.golden or {}, collected=False)
        assert (verdict.code, verdict.rewards) == (3, None)
        assert verdict.output.startswith("no verdict, since the machine failed: the agent's files were not collected")

    @pytest.mark.slow
    def test_a_supervisor_that_ends_leaves_no_reward(self, images: VerifierImages) -> None:
        """Also in place of a reward that is there already."""
        with images.container(gray()) as container:
            container.exec_run(["rm", "/opt/rtl-agent-gym/grader/rtl_gym_grader/supervisor.py"])
            container.exec_run(
                ["sh", "-c", 'mkdir -p /collected/code; echo \'{"files": 0, "bytes": 0}\' > /collected/complete.json']
            )
            verdict = run(container)
        assert (verdict.code, verdict.rewards) == (3, None), verdict.output

    @pytest.mark.sampled(10)
    @pytest.mark.parametrize("attack", ATTACK_ROWS)
    def test_an_attack_earns_nothing(self, attack: Attack, images: VerifierImages) -> None:
        arrives = {path: text for path, text in attack.files.items() if path.split("/")[0] in AGENT_FOLDERS}
        for _ in range(3):  # as the scorer does: beside other tests, an endless loop may get too little processor time
            verdict = images.grade(attack.problem, arrives, seconds=attack.seconds)
            if "the host had no processor for it" not in verdict.output:
                break
        assert verdict.rewards is not None, verdict.output
        assert verdict.rewards["reward"] == 0.0
        reported = attack.said is not None and arrives == attack.files
        assert (verdict.rewards["violations"] > 0) == reported, verdict.output

    @pytest.mark.slow
    def test_a_theft_works_without_its_wall(self, images: VerifierImages) -> None:
        (attack,) = [attack for attack in ATTACKS if attack.name == "final block"]
        verdict = images.grade(attack.problem, attack.files, settings=vars(attack.undefended))
        assert verdict.rewards is not None
        assert verdict.rewards["reward"] == 1.0, verdict.output


def test_every_class_of_attack_has_a_quick_row() -> None:
    marks = [*TestScript.pytestmark, *TestScript.test_an_attack_earns_nothing.pytestmark]  # type: ignore[attr-defined]
    assert "slow" not in {mark.name for mark in marks}
    quick = {row.values[0].threat for row in ATTACK_ROWS if not row.marks}  # type: ignore[attr-defined]
    assert quick == {attack.threat for attack in ATTACKS}

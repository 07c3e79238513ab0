"""The program as a whole: how it starts, where it writes, how it ends."""

from __future__ import annotations

import gzip
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from rtl_agent_gym import __version__
from rtl_agent_gym.cli import commands, main
from rtl_agent_gym.cli.score import read_folder
from rtl_agent_gym.errors import (
    DaemonError,
    ModelError,
    ProblemError,
    RTLGymError,
    SandboxLost,
    TranscriptError,
    UsageError,
    most_telling,
)
from rtl_agent_gym.problems import load_problems
from rtl_agent_gym.starting import is_command_line
from tests.arbiter import ARBITER
from tests.conftest import ROOT

from ..evaluation.recording import final_turn, record, score

COMMAND = [sys.executable, "-m", "rtl_agent_gym"]


def call(*arguments: str | Path, program: list[str] = COMMAND, **options: object) -> subprocess.CompletedProcess[str]:
    settings: dict[str, object] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
    return subprocess.run([*program, *map(str, arguments)], timeout=100, **{**settings, **options})  # type: ignore[call-overload]


def ended(*arguments: str | Path) -> object:
    """The exit code of the program, run in this process."""
    with pytest.raises(SystemExit) as stop:
        main([*map(str, arguments)])
    return stop.value.code


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder with one episode that passed."""
    folder = tmp_path / "run"
    record(folder / "transcripts", [final_turn(1, "done")], graded=score(True))
    return folder


@pytest.mark.parametrize(
    "options", [["-mrtl_agent_gym"], ["-Bm", "rtl_agent_gym"], ["-Wd", "-Xutf8", "-Bmrtl_agent_gym"]]
)
def test_python_finds_the_program_however_its_option_is_written(options: list[str]) -> None:
    done = call("--version", program=[sys.executable, *options])
    assert (done.returncode, done.stdout, done.stderr) == (0, f"rtl-agent-gym {__version__}\n", "")


@pytest.mark.parametrize(
    "options", [["-m", "tests"], ["-W", "error::ImportWarning:m", "-mtests"], ["-X", "m", "-Bm", "tests"]]
)
def test_another_program_is_not_the_command_line(options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["-m"])
    monkeypatch.setattr(sys, "orig_argv", ["python", *options, "-m", "rtl_agent_gym"])
    assert not is_command_line()


def test_it_is_the_command_line_before_and_after_python_has_found_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", [*COMMAND, "train"])
    for program, expected in {"-m": True, f"{ROOT}/rtl_agent_gym/__main__.py": True, "train": False}.items():
        monkeypatch.setattr(sys, "argv", [program, "train"])
        assert is_command_line() == expected
    file = "other/__main__.py"
    monkeypatch.setattr(sys, "argv", [file])
    monkeypatch.setattr(sys, "orig_argv", ["python", file, "-m", "rtl_agent_gym"])
    assert not is_command_line()


@pytest.mark.parametrize(("module", "arguments"), [("gymnasium", ["--version"]), ("docker", ["doctor"])])
def test_ctrl_c_while_importing_is_quiet(tmp_path: Path, module: str, arguments: list[str]) -> None:
    slow = tmp_path / module / "__init__.py"
    slow.parent.mkdir()
    slow.write_text("import sys, time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    child = subprocess.Popen(
        [*COMMAND, *arguments],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "importing\n"
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=60)
    finally:
        child.kill()
    assert (child.returncode, said) == (130, "")


AT_AN_IMPORT = """
import os, signal, sys

before = None

def interrupt(event, arguments):
    global before
    if event != "import":
        return
    if arguments[0] == "rtl_agent_gym":
        before = int(os.environ["BEFORE"])
    elif before is not None and arguments[0] != "rtl_agent_gym.starting":
        before -= 1
        if before == 0:
            os.kill(os.getpid(), signal.SIGINT)

sys.addaudithook(interrupt)
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(COMMAND, id="-m"),
        pytest.param([str(Path(sys.executable).with_name("rtl-agent-gym"))], id="script", marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_at_any_import_is_quiet(tmp_path: Path, program: list[str]) -> None:
    (tmp_path / "sitecustomize.py").write_text(AT_AN_IMPORT)
    before, codes = 1, []
    while 0 not in codes:  # until it has so few imports that it ends by itself
        settings = os.environ | {"PYTHONPATH": str(tmp_path), "BEFORE": str(before)}
        done = call("problems", "list", env=settings, program=program)
        assert done.stderr == ""
        codes.append(done.returncode)
        before *= 4
    assert codes == [130] * (len(codes) - 1) + [0]
    assert len(codes) > 4


def test_only_the_command_asked_for_is_imported() -> None:
    text = "import sys; from rtl_agent_gym.cli import commands; commands.make_app(['--version']); print(*sys.modules)"
    done = call(text, program=[sys.executable, "-c"])
    assert done.returncode == 0, done.stderr
    assert not {"docker", "rtl_agent_gym.sandboxes", "rtl_agent_gym.training"} & set(done.stdout.split())
    assert commands.needed(["view", "x"]) == ["view"]


def test_a_mistyped_command_is_corrected(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("exprt") == 2
    assert "export" in capsys.readouterr().err


def test_help_shows_how_a_revision_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")  # or a line could end within it
    assert ended("score", "--help") == 0
    assert "owner/name@revision:file" in capsys.readouterr().out


def test_only_the_terminals_width_breaks_a_paragraph_of_the_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    for command in (("score",), ("image", "build")):
        assert ended(*command, "--help") == 0
        text = capsys.readouterr().out.partition("╭")[0]
        paragraphs = [line for line in text.splitlines() if line.strip() and "Usage" not in line]
        assert all(line.rstrip().endswith(".") for line in paragraphs), text


def test_help_of_train_lists_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("train", "--help") == 0
    said = capsys.readouterr().out
    assert "Train a model on problems" in said
    assert said.index("--json") < said.index("\n  kl_penalty_coef=0.7\n      Weight of the KL to the teacher")
    assert ended("train", "sft", "--options") == 0
    supervised = capsys.readouterr().out
    assert "  epochs=1\n" in supervised
    assert "teacher_model=" not in supervised
    assert ended("train", "distill", "--options") == 0
    assert "  kl_penalty_coef=0.7\n" in capsys.readouterr().out


# ---- outputs that cannot be written


@pytest.mark.parametrize("arguments", [["problems", "list"], ["export", "RUN"]])
def test_a_full_disk_behind_stdout(run: Path, arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = call(*(run if word == "RUN" else word for word in arguments), stdout=full)
    assert (done.returncode, done.stderr) == (3, "error: the output cannot be written: No space left on device\n")


def test_a_reader_that_has_read_enough(run: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as pipe:
        done = call("export", run, stdout=pipe)
    assert done.stderr in ("", "1 line of sft\n")
    assert done.returncode == 1


@pytest.fixture
def unread() -> Iterator[dict[str, Any]]:
    """Options of a process whose messages nobody reads any more, buffered as usual."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as pipe:
        yield {"stderr": pipe, "env": {name: os.environ[name] for name in os.environ if name != "PYTHONUNBUFFERED"}}


TRAINED = """
import pathlib, sys
from rtl_agent_gym.training import launch
def train(*_, **__):
    if sys.argv[1] == "3":
        raise launch.ServiceError("no answer")
    return launch.Outcome(pathlib.Path(), 1, [])
launch.train = train
sys.exit(launch.main([], closing=lambda run: ["done"]))
"""


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_of_a_training_is_not_that_of_its_messages(code: int, unread: dict[str, Any]) -> None:
    """Python exits with 120 if it cannot write its buffers in the end."""
    assert call(str(code), program=[sys.executable, "-c", TRAINED], **unread).returncode == code


def test_nor_is_that_of_an_export(run: Path, tmp_path: Path, unread: dict[str, Any]) -> None:
    assert call("export", run, "--out", tmp_path / "out.jsonl", **unread).returncode == 0
    assert (tmp_path / "out.jsonl").read_text()


@pytest.mark.parametrize("command", ["view", "export", "report"])
@pytest.mark.parametrize("place", ["/proc/nobody/x", "FILE/x", "FOLDER", "/dev/full"])
def test_places_that_cannot_be_written(
    run: Path, tmp_path: Path, command: str, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("here already")
    (tmp_path / "folder.html").mkdir()
    out = place.replace("FILE", str(tmp_path / "file")).replace("FOLDER", str(tmp_path / "folder.html"))
    full = place == "/dev/full" and command != "report"
    assert ended(command, run, "--out", out) == (3 if full else 2)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: ")
    assert "cannot be written: " in last
    assert out in last


@pytest.mark.parametrize("command", ["view", "export", "report"])
def test_an_output_may_begin_with_the_home_folder(
    run: Path, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ended(command, run, "--out=~/page.html") == 0
    assert (tmp_path / "page.html").is_file()
    assert not list((tmp_path / "here").iterdir())


@pytest.mark.parametrize("command", ["view", "export"])
def test_an_output_never_takes_the_place_of_a_transcript(
    run: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = (run / "transcripts").iterdir()
    before = path.read_bytes()
    assert ended(command, run, "--out", path) == 2
    assert "is one of the transcripts" in capsys.readouterr().err
    assert path.read_bytes() == before


@pytest.mark.slow
def test_closed_standard_streams() -> None:
    words = " ".join(COMMAND)
    for end, code in (("problems list <&- >&- 2>&-", 0), ("view none >&- 2>&-", 2)):
        assert subprocess.run(["bash", "-c", f"{words} {end}"], cwd=ROOT, timeout=60).returncode == code


@pytest.mark.slow
@pytest.mark.skipif(find_spec("openenv") is not None, reason="OpenEnv is installed")
def test_serve_says_what_is_missing() -> None:
    done = call("serve")
    assert done.returncode == 2
    assert "pip install 'rtl-agent-gym[openenv]'" in done.stderr


@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}])
def test_a_terminal_without_unicode(run: Path, locale: dict[str, str]) -> None:
    settings = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "COLUMNS": "20"}
    done = call("view", run, "--text", env=os.environ | locale | settings, errors="replace")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_name_that_is_no_utf_8() -> None:
    done = subprocess.run([*COMMAND, "view", b"/tmp/\xff\xfe\x1b[31m"], capture_output=True, cwd=ROOT, timeout=60)
    assert done.returncode == 2
    assert done.stderr.decode().startswith("error: /tmp/⟨U+DCFF⟩⟨U+DCFE⟩⟨U+001B⟩[31m: no such file")


# ---- what nobody would give, and people do


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, and the current one, with files of every wrong kind."""
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "binary.jsonl").write_bytes(bytes(range(256)) * 4)
    (tmp_path / "problems.jsonl").write_text('{"id": "x", "prompt": "y"}\n')
    (tmp_path / "deep.jsonl").write_text("[" * 100_000 + "\n")
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(random.Random(1).randbytes(1000))[:500])
    for name in ("odd/a.jsonl", "odd/b.jsonl", "unreadable/results.jsonl", "unreadable/config.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"\xff\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "diverged").mkdir()
    rows = ['{"step": "x", "pass_rate": 1}', '{"step": 1e400, "pass_rate": 1e308}', '{"step": 2, "pass_rate": NaN}']
    (tmp_path / "diverged" / "metrics.jsonl").write_text("\n".join([*rows, "[" * 100_000, ""]))
    (tmp_path / "diverged" / "config.json").write_text("[" * 100_000)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent")
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    return tmp_path


LONG = "x" * 300


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["view", "none"], 2, "no such file or folder"),
        (["view", "/dev/null"], 2, "neither a file nor a folder"),
        (["view", LONG], 2, "File name too long"),
        (["view", "folder"], 2, "contains no transcript"),
        (["view", "diverged"], 2, "contains no transcript"),
        (["view", "problems.jsonl", "--text"], 2, "is it a file of problems?"),
        (["view", "binary.jsonl", "--text"], 2, "the first line is not a JSON object"),
        (["view", "binary.jsonl"], 2, "the first line is not a JSON object"),
        (["view", "binary.jsonl", "--out", "page.html"], 2, "the first line is not a JSON object"),
        (["view", "odd"], 2, "; nor can the other 1 be read"),
        (["export", LONG], 2, "File name too long"),
        (["export", "empty.jsonl"], 2, "no complete line"),
        (["export", "odd"], 2, "; nor can the other 1 be read"),
        (["report", "empty.jsonl"], 2, "is a file; a report is made of the folders of runs"),
        (["report", "folder"], 2, "folder is not a run: it has no metrics.jsonl"),
        (["report", "unreadable"], 2, "results.jsonl:1: not a result of an evaluation"),
        (["report", "diverged"], 0, "full_report.html"),
        (["replay", "none"], 2, "no such file"),
        (["replay", "deep.jsonl"], 2, "not a transcript"),
        (["replay", "binary.jsonl"], 2, "not a transcript"),
        (["replay", "folder"], 2, "not a regular file"),
        (["run", "--policy", "scripted binary.jsonl", "--problem", ARBITER], 2, "not a transcript"),
        (["eval", "--policy", "golden", "--out", "unreadable"], 2, "unreadable"),
        (["problems", "list", "--problems", LONG], 2, "unknown source of problems"),
        (["problems", "show", ARBITER, "--problems", "binary.jsonl"], 2, "binary.jsonl:1: not JSON"),
        (["problems", "show", ARBITER, "--problems", "cut.jsonl.gz"], 2, "cut.jsonl.gz"),
        (["problems", "validate", "--problems", "binary.jsonl"], 2, "binary.jsonl:1: not JSON"),
        (["problems", "validate", "--problems", "empty.jsonl"], 2, "contains no problem"),
        (["score"], 2, "choose what to grade"),
        (["score", "--candidates", "empty.jsonl"], 2, "contains no candidate"),
        (["score", "--candidates", "folder"], 2, "cannot be read (Is a directory)"),
        (["score", "--candidates", "deep.jsonl"], 2, "nested deeper than 100 levels"),
        (["score", "--problem", ARBITER, "--files", "none"], 2, "there is no such folder"),
        (["score", "--problem", ARBITER, "--files", ""], 2, "'--files': the path is empty"),
        (["score", "--problem", ARBITER, "--files="], 2, "'--files': the path is empty"),
        (["eval", "--policy", "golden", "--out", ""], 2, "'--out': the path is empty"),
        (["run", "--policy", "golden", "--transcript-dir", ""], 2, "'--transcript-dir': the path is empty"),
        (["problems", "export", "bundled", "--out", ""], 2, "'--out': the path is empty"),
        (["score", "--problem", ARBITER, "--files", "folder", "--timeout", "inf"], 2, "--timeout"),
        (["score", "--problem", ARBITER, "--files", "folder", "--timeout", "nan"], 2, "--timeout"),
        (["score", "--problem", ARBITER, "--files", "folder", "--timeout", "1e300"], 2, "--timeout"),
        (["image", "show", "--sandbox", "docker"], 3, "/nonexistent does not exist"),
        (["train", "rl", "--json", "--dry-run"], 2, "--json is for a run that trains"),
        (["train", "sft", "--json", "--options"], 2, "--json is for a run that trains"),
        (["train", "distill", "timeout_seconds=inf"], 2, "timeout_seconds must be "),
        (["train", "distill", "timeout_seconds=1e300"], 2, "timeout_seconds must be "),
        (["train", "distill", "learning_rate=inf"], 2, "learning_rate must be "),
        (["train", "distill", "teachers=" + "[" * 50_000], 2, "nested deeper"),
        (["train", "distill", "system_prompt=@a\0b"], 2, "system_prompt: "),
        (["train", "distill", "log_path=a\0b"], 2, "log_path: "),
        (["train", "distill", "log_path=empty.jsonl"], 2, "log_path: empty.jsonl cannot be used as a folder"),
    ],
    ids=lambda value: " ".join(value)[:60].replace("\0", "NUL") if isinstance(value, list) else None,
)
def test_what_is_wrong_is_said(
    odd: Path, arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(*arguments) == code
    said = capsys.readouterr()
    assert words in " ".join(said.err.split())
    assert said.out.strip() == "" or code == 0
    assert code == 0 or "Usage: " in said.err or len(said.err.splitlines()) == 1


@pytest.mark.parametrize("address", ["http://[::1", "tcp://256.1.1.1:99999999", "garbage", "unix://"])
def test_a_docker_host_that_is_none(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", address)
    monkeypatch.setenv("RTL_GYM_SANDBOX", "docker")
    assert ended("image", "show") == 3
    assert capsys.readouterr().err.startswith("error: ")


def test_a_narrow_terminal_loses_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent")
    monkeypatch.setenv("RTL_GYM_SANDBOX", "docker")
    assert ended("doctor") == 3
    said = capsys.readouterr().out
    assert "…" not in said
    assert {"Docker", "daemon", "missing"} <= set(said.split())


def test_unreadable_files_of_a_work_folder_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problem = load_problems("bundled")[0]
    with pytest.raises(UsageError, match="/proc/self/cmdline/x: there is no such folder"):
        list(read_folder(Path("/proc/self/cmdline/x"), problem))
    (tmp_path / "rtl").mkdir()
    (tmp_path / "rtl" / "gone.sv").symlink_to("/nowhere")
    (tmp_path / "rtl" / "a.sv").write_text("module a; endmodule\n")
    (tmp_path / "other.bin").write_bytes(b"x" * 1000)
    assert dict(read_folder(tmp_path, problem)) == {"rtl/a.sv": b"module a; endmodule\n", "other.bin": b""}
    (tmp_path / "rtl" / "mem").symlink_to("/proc/self")  # links are never followed
    assert len(dict(read_folder(tmp_path, problem))) == 2


# ---- errors, alone and in groups


def test_an_error_that_is_raised_again_as_its_class_keeps_its_message() -> None:
    """As Gymnasium's vector environments do."""
    for error in (ProblemError("wrong", source="rows.jsonl", line=3), UsageError("wrong"), DaemonError("wrong")):
        assert str(type(error)(error)) == str(error)  # type: ignore[arg-type]


LOST, GONE = SandboxLost("the container is gone"), DaemonError("no daemon answers")


@pytest.mark.parametrize(
    ("error", "expected", "code"),
    [
        (LOST, LOST, 3),
        (ExceptionGroup("several", [LOST, GONE]), GONE, 3),
        (ExceptionGroup("outer", [LOST, ExceptionGroup("inner", [usage := ProblemError("wrong row")])]), usage, 2),
        (ExceptionGroup("a", [broken := TranscriptError("cut"), GONE]), GONE, 3),
        (ExceptionGroup("a", [broken]), broken, 2),
        (ExceptionGroup("a", [model := ModelError("503"), LOST]), model, 3),
    ],
)
def test_the_most_telling_error_of_a_group(
    error: Exception, expected: RTLGymError, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert most_telling(error) is expected
    assert commands.run_to_exit_code(Mock(side_effect=error), []) == code
    assert capsys.readouterr().err == f"error: {expected}\n"


@pytest.mark.parametrize("error", [KeyError("x"), ExceptionGroup("a", [UsageError("u"), KeyError("x")])])
def test_what_is_unknown_keeps_its_traceback(error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        commands.run_to_exit_code(Mock(side_effect=error), [])
    assert raised.value is error


def test_ctrl_c_in_a_group_is_ctrl_c() -> None:
    group = BaseExceptionGroup("a", [LOST, KeyboardInterrupt()])
    assert commands.run_to_exit_code(Mock(side_effect=group), []) == 130

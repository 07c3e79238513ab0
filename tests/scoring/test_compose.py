from __future__ import annotations

from pathlib import Path

import pytest

from rtl_agent_gym.errors import ProblemError
from rtl_agent_gym.problems import load_problems, validate_problem
from rtl_agent_gym.problems.compose import instructions, read_env_file
from rtl_agent_gym.scoring.compose import Service, needs_build, read_services
from rtl_agent_gym.scoring.harness import service_request, source_paths, top_modules

from .conftest import COMPOSE, ROWS, make_problem


def service_of(text: str, **harness: str) -> Service:
    (service,) = read_services(make_problem(harness={"docker-compose.yml": text, **harness}))
    return service


def test_the_usual_form() -> None:
    service = service_of(COMPOSE)
    assert service.argv == (
        "pytest", "-s", "-o", "cache_dir=/code/rundir/.cache", "/src/test_runner.py", "-v",
    )  # fmt: skip
    assert service.cwd == "/code/rundir"
    assert service.env["VERILOG_SOURCES"] == "/code/rtl/adder.sv"
    assert service.env["SIM"] == "icarus"
    assert service.dockerfile is None


@pytest.mark.parametrize(
    ("command", "argv"),
    [
        ("pytest /src/a.py", ("pytest", "/src/a.py")),
        ('["pytest", "/src/a b.py"]', ("pytest", "/src/a b.py")),
        ("/bin/sh -c \"pytest -s '/src/a.py' && true\"", ("/bin/sh", "-c", "pytest -s '/src/a.py' && true")),
        ('/bin/sh -c "echo $$HOME"', ("/bin/sh", "-c", "echo $HOME")),
        ('/bin/sh -c "echo ${NOBODY:-me}$NOTHING"', ("/bin/sh", "-c", "echo me")),
    ],
)
def test_commands(command: str, argv: tuple[str, ...]) -> None:
    service = service_of(f"services:\n  a:\n    image: __OSS_SIM_IMAGE__\n    command: {command}\n")
    assert service.argv == argv


def test_an_entrypoint_comes_before_the_command() -> None:
    text = "services:\n  a:\n    image: __OSS_SIM_IMAGE__\n    entrypoint: /bin/sh -c\n    command: ['exit 0']\n"
    assert service_of(text).argv == ("/bin/sh", "-c", "exit 0")


def test_a_service_chooses_neither_its_working_folder_nor_its_home() -> None:
    service = service_of(COMPOSE.replace("/code/rundir\n", "/src\n    environment : {HOME: /root}\n"))
    assert (service.cwd, service.env["HOME"]) == ("/code/rundir", "/root")
    assert service_request(service, make_problem())["env"]["HOME"] == "/code/rundir"


@pytest.mark.parametrize("volume", ["./:/code", "../rtl:/code/rtl", "/:/code/host", "./src:/code/src:ro"])
def test_a_volume_at_the_work_folder_is_ignored(volume: str) -> None:
    assert service_of(COMPOSE.replace("./src/:/src/:ro", volume)) == service_of(COMPOSE)


def test_a_hidden_file_that_no_service_would_find_is_refused() -> None:
    bench = {"verif/tb.sv": ""}
    with pytest.raises(ProblemError, match=r"harness\.verif/tb\.sv: a hidden file that is not in src/"):
        service_of(COMPOSE, **bench)
    built = COMPOSE.replace("image: __OSS_SIM_IMAGE__", "build: .")
    assert service_of(built, Dockerfile="FROM __OSS_SIM_IMAGE__\nCOPY verif /verif\n", **bench).dockerfile


def test_env_files_are_read_as_compose_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "leaked")
    text = (
        "A   = one two  \n# a comment\nB=x # not this\nC = \"q $A\"\nD = '$A'\nE = ${A}!\nF = $SECRET_OF_THE_HOST\n"
        "NOTHING\nG =\nexport H = 1\n"
    )
    assert read_env_file(text) == {
        "A": "one two", "B": "x", "C": "q one two", "D": "$A", "E": "one two!", "F": "", "G": "", "H": "1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "unset", "empty", "full"),
    [("${A-w}", "w", "", "v"), ("${A:-w}", "w", "w", "v"), ("${A+w}", "", "w", "w"), ("${A:+w}", "", "", "w")],
)
def test_only_a_colon_makes_an_empty_variable_an_unset_one(text: str, unset: str, empty: str, full: str) -> None:
    found = [read_env_file(f"{given}B={text}\n")["B"] for given in ("", "A=\n", "A=v\n")]
    assert found == [unset, empty, full]


def test_several_env_files_and_environment_go_over_each_other_in_order() -> None:
    text = (
        "services:\n  a:\n    image: __OSS_SIM_IMAGE__\n    command: 'true'\n    env_file: [./src/.env, src/more]\n"
        "    environment:\n      - LAST=1\n      - TOPLEVEL=z\n"
    )
    env = service_of(text, **{"src/more": "TOPLEVEL = y\nMORE = 2\n"}).env
    assert (env["TOPLEVEL"], env["MORE"], env["LAST"], env["SIM"]) == ("z", "2", "1", "icarus")


IMAGE = "image: __OSS_SIM_IMAGE__"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["image: debian", "command: x"], "expected the simulation image"),
        ([IMAGE], "expected a command"),
        ([IMAGE, "command: x", "privileged: true"], "'privileged'"),
        ([IMAGE, "command: x", "volumes: ['/:/host']"], "volume /:/host"),
        ([IMAGE, "command: x", "env_file: ./src/none"], "src/none"),
        (["build: .", "command: x"], "'Dockerfile'"),
        ([IMAGE, 'command: "x \'y"'], "split into words"),
        ([IMAGE, "command: x", "on: a", "foo: b"], "'a': the key True is not supported"),
        ([IMAGE, "command: x", "volumes: true"], "'a' is a boolean; expected a list"),
        ([IMAGE, "command: x", "volumes: 5"], "'a' is a number; expected a list"),
    ],
)
def test_what_cannot_be_run_is_a_problem_error_that_names_the_service(lines: list[str], said: str) -> None:
    with pytest.raises(ProblemError, match="service 'a'") as caught:
        service_of("\n    ".join(["services:\n  a:", *lines]))
    assert said in str(caught.value)
    assert "harness.docker-compose.yml" in str(caught.value)


def test_a_nul_character_in_an_env_file_is_the_problems_fault() -> None:
    text = "services:\n  a:\n    image: __OSS_SIM_IMAGE__\n    command: x\n    env_file: src/more\n"
    with pytest.raises(ProblemError, match="service 'a' names the env_file src/more, which contains a NUL character"):
        service_of(text, **{"src/more": "A = b\0\n"})


TENFOLD = "x0: &x0 [1234567890]\n" + "".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 10)}]\n" for n in range(1, 6))
MERGED = "x0: &x0 {a: b}\n" + "".join(f"x{n}: &x{n} {{<<: [{', '.join([f'*x{n - 1}'] * 10)}]}}\n" for n in range(1, 6))


@pytest.mark.parametrize("aliases", [TENFOLD, MERGED + "y: [*x5, *x5, *x5]\n", "x: &x [1, *x]\n"])
def test_aliases_of_aliases_are_refused_before_they_fill_the_memory(aliases: str) -> None:
    with pytest.raises(ProblemError, match="with its aliases replaced, the file has more than 1,048,576 characters"):
        service_of(f"{aliases}services:\n  a:\n    image: __OSS_SIM_IMAGE__\n    command: x\n")


def test_aliases_are_replaced() -> None:
    text = "x: &x {image: __OSS_SIM_IMAGE__, environment: {A: &b b, B: *b}}\nservices:\n  a: {<<: *x, command: x}\n"
    assert service_of(text).env == {"A": "b", "B": "b"}


@pytest.mark.parametrize(
    "text",
    [
        "A0=1234567890\n" + "".join(f"A{n}={f'${{A{n - 1}}}' * 10}\n" for n in range(1, 6)),
        f"A={'x' * 1000}\nB={'$A' * 2000}\n",
    ],
)
def test_an_env_file_that_repeats_itself_is_refused_before_it_fills_the_memory(text: str) -> None:
    with pytest.raises(ProblemError, match=r"the variables of an env_file have more than 1,048,576 characters"):
        read_env_file(text)
    lines = f"services:\n  a:\n    {IMAGE}\n    command: x\n    env_file: src/more\n"
    found = validate_problem(make_problem(harness={"docker-compose.yml": lines, "src/more": text}))
    assert [
        finding for finding in found if finding.startswith("harness.docker-compose.yml: the variables of an env_file")
    ]


def test_an_unscorable_problem_says_why() -> None:
    with pytest.raises(ProblemError, match="a commercial simulator"):
        read_services(make_problem(unscorable="it needs a commercial simulator"))


def test_every_row_of_the_benchmark_can_be_run_without_an_image_of_its_own(cvdp_data: Path) -> None:
    problems = load_problems(cvdp_data / ROWS)
    files = [problem.harness["Dockerfile"] for problem in problems if "Dockerfile" in problem.harness]
    assert len(files) == 24
    assert not any(map(needs_build, files))
    services = {problem.id: read_services(problem) for problem in problems}
    assert sum(map(len, services.values())) == 97
    assert sorted(map(len, services.values()))[-3:] == [2, 3, 3]
    for several in services.values():
        assert source_paths(several)
        assert top_modules(several)
        assert all(service.env["PYTHONPATH"] == "/src" for service in several)


@pytest.mark.parametrize(
    ("text", "built"),
    [
        ("FROM __OSS_SIM_IMAGE__\n", False),
        ("from hdlc/sim:osvb\n# RUN make\nRUN pip3 install cocotb_bus", False),
        ("FROM __OSS_SIM_IMAGE__\nRUN pip install --no-cache-dir cocotb-bus \\\n  scapy cocotb==2.0.1", False),
        ("FROM __OSS_SIM_IMAGE__\nRUN pip install cocotb==1.9.2", True),
        ("FROM __OSS_SIM_IMAGE__\nRUN pip install cocotb_bus && rm -rf /", True),
        ("FROM __OSS_SIM_IMAGE__\nRUN pip install numpy", True),
        ("FROM __OSS_SIM_IMAGE__\nENV A=1", True),
        ("FROM debian\n", True),
    ],
)
def test_only_a_dockerfile_that_does_something_is_built(text: str, built: bool) -> None:
    assert needs_build(text) is built


def test_instructions_know_comments_and_continuations() -> None:
    assert instructions("# x\nFROM a\n\nRUN b \\\n  # y\n  c\n") == [("FROM", "a"), ("RUN", "b    c")]

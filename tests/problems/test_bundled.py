"""The problems that the package brings: complete, in step with their folders, and sound as far as a compiler can tell.

That each golden solution passes its hidden tests and each wrong design fails them is tested where scoring is.
"""

from __future__ import annotations

import io
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from dotenv import dotenv_values

from data import bundled
from data.bundled import BUNDLED_DIR, solution, wrong_designs
from rtl_agent_gym.errors import ProblemError, UsageError
from rtl_agent_gym.problems import Problem, load_problems, validate_problem
from rtl_agent_gym.problems.loading import BUNDLED_PROBLEMS
from rtl_agent_gym.sandboxes import DockerSandbox
from scripts import build_bundled as builder

PROBLEMS = {problem.id: problem for problem in load_problems("bundled")}

each_problem = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=[name[20:-5] for name in PROBLEMS])


def folder_of(problem: Problem) -> Path:
    return BUNDLED_DIR / problem.id.removeprefix("cvdp_agentic_rtlgym_").removesuffix("_0001")


def design_files(folder: Path) -> dict[str, str]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in paths}


# The set as a whole


def test_there_are_enough_of_every_kind() -> None:
    assert len(PROBLEMS) >= 12
    assert {problem.category for problem in PROBLEMS.values()} == {3, 4, 5, 16}
    assert {problem.difficulty for problem in PROBLEMS.values()} == {"easy", "medium", "hard"}


def test_the_file_equals_the_folders() -> None:
    text = BUNDLED_PROBLEMS.read_text(encoding="utf-8")
    assert text == builder.build(), "run scripts/build_bundled.py"
    assert text.isascii()


def test_every_folder_is_a_problem() -> None:
    folders = {path for path in BUNDLED_DIR.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(builder.problem_folders())
    assert [folder_of(problem) for problem in PROBLEMS.values()] == sorted(folders)


@each_problem
def test_the_order_in_which_targets_are_compiled_is_known(problem: Problem) -> None:
    """It decides where a package may stand. Unless it is that of `rtl/*.sv`, the prompt names the files in it."""
    source = (folder_of(problem) / "harness/src/.env").read_text(encoding="utf-8")
    paths = str(dotenv_values(stream=io.StringIO(source))["VERILOG_SOURCES"]).split()
    names = [path.rpartition("/")[2] for path in paths if path.removeprefix("/code/") in problem.targets]
    assert len(names) == len(problem.targets)
    sentence = problem.prompt[problem.prompt.rfind("compiled") :]
    assert names == sorted(names) or [name for name in re.findall(r"`(\w+\.sv)`", sentence) if name in names] == names


def test_the_harnesses_use_what_real_rows_use() -> None:
    services = [
        service
        for problem in PROBLEMS.values()
        for service in yaml.safe_load(problem.harness["docker-compose.yml"])["services"].values()
    ]
    assert len(services) > len(PROBLEMS), "no problem has several services"
    assert any("build" in service for service in services)
    assert any(isinstance(service["command"], list) for service in services)
    assert any(str(service["command"]).startswith("/bin/sh -c") for service in services)


# The arbiter, on which a small model trains


def test_the_arbiter_is_short_and_has_the_reset_slip_among_its_wrong_designs() -> None:
    name = "cvdp_agentic_rtlgym_fixed_priority_arbiter_0001"
    solution = PROBLEMS[name].golden
    assert solution is not None
    golden = solution["rtl/fixed_priority_arbiter.sv"]
    assert len(golden) <= 1000
    assert golden.count("\n") < 40
    wrong = wrong_designs(name)["rst_n_for_reset"]["rtl/fixed_priority_arbiter.sv"]
    assert "rst_n" in wrong
    assert "rst_n" not in golden


# Each problem


@each_problem
def test_loads_as_its_folder_says(problem: Problem) -> None:
    folder = folder_of(problem)
    meta = yaml.safe_load((folder / "problem.yaml").read_text(encoding="utf-8"))
    assert (problem.category, problem.difficulty) == (meta["category"], meta["difficulty"])
    assert problem.golden == solution(folder), "the computed patch does not give the golden files"
    assert (folder / "golden.patch").exists() or problem.golden == design_files(folder / "golden")
    assert problem.context == design_files(folder / "context")
    assert problem.harness == design_files(folder / "harness")
    assert next(iter(problem.harness)) == "docker-compose.yml"
    assert problem.unscorable is None
    assert validate_problem(problem) == []


@each_problem
def test_the_prompt_names_targets_and_specification_and_nothing_shown_the_hidden_tests(problem: Problem) -> None:
    assert "docs/specification.md" in problem.context
    assert "docs/specification.md" in problem.prompt
    for path in problem.targets:
        assert Path(path).name in problem.prompt
    shown = "\n".join([problem.system_message, problem.prompt, *problem.context.values()]).lower()
    for word in ("cocotb", "pytest", "test_runner", "harness", "hidden"):
        assert word not in shown, word


@each_problem
def test_wrong_designs_are_whole_and_distinct(problem: Problem) -> None:
    designs = wrong_designs(problem.id)
    assert len(designs) >= 3
    assert problem.golden is not None
    seen = [problem.golden, problem.context]
    for mistake, files in designs.items():
        assert set(files) == set(problem.golden), f"{mistake} does not hold exactly the target files"
        assert files not in seen, f"{mistake} equals another design"
        seen.append(files)


@pytest.mark.docker
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.sampled(5)
@each_problem
async def test_designs_compile_and_golden_passes_its_testbench(problem: Problem, shared_sandbox: DockerSandbox) -> None:
    """Each golden and each wrong design, as each service compiles it; and each testbench on the golden one."""
    assert problem.golden is not None
    for name, design in {"golden": problem.golden, **wrong_designs(problem.id)}.items():
        files = {**problem.context, **design}
        await shared_sandbox.write_files({f"{name}/{path}": text for path, text in files.items()})
        for path, text in problem.harness.items():
            if not path.startswith("src/.env"):
                continue
            env = {key: value or "" for key, value in dotenv_values(stream=io.StringIO(text)).items()}
            sources = env["VERILOG_SOURCES"].replace("/code/", f"/code/{name}/").split()
            await compile_verilog(shared_sandbox, env["TOPLEVEL"], sources)
    for path in problem.context:
        if path.startswith("verif/") and path.endswith("_tb.sv"):
            rtl = sorted(source for source in {**problem.context, **problem.golden} if source.startswith("rtl/"))
            sources = [f"/code/golden/{source}" for source in (*rtl, path)]
            await compile_verilog(shared_sandbox, Path(path).stem, sources)
            result = await shared_sandbox.exec(["vvp", "/code/compiled.vvp"], timeout=30)
            assert "PASS" in result.output, result.output
            assert "FAIL" not in result.output, result.output


async def compile_verilog(sandbox: DockerSandbox, top: str, sources: list[str]) -> None:
    argv = ["iverilog", "-g2012", "-s", top, "-o", "/code/compiled.vvp", *sources]
    result = await sandbox.exec(argv, timeout=30)
    assert result.exit_code == 0, f"{' '.join(argv)}\n{result.output}"


# Wrong designs as patches


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the arbiter's folder that the builder and the package take for the bundled one."""
    shutil.copytree(BUNDLED_DIR / "fixed_priority_arbiter", tmp_path / "fixed_priority_arbiter")
    monkeypatch.setattr(bundled, "BUNDLED_DIR", tmp_path)
    return tmp_path / "fixed_priority_arbiter"


def test_whole_files_become_a_patch(copied: Path) -> None:
    design = (copied / "golden/rtl/fixed_priority_arbiter.sv").read_text().replace("if (reset)", "if (!reset)")
    target = copied / "wrong/reset_upside_down/rtl/fixed_priority_arbiter.sv"
    target.parent.mkdir(parents=True)
    target.write_text(design)
    assert builder.fold_wrong_designs(copied) == [copied / "wrong/reset_upside_down.patch"]
    assert not target.exists()
    assert wrong_designs("fixed_priority_arbiter")["reset_upside_down"] == {"rtl/fixed_priority_arbiter.sv": design}


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("rtl/fixed_priority_arbiter.sv", None, "equals the solution"),
        ("rtl/other.sv", "module other; endmodule\n", "which the solution does not"),
    ],
)
def test_whole_files_that_are_no_wrong_design(copied: Path, path: str, text: str | None, message: str) -> None:
    target = copied / "wrong/mistake" / path
    target.parent.mkdir(parents=True)
    target.write_text(text if text is not None else (copied / "golden" / path).read_text())
    with pytest.raises(builder.BuildError, match=message):
        builder.fold_wrong_designs(copied)
    assert target.exists()


def test_a_patch_that_no_longer_fits_the_solution_is_named(copied: Path) -> None:
    golden = copied / "golden/rtl/fixed_priority_arbiter.sv"
    golden.write_text(golden.read_text().replace("posedge clk", "negedge clk"))
    with pytest.raises(ProblemError, match=r"asynchronous_reset\.patch.*rtl/fixed_priority_arbiter\.sv.*apply"):
        wrong_designs(copied.name)


def test_a_solution_that_no_longer_fits_its_context_is_named(tmp_path: Path) -> None:
    shutil.copytree(BUNDLED_DIR / "gray_counter", tmp_path / "gray_counter")
    context = tmp_path / "gray_counter/context/rtl/gray_counter.sv"
    context.write_text("// A line more\n" + context.read_text())
    with pytest.raises(ProblemError, match=r"golden\.patch.*rtl/gray_counter\.sv.*apply"):
        builder.build_row(tmp_path / "gray_counter", "")


# Looking wrong designs up


def test_wrong_designs_have_the_problems_name_or_its_short_one() -> None:
    assert wrong_designs("sync_fifo") == wrong_designs("cvdp_agentic_rtlgym_sync_fifo_0001")
    for name in ("nothing", "cvdp_agentic_rtlgym_nothing_0001", "cvdp_agentic_fixed_arbiter_0001", "../.."):
        with pytest.raises(UsageError, match="not a bundled problem"):
            wrong_designs(name)


# The builder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small, complete problem folder."""
    files = {
        "problem.yaml": "category: 4\ndifficulty: easy\ntitle: Turn a wire into an inverter\n",
        "prompt.md": "Invert it.\n",
        "context/rtl/inverter.sv": "module inverter (input a, output y);\n    assign y = a;\nendmodule\n",
        "golden/rtl/inverter.sv": "module inverter (input a, output y);\n    assign y = ~a;\nendmodule\n",
        "harness/docker-compose.yml": "services: {}\n",
        "harness/src/.env": "SIM = icarus\n",
        "harness/src/test_runner.py": "pass\n",
    }
    for path, text in files.items():
        target = tmp_path / "inverter" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return tmp_path / "inverter"


def build_row(folder: Path) -> dict[str, Any]:
    row = builder.build_row(folder, "Be an engineer.")
    assert isinstance(row, dict)
    return row


def test_a_row_is_in_the_official_format(folder: Path) -> None:
    row = build_row(folder)
    assert list(row) == ["id", "categories", "system_message", "prompt", "context", "patch", "harness"]
    assert row["id"] == "cvdp_agentic_rtlgym_inverter_0001"
    assert row["categories"] == ["cid004", "easy"]
    assert row["patch"]["rtl/inverter.sv"] == (
        "@@ -1,3 +1,3 @@\n module inverter (input a, output y);\n-    assign y = a;\n+    assign y = ~a;\n endmodule\n"
    )
    assert list(row["harness"]) == ["docker-compose.yml", "src/.env", "src/test_runner.py"]


def test_a_new_file_is_a_patch_against_nothing(folder: Path) -> None:
    (folder / "context" / "rtl" / "inverter.sv").unlink()
    assert build_row(folder)["patch"]["rtl/inverter.sv"].startswith("@@ -0,0 +1,3 @@\n+module inverter")


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("problem.yaml", "category: 7\ndifficulty: easy\ntitle: A linting problem\n", "category"),
        (
            "golden/rtl/inverter.sv",
            "module inverter (input a, output y);\n    assign y = a;\nendmodule\n",
            "equals the context",
        ),
        ("golden/rtl/inverter.sv", "module inverter;\r\nendmodule\r\n", "line feed"),
        ("golden/rtl/inverter.sv", "module inverter;\nendmodule", "line feed"),
        ("context/src/secret.py", "pass\n", "context files must be in"),
        ("harness/src/.env", None, "missing"),
    ],
)
def test_faults_are_named(folder: Path, path: str, text: str | None, message: str) -> None:
    target = folder / path
    if text is None:
        target.unlink()
    else:
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(text.encode())
    with pytest.raises(builder.BuildError, match=message) as caught:
        build_row(folder)
    assert path.split("/")[0] in str(caught.value)

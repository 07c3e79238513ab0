"""Code out of one completion: what counts, and which file it is for."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtl_agent_gym.episodes.answers import _markdown, read_answer, read_blocks, read_text
from rtl_agent_gym.problems import Problem, load_problems


def problem(*targets: str, **changes: Any) -> Problem:
    return Problem(id="p", category=3, difficulty="easy", prompt="x", targets=targets, **changes)


FOO = "module foo (input logic a, output logic b);\n  assign b = a;\nendmodule\n"
BAR = "module bar (input logic a, output logic b);\n  assign b = ~a;\nendmodule\n"
ONE = problem("rtl/foo.sv")
TWO = problem("rtl/foo.sv", "rtl/bar.v")


@pytest.mark.parametrize(
    "text",
    [
        f"```systemverilog\n{FOO}```",
        f"Here:\n\n```verilog\n{FOO}```\nThat is all.",
        f"```\n{FOO}```",
        f"```sv rtl/foo.sv\n{FOO}```",
        f"```systemverilog:rtl/foo.sv\n{FOO}```",
        f"~~~ SystemVerilog\n{FOO}~~~",
        f"1. First\n\n   ```verilog\n{''.join('   ' + line for line in FOO.splitlines(keepends=True))}   ```\n",
        f"````markdown\n# Answer\n```verilog\n{FOO}```\n````",
        f"<answer>\n```verilog\n{FOO}```\n</answer>",
        f"```systemverilog\r\n{FOO}```\r\n",
        f"```verilog\n{FOO}",  # never closed
        FOO,
        f"The code is this:\n{FOO}and nothing else.",
        f"```python\nprint('module foo(); endmodule')\n```\n{FOO}",
        f"The module foo is simple.\n\n```text\na -> b\n```\n\n```verilog\n{FOO}```",
    ],
)
def test_one_file_in_many_forms(text: str) -> None:
    answer = read_answer(text, ONE)
    assert answer.found == ("rtl/foo.sv",)
    assert answer.files == {"rtl/foo.sv": FOO}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I cannot do this.",
        "The module foo takes a and gives b; endmodule ends it.",
        "```verilog\n```",
        "```verilog\nassign b = a;\n```",
        "```bash\ncat > rtl/foo.sv\n```",
        f"```python\n{FOO}```".replace("module foo", "  x = '''module foo"),
        "```json\n{}\n```",
    ],
)
def test_no_code_for_a_target(text: str) -> None:
    answer = read_answer(text, ONE)
    assert (answer.found, answer.files) == ((), {})


@pytest.mark.parametrize(
    "text",
    [
        f"```verilog\n{BAR}```\n\n```verilog\n{FOO}```",
        f"```verilog\n{FOO}\n{BAR}```",
        f"{BAR}\nand\n\n{FOO}",
        f"```verilog\n{FOO}```\nthen\n{BAR}",
        f"```verilog bar.v\n{BAR}```\n```verilog /code/rtl/foo.sv\n{FOO}```",
    ],
)
def test_two_files_are_told_apart(text: str) -> None:
    answer = read_answer(text, TWO)
    assert answer.found == ("rtl/foo.sv", "rtl/bar.v")
    assert {path: code.strip() for path, code in answer.files.items()} == {
        "rtl/foo.sv": FOO.strip(),
        "rtl/bar.v": BAR.strip(),
    }


def test_one_of_two_files() -> None:
    answer = read_answer(f"```verilog\n{FOO}```", TWO)
    assert answer.found == ("rtl/foo.sv",)


ODD = FOO.replace("module foo", "module something_else")


@pytest.mark.parametrize(
    "text",
    [
        f"```verilog rtl/foo.sv\n{ODD}```",
        f'```verilog title="rtl/foo.sv"\n{ODD}```',
        f"```verilog {{file=foo.sv}}\n{ODD}```",
        f"```verilog\n// rtl/foo.sv\n{ODD}```",
        f"```verilog\n// File: foo.sv\n{ODD}```",
        f"```verilog\n//----------\n// File name : rtl/foo.sv\n//----------\n{ODD}```",
        f"```verilog\n/* foo.sv */\n{ODD}```",
        f"### `rtl/foo.sv`\n\n```verilog\n{ODD}```",
        f"**File: /code/rtl/foo.sv**\n```verilog\n{ODD}```",
    ],
)
def test_a_file_name_says_more_than_the_module(text: str) -> None:
    answer = read_answer(text + f"\n\n```verilog\n{BAR}```", TWO)
    assert answer.found == ("rtl/foo.sv", "rtl/bar.v")
    assert "module something_else" in answer.files["rtl/foo.sv"]


@pytest.mark.parametrize("name", ["file_reader.sv", "pathfinder.sv", "name.sv"])
def test_a_file_name_may_begin_with_the_word_before_one(name: str) -> None:
    wanted = problem(f"rtl/{name}", "rtl/reader.sv", "rtl/finder.sv")
    for line in (f"// {name}", f"// File: {name}", f"// filename {name}"):
        assert read_answer(f"```verilog\n{line}\n{ODD}```", wanted).found == (f"rtl/{name}",)


def test_the_one_missing_target_gets_the_one_block_that_is_left() -> None:
    assert read_answer(f"```verilog\n{ODD}```", ONE).files == {"rtl/foo.sv": ODD}
    assert read_answer(f"```verilog\n{BAR}```\n```verilog\n{ODD}```", TWO).files["rtl/foo.sv"] == ODD
    assert read_answer(f"```verilog\n{ODD}```", TWO).found == ()  # which of the two?


def test_the_last_block_for_a_file_counts() -> None:
    final = FOO.replace("= a", "= a & 1'b1")
    assert (
        read_answer(f"Draft:\n```verilog\n{FOO}```\nBetter:\n```verilog\n{final}```", ONE).files["rtl/foo.sv"] == final
    )


@pytest.mark.parametrize(
    "after",
    [
        "```diff\n--- a/rtl/foo.sv\n+++ b/rtl/foo.sv\n@@ -1 +1 @@\n-a\n+b\n```",
        "```\n--- a/rtl/foo.sv\n+++ b/rtl/foo.sv\n@@ -1 +1 @@\n-a\n+b\n```",
        "### `rtl/foo.sv`\n\n```\ndiff --git a/rtl/foo.sv b/rtl/foo.sv\n```",
        "### `rtl/foo.sv`\n\n```diff\n-a\n+b\n```",
        "```patch\n " + FOO.replace("\n", "\n ") + "\n```",
        "```bash\n# rtl/foo.sv\niverilog -g2012 rtl/foo.sv\n```",
        "rtl/foo.sv:\n\n```sh\niverilog -g2012 rtl/foo.sv\n```",
    ],
)
def test_a_diff_or_a_command_after_a_file_does_not_replace_it(after: str) -> None:
    assert read_answer(f"```systemverilog rtl/foo.sv\n{FOO}```\n\n{after}", ONE).files == {"rtl/foo.sv": FOO}


def test_of_a_block_of_shell_commands_the_modules_count() -> None:
    block = f"```bash\ncat > rtl/foo.sv << 'EOF'\n{FOO}EOF\niverilog -g2012 rtl/foo.sv\n```"
    assert read_answer(block, ONE).files == {"rtl/foo.sv": FOO}


@pytest.mark.parametrize(
    "target",
    [
        *("rtl/rom.mem", "rtl/rom.hex", "rtl/x.vhd", "rtl/x.svi", "rtl/x.tcl", "rtl/x.SV", "rtl/x.sv.in"),
        *("docs/r.json", "rtl/Makefile", "docs/two words.md"),
    ],
)
def test_a_target_may_have_any_extension(target: str) -> None:
    for text in ("```text %s\nabc\n```", "```text:/code/%s\nabc\n```", "**%s**\n\n```\nabc\n```"):
        assert read_answer(text % target, problem("rtl/foo.sv", target)).files == {target: "abc\n"}
    commented = f"# {target}\nabc\n"
    assert read_answer(f"```\n{commented}```", problem(target)).files == {target: commented}


def test_a_named_markdown_file_keeps_the_blocks_in_it() -> None:
    document = f"# Foo\n\n```verilog\n{ODD}```\n"
    wanted = problem("docs/x.md", "rtl/foo.sv")
    for name in ("docs/x.md", "/code/docs/x.md"):
        answer = read_answer(f"```verilog rtl/foo.sv\n{FOO}```\n````markdown {name}\n{document}````", wanted)
        assert answer.files == {"docs/x.md": document, "rtl/foo.sv": FOO}
    assert read_answer(f"````markdown answer.md\n{document}````", ONE).files == {"rtl/foo.sv": ODD}  # no such file


def test_the_last_one_counts_outside_a_fence_too() -> None:
    draft = FOO.replace("= a", "= 1'b0")
    assert read_answer(f"{draft}\nNow properly:\n\n```verilog\n{FOO}```", ONE).files["rtl/foo.sv"] == FOO
    assert read_answer(f"```verilog\n{draft}```\nNow properly:\n\n{FOO}", ONE).files["rtl/foo.sv"] == FOO


@pytest.mark.parametrize("break_", ["\x0b", "\x0c", "\u2028", "\x85", "\r"])
def test_odd_line_breaks_shift_nothing(break_: str) -> None:
    text = f"one{break_}two{break_}three\n\n```verilog\n{BAR}```\n{FOO}"
    assert read_answer(text, ONE).files == {"rtl/foo.sv": FOO}


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "unit",
    [
        "module foo (\n",
        "`define A 1\n\n",
        "/* ",
        "```verilog\nmodule foo (",
        "* ",
        "> ",
        "// foo.sv ",
        "`",
        "endmodule ",
        "module foo;",
        "```md\n",
        "[a]: b\n",
        f"```\n#{'_' * 290}\n```\n",
    ],
)
@pytest.mark.parametrize("fenced", [False, True])
def test_a_model_that_repeats_itself_costs_no_time(unit: str, fenced: bool) -> None:
    begun = time.process_time()
    read_answer(("```verilog\n" if fenced else "") + unit * (200_000 // len(unit)), TWO)
    assert time.process_time() - begun < 5


def test_references_are_not_read() -> None:
    """Some versions of the parser take quadratic time for them."""
    found: dict[str, Any] = {}
    _markdown.parse("[a]: b\n", found)
    assert "references" not in found


@pytest.mark.timeout(20)
def test_thousands_of_modules_cost_no_time() -> None:
    begun = time.process_time()
    calls = "".join(f"  m{i} u{i} ();\n" for i in range(4_000))
    helpers = "".join(f"```verilog\nmodule m{i} ();\nendmodule\n```\n" for i in range(4_000))
    answer = read_answer(f"{helpers}```verilog\nmodule foo ();\n{calls}endmodule\n```", ONE)
    assert answer.files["rtl/foo.sv"].count("endmodule") == 4_001
    read_answer("module foo ();\nendmodule\n" * 8_000, TWO)
    assert time.process_time() - begun < 5


def test_long_given_files_are_read_once() -> None:
    given = {f"rtl/{name}.sv": f"module {name} ();\nendmodule\n" * 4_000 for name in ("foo", "bar")}
    begun = time.process_time()
    answer = read_answer("```verilog\nx\n```\n" * 2_000, TWO.model_copy(update={"context": given}))
    assert time.process_time() - begun < 10  # for each block: minutes
    assert not answer.files


def test_a_helper_module_goes_to_the_file_that_uses_it() -> None:
    foo = FOO.replace("assign b = a;", "inverter i (.a, .b);")
    helper = BAR.replace("bar", "inverter")
    bench = "module foo_tb;\n  foo dut ();\nendmodule\n"
    for text in (f"```verilog\n{helper}```\n```verilog\n{foo}```", f"```verilog\n{foo}```\n{helper}"):
        code = read_answer(f"{text}\n\n```verilog\n{bench}```", ONE).files["rtl/foo.sv"]
        assert "module inverter" in code
        assert code.startswith("module foo ")
        assert "foo_tb" not in code


def test_directives_above_a_module_come_along() -> None:
    code = "`timescale 1ns/1ps\n`default_nettype none\n" + FOO
    assert read_answer(f"Code:\n\n{code}\nDone.", ONE).files["rtl/foo.sv"] == code


def test_the_given_file_says_which_module_is_meant() -> None:
    given = problem("rtl/top_level.sv", "rtl/other.sv", context={"rtl/top_level.sv": FOO})
    assert read_answer(f"```verilog\n{FOO}```", given).found == ("rtl/top_level.sv",)


def test_headers_and_packages() -> None:
    wanted = problem("rtl/defs.svh", "rtl/types_pkg.sv")
    package = "package types_pkg;\n  typedef logic [7:0] byte_t;\nendpackage\n"
    answer = read_answer(f"```verilog\n`define W 8\n```\n\n```systemverilog\n{package}```", wanted)
    assert answer.files == {"rtl/defs.svh": "`define W 8\n", "rtl/types_pkg.sv": package}


def test_other_files_count_only_where_they_may_be_changed() -> None:
    text = f"```verilog rtl/foo.sv\n{FOO}```\n```verilog rtl/extra.sv\n{BAR}```\n```python src/test_x.py\nx\n```"
    assert set(read_answer(text, problem("rtl/foo.sv")).files) == {"rtl/foo.sv", "rtl/extra.sv"}
    assert set(read_answer(text, problem("rtl/foo.sv", agentic=False)).files) == {"rtl/foo.sv"}


@pytest.mark.parametrize("path", ["../foo.sv", "/etc/foo.txt", "rtl/../../x.sv", "src/conftest.py"])
def test_a_path_that_leads_out_is_never_taken(path: str) -> None:
    assert path not in read_answer(f"```verilog {path}\n{BAR}```", TWO).files


def test_comments_do_not_hide_or_make_modules() -> None:
    commented = "// module bar (\n/* endmodule */\n" + FOO
    assert read_answer(f"```verilog\n{commented}```", TWO).found == ("rtl/foo.sv",)


@given(st.text(alphabet="`~module foo();end\n\t #*>-", max_size=300))
def test_any_text_can_be_read(text: str) -> None:
    answer = read_answer(text, TWO)
    assert set(answer.found) <= set(TWO.targets)
    assert all(path in TWO.targets or path.startswith(("rtl/", "verif/", "docs/")) for path in answer.files)
    assert all(answer.files[path].strip() for path in answer.found)
    read_blocks(text, TWO)


@pytest.mark.parametrize("found", load_problems("bundled"), ids=lambda problem: str(problem.id)[-30:])
def test_every_bundled_solution_is_read_back(found: Problem) -> None:
    assert found.golden
    named = "\n\n".join(f"```systemverilog {path}\n{text}```" for path, text in found.golden.items())
    assert read_answer(named, found).files == found.golden
    unnamed = "\n\n".join(f"```\n{text}```" for text in found.golden.values())
    assert read_answer(unnamed, found).found == found.targets


def test_rows_of_the_benchmark(cvdp_data: Path) -> None:
    source = cvdp_data / "cvdp_v1.1.0_example_agentic_code_generation_no_commercial_with_solutions.jsonl"
    for row in load_problems(source):
        assert row.golden
        text = "\n\n".join(f"```verilog\n{code}\n```" for code in row.golden.values())
        assert read_answer(text, row).found == row.targets


@pytest.mark.parametrize("around", ["%s", "```json\n%s\n```", "```\n%s\n```", "Here it is:\n%s\nThat is all."])
def test_the_official_form_is_found_within_an_answer(around: str) -> None:
    assert read_text(around % '{"response": "q <= {a, b};"}') == "q <= {a, b};"
    assert read_text(around % "q <= {a, b};") == around % "q <= {a, b};"


def test_half_a_surrogate_pair_in_an_answer_is_no_text() -> None:
    assert read_text(r'{"response": "x \ud800 y"}') == "x ? y"
    assert read_text('{"response": "é"}') == "é"

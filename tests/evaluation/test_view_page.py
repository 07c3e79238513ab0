"""The viewer's page in a real browser."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from rtl_agent_gym.evaluation.recorded import transcript_files
from rtl_agent_gym.evaluation.viewer import serving, write_page
from rtl_agent_gym.renderers import ModelTurn, ToolCall
from rtl_agent_gym.transcripts import CommandRecord, End, SubmissionRecord, TurnRecord

from .recording import command_turn, final_turn, llama_turn, record, score

RTL = "module counter (input logic clk);\nendmodule\n"
ATTACKS = [
    "<script>window.pwned = 1</script>",
    "</script><script>window.pwned = 2</script>",
    "<!--<script>",
    "]]><img src=x onerror='window.pwned = 3'>",
    '"><svg onload=window.pwned=4>',
    "<iframe srcdoc='<script>parent.pwned = 5</script>'></iframe>",
    "<style>body { display: none !important; background: url(http://127.0.0.1:9/leak) }</style>",
    "</style></pre></main></body></html><h1 id=pwned>out</h1>",
    "<a href='javascript:window.pwned=6'>click</a><a href='data:text/html,<script>1</script>'>data</a>",
    "<base href=http://127.0.0.1:9/><meta http-equiv=refresh content='0;url=http://127.0.0.1:9/'>",
    "{{ 7 * 7 }}{% raw %}${window.pwned = 7}`",
    "<form action=http://127.0.0.1:9/><input autofocus onfocus='window.pwned = 8'></form>",
    "admin\u202etxt.exe\u2066\u2069 \u200b \ufeff \x00 \x1b]8;;http://x\x07 \ud800 \u2028",
    "__proto__",
    "&lt;img src=x onerror=window.pwned=9&gt;",
]
HOSTILE = "\n".join(ATTACKS)


def console(browser: webdriver.Chrome) -> list[dict[str, str]]:
    """What the browser's console said since it was asked last."""
    said: list[dict[str, str]] = browser.get_log("browser")
    return said


def open_page(browser: webdriver.Chrome, page: Path, place: str = "") -> None:
    browser.get("about:blank")
    console(browser)
    browser.get(page.as_uri() + place)


def show(browser: webdriver.Chrome, episode: Path, place: str = "") -> None:
    """Open the page of one episode."""
    open_page(browser, write_page([episode], episode.with_name("page.html")), place)


def find(browser: webdriver.Chrome, selector: str) -> list[WebElement]:
    return browser.find_elements(By.CSS_SELECTOR, selector)


def text_of(browser: webdriver.Chrome, selector: str) -> str:
    return str(browser.execute_script("return document.querySelector(arguments[0]).textContent", selector))


def hostile_episode(folder: Path) -> Path:
    line = HOSTILE.replace("\n", " ")
    tokens = [HOSTILE[at : at + 5] for at in range(0, len(HOSTILE), 5)]
    thought = command_turn(
        1,
        HOSTILE,
        HOSTILE,
        say=f"<think>\n{HOSTILE}\n</think>\n{HOSTILE}",
        files={f"rtl/{line}.sv": HOSTILE, "__proto__": HOSTILE},
        tokens=tokens,
        token_ids=list(range(len(tokens))),
        logprobs=[-0.5] * len(tokens),
        teacher_logprobs=[-2.0] * len(tokens),
        stream=1,
        stream_reason=HOSTILE,
    )
    malformed = TurnRecord(turn=2, completion=HOSTILE, action="malformed", observation=HOSTILE)
    odd = TurnRecord(
        turn=3,
        completion="x",
        action="command",
        commands=[CommandRecord(command=HOSTILE, exit_code=None, timed_out=True, restarted=HOSTILE)] * 2,
        observation=HOSTILE,
        files={f"rtl/{line}.sv": None},
    )
    graded = score(False, reason=HOSTILE, violations=[HOSTILE])
    odd_tests = [test.model_copy(update={"name": HOSTILE, "outcome": HOSTILE}) for test in graded.tests]
    graded = graded.model_copy(update={"tests": odd_tests})
    return record(
        folder,
        [thought, malformed, odd, final_turn(4, HOSTILE)],
        problem=line,
        name="hostile.jsonl",
        graded=graded,
        end=End(stop_reason=line, turns=4, seconds=1.0, error=HOSTILE),
        renderer="qwen3",
        system=HOSTILE,
        user=HOSTILE,
        difficulty=line,
        files={f"docs/{line}": HOSTILE},
        options={line: HOSTILE, "__proto__": {"pwned": 1}},
    )


def test_hostile_content_stays_text_wherever_one_clicks(browser: webdriver.Chrome, tmp_path: Path) -> None:
    hostile_episode(tmp_path / "transcripts")
    record(tmp_path / "transcripts", [final_turn(1, "ok")], graded=score(True), renderer=HOSTILE)
    (tmp_path / "transcripts" / "<img src=x onerror=window.pwned=1>.jsonl").write_text(
        f"{HOSTILE}\n{{}}\n", errors="replace"
    )
    page = write_page(transcript_files(tmp_path), tmp_path / "page.html", title=HOSTILE)
    open_page(browser, page, "#hostile.jsonl/0")
    scripts = len(find(browser, "script"))
    clicks = 0
    for row in range(2):
        browser.execute_script("document.querySelectorAll('.row')[arguments[0]].click()", row)
        for heat in ("#heat-off", "#heat-kl", "#heat-surprise"):
            for switch in find(browser, heat):
                switch.click()
            clicks += browser.execute_script(
                """
                let clicks = 0;
                for (const fold of document.querySelectorAll("details")) { fold.open = true; clicks++; }
                for (const more of document.querySelectorAll(".more")) { more.click(); clicks++; }
                for (const cell of document.querySelectorAll(".cell")) {
                  cell.click(); clicks++;
                  for (let at = 0; at < document.querySelectorAll(".file").length; at++) {
                    document.querySelectorAll(".file")[at].click();
                    for (let mode = 0; mode < 3; mode++) {
                      document.querySelectorAll(".folder .switch button")[mode].click();
                      clicks++;
                    }
                  }
                }
                for (const token of document.querySelectorAll(".tok")) {
                  token.dispatchEvent(new MouseEvent("mouseover", { bubbles: true }));
                }
                return clicks;
                """
            )
    assert clicks > 60
    assert browser.execute_script("return window.pwned === undefined && ({}).pwned === undefined")
    assert not find(browser, "img, iframe, svg, a, base, form, object, embed, link, #pwned, meta[http-equiv=refresh]")
    assert len(find(browser, "script")) == scripts
    assert len(find(browser, "style")) == 1
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert browser.execute_script("return getComputedStyle(document.body).display") == "grid"
    severe = [entry for entry in console(browser) if entry["level"] == "SEVERE"]
    assert severe == []
    shown = text_of(browser, "#unreadable") + text_of(browser, "title")
    assert "<script>window.pwned = 1</script>" in shown


def test_what_hides_text_is_made_visible(browser: webdriver.Chrome, tmp_path: Path) -> None:
    show(browser, hostile_episode(tmp_path), "#hostile.jsonl/1")
    shown = text_of(browser, ".task .prose")
    assert "<script>window.pwned = 1</script>" in shown
    assert "U+202E" in shown
    assert "\u202e" not in shown + text_of(browser, "#rows") + text_of(browser, ".folder")
    assert text_of(browser, "h1").count("U+202E") == 1
    assert "\u202e" not in browser.execute_script("return document.body.innerHTML.split('<script')[0]")


def test_the_page_holds_no_open_markup_of_an_episode(tmp_path: Path) -> None:
    page = write_page([hostile_episode(tmp_path)], tmp_path / "page.html").read_text()
    data = page[page.index('id="episode-0">') + len('id="episode-0">') :]
    data = data[: data.index("</script>")]
    assert not set("<>&") & set(data)
    assert data.isascii()
    assert "pwned = 9" not in page.partition('id="episode-0"')[0]


@pytest.mark.usefixtures("without_cookbook")
def test_an_episode_that_cannot_be_parsed_costs_no_other_one(tmp_path: Path) -> None:
    """Its dialect's package is not installed, or its reply is not quoted as its dialect quotes."""
    raw = "<｜tool▁calls▁begin｜>raw"
    for name, renderer, turn in (
        ("a", "qwen3", final_turn(1, "ordinary")),
        ("b", "deepseekv3", final_turn(1, raw)),
        ("c", "llama3", llama_turn(1, '"a"b"')),
    ):
        record(tmp_path / "transcripts", [turn], graded=score(True), renderer=renderer, name=f"{name}.jsonl")
    record(
        tmp_path / "transcripts",
        [final_turn(1, raw)],
        graded=score(True),
        renderer="deepseekv3",
        name="d.jsonl",
        options={"single_turn": True},
    )
    unreadable: list[str] = []
    page = write_page(transcript_files(tmp_path), tmp_path / "page.html", unreadable=unreadable).read_text()
    assert unreadable == []
    shown = [
        json.loads(page.partition(f'id="episode-{number}">')[2].partition("</script>")[0])["turns"][0]
        for number in range(4)
    ]
    assert [turn["text"] for turn in shown[:2]] == ["ordinary", raw]
    assert '"a"b"' in shown[2]["outputs"][0]
    assert shown[3]["text"] == raw


def repaired(folder: Path) -> Path:
    wrong, right = RTL.replace("clk", "clock"), RTL
    return record(
        folder,
        [
            command_turn(1, "ls rtl", "stub.sv", say="<think>\nplan\n</think>\nI look.", files={}),
            command_turn(
                2,
                f"cat > rtl/counter.sv <<'EOF'\n{wrong}EOF\niverilog rtl/counter.sv",
                "rtl/counter.sv:1: error: no port clk",
                exit_code=1,
                files={"rtl/counter.sv": wrong},
            ),
            command_turn(3, "sed -i s/clock/clk/ rtl/*.sv", "", files={"rtl/counter.sv": right, "rtl/stub.sv": None}),
            final_turn(4, "Done."),
        ],
        graded=score(True),
        files={"rtl/stub.sv": "// stub\n", "docs/spec.md": "# Counter\n"},
        name="repaired.jsonl",
    )


def test_the_work_folder_follows_the_scrubber(browser: webdriver.Chrome, tmp_path: Path) -> None:
    show(browser, repaired(tmp_path))
    assert [cell.text for cell in find(browser, ".cell")] == ["1", "2", "3", "4"]
    states = {}
    for turn in (0, 1, 2, 3):
        browser.execute_script(
            "const range = document.getElementById('scrubber'); range.value = arguments[0];"
            "range.dispatchEvent(new Event('input'))",
            str(turn),
        )
        states[turn] = [node.text.replace("\n", " ") for node in find(browser, ".file")]
    assert states[0] == states[1] == ["· docs/spec.md", "· rtl/stub.sv"]
    assert states[2] == ["· docs/spec.md", "A rtl/counter.sv", "· rtl/stub.sv"]
    assert states[3] == ["· docs/spec.md", "M rtl/counter.sv", "D rtl/stub.sv"]
    find(browser, ".file")[1].click()
    assert [row.text for row in find(browser, ".diff .l-removed")] == ["-module counter (input logic clock);"]
    assert [row.text for row in find(browser, ".diff .l-added")] == ["+module counter (input logic clk);"]
    find(browser, ".folder .switch button")[0].click()
    assert "endmodule" in text_of(browser, ".numbered .code")
    assert find(browser, ".turn.now .turn-name")[0].text == "turn 3"


def test_a_conversation_is_coloured_and_thinking_is_folded(browser: webdriver.Chrome, tmp_path: Path) -> None:
    show(browser, repaired(tmp_path), "#repaired.jsonl/2")
    fold = find(browser, "details.thinking")[0]
    assert fold.get_attribute("open") is None
    assert "plan" not in fold.text
    fold.find_element(By.TAG_NAME, "summary").click()
    WebDriverWait(browser, 5).until(lambda _: "plan" in fold.text)
    keywords = {node.text for node in find(browser, ".command .c-keyword")}
    assert {"module", "endmodule", "cat", "iverilog"} <= keywords
    assert find(browser, ".output .l-bad")[0].text == "rtl/counter.sv:1: error: no port clk"
    assert [node.text for node in find(browser, ".stage-name b")] == [
        "format",
        "syntax",
        "interface",
        "compile",
        "tests",
    ]
    assert find(browser, ".reason")[0].text == "all tests passed"
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.ARROW_RIGHT)
    assert find(browser, ".cell.now")[0].text.strip() == "3"


def contrast(*colours: str) -> float:
    """The contrast of two colours of CSS, as WCAG 2 defines it; small text needs 4.5."""
    lights = []
    for colour in colours:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        lights.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(lights) + 0.05) / (min(lights) + 0.05)


def test_small_text_can_be_read(browser: webdriver.Chrome, tmp_path: Path) -> None:
    turn = command_turn(1, "echo \x07", "x", files={"rtl/a.sv": "// new\n"})
    show(browser, record(tmp_path, [turn], graded=score(True)))
    for text, ground in ((".shell .hidden-char",) * 2, (".l-added .c-comment", ".l-added"), ("summary", ".card")):
        [on, *_] = find(browser, ground)
        colours = find(browser, text)[0].value_of_css_property("color"), on.value_of_css_property("background-color")
        assert contrast(*colours) >= 4.5, (text, *colours)
    assert {fold.value_of_css_property("opacity") for fold in find(browser, "summary")} == {"1"}


def test_the_turns_of_an_agent_name_their_streams(browser: webdriver.Chrome, tmp_path: Path) -> None:
    call = ModelTurn(calls=(ToolCall("write", '{"path": "rtl/a.sv"}', "call_1"),))
    places = [(1, ""), (2, "conversation"), (3, "history")]
    turns = [
        TurnRecord(
            turn=number,
            completion=str(call),
            native=call,
            outside=True,
            stream=stream,
            stream_reason=reason,
            action="command",
            commands=[CommandRecord(command="write rtl/a.sv", exit_code=None, output="written")],
        )
        for number, (stream, reason) in enumerate(places, 1)
    ]
    show(browser, record(tmp_path, turns, graded=score(True)))
    facts = [node.text.partition(" · ")[0] for node in find(browser, ".turn .facts")]
    assert facts == ["stream 1", "stream 2 (conversation)", "stream 3 (history)"]
    assert [node.text for node in find(browser, ".turn .state")] == ["ran"] * 3
    assert find(browser, ".shell .status")[0].text == "status unknown"
    assert "written" in find(browser, ".shell .output")[0].text
    assert "streams3" in text_of(browser, ".badges").replace(" ", "")


def test_the_heat_map_shows_the_kl_of_each_token(browser: webdriver.Chrome, tmp_path: Path) -> None:
    turn = final_turn(
        1,
        "I am done",
        tokens=["I", " am", " done"],
        token_ids=[1, 2, 3],
        logprobs=[-0.1, -0.5, -1.0],
        teacher_logprobs=[-2.1, -0.4, None],
    )
    show(browser, record(tmp_path, [turn], graded=score(True)))
    find(browser, "#heat-kl")[0].click()
    tokens = find(browser, ".tok")
    assert [token.get_attribute("textContent") for token in tokens] == ["I", " am", " done"]
    colours = [token.value_of_css_property("background-color") for token in tokens]
    assert colours[0].startswith("rgba(226, 72, 61, 0.8")
    assert colours[1].startswith("rgba(56, 132, 255, 0.0")
    assert colours[2] == "rgba(0, 0, 0, 0)"
    webdriver.ActionChains(browser).move_to_element(tokens[0]).perform()
    assert "KL 2.000 nats" in find(browser, ".token-facts")[0].text


def test_the_quality_of_a_design_that_was_to_be_made_smaller_is_a_stage(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    measured = score(True, quality=0.85, measures={"quality": 0.85, "goal": "area", "equivalence": "proved"})
    for graded, stages in ((measured, ["tests 4/4", "quality 85 %"]), (score(True), ["compile 100 %", "tests 4/4"])):
        show(browser, record(tmp_path, [final_turn(1, "Done.")], graded=graded))
        assert [" ".join(stage.text.split()) for stage in find(browser, ".stages > *")][-2:] == stages


@pytest.mark.parametrize("count", [400, pytest.param(2000, marks=pytest.mark.slow)])
def test_many_episodes(browser: webdriver.Chrome, tmp_path: Path, count: int) -> None:
    body = RTL * 8
    for number in range(count):
        passed = number % 5 == 0
        turns = [
            command_turn(1, f"cat > rtl/a.sv <<'E'\n{body}E", "x\n" * 200, files={"rtl/a.sv": body}),
            final_turn(2, "ok"),
        ]
        record(
            tmp_path / "transcripts",
            turns,
            problem=f"problem_{number % 40:02d}",
            graded=score(passed),
            name=f"{number:04d}.jsonl",
        )
    page = write_page(transcript_files(tmp_path), tmp_path / "page.html")
    begun = time.monotonic()
    open_page(browser, page)
    assert f"{count:,} of {count:,} episodes · {count // 5} passed (20 %)" in find(browser, "#count")[0].text
    assert time.monotonic() - begun < 120  # seconds on a quiet machine
    assert 5 < len(find(browser, ".row")) < 40
    browser.execute_script("document.getElementById('rows').scrollTop = arguments[0]", 62 * (count - 1))
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    last = find(browser, ".row")[-1]
    assert last.get_attribute("title") == f"{count - 1:04d}.jsonl"
    begun = time.monotonic()
    last.click()
    assert find(browser, "h1")[0].text == "problem_39"
    find(browser, "#search")[0].send_keys("problem_07")
    assert find(browser, "#count")[0].text.startswith(f"{count // 40} of {count:,} episodes")
    Select(find(browser, "#filter-outcome")[0]).select_by_value("passed")
    assert find(browser, "#count")[0].text == "no episode matches"
    find(browser, "#search")[0].clear()
    find(browser, "#search")[0].send_keys("problem_05")
    assert find(browser, "#count")[0].text.startswith(f"{count // 40} of {count:,} episodes · {count // 40} passed")
    assert time.monotonic() - begun < 60  # a second on a quiet machine


def test_episodes_are_filtered_by_cause_and_rates_leave_out_the_machines_faults(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    folder, fault = tmp_path / "transcripts", End(stop_reason="error", turns=1, seconds=1.0, error="SandboxLost: gone")
    for graded, end in (
        (score(True), None),
        (score(False), None),
        (score(False, syntax=0.5), None),
        (None, fault),  # an attempt that was retried: its own transcript, and no verdict
        (None, None),
    ):
        record(folder, [final_turn(1, "x")], graded=graded, end=end)
    open_page(browser, write_page(transcript_files(tmp_path), tmp_path / "page.html"))
    assert find(browser, "#count")[0].text == "5 of 5 episodes · 1 of 3 with a verdict passed (33 %)"
    causes = Select(find(browser, "#filter-cause")[0])
    assert sorted(str(option.get_attribute("value")) for option in causes.options) == [
        "", "cut off", "machine", "syntax", "tests", "–",
    ]  # fmt: skip
    causes.select_by_value("syntax")
    assert find(browser, "#count")[0].text == "1 of 5 episodes · 0 passed (0 %)"
    causes.select_by_value("machine")
    assert find(browser, "#count")[0].text == "1 of 5 episodes · 0 of 0 with a verdict passed"


def test_a_served_page_shows_what_came_since(browser: webdriver.Chrome, tmp_path: Path) -> None:
    record(tmp_path / "transcripts", [final_turn(1, "ok")], graded=score(True))
    with serving(tmp_path) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            browser.get(server.url)
            assert "1 of 1 episodes" in find(browser, "#count")[0].text
            record(tmp_path / "transcripts", [final_turn(1, "no")], graded=score(False))
            browser.refresh()
            assert "2 of 2 episodes" in find(browser, "#count")[0].text
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (None, "still running"),
        ("CancelledError: ", "here: the run was cut off"),
        ("SandboxLost: gone", "The machine failed"),
    ],
)
def test_episodes_without_a_score(browser: webdriver.Chrome, tmp_path: Path, error: str | None, word: str) -> None:
    end = End(stop_reason="error", turns=1, seconds=1.0, error=error) if error is not None else None
    show(browser, record(tmp_path, [command_turn(1, "ls", "x")], end=end))
    assert word in find(browser, ".talk > .note")[0].text
    assert "not graded" in find(browser, ".score")[0].text
    assert text_of(browser, ".badge:last-child") == "ended" + ("error" if end is not None else "not recorded")


def test_a_submission_has_a_badge(browser: webdriver.Chrome, tmp_path: Path) -> None:
    graded = SubmissionRecord(
        number=2, left=1, fraction=0.25, reward=0.125, score=score(False, reason=HOSTILE).model_dump(mode="json")
    )
    command = CommandRecord(command="submit", exit_code=1, submission=graded)
    turn = command_turn(1, "submit", "these checks fail:\n- test_1").model_copy(update={"commands": [command]})
    path = record(tmp_path, [turn, final_turn(2, "Done.")], graded=score(True), name="one.jsonl")
    show(browser, path, "#one.jsonl/1")
    assert text_of(browser, ".submission") == "submission 21/4 tests · +0.125"
    assert find(browser, ".submission")[0].get_attribute("title").startswith("1 left. ")  # type: ignore[union-attr]
    assert browser.execute_script("return window.pwned === undefined")

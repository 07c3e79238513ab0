"""Foreign text in a terminal: what it would obey, or not show, is shown as its code."""

from __future__ import annotations

import sys
import unicodedata

import pytest

from rtl_agent_gym.visible import VisibleStream, visible, without_secrets


def test_nothing_that_a_terminal_obeys_or_hides_passes() -> None:
    kinds = ("Cc", "Cf", "Cs", "Zl", "Zp")
    passed = [
        code
        for code in range(sys.maxunicode + 1)
        if unicodedata.category(chr(code)) in kinds and visible(chr(code)) == chr(code)
    ]
    assert passed == [0x09, 0x0A]


@pytest.mark.parametrize("code", [0x200B, 0xFEFF, 0x2060, 0x00AD, 0x3164, 0x2800, 0x034F, 0xE0041, 0x202E])
def test_what_has_no_shape_becomes_its_code(code: int) -> None:
    assert visible(f"a{chr(code)}b") == f"a⟨U+{code:04X}⟩b"


def test_titles_and_the_clipboard_are_out_of_reach() -> None:
    shown = visible("\x1b]0;owned\x07 \x1b]52;c;cm0gLXJm\x1b\\\\ \x9b31m\ttab\nline é 日本 ✔\ufe0f")
    assert not set("\x1b\x07\x9b") & set(shown)
    assert shown.endswith("\ttab\nline é 日本 ✔\ufe0f")


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ("http://alice:s3@cret@gpu:8000/v1/", "http://gpu:8000/v1/"),
        ("https://gpu?key=s3cret#s3cret", "https://gpu"),
        ("500 of http+docker://x/build?args=s3cret: no", "500 of http+docker://x/build no"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("Tinker's service", "Tinker's service"),
    ],
)
def test_an_address_is_shown_without_its_secrets(text: str, public: str) -> None:
    assert without_secrets(text) == public


def test_bytes_that_come_in_pieces() -> None:
    text = "é\r\n日\x1b[2J\r over\n"
    data = text.encode()
    for cut in range(len(data) + 1):
        stream = VisibleStream()
        shown = stream.feed(data[:cut]) + stream.feed(data[cut:], final=True)
        assert shown == "é\n日⟨U+001B⟩[2J⟨U+000D⟩ over\n"
    assert VisibleStream().feed(b"\xff\xc3", final=True) == "\ufffd\ufffd"

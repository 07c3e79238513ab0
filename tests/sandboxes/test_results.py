"""Raw output to text."""

from __future__ import annotations

import pytest

from rtl_agent_gym.sandboxes.results import cut, readable


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"plain\n", "plain\n"),
        ("é漢🙂".encode(), "é漢🙂"),
        (b"\xff", "\ufffd"),
        (b"a\r\nb\rc", "a\nb\rc"),
        (b"\x1b[1;31mred\x1b[m", "red"),
        (b"\x1b]8;;link\x1b\\text", "text"),
        (b"\x1b]0;never ended", ""),
        (b"\x1b]0;title\x07text", "text"),
        (b"\x7fELF\x1b]\x02\x03\nmodule top;\nendmodule\n", "\ufffdELF\ufffd\ufffd\nmodule top;\nendmodule\n"),
        (b"\x1bPstray\nnext\x1b]stray\x1b[1mbold", "\nnextbold"),
        (b"\x1b(B\x1b=ok", "ok"),
        (b"\x00\x07\x7f", "\ufffd\ufffd\ufffd"),
        (b"a\x08b\x0cc", "abc"),
    ],
)
def test_readable(data: bytes, text: str) -> None:
    assert readable(data) == text


def test_short_output_is_whole() -> None:
    assert cut(b"x" * 100, 100, 100, 100) == ("x" * 100, False)


def test_long_output_keeps_both_ends() -> None:
    text, truncated = cut(b"h" * 500 + b"t" * 500, 1000, 1000, 100)
    assert truncated
    assert text == "h" * 50 + "\n[output cut from 1000 to 100 characters: the middle is missing]\n" + "t" * 50


def test_what_the_sandbox_dropped_is_counted() -> None:
    text, truncated = cut(b"h" * 50 + b"t" * 50, 9999, 9999, 100)
    assert truncated
    assert "from 9999 to 100" in text
    assert text.startswith("h" * 50)
    assert text.endswith("t" * 50)


@pytest.mark.parametrize("shift", range(4))
def test_a_character_is_never_split(shift: int) -> None:
    data = (b"x" * shift + "🙂".encode() * 100)[:200] + (("🙂".encode() * 100)[shift:])[-200:]
    text, _ = cut(data, 99999, 30000, 90)
    assert "\ufffd" not in text

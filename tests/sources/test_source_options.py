"""What follows a source's question mark: a mistake is one clear line, and what must be found out names its command."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.problems import load_problems


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("family:nope", "unknown family 'nope' in SOURCE; choose one of registers, arbiters, timers"),
        ("family:register", "unknown family 'register' in SOURCE; did you mean registers or arbiters?"),
        ("family:timers?split=all", "split is 'all' in SOURCE; expected one of train, combinations,"),
        ("family:timers?count=0", "count is '0' in SOURCE; expected a number from 1 to 1000000"),
        ("family:timers?count=many", "count is 'many' in"),
        ("family:timers?seed=-1", "seed is '-1' in SOURCE; expected a number from 0 up"),
        ("family:timers?seed=", "seed is '' in"),
        ("family:timers?cuont=3", "unknown option 'cuont' in SOURCE; did you mean count?"),
        ("family:timers?count=3&count=4", "the option 'count' is repeated in SOURCE"),
        ("family:timers?count", "count is '' in"),
        ("family:registers?split=sizes", "registers has no split 'sizes'; it has train, combinations, wordings, names"),
        ("family:registers?lie=smoke", "registers has no files that could lie, so SOURCE is not possible"),
        ("bundled+mutants?hint=all", "hint is 'all' in SOURCE; expected one of none, check, symptom"),
        ("bundled+mutants?counts=3", "unknown option 'counts'"),
        ("bundled+verify?kind=vhdl", "kind is 'vhdl' in SOURCE; expected one of stimulus, checker"),
        ("bundled+verify?mutants=7", "mutants is '7' in SOURCE; expected a number from 8 to 24"),
        ("bundled+verify?kind=checker&coverage=true", "coverage is 'true' in SOURCE; only testbenches"),
        (
            "bundled+verify+verify",
            "bundled+verify+verify: +verify cannot be applied twice; leave out one +v",
        ),
        (
            "bundled+verify?count=15",
            "bundled+verify?count=15: 14 verification problems can be made from its designs, n",
        ),
        ("bundled+ppa?goal=power", "goal is 'power' in SOURCE; expected one of any, area, flops, delay"),
        ("bundled+ppa+ppa", "bundled+ppa+ppa: +ppa cannot be applied twice; leave out one +ppa"),
    ],
)
def test_a_bad_source_is_one_clear_line(source: str, message: str, user_cache: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_problems(source)
    assert str(caught.value).startswith(message.replace("SOURCE", repr(source)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "command"),
    [
        (
            "family:timers?count=2+verify?kind=checker&count=2",
            "problems verify 'family:timers?count=2' --count 2 --seed 0 --kind checker --mutants 12 --out",
        ),
        (
            "bundled+verify?kind=stimulus&coverage=true",
            "problems verify 'bundled' --seed 0 --kind stimulus --mutants 12 --coverage --out",
        ),
        (
            "family:timers?count=2+ppa?goal=flops&count=2&seed=3",
            "problems optimize 'family:timers?count=2' --count 2 --seed 3 --goal flops --out",
        ),
    ],
)
def test_what_is_not_known_names_the_command(source: str, command: str, user_cache: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_problems(source)
    assert command in str(caught.value)

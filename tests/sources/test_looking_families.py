"""Families whose facts are in documents and in a smoke test: what has to be read, and what the splits hold out."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import islice, product
from random import Random
from typing import Any

import pyslang
import pytest

from research.episodes import call, write
from research.spelled import Spelled, fix, play, smoke_output
from rtl_agent_gym.demo.shipped import RENDERER
from rtl_agent_gym.episodes.episode import Episode, EpisodeConfig
from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.prompts import build_prompt
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.sandboxes import DockerSandboxes
from rtl_agent_gym.scoring import Scorer
from rtl_agent_gym.sources.families import FAMILIES, TARGET, Parameters, draw_members
from rtl_agent_gym.sources.families.accumulators import ACCUMULATORS
from rtl_agent_gym.sources.families.family import is_held_out, template
from rtl_agent_gym.sources.families.looking import PASSED, RESERVED, RUN_SMOKE, SMOKE, UNKNOWN, LookingFamily

from .documents import told_by

LOOKING = [family for family in FAMILIES.values() if isinstance(family, LookingFamily)]
each_family = pytest.mark.parametrize("family", LOOKING, ids=lambda family: family.name)
one_and_slow_others = pytest.mark.parametrize(
    "family",  # each plays episodes or runs smoke tests for a quarter of a minute
    [pytest.param(one, id=one.name, marks=[pytest.mark.slow] * (one is not ACCUMULATORS)) for one in LOOKING],
)


@cache
def _stream(family: str, split: str) -> tuple[list[Parameters], Iterator[Parameters]]:
    return [], draw_members(f"family:{family}?split={split}&count=2000")


def drawn(family: LookingFamily, split: str, count: int = 300) -> list[Parameters]:
    members, more = _stream(family.name, split)
    members += islice(more, max(0, count - len(members)))
    return members[:count]


def words(member: Parameters) -> set[str]:
    return {part.rstrip("0123456789") for name in member.names.values() for part in name.split("_")}


def told(family: LookingFamily) -> set[str]:
    """What only documents tell."""
    return {*family.tells, *family.facts} - ({family.size} - set(family.tells))


def differ(family: LookingFamily, one: dict[str, str | int], other: dict[str, str | int]) -> bool:
    pairs = zip(family.distinct(one), family.distinct(other), strict=True)
    return all(mine != yours for mine, yours in pairs)


@each_family
def test_the_facts_are_in_one_document(family: LookingFamily) -> None:
    for member in drawn(family, "train") + drawn(family, "sizes", 50):
        documents = family.documents(member)
        assert len(documents) == 2
        assert told_by(family, member.fields, documents[family.document(member)]) == member.fields
        other = told_by(family, member.fields, documents[family.document(member, "other_document")])
        assert differ(family, other, member.fields)


@each_family
def test_the_prompt_does_not_say_what_must_be_looked_up(family: LookingFamily) -> None:
    """Members that differ only in these facts have the same prompt, but for the sizes of their files."""
    for member, donor in zip(drawn(family, "train", 50), drawn(family, "combinations", 50), strict=True):
        facts = {key: donor.values[key] for key in told(family)}
        facts["enable_level"] = 1 - int(member.values["enable_level"])
        other = member.model_copy(update={"values": member.values | facts})
        one, two = (re.sub(r"\([\d,]+ bytes\)", "", build_prompt(family.problem(each))[1]) for each in (member, other))
        assert one == two
        assert family.problem(member).context != family.problem(other).context


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "most"), [("accumulators", 20), ("machines", 4), ("wrappers", 10), ("fifos", 10), ("pipelines", 4)]
)
def test_nobody_guesses_the_facts(name: str, most: int) -> None:
    """The most frequent facts and polarity together are rare: at most 1 in 100 or fewer, as docs/families.md says."""
    family = FAMILIES[name]
    assert isinstance(family, LookingFamily)
    facts = [*sorted(told(family) & set(family.facts)), "enable_level"]
    found = Counter(tuple(member.values[key] for key in facts) for member in drawn(family, "combinations", 2000))
    assert found.most_common(1)[0][1] <= most


@pytest.mark.sampled(2)
@each_family
def test_each_split_holds_out_what_it_says(family: LookingFamily) -> None:
    for split in family.splits:
        for member in drawn(family, split):
            values = {axis: member.values[axis] for axis in (*family.axes, family.size)}
            assert is_held_out(values) == (split == "combinations")
            assert family.is_held_out_pair(values) == (split == "operations")
            assert (values[family.size] in family.larger_sizes) == (split == "sizes")
            assert words(member).isdisjoint(RESERVED)
            if split == "names":
                assert all(
                    set(name.split("_")[0].rstrip("0123456789").split()) <= set(UNKNOWN)
                    for name in (member.names[role] for role in family.roles)
                )
            else:
                assert words(member).isdisjoint(UNKNOWN)


@each_family
def test_both_operations_of_a_held_out_pair_are_trained(family: LookingFamily) -> None:
    train, held_out = drawn(family, "train", 1000), drawn(family, "operations")
    for axis in family.pair:
        assert {member.values[axis] for member in held_out} <= {member.values[axis] for member in train}
    pairs = {tuple(member.values[axis] for axis in family.pair) for member in held_out}
    assert len(pairs) >= 5


@each_family
def test_habits_depend_on_what_is_read_in_both_directions(family: LookingFamily) -> None:
    members = drawn(family, "train", 1000)
    for habit in family.habits:
        changes = Counter[tuple[object, object]]()
        for member in members:
            field = next(iter(family.habits[habit]))
            assert callable(family.habits[habit][field])
            before, after = member.fields[field], family.with_habit(member.fields, habit)[field]
            changes[before, after] += 1
        changed = {pair: count for pair, count in changes.items() if (pair[0] or 0) != pair[1] and pair != (0, 0)}
        assert len(changed) >= 2, (habit, changes)
        assert sum(changed.values()) < 850, (habit, changes)


def test_the_base_that_is_written_always_depends_on_the_one_that_was_read() -> None:
    """If decimal were taken for hexadecimal in the same problems as hexadecimal for decimal, half of the time each, a
    student's base would say nothing of the document's, and it would have to learn to read it from nothing.
    """
    family = FAMILIES["accumulators"]
    assert isinstance(family, LookingFamily)
    read = family.habits["base"]["base"]
    assert callable(read)
    seen = {
        (int(member.values["width"]) < 24, member.values["base"], read(member.fields))
        for member in drawn(family, "train", 1000)
    }
    changes = {one for one in seen if one[1] != one[2]}
    assert changes == {(True, "hexadecimal", "decimal"), (True, "binary", "decimal"), (False, "decimal", "hexadecimal")}


def test_no_other_operation_or_constant_of_a_pipeline_gives_the_same_results() -> None:
    """All pipelines of six bits, with the operations as the hidden tests compute them."""
    family, text = FAMILIES["pipelines"], template("test_pipelines.py")
    scope: dict[str, Any] = {"LARGEST": 63}
    exec(text[text.index("OPERATIONS = {") : text.index("class Model")], scope)

    @cache
    def results(first: str, second: str, a: int, b: int) -> list[int]:
        one, two = (scope["OPERATIONS"][name] for name in (first, second))
        return [two(one(data, a), b) for data in range(64)]

    names, constants = ("first", "second", "first_constant", "second_constant"), range(9, 16, 2)
    drawn = list(product(family.axes["first"], family.axes["second"], constants, constants))
    possible = [values for values in drawn if family.is_possible(dict(zip(names, values, strict=True)))]
    assert len(possible) > 0.8 * len(drawn)
    for first, second, a, b in possible:
        others = [(other, second, a, b) for other in family.axes["first"] if other != first]
        others += [(first, other, a, b) for other in family.axes["second"] if other != second]
        others += [(first, second, a + by, b) for by in (-2, -1, 1, 2)]
        others += [(first, second, a, b + by) for by in (-2, -1, 1, 2)]
        right = results(first, second, a, b)
        assert [other for other in others if results(*other) == right] == [], (first, second, a, b)


@each_family
def test_names_are_legal_and_not_alike(family: LookingFamily) -> None:
    assert {"bool", "wone", "wreal"} <= RESERVED, "keywords of the simulator alone"
    for split in family.splits:
        for member in drawn(family, split, 100):
            names = list(member.names.values())
            assert len(set(names)) == len(names)
            text = "module top; " + " ".join(f"wire {name};" for name in names) + " endmodule"
            assert not list(pyslang.syntax.SyntaxTree.fromText(text).diagnostics), text


def test_only_accumulators_have_scripted_episodes() -> None:
    family = FAMILIES["machines"]
    assert isinstance(family, LookingFamily)
    with pytest.raises(UsageError, match="machines has no scripted episodes; choose accumulators"):
        play(family, family.draw(Random(0)), Spelled(), Random(0))


@each_family
def test_a_lie_changes_the_files_alone(family: LookingFamily) -> None:
    source = f"family:{family.name}?count=40&seed=2"
    true, documents, smoke = (load_problems(source + lie) for lie in ("", "&lie=documents", "&lie=smoke"))
    assert len({problem.id for problem in (*true, *documents, *smoke)}) == 120
    for member, one, two, three in zip(draw_members(source), true, documents, smoke, strict=True):
        assert one.harness == two.harness == three.harness
        assert one.golden == two.golden == three.golden
        assert differ(family, told_by(family, member.fields, two.context[family.document(member)]), member.fields)
        assert two.context[SMOKE] == one.context[SMOKE]
        assert {path: text for path, text in three.context.items() if path != SMOKE} == family.documents(member)
    assert 20 <= sum(one.context[SMOKE] != three.context[SMOKE] for one, three in zip(true, smoke, strict=True)) <= 38


SMOKE_MANY = """
import json, pathlib, subprocess, sys, tempfile
found = []
for files, commands in json.load(sys.stdin):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        (root / "rundir").mkdir(exist_ok=True)
        run = lambda command: subprocess.run(["bash", "-c", command], cwd=root, capture_output=True, text=True)
        found.append([(done.stdout + done.stderr) for done in map(run, commands)])
print(json.dumps(found))
"""


async def smoke_many(provider: DockerSandboxes, trees: list[tuple[dict[str, str], list[str]]]) -> list[list[str]]:
    """What the commands print that belong to each of the file trees."""
    sandbox = await provider.create()
    stdin = json.dumps(trees).encode()
    done = await sandbox.exec(["python3", "-c", SMOKE_MANY], cwd="/tmp", stdin=stdin, timeout=300.0)
    assert done.exit_code == 0, done.output
    found: list[list[str]] = json.loads(done.output.splitlines()[-1])
    return found


@pytest.mark.docker
@one_and_slow_others
@pytest.mark.parametrize("count", [1, pytest.param(10, marks=pytest.mark.slow)])
async def test_the_smoke_test_prints_what_is_wrong_and_fixes_mend_it(
    family: LookingFamily, count: int, provider: DockerSandboxes
) -> None:
    """For each polarity of a design's reset and enable, as written and after the fixes that the output asks for."""
    trees, expected = [], []
    for member in [one for split in family.splits for one in drawn(family, split, count)]:
        for reset in (0, 1):
            for enable in (0, 1):
                written = design = {**member.fields, "reset_level": reset, "enable_level": enable}
                commands, outputs = [RUN_SMOKE], [smoke_output(member, design)]
                while outputs[-1] != "PASS\n":
                    role = outputs[-1].split()[1]
                    commands += [fix(design, role), RUN_SMOKE]
                    design = design | {f"{role}_level": 1 - int(design[f"{role}_level"])}
                    outputs += ["", smoke_output(member, design)]
                files = {
                    **family.documents(member),
                    SMOKE: family.smoke(member),
                    TARGET: family.write(written),
                }
                trees.append((files, [*commands, f"cat {TARGET}"]))
                expected.append([*outputs, family.design(member)[TARGET]])
    assert await smoke_many(provider, trees) == expected


@pytest.mark.docker
async def test_the_smoke_test_finds_an_operand_that_changes_a_high_reset_value(provider: DockerSandboxes) -> None:
    """A maximum changes it with the largest operand alone, which a single datum becomes when it is negated."""
    (drawn_one,) = drawn(ACCUMULATORS, "train", 1)
    trees = []
    for operand, operation in product(ACCUMULATORS.axes["operand"], ACCUMULATORS.axes["operation"]):
        values = {"width": 4, "base": "decimal", "value": 14, "operand": operand, "operation": operation}
        member = drawn_one.model_copy(update={"values": drawn_one.values | values})
        if ACCUMULATORS.is_possible(member.values) and (operand == "negate" or operation == "max"):
            files = {SMOKE: ACCUMULATORS.smoke(member), **ACCUMULATORS.design(member)}
            trees.append((files, [RUN_SMOKE, fix(member.fields, "enable"), RUN_SMOKE]))
    assert len(trees) > 10
    assert await smoke_many(provider, trees) == [[PASSED, "", "FAIL: enable\n"]] * len(trees)


async def read_and_repair(problem: Problem, member: Parameters, provider: DockerSandboxes, grader: Scorer) -> bool:
    """Whether somebody passes who reads the document, writes, runs the smoke test and believes both."""
    family = FAMILIES[member.family]
    assert isinstance(family, LookingFamily)
    config = EpisodeConfig(system_prompt="", max_turns=9)
    async with Episode(
        problem, provider=provider, grader=grader, renderer=get_renderer(RENDERER), config=config
    ) as episode:
        await episode.start()
        document = (await episode.step(call(f"cat {family.document(member)}"))).outputs[0]
        design = {**told_by(family, member.fields, document), "enable_level": 1}
        await episode.step(call(write({TARGET: family.write(design)})))
        for _ in range(2):
            output = (await episode.step(call(RUN_SMOKE))).outputs[0]
            if output == PASSED:
                break
            role = output.split()[1]
            await episode.step(call(fix(design, role)))
            design[f"{role}_level"] = 1 - int(design[f"{role}_level"])
        last = await episode.step("Done.")
    assert last.score is not None
    return last.score.passed


@pytest.mark.docker
@one_and_slow_others
async def test_who_looks_passes_unless_the_files_lie(family: LookingFamily, provider: DockerSandboxes) -> None:
    source = f"family:{family.name}?count=3&seed=3"
    members, passed = list(draw_members(source)), {}
    async with Scorer(provider) as scorer:
        for lie in ("", "&lie=documents", "&lie=smoke"):
            pairs = zip(load_problems(source + lie), members, strict=True)
            found = await asyncio.gather(*(read_and_repair(*pair, provider, scorer) for pair in pairs))
            passed[lie] = sum(found)
    assert passed[""] == 3
    assert passed["&lie=documents"] == 0
    assert passed["&lie=smoke"] < 3

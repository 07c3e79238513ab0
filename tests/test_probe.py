"""``benchmarks/probe.py``: what a sceptic would try on a student instead of training it, on logits of known faults."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra `local` is not installed")

PROBLEMS, TOKENS, VOCABULARY = 200, 12, 64


@pytest.fixture(scope="module")
def probe() -> ModuleType:
    return import_module("probe")


def right_answers(probe: ModuleType, seed: int = 0) -> Any:
    """The logits of a student that makes no mistake."""
    draw = torch.Generator().manual_seed(seed)
    targets = torch.randint(VOCABULARY, (PROBLEMS * TOKENS,), generator=draw)
    logits = torch.nn.functional.one_hot(targets, VOCABULARY).float() * 14
    return probe.Answers(logits, targets, torch.arange(PROBLEMS).repeat_interleave(TOKENS))


def liking(probe: ModuleType, token: int) -> Any:
    """The logits of a student that writes one token too often, wherever it is."""
    found = right_answers(probe)
    found.logits[:, token] += 12
    return found


def misreading(probe: ModuleType) -> Any:
    """The logits of a student that takes a token for its neighbour in half of the problems, whatever the token is."""
    found = right_answers(probe)
    rows = torch.arange(0, PROBLEMS * TOKENS, TOKENS)
    wrong = rows[torch.arange(PROBLEMS) % 2 == 0]
    found.logits[wrong, (found.targets[wrong] + 1) % VOCABULARY] = 17
    return found


def test_a_bias_mends_a_token_that_is_liked_everywhere(probe: ModuleType) -> None:
    student = liking(probe, 3)
    before, (chosen, values) = student.rate(), probe.best_bias(student)
    assert before < 0.5
    assert 3 in chosen.tolist()
    assert float(probe.Biased(student, chosen).rate(values)) > 0.95
    harm = student.harm()
    assert float(harm.topk(5).values.sum() / harm.sum()) > 0.95


def test_no_bias_mends_what_depends_on_the_problem(probe: ModuleType) -> None:
    student = misreading(probe)
    before, (chosen, values) = student.rate(), probe.best_bias(student)
    assert 0.4 < before < 0.6
    assert float(probe.Biased(student, chosen).rate(values)) - before < 0.1
    assert student.rate(0) == 0.5  # nor does the most likely token
    harm = student.harm()
    assert float(harm.topk(5).values.sum() / harm.sum()) < 0.4


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_the_rates_are_those_of_sampling(probe: ModuleType, temperature: float) -> None:
    """Against the mean of many sampled answers."""
    student = misreading(probe)
    student.logits.div_(3)
    draw = torch.Generator().manual_seed(1)
    chances = (student.logits / temperature).softmax(-1)
    samples = torch.multinomial(chances, 400, replacement=True, generator=draw)
    right = (samples == student.targets[:, None]).reshape(PROBLEMS, TOKENS, 400).all(1).float().mean()
    assert student.rate(temperature) == pytest.approx(float(right), abs=0.01)


def test_few_logits_give_the_rate_of_all(probe: ModuleType) -> None:
    student = liking(probe, 3)
    chosen, values = torch.tensor([3, 9, 11, 20, 40]), torch.tensor([-5.0, 1.0, 0.0, -2.0, 3.0])
    bias = torch.zeros(VOCABULARY).index_add(0, chosen, values)
    assert float(probe.Biased(student, chosen).rate(values)) == pytest.approx(student.rate(bias=bias), abs=1e-5)


@pytest.mark.slow  # a minute of a core for each model
def test_the_shipped_student_fails_it(probe: ModuleType) -> None:
    """What docs/experiments.md says of it."""
    figures = probe.probe(*probe.chosen_folders([]), 64)
    assert figures["cosine"] == pytest.approx(0.986, abs=0.001)
    assert figures["bias_gain"] > 0.5
    assert figures["teacher"] > 0.95
    assert figures["before"] < 0.15 < figures["pass_at_16"]
    assert probe.in_words(figures)[0] == "| 64 held-out problems | |"


def test_the_turns_of_an_episode_are_told_apart(probe: ModuleType) -> None:
    """In a family that needs a look, every token of the model belongs to a turn of its kind."""
    from rtl_agent_gym.demo.shipped import shipped

    tokenizer = probe.load(shipped("teacher"))[1]  # it was not made for this family, and can write it
    problems = probe.Problems.draw(tokenizer, probe.FAMILIES["accumulators"], "names", 12)
    fixes = 0
    for ids, turns in zip(problems.ids, problems.turns, strict=True):
        by_kind = {
            kind: tokenizer.decode([id_ for id_, turn in zip(ids, turns, strict=True) if turn == number])
            for number, kind in enumerate(probe.KINDS)
        }
        assert "cat docs/" in by_kind["look"]
        assert by_kind["write"].count("endmodule") == 1
        assert by_kind["check"].count("iverilog") == (2 if by_kind["fix"] else 1)
        assert by_kind["end"] == "Done.<|im_end|>"
        fixes += bool(by_kind["fix"])
    assert 0 < fixes < 12
    found = right_answers(probe)
    kinds = torch.arange(PROBLEMS * TOKENS) % 2
    student = probe.Answers(found.logits, found.targets, found.owner, kinds)
    student.logits[kinds == 1] = 0.0  # knows nothing in turns of the second kind
    rates = student.by_kind()
    assert rates["look"] > 0.9
    assert rates["write"] < 1e-6


def test_a_model_without_finite_logits_is_refused(probe: ModuleType) -> None:
    class Damaged:
        def model(self, input_ids: Any, **_: Any) -> Any:
            return SimpleNamespace(last_hidden_state=torch.full((*input_ids.shape, 2), float("nan")))

        def lm_head(self, hidden: Any) -> Any:
            return hidden

    with pytest.raises(probe.UsageError, match="not finite"):
        probe.answers(Damaged(), probe.Problems([[1, 1, 0]], [[-1, 1, 1]]))


def test_a_folder_without_a_model_is_refused(probe: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(probe.UsageError, match=r"config\.json"):
        probe.load(tmp_path)

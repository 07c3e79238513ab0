"""``benchmarks/pretrained.py``: the transcripts, what a model reads as its own teacher, and how runs are compared."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rtl_agent_gym import load_problems
from rtl_agent_gym.demo.shipped import shipped
from rtl_agent_gym.episodes.episode import Episode
from rtl_agent_gym.episodes.prompt import open_prompt
from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.evaluation.export import Row
from rtl_agent_gym.policies import ModelOptions
from rtl_agent_gym.policies.sampler import TokenSamplerPolicy
from rtl_agent_gym.renderers import ModelTurn, ToolCall, get_renderer
from rtl_agent_gym.renderers.transcript import TokenTranscript
from rtl_agent_gym.sandboxes import DockerSandboxes
from rtl_agent_gym.scoring import Scorer
from rtl_agent_gym.sources.families import FAMILIES
from rtl_agent_gym.sources.families.looking import LookingFamily


@pytest.fixture(scope="module")
def pretrained() -> ModuleType:
    return import_module("pretrained")


class Recorder:
    """A sampler that answers with the same ids, and keeps the prompts."""

    def __init__(self, answer: list[int]) -> None:
        self.answer, self.prompts = answer, list[list[int]]()

    async def sample(self, prompt: Any, count: int, parameters: Any) -> Any:
        self.prompts.append(prompt.to_ints())
        sequence = SimpleNamespace(tokens=self.answer, logprobs=[0.0] * len(self.answer), stop_reason="stop")
        return SimpleNamespace(sequences=[sequence])


def test_a_self_teacher_reads_the_reference_and_what_the_student_read_after_its_prompt(pretrained: ModuleType) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(shipped("student"))
    renderer = get_renderer("qwen3_instruct", tokenizer)
    (problem,) = load_problems("family:registers?count=1&seed=5")
    sampler = Recorder([*tokenizer.encode("Done.", add_special_tokens=False), tokenizer.eos_token_id])
    policy = TokenSamplerPolicy(sampler, name="fake", tokenizer=tokenizer, options=ModelOptions(max_context=4000))  # type: ignore[arg-type]
    player = pretrained.WithReference(policy).player(problem, renderer, 0)
    opening = open_prompt(problem, pretrained.EPISODE, renderer)
    own = renderer.initial_ids(opening.system, opening.user)
    tokens = TokenTranscript(own)
    rest = []
    for _ in range(2):
        turn = asyncio.run(player.sample(tokens))
        assert turn is not None
        assert turn.token_ids == sampler.answer
        tokens.add_action(turn.token_ids)
        after = renderer.observation_ids(["some output\n"], turn.token_ids)
        tokens.append(after)
        rest.append([*turn.token_ids, *after])
    first, second = sampler.prompts
    (design,) = problem.golden.values()
    assert renderer.decode(first).count(design.strip()) == 1
    assert renderer.decode(own).count(design.strip()) == 0
    assert second == [*first, *rest[0]]
    assert tokens.tokens == [*own, *rest[0], *rest[1]]  # the episode's own tokens have no reference


def test_nll_of_references_is_that_of_a_softmax_and_refuses_broken_weights(
    pretrained: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source, folder = "family:registers?count=2&seed=5", shipped("student")
    monkeypatch.setattr(pretrained, "SMOLLM", SimpleNamespace(renderer="qwen3"))
    found = pretrained.reference_nll(folder, source, tmp_path / "references.jsonl")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    renderer, losses = get_renderer("qwen3", tokenizer), []
    for demonstration in pretrained.read_demonstrations(
        pretrained.SftOptions.build({"episodes": str(tmp_path / "references.jsonl")}), pretrained.Counter()
    ):
        episode = pretrained.encode(demonstration, renderer)
        with torch.inference_mode():
            logprobs = model(input_ids=torch.tensor([episode.tokens])).logits[0].log_softmax(-1)
        losses += [
            -float(logprobs[place - 1, episode.tokens[place]])
            for place, own in enumerate(episode.mask)
            if own and place
        ]
    assert found == pytest.approx(sum(losses) / len(losses), abs=2e-4)
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    model.save_pretrained(tmp_path / "broken")
    tokenizer.save_pretrained(tmp_path / "broken")
    with pytest.raises(UsageError, match="not finite"):
        pretrained.reference_nll(tmp_path / "broken", source, tmp_path / "references.jsonl")


def test_only_the_control_has_a_teacher_that_reads_another_problems_reference(
    pretrained: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Asked(Exception):
        """With the options of a run."""

    def train(options: dict[str, Any]) -> None:
        raise Asked(options)

    monkeypatch.setattr(pretrained, "train", train)
    monkeypatch.setattr(pretrained, "train_sft", lambda options: None)
    monkeypatch.setattr(pretrained, "write_transcripts", lambda *_: None)
    monkeypatch.setattr(pretrained, "RunFolder", lambda _: SimpleNamespace(checkpoints=lambda: [{"state_path": "s"}]))
    contexts = {}
    for name in ("another-reference", "self-1e-4"):
        sizes = SimpleNamespace(held_out=2, folder=tmp_path, transcripts=2, set=[])
        with pytest.raises(Asked) as asked:
            pretrained.pretrained(name, 0, sizes)
        options = asked.value.args[0]
        contexts[name] = options.pop("teacher_context")
        assert options.pop("log_path") == str(tmp_path / f"smollm2-{name}-0")
        assert contexts.setdefault("options", options) == options
    assert contexts["self-1e-4"] == "reference"
    assert contexts["another-reference"] == f"hints:{tmp_path / 'smollm2-another-reference-0-hints.json'}"


def commands_and_outputs(row: Row) -> Iterator[tuple[str, str]]:
    for asked, answered in zip(row["messages"][1:-1:2], row["messages"][2:-1:2], strict=True):
        (made,) = asked["tool_calls"]
        yield json.loads(made["function"]["arguments"])["command"], answered["content"]


@pytest.mark.parametrize("family", ["registers", "arbiters", "timers"])
def test_the_comment_before_a_design_is_what_the_specification_says(pretrained: ModuleType, family: str) -> None:
    source, kinds = f"family:{family}?count=16", set()
    for row, problem in zip(pretrained.demonstrations(source), load_problems(source), strict=True):
        (comment,) = re.findall(
            r"^// The reset is (\w+) and active (\w+)\.$", list(commands_and_outputs(row))[1][0], re.M
        )
        kinds.add(comment)
        assert ("asynchronous" in problem.context["docs/specification.md"]) == (comment[0] == "asynchronous")
        (reset,) = re.findall(r"if \(!?(\w+)\)", "".join((problem.golden or {}).values()))[:1]
        line = next(
            text for text in re.split(r"[.\n] ?", problem.context["docs/specification.md"]) if f"`{reset}`" in text
        )
        assert bool(re.search("active low|is 0", line)) == (comment[1] == "low"), line
    assert len(kinds) == 4
    assert pretrained.note_of_reset("module a(input x, output y);\n    assign y = x;\nendmodule\n") == ""


@pytest.mark.docker
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "family",  # those whose specification is a file; of others there are no such demonstrations
    [name for name, family in FAMILIES.items() if not isinstance(family, LookingFamily)],
)
async def test_the_outputs_of_demonstrations_are_those_of_the_shell(
    pretrained: ModuleType, family: str, provider: DockerSandboxes
) -> None:
    source = f"family:{family}?count=1"
    (row,), (problem,) = pretrained.demonstrations(source), load_problems(source)
    dialect = get_renderer(pretrained.SMOLLM.renderer)
    async with (
        Scorer(provider) as scorer,
        Episode(problem, provider=provider, grader=scorer, renderer=dialect, config=pretrained.EPISODE) as episode,
    ):
        opening = await episode.start()
        assert row["messages"][0]["content"] == opening.user
        for command, output in commands_and_outputs(row):
            turn = await episode.step(dialect.turn_text(ModelTurn(calls=(ToolCall.of(command),))))
            assert list(turn.outputs) == [output]
        last = await episode.step(row["messages"][-1]["content"])
    assert last.score is not None
    assert last.score.passed

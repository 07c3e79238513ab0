"""How much of a student's failure is real: what a sceptic would try instead of training it.

A demonstration of learning shows little if its student is the teacher with a few logits changed. So this measures a
student without training: how close its weights are to the teacher's, which tokens cause its loss, and how much a
constant bias on five logits, a lower temperature, or many samples would help.

A text counts as right if it equals that of one right episode: the text of the design alone or, in families whose files
must be read, of all turns. Its probability follows from the logits at its tokens, so nothing is sampled, and the rates
are expected values. They are lower bounds for a model that can also be right in other words.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from research.episodes import Encoder, TextEpisode, call, write
from research.making import FAMILIES, draw_members, prompt_of
from research.spelled import Spelled, play
from rtl_agent_gym.demo.shipped import RENDERER
from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.renderers import get_renderer
from rtl_agent_gym.sources.families.family import Family, Split
from rtl_agent_gym.sources.families.looking import LookingFamily

FAMILY = "registers"
SPLIT: Split = "combinations"
BIASED = 5
"""Number of logits that a bias may change."""
CLIMB = 60
"""Steps of the search for a bias."""
CONSTANTS = (0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
"""Values that a bias subtracts from logits, or adds to them."""
SEED = 11


KINDS = ("look", "write", "check", "fix", "end")
"""Kinds of turns: reading a document, writing the design, the smoke test, a repair, and the last one."""


@dataclass(frozen=True)
class Problems:
    """Members of a split as right episodes."""

    ids: list[list[int]]
    turns: list[list[int]]
    """For each id, the index of its turn's kind in `KINDS`; -1 if the id is not the model's."""

    @classmethod
    def draw(cls, tokenizer: Any, family: Family, split: Split, count: int) -> Problems:
        """Draw `count` problems.

        In families whose specification is always read in the same way, only the turn that writes is scored. In others,
        all turns are: they read, write a design with an enable that is active high, and repair it if necessary.
        """
        renderer = get_renderer(RENDERER, tokenizer)
        members = draw_members(family, split, count, SEED)
        ids, turns = [], []
        for member in members:
            if isinstance(family, LookingFamily):
                right = play(family, member, Spelled(forced=0.0), random.Random(0))
                encoded = Encoder(renderer, tokenizer).encode(right)
                ids.append(encoded.ids)
                turns.append(kinds_of(right, encoded.learned))
            else:
                prompt = prompt_of(tokenizer, renderer, family, member)
                answer = tokenizer.encode(call(write(family.design(member))), add_special_tokens=False)
                ids.append([*prompt, *answer, tokenizer.eos_token_id])
                turns.append([-1] * len(prompt) + [KINDS.index("write")] * (len(answer) + 1))
        return cls(ids, turns)


def kinds_of(episode: TextEpisode, learned: Sequence[bool]) -> list[int]:
    """For each id of an episode, the kind of its turn; `learned` says which ids are the model's."""
    commands = {"cat docs/": "look", "cat > ": "write", "iverilog ": "check", "sed ": "fix"}
    kinds = [
        KINDS.index(next((kind for begin, kind in commands.items() if f'"{begin}' in turn.text), "end"))
        for turn in episode.turns
    ]
    found, turn = [], -1
    for before, own in zip([False, *learned], learned, strict=False):
        turn += own and not before
        found.append(kinds[turn] if own else -1)
    return found


def load(folder: Path) -> tuple[Any, Any]:
    """A model of transformers and its tokenizer. Raises `UsageError` if the folder has no model."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not (folder / "config.json").is_file():
        raise UsageError(f"--probe: {folder} has no config.json; give the folder of a model of transformers")
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), AutoTokenizer.from_pretrained(folder)


def cosine(one: Any, other: Any) -> float | None:
    """The cosine similarity of all weights, taken as one vector; None if the shapes differ."""
    mine, theirs = dict(one.named_parameters()), dict(other.named_parameters())
    if {name: value.shape for name, value in mine.items()} != {name: value.shape for name, value in theirs.items()}:
        return None
    pairs = [(mine[name].detach().double().flatten(), theirs[name].detach().double().flatten()) for name in mine]
    dot = sum(float(a @ b) for a, b in pairs)
    size = sum(float(a @ a) for a, _ in pairs) * sum(float(b @ b) for _, b in pairs)
    return float(dot / size**0.5)


def interpolated(student: Any, teacher: Any, part: float) -> Any:
    """The student's weights, moved by the fraction `part` of the way to the teacher's."""
    found = copy.deepcopy(student)
    with torch.no_grad():
        for mine, theirs in zip(found.parameters(), teacher.parameters(), strict=True):
            mine.lerp_(theirs, part)
    return found


def answers(model: Any, problems: Problems, rows: int = 16) -> Answers:
    """The logits at each of the model's tokens in the right episodes."""
    logits, targets, owners, kinds = [], [], [], []
    every = list(enumerate(zip(problems.ids, problems.turns, strict=True)))
    with torch.inference_mode():
        for begin in range(0, len(every), rows):
            some = every[begin : begin + rows]
            width = max(len(ids) for _, (ids, _) in some)
            padded = torch.tensor([ids + [0] * (width - len(ids)) for _, (ids, _) in some])
            hidden = model.model(input_ids=padded[:, :-1], use_cache=False).last_hidden_state
            for row, (number, (ids, turns)) in enumerate(some):
                kind = torch.tensor(turns[1:])
                own = kind >= 0
                logits.append(model.lm_head(hidden[row, : len(ids) - 1][own]).float())
                targets.append(torch.tensor(ids[1:])[own])
                owners.append(torch.full((int(own.sum()),), number))
                kinds.append(kind[own])
    if not all(chunk.isfinite().all() for chunk in logits):
        raise UsageError("--probe: the model's logits are not finite; are its weights damaged?")
    return Answers(torch.cat(logits).clone(), torch.cat(targets), torch.cat(owners), torch.cat(kinds))


@dataclass(frozen=True)
class Answers:
    """A model's logits at the tokens of the right answers, concatenated."""

    logits: torch.Tensor
    """Shape (tokens, vocabulary)."""
    targets: torch.Tensor
    """Shape (tokens,)."""
    owner: torch.Tensor
    """The index of each token's problem; shape (tokens,)."""
    kinds: torch.Tensor | None = None
    """The index of each token's kind of turn in `KINDS`; shape (tokens,)."""

    def chances(self, temperature: float = 1.0, bias: torch.Tensor | None = None) -> torch.Tensor:
        """The probability of each right answer; shape (problems,).

        Args:
            temperature: Sampling temperature; 0 takes the most likely token.
            bias: Added to the logits; shape (vocabulary,).
        """
        logits = self.logits if bias is None else self.logits + bias
        problems = torch.zeros(int(self.owner[-1]) + 1)
        if temperature == 0:
            wrong = (logits.argmax(-1) != self.targets).float()
            return (problems.index_add(0, self.owner, wrong) == 0).float()
        chosen = (logits / temperature).log_softmax(-1).gather(1, self.targets[:, None])[:, 0]
        return problems.index_add(0, self.owner, chosen).exp()

    def rate(self, temperature: float = 1.0, bias: torch.Tensor | None = None) -> float:
        """The expected share of right answers."""
        return float(self.chances(temperature, bias).mean())

    def by_kind(self) -> dict[str, float]:
        """Of the problems with turns of a kind, the expected share where all of these are right after right turns."""
        if self.kinds is None:
            return {}
        chosen = self.logits.log_softmax(-1).gather(1, self.targets[:, None])[:, 0]
        found = {}
        for number, kind in enumerate(KINDS):
            mine = self.kinds == number
            if mine.any():
                total = torch.zeros(int(self.owner[-1]) + 1).index_add(0, self.owner[mine], chosen[mine])
                found[kind] = float(total[sorted(set(self.owner[mine].tolist()))].exp().mean())
        return found

    def harm(self) -> torch.Tensor:
        """The loss by the token that causes it, in nats; shape (vocabulary,).

        The loss of a target is shared among the other tokens by their probability.
        """
        chances = self.logits.softmax(-1)
        right = chances.gather(1, self.targets[:, None])
        others = chances.scatter(1, self.targets[:, None], 0.0)
        return (others * (-right.clamp_min(1e-30).log() / (1 - right).clamp_min(1e-12))).sum(0)


class Biased:
    """The probability of each right answer with a bias on a few tokens, without summing over all logits again."""

    def __init__(self, known: Answers, chosen: torch.Tensor) -> None:
        rest = known.logits.clone()
        rest[:, chosen] = -torch.inf
        self._rest, self._few = rest.logsumexp(-1, keepdim=True), known.logits[:, chosen]
        self._own = known.logits.gather(1, known.targets[:, None])[:, 0]
        self._is_chosen = (known.targets[:, None] == chosen).float()
        self._owner, self._problems = known.owner, int(known.owner[-1]) + 1

    def rate(self, values: torch.Tensor) -> torch.Tensor:
        """The expected share of right answers with `values`, shape (few,), added to the logits of the chosen tokens."""
        total = torch.cat([self._rest, self._few + values], 1).logsumexp(-1)
        chosen = self._own + self._is_chosen @ values - total
        return torch.zeros(self._problems).index_add(0, self._owner, chosen).exp().mean()


def best_bias(training: Answers) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens and values of the best constant bias on `BIASED` tokens, each of shape (`BIASED`,).

    The candidates are the tokens that cause most of the loss, and those to which the expected rate is most sensitive.
    Their values have the same magnitude, or come from a search for the highest rate that starts there.
    """
    zero = torch.zeros(training.logits.shape[1], requires_grad=True)
    (slope,) = torch.autograd.grad(training.chances(bias=zero).mean(), zero)
    by_harm, by_slope = training.harm().topk(BIASED).indices, slope.abs().topk(BIASED).indices
    best, most = (by_harm, torch.zeros(BIASED)), training.rate()
    for chosen in (by_harm, by_slope):
        biased = Biased(training, chosen)
        for constant in CONSTANTS:
            start = constant * slope[chosen].sign()
            for values in (start, climbed(biased, start)):
                if (found := float(biased.rate(values))) > most:
                    best, most = (chosen, values), found
    return best


def climbed(biased: Biased, start: torch.Tensor) -> torch.Tensor:
    """The values after `CLIMB` steps of Adam that raise the rate; same shape as `start`."""
    values = start.clone().requires_grad_()
    search = torch.optim.Adam([values], lr=0.2)
    for _ in range(CLIMB):
        search.zero_grad()
        loss = -biased.rate(values)
        loss.backward()  # type: ignore[no-untyped-call]
        search.step()
    return values.detach()


def probe(student: Path, teacher: Path, count: int, name: str = FAMILY) -> dict[str, Any]:
    """The figures of a student.

    Args:
        student, teacher: Folders of models of transformers.
        count: Number of held-out problems, and of training problems for the choice of a bias.
        name: The family of the problems.

    Returns:
        ``cosine`` of the weights (None if their shapes differ); ``top5_loss_share``: the share of the loss on held-out
        references that five tokens cause; ``before`` (temperature 1), ``cold`` (0.01), ``greedy`` and ``pass_at_16``;
        ``biased`` and ``bias_gain``: with the bias on five logits that is best on training problems; ``teacher``;
        ``interpolated``: by the fraction of the way to the teacher, at temperature 1 and greedy; ``turns``: at
        temperature 1, by kind of turn; and ``splits``: the student and the teacher on the other splits.

    Raises:
        UsageError: A folder has no model.
    """
    (model, tokenizer), (other, others) = load(student), load(teacher)
    family = FAMILIES[name]
    problems = Problems.draw(tokenizer, family, SPLIT, count)
    held_out = answers(model, problems)
    caused, chances = held_out.harm(), held_out.chances()
    chosen, values = best_bias(answers(model, Problems.draw(tokenizer, family, "train", count)))
    before, biased, close = held_out.rate(), float(Biased(held_out, chosen).rate(values)), cosine(model, other)
    between = {}
    for part in (0.1, 0.25, 0.5) if close is not None else ():
        mixed = answers(interpolated(model, other, part), problems)
        between[str(part)] = [mixed.rate(), mixed.rate(0)]
    return {
        "problems": count,
        "cosine": close,
        "top5_loss_share": float(caused.topk(BIASED).values.sum() / caused.sum()),
        "before": before,
        "cold": held_out.rate(0.01),
        "greedy": held_out.rate(0),
        "pass_at_16": float((1 - (1 - chances) ** 16).mean()),
        "biased": biased,
        "bias_gain": biased - before,
        "teacher": answers(other, Problems.draw(others, family, SPLIT, count)).rate(),
        "interpolated": between,
        "turns": held_out.by_kind(),
        "splits": {
            split: [
                answers(probed, Problems.draw(own, family, split, count)).rate()
                for probed, own in ((model, tokenizer), (other, others))
            ]
            for split in family.splits
            if split not in ("train", SPLIT)
        },
    }


def in_words(found: dict[str, Any]) -> list[str]:
    """The figures as a table in Markdown."""
    rows: list[tuple[str, str]] = [
        (
            "cosine of the weights with the teacher's",
            "other shapes" if found["cosine"] is None else f"{found['cosine']:.3f}",
        ),
        ("share of the loss that five tokens cause", f"{found['top5_loss_share']:.0%}"),
        ("right at temperature 1", f"{found['before']:.1%}"),
        ("at temperature 0.01", f"{found['cold']:.1%}"),
        ("greedy", f"{found['greedy']:.1%}"),
        ("at least once in 16 samples", f"{found['pass_at_16']:.1%}"),
        ("with the best bias on five logits, chosen on training problems", f"{found['biased']:.1%}"),
        ("the teacher", f"{found['teacher']:.1%}"),
    ]
    rows += [
        (f"{float(part):.0%} of the way to the teacher: at temperature 1, greedy", f"{one:.1%}, {greedy:.1%}")
        for part, (one, greedy) in found["interpolated"].items()
    ]
    rows += [(f"turns to {kind}: right after right ones", f"{rate:.1%}") for kind, rate in found["turns"].items()]
    rows += [
        (f"split `{split}`: student, teacher", f"{one:.1%}, {other:.1%}")
        for split, (one, other) in found["splits"].items()
    ]
    return [
        f"| {found['problems']} held-out problems | |",
        "|---|---|",
        *(f"| {what} | {value} |" for what, value in rows),
    ]


def chosen_folders(given: Sequence[Path]) -> tuple[Path, Path]:
    """The student's and the teacher's folder, as given, or by default the shipped ones."""
    from rtl_agent_gym.demo.shipped import shipped

    student, teacher = [*given, *(shipped(name) for name in ("student", "teacher")[len(given) :])]
    return student, teacher

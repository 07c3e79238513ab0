"""Small episodes without a sandbox, and models of a few thousand parameters, for tests of the loop.

An episode is two turns of one token each; its reward is the fraction of sampled ids below half of the vocabulary.
`run_alone` does a complete run in a process that a test can kill.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from rtl_agent_gym.engines.connect import local_engine
from rtl_agent_gym.envs.tinker_config import TinkerEnvConfig
from rtl_agent_gym.errors import SandboxLost
from rtl_agent_gym.evaluation.outcome import EpisodeResult
from rtl_agent_gym.policies.sampler import TokenSamplerPolicy
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.renderers.transcript import TokenTranscript
from rtl_agent_gym.scoring.score import Score
from rtl_agent_gym.training.checkpointer import Checkpointer
from rtl_agent_gym.training.evaluator import Evaluator
from rtl_agent_gym.training.loop import TrainingLoop
from rtl_agent_gym.training.options import TrainOptions, split_arguments
from rtl_agent_gym.training.plan import Plan
from rtl_agent_gym.training.progress import Progress
from rtl_agent_gym.training.rollouts import Rollout
from rtl_agent_gym.training.run_folder import RunFolder
from rtl_agent_gym.training.teacher_context import SELF
from rtl_agent_gym.training.teachers import SameTokens, SelfTeacher, Teacher

from .common import weights_of

VOCABULARY = 24
PROMPT = [1, 2, 3]
TURNS = 2


@dataclass
class Faults:
    """Episodes with a machine fault, by number in the order in which they began, and what was played."""

    broken: set[int] = field(default_factory=set)
    cancelled: set[int] = field(default_factory=set)
    """Episodes whose work is cancelled by something else."""
    begun: int = 0
    played: int = 0
    log: Path | None = None
    problems: list[str] = field(default_factory=list)
    """The problem of each episode."""


class ToyRenderer:
    """As much of a renderer as the policy needs."""

    name, stop = "toy", (VOCABULARY - 1,)

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))


@dataclass
class ToyEpisodes:
    """Plays episodes; the policy is the real one."""

    faults: Faults

    async def __call__(self, problem: Problem, policy: TokenSamplerPolicy) -> Rollout:
        number, renderer = self.faults.begun, ToyRenderer()
        self.faults.begun += 1
        self.faults.problems.append(problem.id)
        if number in self.faults.broken:
            raise SandboxLost("pulled the plug")
        if number in self.faults.cancelled:
            lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            lost.cancel()
            await lost
        tokens, player = TokenTranscript(PROMPT), policy.player(problem, renderer)  # type: ignore[arg-type]
        for turn in range(TURNS):
            if turn:
                tokens.append([4])
            completion = await player.sample(tokens)
            assert completion is not None
            tokens.add_action(completion.token_ids or (), completion.logprobs)
            await asyncio.sleep(0.002)
        return self.graded(problem, tokens)

    def graded(self, problem: Problem, tokens: TokenTranscript) -> Rollout:
        sampled = [id_ for id_, mask in zip(tokens.tokens, tokens.mask, strict=True) if mask]
        reward = sum(id_ < VOCABULARY // 2 for id_ in sampled) / TURNS
        self.faults.played += 1
        if self.faults.log is not None:
            with self.faults.log.open("a") as stream:
                stream.write("".join(f"{id_} " for id_ in sampled) + "\n")
        rest: dict[str, Any] = dict.fromkeys(("format", "syntax", "interface", "compile"), 1)
        score = Score(passed=reward == 1.0, tests_passed=0, tests_total=1, reward=reward, **rest)
        result = EpisodeResult.of(problem, 0, score=score, stop_reason="completed", turns=TURNS)
        return Rollout(result, (tokens,), reward, {"tests_passed": float(score.passed)})


class ToyEvaluator(Evaluator):
    """Records what would be evaluated; half of it passes, unless `rates` says otherwise."""

    played: ClassVar[list[tuple[list[str], int, str]]] = []
    """Problems, samples and folder of each evaluation of the last run."""
    samplers: ClassVar[list[Any]] = []
    """The sampler of each of these."""
    rates: ClassVar[dict[int, bool]] = {}
    """Whether the problems pass, by the number of steps that the weights were trained for."""

    async def play(
        self, problems: Sequence[Problem], sampler: Any, samples: int, folder: Path
    ) -> Sequence[EpisodeResult]:
        self.played.append(([problem.id for problem in problems], samples, folder.name))
        self.samplers.append(sampler)
        rest: dict[str, Any] = dict.fromkeys(("tests_passed", "format", "syntax", "interface", "compile", "reward"), 1)

        def passed(sample: int) -> bool:
            return self.rates.get(int(folder.name[:6]), sample % 2 == 0)

        return [
            EpisodeResult(
                problem_id=problem.id,
                sample=sample,
                category=problem.category,
                difficulty=problem.difficulty,
                seed=0,
                score=Score(passed=passed(sample), tests_total=2, **rest),
            )
            for problem in problems
            for sample in range(samples)
        ]


def make_models(folder: Path) -> None:
    """A student and a teacher with random weights."""
    import torch
    import transformers

    from rtl_agent_gym.demo.shipped import shipped

    library: Any = transformers
    for name, seed in (("student", 1), ("teacher", 2)):
        torch.manual_seed(seed)
        config = library.Qwen3Config(
            vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, head_dim=8, max_position_embeddings=64, tie_word_embeddings=True,
            bos_token_id=None, eos_token_id=0, pad_token_id=0,
        )  # fmt: skip
        model = library.Qwen3ForCausalLM(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(8.0 if parameter.ndim > 1 else 1.0)
        model.save_pretrained(folder / name)
        for file in shipped("student").glob("tokenizer*.json"):
            shutil.copy(file, folder / name)


@dataclass
class Ran:
    """The result of a run."""

    folder: RunFolder
    faults: Faults
    weights: dict[str, Any]


def options(folder: Path, *arguments: str) -> TrainOptions:
    """Options of a toy run, with `arguments` on top."""
    base = {
        "student_model": "toy", "teacher_model": "toy", "renderer_name": "qwen3_instruct", "engine": "local",
        "max_tokens": 1, "group_size": 4, "num_steps": 4, "lora_rank": 0, "learning_rate": 0.02, "save_every": 0,
        "log_path": str(folder / "run"), "eval_every": 0,
    }  # fmt: skip
    return TrainOptions.build(split_arguments(arguments), base)


@contextlib.asynccontextmanager
async def opened(
    home: Path,
    made: TrainOptions,
    *,
    service: Callable[[Any], Any] | None = None,
    replaced: Any = None,
    tested: bool = False,
) -> AsyncIterator[Checkpointer]:
    """The trainer of a run, with its folder and checkpoints, begun or resumed.

    Args:
        home: The student's folder is in it.
        made: The run's options.
        service: Wraps the engine's service.
        replaced: Stands for the engine and its trainer.
        tested: Whether held-out problems are evaluated.
    """
    folder = RunFolder(made.log_path)
    folder.open(made.model_dump(mode="json"), "resume")
    engine: Any = replaced or local_engine(made.local_config(folder.path / "checkpoints"))
    if service is not None:
        engine.service = service(engine.service)

    async def make_trainer(state: str | None) -> Any:
        return replaced or await engine.trainer(str(home / "student"), 0, 0, state, optimizer=state is not None)

    try:
        folder.repair()
        with Progress(made.num_steps) as progress:
            checkpointer = Checkpointer(made, folder, engine, make_trainer, progress, tested=tested)
            await checkpointer.open()
            yield checkpointer
    finally:
        if not replaced:
            await engine.close("success")
        folder.close()


async def run(
    home: Path,
    *arguments: str,
    faults: Faults | None = None,
    problems: int = 1,
    held_out: int = 0,
    service: Callable[[Any], Any] | None = None,
) -> Ran:
    """Start or resume a toy run; `service` may wrap the engine's service."""
    made, faults, found = options(home, *arguments), faults or Faults(), load_problems("bundled")
    trained, tested = found[:problems], found[problems : problems + held_out]
    async with opened(home, made, service=service, tested=bool(tested)) as checkpointer:
        folder, engine, progress = checkpointer.folder, checkpointer.engine, checkpointer.progress
        teachers: dict[str, Teacher] = {}
        if made.distils:
            teacher: Teacher = SameTokens(
                await engine.published("teacher_model", str(home / "teacher")), top=made.kl_top_k
            )
            if made.teacher_model == SELF:
                start = await engine.published("student_model", str(home / "student"))
                teacher = SelfTeacher(start, lag=made.teacher_lag)
            teachers = dict.fromkeys([problem.id for problem in trained], teacher)
        plan = Plan(made, "local", trained, tested, "toy", None, "")
        evaluator = ToyEvaluator(made, plan.evaluated(), TinkerEnvConfig(), folder.path / "evaluations", progress)
        evaluator.played.clear()
        evaluator.samplers.clear()
        loop = (checkpointer, teachers, evaluator, folder, progress)
        await TrainingLoop(made, plan.batches(), ToyEpisodes(faults), *loop).run()
    return Ran(folder, faults, weights_of(folder.checkpoints()[-1]["state_path"]))


def run_alone(folder: Path, *arguments: str) -> None:
    """Do a toy run; record each played episode in ``played.log`` and errors in ``errors.log``."""
    sys.stderr = (folder / "errors.log").open("a")
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(run(folder, *arguments, faults=Faults(log=folder / "played.log")))

"""A small tinker-cookbook environment, and models of a few thousand parameters, for tests of the loop.

An episode is two turns of one token each; its reward is the fraction of sampled ids below half of the vocabulary.
`run_alone` does a complete run in a process that a test can kill.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import tinker
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, StepResult

from rtl_agent_gym.engines.connect import Engine, local_engine
from rtl_agent_gym.envs.tinker_config import TinkerEnvConfig
from rtl_agent_gym.envs.tinker_data import CVDPDataset
from rtl_agent_gym.errors import SandboxLost
from rtl_agent_gym.evaluation.outcome import EpisodeResult
from rtl_agent_gym.problems import Problem, load_problems
from rtl_agent_gym.scoring.score import Score
from rtl_agent_gym.training.checkpointer import Checkpointer
from rtl_agent_gym.training.dataset import schedule
from rtl_agent_gym.training.evaluator import Evaluator
from rtl_agent_gym.training.loop import TrainingLoop
from rtl_agent_gym.training.options import TrainOptions, split_arguments
from rtl_agent_gym.training.progress import Progress
from rtl_agent_gym.training.run_folder import RunFolder
from rtl_agent_gym.training.teacher_context import SELF
from rtl_agent_gym.training.teachers import SameTokens, SelfTeacher, Teacher

VOCABULARY = 24
PROMPT = [1, 2, 3]
TURNS = 2


@dataclass
class Faults:
    """Rollouts with a machine fault, by the number of the environment, and what was played."""

    broken: set[int] = field(default_factory=set)
    cancelled: set[int] = field(default_factory=set)
    """Rollouts whose work is cancelled by something else."""
    made: int = 0
    played: int = 0
    log: Path | None = None
    groups: list[str] = field(default_factory=list)
    """The problem of each group that was made."""


class ToyEnv(Env):
    def __init__(self, faults: Faults, number: int) -> None:
        self._faults, self._number = faults, number
        self._tokens: list[int] = list(PROMPT)
        self._sampled: list[int] = []

    async def initial_observation(self) -> tuple[tinker.ModelInput, list[int]]:
        if self._number in self._faults.broken:
            raise SandboxLost("pulled the plug")
        if self._number in self._faults.cancelled:
            lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            lost.cancel()
            await lost
        return tinker.ModelInput.from_ints(self._tokens), []

    async def step(self, action: list[int], *, extra: Any = None) -> StepResult:
        self._sampled += action
        self._tokens += [*action, 4]
        await asyncio.sleep(0.002)
        over = len(self._sampled) >= TURNS
        reward = sum(id_ < VOCABULARY // 2 for id_ in self._sampled) / TURNS if over else 0.0
        if over:
            self._faults.played += 1
            if self._faults.log is not None:
                with self._faults.log.open("a") as stream:
                    stream.write("".join(f"{id_} " for id_ in self._sampled) + "\n")
        return StepResult(
            reward=reward,
            episode_done=over,
            next_observation=tinker.ModelInput.from_ints(self._tokens),
            next_stop_condition=[],
            metrics={"tests_passed": float(reward == 1.0)} if over else {},
        )


class ToyGroup(EnvGroupBuilder):
    def __init__(self, size: int, faults: Faults) -> None:
        self._size, self._faults = size, faults

    async def make_envs(self) -> Sequence[Env]:
        made = [ToyEnv(self._faults, self._faults.made + place) for place in range(self._size)]
        self._faults.made += self._size
        return made

    def logging_tags(self) -> list[str]:
        return ["toy"]


class ToyDataset(CVDPDataset):
    """CVDP's problems by name, with toy environments."""

    def __init__(self, problems: list[Problem], options: TrainOptions, faults: Faults) -> None:
        super().__init__(problems, TinkerEnvConfig(), schedule(options))
        self._faults = faults

    def group(self, problem: Problem, size: int) -> EnvGroupBuilder:
        self._faults.groups.append(problem.id)
        return ToyGroup(size, self._faults)


class ToyEvaluator(Evaluator):
    """Records what would be evaluated; half of it passes, unless `rates` says otherwise."""

    played: ClassVar[list[tuple[list[str], int, str]]] = []
    """Problems, samples and folder of each evaluation of the last run."""
    rates: ClassVar[dict[int, bool]] = {}
    """Whether the problems pass, by the number of steps that the weights were trained for."""

    async def play(
        self, problems: Sequence[Problem], sampler: Any, samples: int, folder: Path
    ) -> Sequence[EpisodeResult]:
        self.played.append(([problem.id for problem in problems], samples, folder.name))
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


def make_models(folder: Path) -> tuple[Path, Path]:
    """A student and a teacher with random weights."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from rtl_agent_gym.demo.shipped import shipped

    for name, seed in (("student", 1), ("teacher", 2)):
        torch.manual_seed(seed)
        config = Qwen3Config(
            vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, head_dim=8, max_position_embeddings=64, tie_word_embeddings=True,
            bos_token_id=None, eos_token_id=0, pad_token_id=0,
        )  # fmt: skip
        model: Any = Qwen3ForCausalLM(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(8.0 if parameter.ndim > 1 else 1.0)
        model.save_pretrained(folder / name)
        for file in shipped("student").glob("tokenizer*.json"):
            shutil.copy(file, folder / name)
    return folder / "student", folder / "teacher"


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


async def run(
    folder: Path,
    *arguments: str,
    faults: Faults | None = None,
    problems: int = 1,
    held_out: int = 0,
    service: Callable[[Any], Any] | None = None,
) -> Ran:
    """Start or resume a toy run; `service` may wrap the engine's service."""
    made = options(folder, *arguments)
    faults = faults or Faults()
    run_folder = RunFolder(made.log_path)
    run_folder.open(made.model_dump(mode="json"), "resume")
    engine = local_engine(made.local_config(run_folder.path / "checkpoints"))
    engine.service = service(engine.service) if service is not None else engine.service
    try:
        found = load_problems("bundled")[: problems + held_out]
        return await _run(folder, made, faults, run_folder, engine, found[:problems], found[problems:])
    finally:
        await engine.close("success")
        run_folder.close()


async def _run(
    folder: Path,
    made: TrainOptions,
    faults: Faults,
    run_folder: RunFolder,
    engine: Engine,
    problems: list[Problem],
    held_out: list[Problem],
) -> Ran:
    run_folder.repair()

    async def make_trainer(state: str | None) -> Any:
        return await engine.trainer(str(folder / "student"), 0, 0, state, optimizer=state is not None)

    teachers: dict[str, Teacher] = {}
    if made.distils:
        teacher: Teacher = SameTokens(await engine.published("teacher_model", str(folder / "teacher")))
        if made.teacher_model == SELF:
            teacher = SelfTeacher(await engine.published("student_model", str(folder / "student")), made.teacher_lag)
        teachers = dict.fromkeys([problem.id for problem in problems], teacher)
    with Progress(made.num_steps) as progress:
        checkpointer = Checkpointer(made, run_folder, engine, make_trainer, progress, tested=bool(held_out))
        await checkpointer.open()
        dataset = ToyDataset(problems, made, faults)
        evaluated = {"test": held_out, "train": problems if made.eval_episodes else []}
        evaluator = ToyEvaluator(made, evaluated, dataset.config, run_folder.path / "evaluations", progress)
        evaluator.played.clear()
        await TrainingLoop(made, dataset, checkpointer, teachers, evaluator, run_folder, progress).run()
    from safetensors.torch import load_file

    final = run_folder.checkpoints()[-1]["state_path"]
    return Ran(run_folder, faults, load_file(Path(final) / "model.safetensors"))


def run_alone(folder: Path, *arguments: str) -> None:
    """Do a toy run; record each played episode in ``played.log`` and errors in ``errors.log``."""
    sys.stderr = (folder / "errors.log").open("a")
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(run(folder, *arguments, faults=Faults(log=folder / "played.log")))

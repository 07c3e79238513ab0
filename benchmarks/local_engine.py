#!/usr/bin/env python3
"""What a small model costs in the local engine, in milliseconds of processor time on this machine.

    .venv/bin/python benchmarks/local_engine.py
    ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 .venv/bin/python benchmarks/local_engine.py   # an older processor
    .venv/bin/python benchmarks/local_engine.py FOLDER --rows 16 --length 400

The table has a column for each data type, and rows for a sampling step (a token for each running sequence) while one,
half or all of the slots run; the first `CHUNK` tokens of a prompt; and a forward and backward pass of training on one
episode, or on four at once. Each figure is the minimum of several repetitions, since a busy machine only adds to it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import tinker
import torch

from rtl_agent_gym.demo.shipped import shipped
from rtl_agent_gym.engines.config import LocalEngineConfig
from rtl_agent_gym.engines.models import Base, ModelStore, choose_device
from rtl_agent_gym.engines.sampling import CHUNK, SlotTable
from rtl_agent_gym.engines.training import Training

DTYPES = ("float32", "bfloat16")


def least(work: Callable[[], object], repetitions: int) -> float:
    """The minimum processor time of several repetitions, in milliseconds."""
    work()
    found = []
    for _ in range(repetitions):
        begun = time.process_time()
        work()
        found.append(time.process_time() - begun)
    return min(found) * 1000


def sampling(base: Base, rows: int, length: int, repetitions: int) -> dict[str, float]:
    """Costs of sampling steps with sequences of about `length` tokens, and of the beginning of a prompt."""
    table = SlotTable(base.weights, rows, steady=True)
    costs = {}

    def begin() -> None:
        slot = table.acquire(base.weights, prompt)
        assert slot is not None
        table.prefill(base.weights, slot, prompt)
        slot.weights, slot.busy = -1, False  # so that the next prompt reuses nothing

    with torch.inference_mode():
        for slot in table._slots:
            slot.weights, slot.tokens = base.weights.key, [1] * length
            table._cache.reserve(length + repetitions + 2)
        for busy in sorted({1, rows // 2, rows} - {0}):
            costs[f"a step of sampling, {busy} of {rows} rows run"] = least(
                partial(table.step, base.weights, table._slots[:busy], [1] * busy), repetitions
            )
            for slot in table._slots:
                slot.tokens = [1] * length
        prompt = [1] * (CHUNK + 1)
        costs[f"the first {CHUNK} tokens of a prompt"] = least(begin, repetitions)
    return costs


def training(base: Base, length: int, repetitions: int) -> dict[str, float]:
    """Costs of a forward and backward pass for one episode, and for four episodes that begin alike or differently.

    The last third of each episode's tokens is trained on. Episodes that begin alike share their first third.
    """
    trainer, third = Training.fresh(base, rank=0, seed=0, config=LocalEngineConfig()), length // 3
    weights = tinker.TensorData.from_torch(torch.tensor([float(place >= length - third) for place in range(length)]))
    targets = tinker.TensorData.from_torch(torch.ones(length, dtype=torch.long))
    inputs = {"weights": weights, "target_tokens": targets}

    def cost(*prompts: list[int]) -> float:
        data = [
            tinker.Datum(model_input=tinker.ModelInput.from_ints(prompt), loss_fn_inputs=inputs) for prompt in prompts
        ]
        return least(lambda: trainer.forward(data, "cross_entropy", None, backward=True), max(2, repetitions // 5))

    alike = ([1] * third + [other] * (length - third) for other in range(4))
    return {
        f"training on an episode of {length} tokens": cost([1] * length),
        "on four of these": cost(*([other] * length for other in range(4))),
        f"on four whose first {third} tokens are the same": cost(*alike),
    }


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=str(shipped("spelled/student")), help="folder of a model")
    parser.add_argument("--rows", type=int, default=32, help="sequences at once")
    parser.add_argument("--length", type=int, default=640, help="tokens of each sequence")
    parser.add_argument("--repetitions", type=int, default=20)
    given = parser.parse_args()
    torch.set_num_threads(1)  # as the engine does for small models
    columns = []
    for dtype in DTYPES:
        base = ModelStore(choose_device("cpu", dtype)).base(given.model)
        costs = sampling(base, given.rows, given.length, given.repetitions)
        columns.append(costs | training(base, given.length, given.repetitions))
    print(f"| ms | {' | '.join(DTYPES)} |\n|---|{'---|' * len(DTYPES)}")
    for name in columns[0]:
        print(f"| {name} | {' | '.join(f'{costs[name]:.1f}' for costs in columns)} |")


if __name__ == "__main__":
    main()

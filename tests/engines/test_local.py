"""The local engine's service: shared memory, an unblocked event loop, errors and ends."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import tinker
import torch

from rtl_agent_gym.engines.local import LocalSamplingClient, LocalServiceClient
from rtl_agent_gym.engines.requests import Purpose, translate
from rtl_agent_gym.engines.sampling import SlotTable
from rtl_agent_gym.engines.threads import Worker
from rtl_agent_gym.errors import UsageError

from .conftest import datum, prompt_of


async def test_student_and_teacher_have_one_base_in_memory(service: LocalServiceClient, model_path: Path) -> None:
    trainer = await service.create_lora_training_client(str(model_path), rank=4)
    student = await trainer.save_weights_and_get_sampling_client()
    teacher = await service.create_sampling_client(base_model=str(model_path))
    base = {weight.data_ptr() for weight in teacher._weights.module.parameters()}
    for module in (trainer._training.module, student._weights.module):
        own = {name for name, weight in module.named_parameters() if weight.data_ptr() not in base}
        assert own
        assert all("lora_" in name for name in own)


async def test_the_event_loop_is_never_blocked(service: LocalServiceClient, model_path: Path) -> None:
    trainer = await service.create_lora_training_client(str(model_path), rank=4)
    ids = prompt_of(400)
    work = trainer.forward_backward([datum(ids, weights=[1.0] * 399)] * 24, "cross_entropy")
    begun = last = time.perf_counter()
    longest = 0.0
    while not work.future().done():
        await asyncio.sleep(0.001)
        longest, last = max(longest, time.perf_counter() - last), time.perf_counter()
    assert longest < max(0.25, (last - begun) / 2)  # blocked, it would be all of the time
    await work


async def test_a_request_that_is_given_up_frees_its_slot(
    sampler: LocalSamplingClient, service: LocalServiceClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, step = list[int](), SlotTable.step

    def counted(*given: Any) -> Any:
        steps.append(1)
        return step(*given)

    monkeypatch.setattr(SlotTable, "step", counted)
    prompt = tinker.ModelInput.from_ints(prompt_of(5))
    endless = tinker.SamplingParams(max_tokens=1000, stop=[])
    tasks = [asyncio.ensure_future(sampler.sample(prompt, 8, endless).coroutine()) for _ in range(2)]
    await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    assert (await sampler.sample(prompt, 8, tinker.SamplingParams(max_tokens=2, stop=[]))).sequences
    assert len(steps) < 1000, "what was given up was sampled to its end"
    scheduler = service.scheduler
    assert not any(slot.busy for table in scheduler._tables.values() for slot in table._slots)


async def test_closing_fails_what_is_not_answered_and_can_be_done_twice(
    sampler: LocalSamplingClient, service: LocalServiceClient
) -> None:
    prompt = tinker.ModelInput.from_ints(prompt_of(5))
    pending = sampler.sample(prompt, 20, tinker.SamplingParams(max_tokens=1000, stop=[]))
    scoring = sampler.compute_logprobs(prompt)
    await asyncio.to_thread(service.close)
    service.close()
    assert len(await scoring) == 5
    with pytest.raises(UsageError, match="closed before this request"):
        await pending


async def test_sampling_training_and_scoring_go_on_side_by_side(service: LocalServiceClient, model_path: Path) -> None:
    trainer = await service.create_lora_training_client(str(model_path), rank=4)
    sampler = await trainer.save_weights_and_get_sampling_client()
    prompt = tinker.ModelInput.from_ints(prompt_of(5))
    alone = await sampler.sample(prompt, 2, tinker.SamplingParams(max_tokens=60, seed=1, stop=[]))
    together = sampler.sample(prompt, 2, tinker.SamplingParams(max_tokens=60, seed=1, stop=[]))
    for _ in range(3):
        trainer.forward_backward([datum(prompt_of(30), weights=[1.0] * 29)], "cross_entropy")
        await trainer.optim_step(tinker.AdamParams(learning_rate=1e-2))
        await sampler.compute_logprobs(prompt)
    assert [one.tokens for one in (await together).sequences] == [one.tokens for one in alone.sequences]
    await trainer.forward_backward([datum(prompt_of(30))], "cross_entropy")
    assert not service.scheduler._tables  # nothing is sampled, so the memory is for the training
    again = await sampler.sample(prompt, 2, tinker.SamplingParams(max_tokens=60, seed=1, stop=[]))
    assert [(one.tokens, one.logprobs) for one in again.sequences] == [
        (one.tokens, one.logprobs) for one in alone.sequences
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mask": [1.0] * 4}, "datum 0: loss_fn_inputs has mask"),
        ({"weights": [1.0]}, "weights has the shape"),
    ],
)
async def test_data_that_do_not_fit_are_named(
    service: LocalServiceClient, model_path: Path, change: dict[str, list[float]], words: str
) -> None:
    trainer = await service.create_lora_training_client(str(model_path), rank=4)
    values = torch.ones(4).tolist()
    inputs: Any = {"target_tokens": [1, 2, 3, 4], "weights": values} | change
    inputs = {key: tinker.TensorData(data=value, dtype="int64" if key[0] == "t" else "float32", shape=[len(value)])
              for key, value in inputs.items()}  # fmt: skip
    wrong = tinker.Datum(model_input=tinker.ModelInput.from_ints([1, 2, 3, 4]), loss_fn_inputs=inputs)
    with pytest.raises(UsageError, match=words):
        await trainer.forward_backward([wrong], "cross_entropy")


async def test_mistakes_are_told_with_what_to_do(service: LocalServiceClient, model_path: Path, tmp_path: Path) -> None:
    trainer = await service.create_lora_training_client(str(model_path), rank=4)
    sampler = await trainer.save_weights_and_get_sampling_client()
    empty, long = tinker.ModelInput.from_ints([]), tinker.ModelInput.from_ints([1] * 1024)
    with pytest.raises(UsageError, match="no causal language model can be read"):
        await service.create_sampling_client(base_model=str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="no checkpoint at"):
        await service.create_training_client_from_state(str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="at least one token"):
        await sampler.sample(empty, 1, tinker.SamplingParams())
    with pytest.raises(UsageError, match="the prompt has 1024 tokens"):
        await sampler.sample(long, 1, tinker.SamplingParams())
    with pytest.raises(UsageError, match="call forward_backward before optim_step"):
        await trainer.optim_step(tinker.AdamParams())
    with pytest.raises(UsageError, match="no loss 'cispo'"):
        await trainer.forward_backward([datum([1, 2])], "cispo")
    with pytest.raises(UsageError, match="plain file name"):
        trainer.save_state("../elsewhere")
    path = (await trainer.save_weights_for_sampler("weights")).path
    with pytest.raises(UsageError, match="has weights only"):
        await service.create_training_client_from_state_with_optimizer(path)
    service.close()
    with pytest.raises(UsageError, match="engine is closed"):
        sampler.compute_logprobs(long)


def test_the_package_and_the_protocol_import_neither_torch_nor_tinker() -> None:
    code = (
        "import sys, rtl_agent_gym, rtl_agent_gym.engines, rtl_agent_gym.engines.protocol;"
        "assert not {'torch', 'tinker', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


async def test_an_error_of_a_models_code_reaches_the_caller_and_the_engine_works_on(
    sampler: LocalSamplingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, params = tinker.ModelInput.from_ints(prompt_of(5)), tinker.SamplingParams(max_tokens=3)
    with monkeypatch.context() as patch:
        patch.setattr(SlotTable, "step", lambda *_: dict[str, int]()["no such layer"])
        with pytest.raises(KeyError, match="no such layer"):
            await sampler.sample(prompt, 1, params)
    assert (await sampler.sample(prompt, 1, params)).sequences


async def test_a_request_cancelled_with_its_answer_is_no_error(sampler: LocalSamplingClient) -> None:
    """The future may be cancelled between the check and its result."""
    prompt, params = tinker.ModelInput.from_ints(prompt_of(5)), tinker.SamplingParams(max_tokens=3)
    response = tinker.SampleResponse

    def cancelled(*arguments: Any, **named: Any) -> Any:
        waiting.future().cancel()
        return response(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tinker, "SampleResponse", cancelled)
        waiting = sampler.sample(prompt, 1, params)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.to_thread(waiting.future().result, 30)
    assert (await sampler.sample(prompt, 1, params)).sequences


def test_too_little_memory_names_the_options_that_need_less() -> None:
    error = translate(torch.OutOfMemoryError("CUDA out of memory"), Purpose("sampling"), remote=False)
    assert isinstance(error, UsageError)
    assert "local_batch, local_batch_tokens: sampling: the device has too little memory" in str(error)
    policy = Purpose("local:m did not answer", None, "local:m")
    error = translate(torch.OutOfMemoryError("CUDA out of memory"), policy, remote=False)
    assert str(error).startswith("max_context (--max-context): local:m did not answer: the device has too little")
    assert "local_" not in str(error)


STILL_COMPUTING = """
import sys, time, torch
from rtl_agent_gym.engines.threads import Worker, end_process
from rtl_agent_gym.errors import ServiceDown
from rtl_agent_gym.training import launch

def compute():
    weight = torch.ones(1200, 1200, requires_grad=True)
    while True:
        (weight @ weight).tanh().sum().backward()

worker = Worker(lambda: None, lambda: False)
worker.submit(compute)
while not worker.computing:
    time.sleep(0.01)
time.sleep(0.3)
print("stopped")
"""
A_RUN_FAILS = """
def train(*_, **__):
    raise {}

launch.train = train
sys.exit(launch.main([]))
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("end", "code", "says"),
    [
        ("sys.exit(end_process(130))", 130, ""),
        (A_RUN_FAILS.format("ServiceDown('away')"), 3, "error: away\n"),
        (A_RUN_FAILS.format("OSError(28, 'full')"), 3, "error: full; the same command resumes the run\n"),
        (A_RUN_FAILS.format("KeyboardInterrupt"), 130, "stopped; the same command resumes the run\n"),
    ],
    ids=("at once", "an error", "a full disk", "Ctrl-C"),
)
def test_a_process_ends_quietly_while_the_engine_computes(end: str, code: int, says: str) -> None:
    """Without `end_process`, CPython before 3.14 aborts."""
    ended = subprocess.run([sys.executable, "-c", STILL_COMPUTING + end], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "stopped\n", says)


def test_a_cancelled_job_is_withdrawn_and_the_next_one_is_done() -> None:
    worker, gate, ran = Worker(lambda: None, lambda: False), threading.Event(), list[int]()
    try:
        worker.submit(gate.wait)
        assert worker.submit(lambda: ran.append(1)).cancel()
        gate.set()
        assert worker.submit(lambda: 7).result(timeout=10) == 7
        assert ran == []
    finally:
        gate.set()
        worker.close()

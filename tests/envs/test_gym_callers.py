"""Who may use a Gymnasium environment, and the infos of several at once, on real containers."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rtl_agent_gym  # noqa: F401 - registers the environments
from rtl_agent_gym.episodes.runtime import run_sync
from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.problems import Problem
from rtl_agent_gym.sandboxes import channel
from tests.arbiter import call
from tests.sandboxes.providers import containers
from tests.waiting import until

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def env(arbiter: Problem) -> Iterator[gym.Env[str, str]]:
    made: gym.Env[str, str] = gym.make("CVDPAgentic-v0", problems=[arbiter], command_timeout=10.0)
    made.reset(seed=0)
    yield made
    made.close()


def in_a_fork(work: Callable[[], str]) -> str:
    """What a forked child's work returns, or the error that it raises; a child that hangs is an error here."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = work()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    deadline = time.monotonic() + 120
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, 9)
        time.sleep(0.01)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        return pipe.read()


def test_a_second_threads_call_raises_at_once(env: gym.Env[str, str]) -> None:
    first = threading.Thread(target=env.step, args=(call("sleep 3; echo first >/tmp/first"),))
    first.start()
    time.sleep(0.5)
    for use in (lambda: env.step(call("echo second")), lambda: env.reset()):
        with pytest.raises(UsageError, match="one thread at a time"):
            use()
    assert first.is_alive(), "who is refused does not wait"
    first.join()
    # One after the other, threads may take turns; what was refused has changed nothing.
    heard: list[str] = []
    later = threading.Thread(target=lambda: heard.append(env.step(call("cat /tmp/first && echo complete"))[0]))
    later.start()
    later.join()
    assert "complete" in heard[0]


def test_a_forked_childs_call_raises_at_once_and_its_close_spares_the_parent(env: gym.Env[str, str]) -> None:
    def closed() -> str:
        env.close()
        return "closed"

    begun = time.monotonic()
    assert "UsageError: step() in process" in in_a_fork(lambda: env.step(call("echo child"))[0])
    assert "Make an environment in each process" in in_a_fork(lambda: env.reset()[0])
    assert in_a_fork(closed) == "closed"
    assert time.monotonic() - begun < 100
    assert "alive" in env.step(call("echo alive"))[0]


def test_an_environment_made_before_a_fork_can_be_used_behind_it(arbiter: Problem) -> None:
    made = gym.make("CVDPAgentic-v0", problems=[arbiter])

    def work() -> str:
        made.reset(seed=0)
        observation = made.step(call("echo in the child"))[0]
        made.close()
        return observation

    assert "in the child" in in_a_fork(work)


def test_a_forked_child_keeps_no_sandboxs_socket(env: gym.Env[str, str], arbiter: Problem) -> None:
    other = gym.make("CVDPAgentic-v0", problems=[arbiter])
    other.reset(seed=0)
    sockets = list(channel.closed_in_children)  # held, so that the one that is closed stays among them
    other.close()
    assert any(sock.fileno() < 0 for sock in sockets)
    kept = {os.readlink(f"/proc/self/fd/{sock.fileno()}") for sock in sockets if sock.fileno() >= 0}
    assert kept

    def work() -> str:
        found = set()
        for name in os.listdir("/proc/self/fd"):
            if Path(f"/proc/self/fd/{name}").is_symlink():
                found.add(os.readlink(f"/proc/self/fd/{name}"))
        return f"{len(found & kept)} of {len(kept)}"

    assert in_a_fork(work) == f"0 of {len(kept)}"


def test_an_environment_that_is_dropped_leaves_no_sandbox(arbiter: Problem) -> None:
    made: Any = gym.make("CVDPAgentic-v0", problems=[arbiter])
    made.reset(seed=0)
    sandbox, lease = made.unwrapped.episode.sandbox.id, made.unwrapped._lease
    assert containers(sandbox)
    del made
    gc.collect()
    assert until(lambda: not containers(sandbox))
    run_sync(lease.release())


LEFT = """
import gymnasium as gym, rtl_agent_gym

class Closing(gym.Wrapper):
    def __del__(self):
        self.close()

env = Closing(gym.make("CVDPSingleTurn-v0"))
env.reset(seed=0)
print("used")
"""


def test_an_environment_that_is_closed_while_python_exits_does_not_hang() -> None:
    done = subprocess.run([sys.executable, "-c", LEFT], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "used\n"), done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_an_environment_in_use_cannot_be_copied(arbiter: Problem, copied: Callable[[Any], Any]) -> None:
    env = gym.make("CVDPSingleTurn-v0", problems=[arbiter])
    copied(env)
    env.reset(seed=0)
    with pytest.raises(TypeError, match="cannot be copied or pickled between reset"):
        copied(env)
    env.close()
    copied(env)


@pytest.mark.parametrize("mode", [pytest.param("sync", marks=pytest.mark.slow), "async"])
def test_environments_whose_turns_end_differently_share_a_vector(mode: str, arbiter: Problem) -> None:
    options: dict[str, Any] = {"problems": [arbiter], "command_timeout": 0.5, "reward": "proxy"}
    envs = gym.make_vec("CVDPAgentic-v0", num_envs=3, vectorization_mode=mode, **options)
    try:
        envs.reset(seed=0)
        *_, infos = envs.step((call("true"), call("sleep 30"), "no call at all, so it ends"))
        assert infos["exit_code"].dtype == np.int64
        assert list(infos["exit_code"]) == [0, -1, 0]
        assert list(infos["_exit_code"]) == [True, True, False]
        assert list(infos["timed_out"]) == [False, True, False]
        assert list(infos["_score"]) == [False, False, True]
    finally:
        envs.close()

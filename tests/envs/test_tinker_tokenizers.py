"""The cookbook's own trainers find their tokenizers where the hub cannot be reached."""

from __future__ import annotations

import subprocess
import sys

import pytest

IMPORT_AND_FORK = """
import os, sys
from tinker_cookbook.rl import types
from tinker_cookbook import renderers, tokenizer_utils

for program in sys.argv[1:]:
    if os.fork() == 0:
        exec(program)
        sys.stdout.flush()
        os._exit(0)
    if os.wait()[1]:
        sys.exit(1)
"""
"""Importing the libraries takes seconds, so both programs are forks of one process that has."""

FOUND = """
import socket
def refuse(*_, **__): raise AssertionError("the network was asked")
socket.create_connection = socket.getaddrinfo = refuse

import rtl_agent_gym.envs.tinker_data
from tinker_cookbook import tokenizer_utils
from tinker_cookbook.renderers import get_renderer
from rtl_agent_gym.renderers.vocabularies import harmony_encoding, qwen3_5_tokenizer, qwen3_tokenizer

text = "module adder; // \\u2126 e\\u0301 日本 1234567\\n\\n  endmodule<|im_end|><|end|>"
for model, renderer, ids in (
    ("Qwen/Qwen3-8B", "qwen3", qwen3_tokenizer().encode(text, add_special_tokens=False).ids),
    ("Qwen/Qwen3-4B-Instruct-2507", "qwen3_instruct", qwen3_tokenizer().encode(text, add_special_tokens=False).ids),
    ("Qwen/Qwen3.5-9B", "qwen3_5", qwen3_5_tokenizer().encode(text, add_special_tokens=False).ids),
    ("Qwen/Qwen3.8-27B", "qwen3_8_low_reasoning", qwen3_5_tokenizer().encode(text, add_special_tokens=False).ids),
    ("openai/gpt-oss-20b", "gpt_oss_low_reasoning", harmony_encoding().encode(text, allowed_special="all")),
):
    tokenizer = tokenizer_utils.get_tokenizer(model)
    assert tokenizer is tokenizer_utils.get_tokenizer(model)
    assert list(tokenizer.encode(text, add_special_tokens=False)) == list(ids), model
    made = get_renderer(renderer, tokenizer)
    prompt = made.build_generation_prompt([{"role": "user", "content": "hello"}])
    assert "hello" in tokenizer.decode(prompt.to_ints()), model
    assert made.get_stop_sequences(), model
print("done")
"""


OWN = """
from tinker_cookbook import tokenizer_utils
tokenizer_utils.register_tokenizer("Qwen/Qwen3-8B", lambda: "mine")
import rtl_agent_gym.envs.tinker_data
print(tokenizer_utils.get_tokenizer("Qwen/Qwen3-8B"))
"""


@pytest.mark.slow  # a fresh process imports all libraries
def test_trainers_find_qwen_and_gpt_oss_without_the_hub_and_a_tokenizer_of_the_users_own_stays() -> None:
    command = [sys.executable, "-c", IMPORT_AND_FORK, FOUND, OWN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["done", "mine"], done.stderr[-2000:]

"""The cookbook's own trainers find their tokenizers where the hub cannot be reached."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import socket
def refuse(*_, **__): raise AssertionError("the network was asked")
socket.create_connection = socket.getaddrinfo = refuse

import rtl_agent_gym.envs.tinker_data
from tinker_cookbook import tokenizer_utils
from tinker_cookbook.renderers import get_renderer
from rtl_agent_gym.renderers.vocabularies import harmony_encoding, qwen3_tokenizer

text = "module adder; // \\u2126 e\\u0301 日本 1234567\\n\\n  endmodule<|im_end|><|end|>"
for model, renderer, ids in (
    ("Qwen/Qwen3-8B", "qwen3", qwen3_tokenizer().encode(text, add_special_tokens=False).ids),
    ("Qwen/Qwen3-4B-Instruct-2507", "qwen3_instruct", qwen3_tokenizer().encode(text, add_special_tokens=False).ids),
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


def test_trainers_find_qwen3_and_gpt_oss_without_the_hub() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "done", done.stderr[-2000:]


def test_a_tokenizer_of_the_users_own_stays() -> None:
    program = """
from tinker_cookbook import tokenizer_utils
tokenizer_utils.register_tokenizer("Qwen/Qwen3-8B", lambda: "mine")
import rtl_agent_gym.envs.tinker_data
print(tokenizer_utils.get_tokenizer("Qwen/Qwen3-8B"))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "mine", done.stderr[-2000:]

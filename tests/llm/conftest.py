"""A folder that looks like a language model's artifact; what runs in it is the fake model."""

from __future__ import annotations

from pathlib import Path

import paged_decoder
import pytest
import toy_tokenizers
from fake_model import FakeModel

from graphc.llm import llm

CHAT = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}{% endfor %}<s>assistant:"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer of 600 tokens, a chat template, and </s> as the end."""
    return toy_tokenizers.write(
        toy_tokenizers.byte_level_bpe(),
        tmp_path_factory.mktemp("llm"),
        chat_template=CHAT,
        eos_token="</s>",
    )


@pytest.fixture
def faked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder, which graphc.LLM opens with a fake model."""
    monkeypatch.setattr(llm, "_open", lambda *_: FakeModel(vocabulary=600, pages=200))
    return folder


@pytest.fixture(scope="session")
def paged_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny decoder of tests/paged_decoder.py, compiled."""
    return paged_decoder.compile_to(tmp_path_factory.mktemp("paged") / "tiny.gc")

"""SmolLM2's GGUF file: its tokenizer and weights as they are known from elsewhere."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import tokenizers
from support import Models

from graphc.frontend import companions
from graphc.frontend.gguf.reader import read
from graphc.frontend.gguf.tensors import weight


@pytest.fixture(scope="module")
def path(models: Models) -> Path:
    return models.path("smollm2")


# What llama.cpp makes of these texts from the same file.
TOKENS = {
    "The capital of France is": [504, 3575, 282, 4649, 314],
    "In 1969: 3.14159!": [788, 216, 33, 41, 38, 41, 42, 216, 35, 30, 33, 36, 33, 37, 41, 17],
    "<|im_start|>user\nhi<|im_end|>\n": [1, 4093, 198, 6004, 2, 198],
    "don't  stop\n\n\tübermäßig 你好 🎉": [
        12420, 982, 216, 2853, 1116, 197, 7170, 593, 93, 9023, 34878, 324, 216, 18645, 250, 48392,
        138, 15107, 232, 227,
    ],
}  # fmt: skip


def test_tokenizer(path: Path) -> None:
    found = companions(path)
    tokenizer = tokenizers.Tokenizer.from_str(found["tokenizer.json"].decode())
    for text, expected in TOKENS.items():
        ids = tokenizer.encode(text).ids
        assert ids == expected, (text, ids)
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert b"<|im_start|>" in found["chat_template.jinja"]


def test_tensors_are_read_exactly(path: Path) -> None:
    file, library = read(path), gguf.GGUFReader(path)
    assert len(file.tensors) == len(library.tensors) == 272
    for tensor in library.tensors[:12]:
        own = weight(file, file.tensors[tensor.name])
        expected = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(own.shape)
        np.testing.assert_array_equal(own.read(), expected, tensor.name)

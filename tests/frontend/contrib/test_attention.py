"""Attention, MultiHeadAttention and RotaryEmbedding against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attention_cases
import numpy as np
import pytest
from contrib_models import Case, compare, normal

RNG = np.random.default_rng(8)


def test_rotary_embedding(tmp_path: Path) -> None:
    cases = []
    for interleaved, columns, flat, single in (
        (0, 8, 0, 0), (1, 8, 1, 0), (0, 4, 1, 0), (1, 4, 1, 1), (1, 8, 0, 1), (0, 8, 1, 1),
    ):  # fmt: skip
        size = 16
        cos, sin = normal(RNG, 20, columns), normal(RNG, 20, columns)
        attributes = {"interleaved": interleaved}
        if columns * 2 < size:
            attributes |= {"num_heads": 3, "rotary_embedding_dim": columns * 2}
        case = Case("RotaryEmbedding", attributes)
        if flat:
            case.feed(normal(RNG, 2, 5, 3 * size), ("b", "s", 3 * size))
        else:
            case.feed(normal(RNG, 2, 3, 5, size), ("b", 3, "s", size))
        if single:
            case.feed(np.array([7], "int64"))
        else:
            case.feed(RNG.integers(0, 20, (2, 5)), ("b", "s"))
        cases.append(case.constant(cos).constant(sin))
    compare(cases, tmp_path)


@pytest.mark.parametrize("make", [attention_cases.attention, attention_cases.multi_head])
def test_attention(tmp_path: Path, make: Callable[[np.random.Generator], Case]) -> None:
    rng = np.random.default_rng(1)
    cases = [make(rng) for _ in range(2)]
    model = compare(cases, tmp_path)
    assert model.statistics["recognise_attention"] == len(cases)

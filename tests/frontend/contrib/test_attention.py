"""Attention, MultiHeadAttention and RotaryEmbedding against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attention_cases
import numpy as np
import pytest
from contrib_models import Case, build, compare, compiled, normal, run

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


def test_packed_projections_are_the_same_apart(tmp_path: Path) -> None:
    """ONNX Runtime packs q, k and v on GPUs only: compared with the same ones apart."""
    qkv = normal(RNG, 2, 5, 4, 3, 8)
    parts = [np.ascontiguousarray(qkv[:, :, :, n]).reshape(2, 5, 32) for n in range(3)]
    whole = Case("MultiHeadAttention", {"num_heads": 4}).feed(qkv, ("b", "s", 4, 3, 8))
    half = Case("MultiHeadAttention", {"num_heads": 4}).feed(parts[0], ("b", "s", 32))
    half.feed(np.ascontiguousarray(qkv[:, :, :, 1:]), ("b", "s", 4, 2, 8))
    apart = Case("MultiHeadAttention", {"num_heads": 4})
    for part in parts:
        apart.feed(part, ("b", "s", 32))
    model, feeds = build([whole, half, apart])
    *packed, want = run(compiled(model, tmp_path)[1], feeds)
    for got in packed:
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)

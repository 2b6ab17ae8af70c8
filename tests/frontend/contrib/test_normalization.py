"""Normalisation with residuals and BERT's embeddings, against ONNX Runtime."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from contrib_models import Case, compare, normal

RNG = np.random.default_rng(6)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_skip_layer_normalization(tmp_path: Path, dtype: str) -> None:
    x, other = normal(RNG, 2, 3, 24, dtype=dtype), normal(RNG, 2, 3, 24, dtype=dtype)
    gamma, beta, bias = (normal(RNG, 24, dtype=dtype) for _ in range(3))
    shape = ("n", "s", 24)
    cases = []
    for has_beta, has_bias in itertools.product((True, False), repeat=2):
        case = Case("SkipLayerNormalization", {"epsilon": 1e-3}, outputs=4)
        case.feed(x, shape).feed(other, shape).constant(gamma)
        case.constant(beta if has_beta else None).constant(bias if has_bias else None)
        cases.append(case)
    for skip, skip_shape in ((other[:1], (1, "s", 24)), (other[0], ("s", 24))):
        case = Case("SkipLayerNormalization").feed(x, shape).feed(skip, skip_shape)
        cases.append(case.constant(gamma).constant(beta))
    for has_bias in (True, False):
        case = Case("SkipSimplifiedLayerNormalization", {"epsilon": 1e-4}, outputs=4)
        case.feed(x, shape).feed(other, shape).constant(gamma)
        cases.append(case.constant(bias if has_bias else None))
    for case in cases:  # the CPU provider leaves the statistics unset
        if case.outputs == 4:
            case.hidden = (1, 2)
    compare(cases, tmp_path)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_simplified_layer_normalization(tmp_path: Path, dtype: str) -> None:
    x, shape = normal(RNG, 2, 3, 4, 8, dtype=dtype), ("n", "s", 4, 8)
    cases = []
    for axis in (-1, 2, 3):
        scale = normal(RNG, *x.shape[axis:], dtype=dtype)
        case = Case("SimplifiedLayerNormalization", {"axis": axis, "epsilon": 1e-4}, 2, domain="")
        cases.append(case.feed(x, shape).constant(scale))
    compare(cases, tmp_path)


@pytest.mark.parametrize(
    ("segments", "positions"), [(True, ""), (True, "row"), (False, "full"), (True, "full")]
)
def test_embeddings(tmp_path: Path, segments: bool, positions: str) -> None:
    ids = RNG.integers(0, 40, (2, 5)).astype("int32")
    case = Case("EmbedLayerNormalization", {"epsilon": 1e-5, "mask_index_type": 1}, outputs=3)
    case.feed(ids, ("n", "s"))
    case.feed(RNG.integers(0, 2, (2, 5)).astype("int32") if segments else None, ("n", "s"))
    case.constant(normal(RNG, 40, 16)).constant(normal(RNG, 9, 16))
    case.constant(normal(RNG, 2, 16) if segments else None)
    case.constant(normal(RNG, 16)).constant(normal(RNG, 16))
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], "int32")
    case.feed(mask if positions != "row" else None, ("n", "s"))
    if positions:
        at = RNG.integers(0, 9, (1 if positions == "row" else 2, 5)).astype("int32")
        case.feed(at, (1, "s") if positions == "row" else ("n", "s"))
    compare(case, tmp_path)

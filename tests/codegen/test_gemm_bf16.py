"""The bfloat16 GEMM with its epilogues, at row counts, widths and depths around its tiles."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from plan_runner import Compiled
from references import gelu
from relax_models import make, nn, op

from graphc.codegen.templates import gemm_bf16
from graphc.targets import load as targets

ROWS = [(1, 1), (1, 2), (3, 1), (1, 4), (1, 5), (1, 11), (2, 6), (1, 13), (3, 17), (1, 64)]
TARGETS = ["x86-64-v3", "x86-64-v4", "x86-64-v4-bf16"]
BF16 = ml_dtypes.bfloat16


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(BF16)


def compiled(depth: int, width: int, target: str, body: Any) -> tuple[Compiled, np.ndarray]:
    device = targets.get(target)
    if not device.features <= targets.get("host").features:
        pytest.skip(f"this machine lacks instructions of {target}")
    weight = random(depth, width)
    inputs = {
        "a": (("b", "s", depth), "bfloat16"),
        "residual": (("b", "s", width), "float32"),
    }
    bias = random(width).astype("float32")
    return Compiled(make(inputs, {"w": weight, "bias": bias}, body), device), weight


def product(a: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return a.astype(float) @ weight.astype(float)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("depth", "width"), [(2, 1), (37, 15), (64, 16), (65, 33), (6, 50)])
def test_sums(depth: int, width: int, target: str) -> None:
    run, weight = compiled(
        depth, width, target, lambda _, a, r, w, b: op.matmul(a, w, out_dtype="float32")
    )
    assert "gemm_bf16" in run.templates
    for batch, rows in ROWS:
        a = random(batch, rows, depth)
        (y,) = run([a, np.zeros((batch, rows, width), "float32")])
        np.testing.assert_allclose(y, product(a, weight), atol=2e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_epilogue_is_fused_and_right(target: str) -> None:
    """bias, GELU, a residual and rounding for the next product: one kernel."""

    def body(_: Any, a: Any, r: Any, w: Any, b: Any) -> Any:
        y = op.add(op.matmul(a, w, out_dtype="float32"), b)
        return op.astype(op.add(nn.gelu(y), r), "bfloat16")

    run, weight = compiled(34, 40, target, body)
    assert len(run.built.kernels) == 1
    bias = random(40).astype("float32")
    for batch, rows in ROWS:
        a, residual = random(batch, rows, 34), random(batch, rows, 40).astype("float32")
        (y,) = run([a, residual])
        expected = gelu(product(a, weight) + bias) + residual
        np.testing.assert_allclose(y.astype(float), expected, rtol=2**-8, atol=1e-4)


def test_pack_pairs_rows_and_fills_up_with_zeros() -> None:
    weight = random(3, 5)
    packed = gemm_bf16.pack(weight, 4)
    assert packed.shape == (2, 2, 4)
    halves = packed.view(BF16).reshape(2, 2, 4, 2)
    np.testing.assert_array_equal(halves[0, 0, :, 1], weight[1, :4])
    np.testing.assert_array_equal(halves[1, 1, 0], [weight[2, 4], 0])
    assert not halves[1, :, 1:].any()

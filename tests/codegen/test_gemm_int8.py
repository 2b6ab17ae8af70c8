"""The integer GEMM with its epilogues: exact, at row counts, widths and depths around its tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from plan_runner import Compiled
from relax_models import make, nn, op

from graphc.codegen.templates import gemm_int8
from graphc.targets import load as targets

ROWS = [(1, 1), (1, 2), (3, 1), (1, 4), (1, 5), (1, 11), (2, 6), (1, 13), (3, 17), (1, 64)]
TARGETS = ["x86-64-v2", "x86-64-v3", "x86-64-v4", "x86-64-v4-vnni"]


def random_bytes(dtype: str, *shape: int) -> np.ndarray:
    """All values of the type, its ends often."""
    limits = np.iinfo(dtype)
    generator = np.random.default_rng(sum(shape))
    values = generator.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return np.where(generator.random(shape) < 0.2, limits.min, values).astype(dtype)


def compiled(depth: int, width: int, target: str, body: Any) -> tuple[Compiled, np.ndarray]:
    device = targets.get(target)
    if not device.features <= targets.get("host").features:
        pytest.skip(f"this machine lacks instructions of {target}")
    weight = random_bytes("int8", depth, width)
    inputs = {
        "a": (("b", "s", depth), "uint8"),
        "scale": (("b", "s", 1), "float32"),
        "residual": (("b", "s", width), "float32"),
    }
    scales = np.linspace(1e-4, 2e-4, width).astype("float32")
    return Compiled(make(inputs, {"w": weight, "scales": scales}, body), device), weight


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("depth", "width"), [(4, 1), (37, 15), (64, 16), (65, 33), (6, 50)])
def test_sums_are_exact(depth: int, width: int, target: str) -> None:
    run, weight = compiled(
        depth, width, target, lambda _, a, s, r, w, scales: op.matmul(a, w, out_dtype="int32")
    )
    assert "gemm_int8" in run.templates
    for batch, rows in ROWS:
        a = random_bytes("uint8", batch, rows, depth)
        zeros = np.zeros((batch, rows, width), "float32")
        (y,) = run([a, np.ones((batch, rows, 1), "float32"), zeros])
        np.testing.assert_array_equal(y, a.astype(np.int32) @ weight.astype(np.int32))


@pytest.mark.parametrize("target", TARGETS)
def test_epilogue_is_fused_and_right(target: str) -> None:
    """Scales of rows and columns, ReLU, a residual and requantisation: one kernel."""

    def body(_: Any, a: Any, s: Any, r: Any, w: Any, scales: Any) -> Any:
        sums = op.astype(op.matmul(a, w, out_dtype="int32"), "float32")
        y = op.add(nn.relu(op.multiply(op.multiply(sums, s), scales)), r)
        return op.astype(op.clip(op.round(y), -128, 127), "int8")

    run, weight = compiled(36, 40, target, body)
    assert len(run.built.kernels) == 1
    scales = np.linspace(1e-4, 2e-4, 40).astype("float32")
    for batch, rows in ROWS:
        a = random_bytes("uint8", batch, rows, 36)
        scale = np.random.default_rng(rows).random((batch, rows, 1), "float32")
        residual = np.random.default_rng(batch).standard_normal((batch, rows, 40), "float32")
        (y,) = run([a, scale, residual])
        sums = (a.astype(np.int32) @ weight.astype(np.int32)).astype("float32")
        expected = np.maximum(sums * scale * scales, 0) + residual
        expected = np.clip(np.rint(expected), -128, 127)
        assert np.abs(y - expected).max() <= 1  # a fused multiply-add may round a half otherwise
        assert (y != expected).mean() < 0.01


def test_pack_fills_up_with_zeros() -> None:
    weight = random_bytes("int8", 6, 5)
    packed = gemm_int8.pack(weight, 4)
    assert packed.shape == (2, 2, 4, 4)
    np.testing.assert_array_equal(packed[1, 1, 0, :2], weight[4:, 4])
    assert not packed[:, 1, :, 2:].any()
    assert not packed[1, :, 1:].any()

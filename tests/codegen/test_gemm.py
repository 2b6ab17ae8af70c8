"""The packed GEMM with its epilogues, at row counts and widths around every edge of its tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from plan_runner import Compiled
from references import gelu
from relax_models import make, nn, op

from graphc.codegen.templates import gemm
from graphc.targets import load as targets

ROWS = [(1, 1), (1, 2), (3, 1), (1, 4), (1, 5), (1, 11), (2, 6), (1, 13), (3, 17), (1, 128)]
TARGETS = ["x86-64-v3", "x86-64-v4"]


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def compiled(depth: int, width: int, target: str, epilogue: Any) -> tuple[Compiled, np.ndarray]:
    device = targets.get(target)
    if not device.features <= targets.get("host").features:
        pytest.skip(f"this machine lacks instructions of {target}")
    weight = random(depth, width)
    inputs = {
        "x": (("b", "s", depth), "float32"),
        "residual": (("b", "s", width), "float32"),
        "row": (("b", 1, 1), "float32"),
    }
    model = make(inputs, {"w": weight, "bias": random(width)}, epilogue)
    return Compiled(model, device), weight


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("width", [1, 8, 15, 16, 31, 32, 33, 50])
def test_every_width(width: int, target: str) -> None:
    depth = 37
    run, weight = compiled(depth, width, target, lambda _, x, r, z, w, b: op.matmul(x, w))
    assert run.templates == {"gemm"}
    for batch, rows in ROWS:
        x = random(batch, rows, depth)
        (y,) = run([x, random(batch, rows, width), random(batch, 1, 1)])
        np.testing.assert_allclose(y, x.astype(float) @ weight, atol=2e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_epilogue_is_fused_and_right(target: str) -> None:
    """bias, GELU (which reads its input twice), a value per batch, a residual: one kernel."""

    def body(_: Any, x: Any, r: Any, z: Any, w: Any, b: Any) -> Any:
        return op.add(op.add(nn.gelu(op.add(op.matmul(x, w), b)), z), r)

    run, weight = compiled(33, 40, target, body)
    assert len(run.built.kernels) == 1
    for batch, rows in ROWS:
        x, residual, row = random(batch, rows, 33), random(batch, rows, 40), random(batch, 1, 1)
        (y,) = run([x, residual, row])
        expected = gelu(x.astype(float) @ weight + random(40)) + row + residual
        np.testing.assert_allclose(y, expected, atol=2e-5)


def test_pack_fills_the_last_panel_with_zeros() -> None:
    weight = random(3, 5)
    packed = gemm.pack(weight, 4)
    assert packed.shape == (2, 3, 4)
    np.testing.assert_array_equal(packed[1, :, 0], weight[:, 4])
    assert not packed[1, :, 1:].any()


def test_activations_are_not_packed() -> None:
    """A product of two activations has no weight to pack: another template takes it."""
    inputs = {"x": (("b", "s", 8), "float32"), "y": (("b", 8, "s"), "float32")}
    run = Compiled(make(inputs, {}, lambda _, x, y: op.matmul(x, y)))
    assert "gemm" not in run.templates
    x, y = random(2, 5, 8), random(2, 8, 5)
    np.testing.assert_allclose(run([x, y])[0], x @ y, atol=1e-5)

"""Products with weights of few bits and gathers from them, around the edges of the tiles."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from plan_runner import Compiled
from relax_models import make, nn, op

from graphc.ir import Model, QuantizedWeight, Weights
from graphc.passes.keep_quantized import keep_quantized
from graphc.passes.quantized_products import quantized_products
from graphc.passes.report import Report
from graphc.targets import load as targets

GENERATOR = np.random.default_rng()
ROWS = (1, 2, 3, 4, 5, 8, 11, 12, 13, 20, 29)


def weight(
    depth: int, width: int, *, bits: int, group: int, asymmetric: bool, **more: Any
) -> QuantizedWeight:
    first, dtype = (0, np.uint8) if asymmetric else (-(1 << bits) // 2, np.int8)
    shape = (depth // group, width)
    floats = GENERATOR.standard_normal((2, *shape))
    floats = floats.astype(np.float16 if more.pop("half", True) else np.float32)
    codes = GENERATOR.integers(first, first + (1 << bits), (depth, width)).astype(dtype)
    scales, minima = floats.astype(np.float32)
    return QuantizedWeight(codes, scales, minima if asymmetric else None, group, bits, **more)


def compiled(quantized: QuantizedWeight, body: Any, inputs: Any, target: str) -> Compiled:
    device = targets.get(target)
    if not device.features <= targets.get("host").features:
        pytest.skip(f"this machine lacks instructions of {target}")
    model = make(inputs, {"w": quantized.plain()}, body)
    return Compiled(packable(model, quantized), device)


def packable(model: Model, quantized: QuantizedWeight) -> Model:
    model = dataclasses.replace(
        model, params=Weights({"w": quantized.plain}), quantized={"w": quantized}
    )
    return quantized_products(keep_quantized(model, Report()), Report())


def rounded(x: np.ndarray, group: int) -> np.ndarray:
    """x as int8 in groups, in float64."""
    groups = x.reshape(*x.shape[:-1], -1, group)
    peak = np.abs(groups).max(-1, keepdims=True)
    codes = np.rint(groups * (np.float32(127) / np.maximum(peak, np.float32(1e-30))))
    return (codes.astype(float) * (peak * np.float32(1 / 127))).reshape(x.shape)


CASES = [
    (96, 37, {"bits": 4, "group": 32, "asymmetric": True}),
    (96, 32, {"bits": 4, "group": 32, "asymmetric": False}),
    (64, 15, {"bits": 3, "group": 16, "asymmetric": False, "half": False}),
    (64, 16, {"bits": 2, "group": 16, "asymmetric": True, "half": False}),
    (64, 17, {"bits": 8, "group": 32, "asymmetric": False}),
    (48, 33, {"bits": 6, "group": 16, "asymmetric": False, "half": False}),
    (64, 5, {"bits": 5, "group": 32, "asymmetric": True}),
    (256, 16, {"bits": 4, "group": 256, "asymmetric": True}),
]


FEW, ALL = (0, 4), range(len(CASES))
CASES_OF = {"x86-64-v2": FEW, "x86-64-v3": FEW, "x86-64-v4": FEW, "x86-64-v4-vnni": ALL}
ON_TARGETS = [(target, *CASES[case]) for target, cases in CASES_OF.items() for case in cases]


@pytest.mark.parametrize("activation", ["int8", "float"])
@pytest.mark.parametrize(("target", "depth", "width", "kind"), ON_TARGETS)
def test_product(target: str, depth: int, width: int, kind: Any, activation: str) -> None:
    quantized = weight(depth, width, **kind, activation=activation)
    inputs = {"x": (("b", "s", depth), "float32")}
    run = compiled(quantized, lambda _, x, w: op.matmul(x, w), inputs, target)
    assert "gemm_nbits" in run.templates
    plain = quantized.plain().astype(float)
    for rows in ROWS:
        x = GENERATOR.standard_normal((1, rows, depth)).astype(np.float32)
        x[0, 0, :16] = 0
        (found,) = run([x])
        taken = x if activation == "float" else rounded(x, quantized.group)
        expected = taken.astype(float) @ plain
        np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max())


def test_epilogue_is_fused() -> None:
    quantized = weight(64, 40, bits=4, group=32, asymmetric=True)
    inputs = {"x": (("b", "s", 64), "float32"), "r": (("b", "s", 40), "float32")}

    def body(_: Any, x: Any, r: Any, w: Any) -> Any:
        return op.add(nn.silu(op.matmul(x, w)), r)

    run = compiled(quantized, body, inputs, "host")
    assert len(run.built.kernels) == 2  # the activations, the product with all that follows
    for rows in ROWS:
        x = GENERATOR.standard_normal((2, rows, 64)).astype(np.float32)
        r = GENERATOR.standard_normal((2, rows, 40)).astype(np.float32)
        y = rounded(x, 32) @ quantized.plain().astype(float)
        np.testing.assert_allclose(run([x, r])[0], y / (1 + np.exp(-y)) + r, atol=1e-4)


@pytest.mark.parametrize(("target", "depth", "width", "kind"), ON_TARGETS)
def test_gather_is_exact(target: str, depth: int, width: int, kind: Any) -> None:
    quantized = weight(depth, width, **kind, transposed=True)
    inputs = {"rows": (("b", "s"), "int64")}
    run = compiled(quantized, lambda _, r, w: op.take(w, r, axis=0), inputs, target)
    rows = GENERATOR.integers(0, width, (3, 5))
    (found,) = run([rows])
    np.testing.assert_allclose(found, quantized.plain()[rows], rtol=1e-6, atol=2e-7)


def test_products_of_one_value_share_its_int8_form() -> None:
    quantized = weight(64, 64, bits=4, group=32, asymmetric=False)

    def body(_: Any, x: Any, w: Any) -> Any:
        return op.add(nn.silu(op.matmul(x, w)), op.matmul(nn.relu(op.matmul(x, w)), w))

    run = compiled(quantized, body, {"x": (("b", "s", 64), "float32")}, "host")
    assert sum(k.template.startswith("quantize_groups") for k in run.built.kernels) <= 2
    assert len(run.built.weights) == 1

"""The polynomials keep the errors that codegen/math.py states, over the whole float32 range."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import tirx

from graphc.codegen import builder as tir
from graphc.codegen import math as fast


def run(function: Callable[..., object], x: np.ndarray) -> np.ndarray:
    n = x.size
    a, b = (tirx.decl_buffer((n,), "float32", name=name) for name in "ab")
    with (
        tir.function("f", [a, b], "test") as build,
        tir.serial(n // 16) as i,
        tir.vector(16) as lane,
    ):
        at = [i * tir.const(16) + lane]
        tir.store(b, at, function(tir.load(a, at)))
    lib = tvm.compile(tvm.IRModule({"f": build.get()}), target=tvm.target.Target({"kind": "llvm"}))
    source, result = tvm.runtime.tensor(x), tvm.runtime.tensor(np.empty_like(x))
    lib["f"](source, result)
    return result.numpy()


CASES = [
    (fast.exp, math.exp, -86.9, 88.7, 1.3),
    (fast.exp_low, math.exp, -87.3, 0.0, 2.5),
    (fast.erf, math.erf, -6.0, 6.0, 6.0),
    (fast.tanh, math.tanh, -12.0, 12.0, 7.0),
    (fast.sigmoid, lambda v: 1 / (1 + math.exp(-v)), -86.9, 40.0, 4.0),
]


@pytest.mark.parametrize(("function", "reference", "low", "high", "ulp"), CASES)
def test_error_in_ulp(
    function: Callable[..., object],
    reference: Callable[[float], float],
    low: float,
    high: float,
    ulp: float,
) -> None:
    x = np.linspace(low, high, 1 << 17, dtype=np.float32)
    small = np.geomspace(1e-30, 1, 1 << 12, dtype=np.float32)
    x = np.concatenate([x, *(s for s in (small, -small) if low <= s[-1] <= high)])
    expected = np.array([reference(float(v)) for v in x])
    error = np.abs(run(function, x) - expected) / np.spacing(np.abs(expected).astype(np.float32))
    worst = int(error.argmax())
    assert error[worst] <= ulp, (x[worst], error[worst])


def test_special_values() -> None:
    inf, nan = np.inf, np.nan
    x = np.array([inf, -inf, nan, 0.0, 100.0, -200.0, 88.8, -87.4] * 2, dtype=np.float32)
    np.testing.assert_array_equal(run(fast.exp, x)[:8], [inf, 0, nan, 1, inf, 0, inf, 0])
    low = np.array([-inf, nan, 0.0, -0.0, -200.0, -87.4] * 8, dtype=np.float32)
    np.testing.assert_array_equal(run(fast.exp_low, low)[:6], [0, nan, 1, 1, 0, 0])
    for odd in (fast.erf, fast.tanh):
        np.testing.assert_allclose(run(odd, x)[:6], [1, -1, nan, 0, 1, -1], rtol=1.2e-7)
    np.testing.assert_array_equal(run(fast.sigmoid, x)[:6], [1, 0, nan, 0.5, 1, 0])


def test_rounding_is_to_even_and_in_vectors() -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 1e9, 7.49, -7.51] * 2, dtype=np.float32)
    np.testing.assert_array_equal(run(tirx.nearbyint, x), np.rint(x))
    assert fast.vectorisable(tirx.nearbyint(tirx.Var("x", "float32"))).op.name == "tirx.round"

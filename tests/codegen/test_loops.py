"""Operators that no other template takes, and the norms, on plans with symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from plan_runner import Compiled
from references import gelu, softmax
from relax_models import const, make, nn, op

SIZES = [(1, 1), (3, 17), (2, 64), (5, 33)]
WIDE = (("b", "s", 48), "float32")
FLAT = (("b", "s"), "float32")
TABLE = np.random.default_rng(0).standard_normal((5, 48)).astype("float32")


def double(x: np.ndarray) -> np.ndarray:
    return x.astype(float)


CASES: dict[str, tuple[dict[str, Any], Callable[..., Any], Callable[..., np.ndarray]]] = {
    "sum last": ({"x": WIDE}, lambda x: op.sum(x, [-1]), lambda x: double(x).sum(-1)),
    "sum middle": ({"x": WIDE}, lambda x: op.sum(x, [1]), lambda x: double(x).sum(1)),
    "max outer": (
        {"x": WIDE},
        lambda x: op.max(x, [0, 2], keepdims=True),
        lambda x: x.max((0, 2), keepdims=True),
    ),
    "mean": ({"x": WIDE}, lambda x: op.mean(x, [1, 2]), lambda x: double(x).mean((1, 2))),
    "variance": ({"x": WIDE}, lambda x: op.variance(x, [-1]), lambda x: double(x).var(-1)),
    "argmax": ({"x": WIDE}, lambda x: op.argmax(x, -1), lambda x: x.argmax(-1)),
    "softmax last": ({"x": FLAT}, lambda x: nn.softmax(x, -1), lambda x: softmax(double(x))),
    "softmax middle": ({"x": WIDE}, lambda x: nn.softmax(x, 1), lambda x: softmax(double(x), 1)),
    "log_softmax": (
        {"x": WIDE},
        lambda x: nn.log_softmax(x, -1),
        lambda x: np.log(softmax(double(x))),
    ),
    "transpose": (
        {"x": WIDE},
        lambda x: op.permute_dims(x, [2, 0, 1]),
        lambda x: x.transpose(2, 0, 1),
    ),
    "pointwise": (
        {"x": WIDE},
        lambda x: op.add(op.tanh(x), op.exp(op.negative(x))),
        lambda x: np.tanh(double(x)) + np.exp(-double(x)),
    ),
    "gelu": ({"x": FLAT}, lambda x: nn.gelu(x), gelu),
    "silu": ({"x": FLAT}, lambda x: nn.silu(x), lambda x: x / (1 + np.exp(-double(x)))),
    "broadcast": (
        {"x": (("b", 1, "s"), "float32"), "y": ((5, 1), "float32")},
        lambda x, y: op.add(x, y),
        lambda x, y: x + y,
    ),
    "where": (
        {"c": (("b", 1, "s"), "bool"), "x": (("b", 4, "s"), "float32")},
        lambda c, x: op.where(c, x, const(2.0)),
        lambda c, x: np.where(c, x, np.float32(2)),
    ),
    "compare": (
        {"x": FLAT, "y": FLAT},
        lambda x, y: op.logical_and(op.less(x, y), op.greater(x, const(0.0))),
        lambda x, y: (x < y) & (x > 0),
    ),
    "compare booleans": (
        {"x": (("b", "s"), "bool"), "y": (("b", "s"), "bool")},
        lambda x, y: op.logical_and(op.equal(x, y), op.not_equal(x, const(False, "bool"))),
        lambda x, y: (x == y) & x,
    ),
    "integers": (
        {"x": (("b", "s"), "int64"), "y": (("b", 1), "int64")},
        lambda x, y: op.add(op.multiply(x, y), x),
        lambda x, y: x * y + x,
    ),
    "cast": (
        {"x": (("b", "s"), "int64")},
        lambda x: op.astype(x, "float32"),
        lambda x: x.astype("float32"),
    ),
    "float64": ({"x": (("b", "s"), "float64")}, lambda x: op.exp(x), np.exp),
    "concat": (
        {"x": (("b", "s", 5), "float32"), "y": (("b", 3, 5), "float32")},
        lambda x, y: op.concat([x, y], 1),
        lambda x, y: np.concatenate([x, y], 1),
    ),
    "slice": (
        {"x": WIDE},
        lambda x: op.strided_slice(x, [2], [3], [30], [2]),
        lambda x: x[:, :, 3:30:2],
    ),
    "pad": (
        {"x": WIDE},
        lambda x: nn.pad(x, [0, 0, 1, 2, 0, 0]),
        lambda x: np.pad(x, ((0, 0), (1, 2), (0, 0))),
    ),
    "cumsum last": ({"x": FLAT}, lambda x: op.cumsum(x, -1), lambda x: double(x).cumsum(-1)),
    "cumsum exclusive": (
        {"x": (("b", "s", 20), "int64")},
        lambda x: op.cumsum(x, 1, exclusive=True),
        lambda x: x.cumsum(1) - x,
    ),
    "matmul of activations": (
        {"x": (("b", "s", 40), "float32"), "y": (("b", "s", 40), "float32")},
        lambda x, y: op.matmul(x, op.permute_dims(y, [0, 2, 1])),
        lambda x, y: double(x) @ double(y).transpose(0, 2, 1),
    ),
}


def _turned(x: Any) -> Any:
    """A value read twice by a stage that is itself read at another element (as rotary does)."""
    square = op.multiply(x, x)
    both = op.add(square, op.tanh(square))
    parts = [
        op.strided_slice(both, [2], [start], [end], [1], assume_inbound=True)
        for start, end in ((24, 48), (0, 24))
    ]
    return op.concat(parts, axis=2)


def _turned_reference(x: np.ndarray) -> np.ndarray:
    both = double(x) ** 2 + np.tanh(double(x) ** 2)
    return np.concatenate([both[:, :, 24:], both[:, :, :24]], 2)


CASES["turned"] = ({"x": WIDE}, _turned, _turned_reference)
CASES["transpose of a shared value"] = (
    {"x": (("b", 6, 6), "float32")},
    lambda x: op.permute_dims(op.add(op.exp(x), op.multiply(op.exp(x), x)), [0, 2, 1]),
    lambda x: (np.exp(double(x)) * (1 + double(x))).transpose(0, 2, 1),
)


@pytest.mark.parametrize("name", CASES)
def test_operator(name: str) -> None:
    inputs, body, expected = CASES[name]
    run = Compiled(make(inputs, {}, lambda _, *x: body(*x)))
    random = np.random.default_rng(3)
    for batch, rows in SIZES:
        sizes = {"b": batch, "s": rows}
        values = []
        for shape, dtype in inputs.values():
            value = random.standard_normal([sizes.get(n, n) for n in shape]) * 3
            values.append((value > 0) if dtype == "bool" else value.astype(dtype))
        (y,) = run(values)
        np.testing.assert_allclose(y, expected(*values), rtol=2e-5, atol=3e-5)


@pytest.mark.parametrize("width", [7, 16, 33, 384])
def test_norms(width: int) -> None:
    gamma, beta = np.random.default_rng(1).standard_normal((2, width)).astype("float32")

    def body(_: Any, x: Any, gamma: Any, beta: Any) -> list[Any]:
        return [nn.layer_norm(x, gamma, beta, axes=[-1]), nn.rms_norm(x, gamma, axes=[-1])]

    model = make({"x": (("b", "s", width), "float32")}, {"gamma": gamma, "beta": beta}, body)
    run = Compiled(model)
    assert run.templates == {"layer_norm", "rms_norm"}
    # A mean much larger than the deviation: sum(x^2) - mean^2 would lose every digit here.
    x = np.random.default_rng(2).standard_normal((3, 5, width)).astype("float32") + 300
    layer, rms = run([x])
    centred = double(x) - double(x).mean(-1, keepdims=True)
    scale = np.sqrt(double(x).var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(layer, centred / scale * gamma + beta, atol=5e-4)
    scale = np.sqrt((double(x) ** 2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(rms, x / scale * gamma, atol=1e-5)


def test_norms_in_float64() -> None:
    """No step of a float64 norm may be taken in float32."""
    gamma, beta = np.random.default_rng(1).standard_normal((2, 20))

    def body(_: Any, x: Any, gamma: Any, beta: Any) -> list[Any]:
        return [nn.layer_norm(x, gamma, beta, axes=[-1]), nn.rms_norm(x, gamma, axes=[-1])]

    run = Compiled(make({"x": (("b", 20), "float64")}, {"gamma": gamma, "beta": beta}, body))
    x = np.random.default_rng(2).standard_normal((3, 20))
    layer, rms = run([x])
    scale = np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    expected = (x - x.mean(-1, keepdims=True)) / scale * gamma + beta
    np.testing.assert_allclose(layer, expected, rtol=1e-12, atol=1e-14)
    scale = np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(rms, x / scale * gamma, rtol=1e-12, atol=1e-14)


def test_rows_of_a_table() -> None:
    inputs = {"i": (("b", "s"), "int64")}
    run = Compiled(make(inputs, {"t": TABLE}, lambda _, i, t: op.take(t, i, 0, mode="fast")))
    i = np.random.default_rng(4).integers(0, 5, (3, 17))
    np.testing.assert_array_equal(run([i])[0], TABLE[i])


@pytest.mark.parametrize("keepdims", [False, True])
def test_extremes_of_infinities(keepdims: bool) -> None:
    """The maximum of nothing but -inf is -inf, not the smallest float."""

    def body(_: Any, x: Any) -> list[Any]:
        return [op.max(x, [1], keepdims=keepdims), op.min(x, keepdims=keepdims)]

    run = Compiled(make({"x": FLAT}, {}, body))
    x = np.full((2, 40), -np.inf, "float32")
    x[1] = np.inf
    highest, lowest = run([x])
    np.testing.assert_array_equal(highest, x.max(1, keepdims=keepdims))
    np.testing.assert_array_equal(lowest, x.min(keepdims=keepdims))


def test_half_precision_is_summed_in_single() -> None:
    """4096 products: summed in float16, a total above 1000 would not grow by less than 1/2."""
    model = make(
        {"x": (("n", 4096), "float16"), "y": ((4096, 8), "float16")},
        {},
        lambda _, x, y: op.matmul(x, y),
    )
    random = np.random.default_rng(4)
    x, y = random.random((3, 4096)).astype("float16"), random.random((4096, 8)).astype("float16")
    (got,) = Compiled(model)([x, y])
    np.testing.assert_allclose(got.astype(float), double(x) @ double(y), rtol=1e-3)

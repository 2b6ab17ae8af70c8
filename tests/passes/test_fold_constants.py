"""fold_constants: what is computed while compiling, what is not, and that it is right."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from relax_models import (
    apply,
    assert_same_module,
    assert_same_numbers,
    const,
    execute,
    make,
    nn,
    op,
    operators,
)
from tvm import relax, te

from graphc.passes.fold_constants import fold_constants

X = {"x": (("b", 6), "float32")}
GENERATOR = np.random.default_rng(0)
INT8 = GENERATOR.integers(-127, 128, (6, 5)).astype(np.int8)
SCALE = GENERATOR.random((1, 5), np.float32)


def test_int8_weights_become_float32():
    def before(dims, x, q, scale):
        return op.matmul(x, op.multiply(op.astype(q, "float32"), scale))

    model = make(X, {"q": INT8, "scale": SCALE}, before)
    found, report = apply(model, fold_constants)
    weight = INT8.astype(np.float32) * SCALE
    assert_same_module(found, make(X, {"w": weight}, lambda dims, x, w: op.matmul(x, w)))
    assert report.hits["fold_constants"] == 1
    assert_same_numbers(model, found, {"b": 3})


def test_a_shared_result_is_folded_once():
    def before(dims, x, q):
        w = relax.BlockBuilder.current().emit(op.astype(q, "float32"))
        doubled = op.multiply(w, const(2.0, "float32"))
        return [op.matmul(x, w), op.matmul(x, doubled), op.matmul(op.exp(x), w)]

    found, report = apply(make(X, {"q": INT8}, before), fold_constants)
    assert report.hits["fold_constants"] == 2
    assert len(found.params) == 2
    assert operators(found) == ["matmul", "matmul", "exp", "matmul"]


def test_what_depends_on_an_input_or_a_symbol_stays():
    def before(dims, x, w):
        return [op.matmul(x, w), op.zeros((dims["b"], 6), "float32")]

    model = make(X, {"w": INT8.astype(np.float32)}, before)
    found, report = apply(model, fold_constants)
    assert_same_module(found, model)
    assert report.hits.total() == 0


def test_repeating_a_value_is_not_worth_a_weight():
    def before(dims, x, w):
        return op.add(x, op.broadcast_to(op.multiply(w, w), (1000, 6)))

    inputs = {"x": ((1000, 6), "float32")}
    found, _ = apply(make(inputs, {"w": np.ones((1, 6), np.float32)}, before), fold_constants)
    assert operators(found) == ["broadcast_to", "add"]


def test_growth_is_bounded_and_the_refusal_says_so():
    rows = 1 << 12

    def before(dims, x, w):
        return op.matmul(op.concat([x, x], 1), op.matmul(w, op.permute_dims(w, [1, 0])))

    inputs = {"x": ((1, rows // 2), "float32")}
    weights = {"w": np.ones((rows, 1), np.float32)}
    found, report = apply(make(inputs, weights, before), fold_constants)
    assert operators(found) == ["concat", "matmul", "matmul"]
    assert "67108864 bytes" in report.misses[0]


def test_small_results_become_constants():
    def before(dims, x):
        return op.multiply(x, op.sqrt(op.add(const(3.0, "float32"), const(1.0, "float32"))))

    expected = make(X, {}, lambda dims, x: op.multiply(x, const(2.0, "float32")))
    found, _ = apply(make(X, {}, before), fold_constants)
    assert_same_module(found, expected)


A = GENERATOR.standard_normal((2, 3, 4)).astype(np.float32)
B = np.abs(GENERATOR.standard_normal((1, 3, 1))).astype(np.float32) + 0.5
I = GENERATOR.integers(-9, 9, (2, 3, 4)).astype(np.int32)  # noqa: E741
INDEX = np.array([[2, 0], [1, 1]], np.int64)

FOLDED = {
    **{
        name: ((A, B), getattr(op, name))
        for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum", "greater")
    },
    **{
        name: ((B,), getattr(op, name))
        for name in ("exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "floor", "negative")
    },
    "power": ((B, B), op.power),
    "integer divide": ((I, np.full((1, 3, 1), 4, np.int32)), op.divide),
    "integer floor_divide": ((I, np.full((1, 3, 1), 4, np.int32)), op.floor_divide),
    "integer floor_mod": ((I, np.full((1, 3, 1), 4, np.int32)), op.floor_mod),
    "astype": ((I,), lambda x: op.astype(x, "bool")),
    "to float16": ((A,), lambda x: op.astype(x, "float16")),
    "reshape": ((A,), lambda x: op.reshape(x, (4, 6))),
    "permute": ((A,), lambda x: op.permute_dims(x, [2, 0, 1])),
    "concat": ((A, A), lambda x, y: op.concat([x, y], 1)),
    "take": ((A, INDEX), lambda x, i: op.take(x, i, axis=1)),
    "slice": ((A,), lambda x: op.strided_slice(x, [1, 2], [1, 3], [3, -5], [1, -2])),
    "sum": ((A,), lambda x: op.sum(x, [1], False)),
    "mean": ((A,), lambda x: op.mean(x, [-1, 0], True)),
    "max": ((A,), lambda x: op.max(x)),
    "matmul": ((A, A.reshape(2, 4, 3)), op.matmul),
    "where": ((A > 0, A, B), op.where),
    "isnan": ((np.where(A > 1, np.nan, A),), op.isnan),
}


def test_folding_computes_what_the_kernels_compute():
    """All at once, so that the virtual machine compiles one module."""
    params = {
        f"{name}.{number}": array
        for name, (arrays, _) in FOLDED.items()
        for number, array in enumerate(arrays)
    }

    def body(dims, x, *weights):
        left = list(weights)
        results = [op.add(x, x)]
        for arrays, function in FOLDED.values():
            results.append(function(*left[: len(arrays)]))
            del left[: len(arrays)]
        return results

    model = make({"x": ((1,), "float32")}, params, body)
    found, report = apply(model, fold_constants)
    assert operators(found) == ["add"]
    assert report.hits["fold_constants"] == len(FOLDED)
    x = np.zeros(1, np.float32)
    before, after = execute(model, [x]), execute(found, [x])
    for name, left, right in zip(["x", *FOLDED], before, after, strict=True):
        assert left.dtype == right.dtype, name
        np.testing.assert_allclose(left, right, atol=1e-6, rtol=1e-6, err_msg=name)


def test_bfloat16_folds():
    half = A.astype(ml_dtypes.bfloat16)
    model = make(
        {"x": ((2, 3, 4), "float32")},
        {"w": half},
        lambda dims, x, w: op.add(x, op.astype(op.multiply(w, w), "float32")),
    )
    found, _ = apply(model, fold_constants)
    (value,) = found.params.values()
    np.testing.assert_array_equal(value, (half * half).astype(np.float32))


def test_results_are_contiguous():
    found, _ = apply(
        make(
            X, {"w": np.ones((30, 6), np.float32)}, lambda d, x, w: op.matmul(x, op.permute_dims(w))
        ),
        fold_constants,
    )
    (value,) = found.params.values()
    assert value.flags.c_contiguous


def test_kernels_on_constants_are_run():
    def body(dims, x, w):
        def reverse(data):
            return te.compute(data.shape, lambda i, j: data[5 - i, j], name="reverse")

        builder = relax.BlockBuilder.current()
        return [
            op.matmul(x, builder.emit_te(reverse, w)),
            builder.emit_te(reverse, builder.emit(op.multiply(w, op.sum(x)))),
        ]

    model = make(X, {"w": np.arange(6, dtype=np.float32).reshape(6, 1)}, body)
    found, report = apply(model, fold_constants)
    assert operators(found).count("call_tir") == 1
    assert report.hits["fold_constants"] == 1
    assert_same_numbers(model, found, {"b": 2})


@pytest.mark.parametrize("unknown", [nn.softmax, op.triu])
def test_operators_that_are_not_in_the_table_stay(unknown):
    model = make(X, {"w": np.ones((6, 6), np.float32)}, lambda d, x, w: op.matmul(x, unknown(w)))
    found, _ = apply(model, fold_constants)
    assert_same_module(found, model)

"""fold_known_values, and the interval analysis behind it."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tvm
from relax_models import apply, assert_same_module, const, interpret, make, op, operators
from tvm import relax

from graphc.ir import Dim
from graphc.passes.fold_known_values import fold_known_values
from graphc.passes.graph import Graph
from graphc.passes.merge_duplicates import merge_duplicates
from graphc.passes.ranges import Ranges
from graphc.passes.simplify import simplify

MASK = {"mask": (("b", "s"), "bool")}


def integer(value):
    return const(np.asarray(value, np.int64), "int64")


def test_a_test_that_always_passes_leaves_the_mask():
    def before(dims, mask):
        counting = op.arange(0, dims["s"], 1, "int64")
        return op.logical_and(op.greater_equal(counting, integer(0)), mask)

    found, report = apply(make(MASK, {}, before), fold_known_values, simplify)
    assert_same_module(found, make(MASK, {}, lambda dims, mask: mask))
    assert report.hits["fold_known_values"] == 1


def test_a_test_that_may_fail_stays():
    def before(dims, mask):
        counting = op.arange(0, dims["s"], 1, "int64")
        return op.logical_and(op.greater_equal(counting, integer(1)), mask)

    model = make(MASK, {}, before)
    found, report = apply(model, fold_known_values, simplify)
    assert_same_module(found, model)
    assert report.hits.total() == 0


def test_upper_bounds_of_dimensions_count():
    def before(dims, mask):
        counting = op.arange(0, dims["s"], 1, "int64")
        return op.logical_and(op.less(counting, integer(512)), mask)

    found, _ = apply(make(MASK, {}, before, [Dim("s", 1, 512)]), fold_known_values, simplify)
    assert operators(found) == []
    found, _ = apply(make(MASK, {}, before, [Dim("s", 1, 513)]), fold_known_values, simplify)
    assert operators(found) == ["arange", "less", "logical_and"]


def test_a_table_of_zeros_is_zero_wherever_it_is_read():
    def before(dims, mask, zeros, positions):
        part = op.strided_slice(positions, [1], [0], [dims["s"]], assume_inbound=True)
        types = op.gather_elements(zeros, part, 1)
        return op.add(op.astype(mask, "int64"), op.broadcast_to(types, (dims["b"], dims["s"])))

    params = {
        "zeros": np.zeros((1, 512), np.int64),
        "positions": np.arange(512, dtype=np.int64)[None],
    }
    found, _ = apply(make(MASK, params, before), fold_known_values, simplify)
    assert operators(found) == ["astype"]
    assert not found.params


def check_indices(index, low, high):
    arguments = [index, relax.prim_value(low), relax.prim_value(high), tvm.ir.StringImm("here")]
    return op.call_pure_packed("graphc.check_indices", *arguments, ty_args=index.ty)


def test_wrapping_of_checked_indices_goes_and_the_check_stays():
    inputs = {"index": (("b",), "int64")}

    def before(dims, index):
        index = relax.BlockBuilder.current().emit(check_indices(index, 0, 7))
        return op.where(op.less(index, integer(0)), op.add(index, integer(8)), index)

    found, _ = apply(make(inputs, {}, before), fold_known_values, simplify)
    assert operators(found) == ["call_pure_packed"]


def test_a_check_that_allows_one_value_is_not_taken_for_granted():
    inputs = {"index": (("b",), "int64")}

    def before(dims, index):
        return op.multiply(check_indices(index, 0, 0), integer(3))

    found, report = apply(make(inputs, {}, before), fold_known_values)
    assert operators(found) == ["call_pure_packed", "multiply"]
    assert report.hits.total() == 0


@st.composite
def integer_programs(draw):
    """A random program over two integer vectors."""
    names = ["add", "subtract", "multiply", "maximum", "minimum", "less", "greater_equal", "equal"]
    return [
        (draw(st.sampled_from(names)), draw(st.integers(0, 9)), draw(st.integers(0, 9)))
        for _ in range(draw(st.integers(1, 8)))
    ]


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(integer_programs(), st.integers(-5, 5), st.integers(0, 6))
def test_every_value_is_within_its_interval(program, low, extent):
    def body(dims, x):
        values = [op.arange(low, low + 4, 1, "int64"), integer(extent), op.astype(x, "int64")]
        for name, left, right in program:
            value = getattr(op, name)(values[left % len(values)], values[right % len(values)])
            value = relax.BlockBuilder.current().emit(value)
            values.append(op.astype(value, "int64"))
        return values

    model = make({"x": ((4,), "bool")}, {}, body)
    graph = Graph(model)
    ranges = Ranges(graph)
    intervals = [ranges.of(node) for node in graph.outputs]
    for x in (np.array([0, 1, 0, 1], bool), np.ones(4, bool)):
        for value, (least, most) in zip(interpret(model, [x]), intervals, strict=True):
            assert least <= value.min()
            assert value.max() <= most
    folded, _ = apply(model, merge_duplicates, fold_known_values, simplify)
    for left, right in zip(interpret(model, [x]), interpret(folded, [x]), strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("bool", (0, 1)),
        ("uint8", (0, 255)),
        ("int8", (-128, 127)),
        ("uint64", (0, np.inf)),
        ("int32", (-np.inf, np.inf)),
        ("bfloat16", (-np.inf, np.inf)),
        ("float32", (-np.inf, np.inf)),
    ],
)
def test_types_bound_what_is_unknown(dtype, expected):
    graph = Graph(make({"x": ((4,), dtype)}, {}, lambda dims, x: x))
    assert Ranges(graph).of(graph.outputs[0]) == expected


def test_narrow_integers_wrap():
    def body(dims, x):
        y = op.add(x, const(np.asarray(1, np.uint8), "uint8"))
        return op.greater(y, const(np.asarray(0, np.uint8), "uint8"))

    model = make({"x": ((4,), "uint8")}, {}, body)
    _found, report = apply(model, fold_known_values)
    assert report.hits.total() == 0


def test_a_cast_of_a_length_keeps_its_sign():
    def body(dims, mask):
        counting = op.astype(op.arange(0, dims["s"], 1, "int64"), "int32")
        return op.logical_and(op.greater_equal(counting, const(0, "int32")), mask)

    found, _ = apply(make(MASK, {}, body), fold_known_values, simplify)
    assert operators(found) == []

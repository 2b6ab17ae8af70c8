"""simplify_gathers: indices that only count."""

from __future__ import annotations

import numpy as np
from relax_models import apply, assert_same_numbers, make, op, operators

from graphc.ir import Dim
from graphc.passes.simplify import simplify
from graphc.passes.simplify_gathers import simplify_gathers

MASK = {"mask": (("b", "s"), "int64")}
TABLE = {"table": np.arange(32, dtype=np.float32).reshape(8, 4)}
POSITIONS = {"positions": np.arange(8, dtype=np.int64)[None]}
SIZES = {"b": 2, "s": 5}


def column(dims, name, shape, position):
    """0..n-1 along one axis, as a column [..., 1] of an index tensor."""
    b, s = dims["b"], dims["s"]
    counting = op.arange(0, dims[name], 1, "int64")
    spread = [1, 1, 1, 1]
    spread[position] = dims[name]
    return op.expand_dims(op.broadcast_to(op.reshape(counting, tuple(spread)), (b, 1, 1, s)), [4])


def test_a_grid_of_all_positions_is_the_tensor_itself():
    def before(dims, mask):
        grid = op.concat([column(dims, "b", 4, 0), column(dims, "s", 4, 3)], 4)
        return op.gather_nd(mask, grid)

    model = make(MASK, {}, before)
    found, report = apply(model, simplify, simplify_gathers, simplify)
    assert operators(found) == ["reshape"]
    assert report.hits["gather_grid"] == 1
    assert_same_numbers(model, found, SIZES)


def test_a_transposed_grid_is_a_transpose():
    def before(dims, mask):
        grid = op.concat([column(dims, "b", 4, 3), column(dims, "b", 4, 0)], 4)
        return op.gather_nd(mask, grid)

    def square(dims, mask):
        return before({"b": dims["b"], "s": dims["b"]}, mask)

    model = make({"mask": (("b", "b"), "int64")}, {}, square)
    found, _ = apply(model, simplify, simplify_gathers, simplify)
    assert operators(found) == ["permute_dims", "reshape"]
    assert_same_numbers(model, found, {"b": 3})


def test_a_diagonal_is_left_alone():
    def before(dims, mask):
        column_ = column({"b": dims["b"], "s": dims["b"]}, "b", 4, 0)
        return op.gather_nd(mask, op.concat([column_, column_], 4))

    model = make({"mask": (("b", "b"), "int64")}, {}, before)
    found, report = apply(model, simplify_gathers)
    assert operators(found)[-1] == "gather_nd"
    assert report.hits.total() == 0


def test_indices_that_come_from_an_input_are_left_alone():
    def before(dims, mask, table):
        return op.take(table, mask, axis=0)

    found, report = apply(make(MASK, TABLE, before), simplify_gathers)
    assert operators(found) == ["take"]
    assert report.hits.total() == 0


def test_positions_cut_a_table():
    def before(dims, mask, table, positions):
        part = op.strided_slice(positions, [1], [0], [dims["s"]], assume_inbound=True)
        return op.add(op.take(table, part, axis=0), op.astype(op.expand_dims(mask, [2]), "float32"))

    model = make(MASK, {**TABLE, **POSITIONS}, before, [Dim("s", 1, 8)])
    found, report = apply(model, simplify_gathers, simplify)
    assert sorted(operators(found)) == ["add", "astype", "reshape", "reshape", "strided_slice"]
    assert report.hits["take_count"] == 1
    assert_same_numbers(model, found, SIZES)


def test_positions_that_start_later_cut_a_table_there():
    def before(dims, mask, table, positions):
        part = op.strided_slice(positions, [1], [2], [6])
        return op.add(op.take(table, part, axis=0), op.astype(op.sum(mask), "float32"))

    model = make(MASK, {**TABLE, **POSITIONS}, before)
    found, _ = apply(model, simplify_gathers, simplify)
    assert "take" not in operators(found)
    assert_same_numbers(model, found, SIZES)


def test_gather_elements_along_its_axis_is_a_slice():
    def before(dims, mask, data, positions):
        part = op.strided_slice(positions, [1], [0], [dims["s"]], assume_inbound=True)
        return op.add(op.gather_elements(data, part, 1), mask)

    params = {"data": np.arange(30, dtype=np.int64).reshape(3, 10), **POSITIONS}
    model = make(MASK, params, before, [Dim("s", 1, 8)])
    found, _ = apply(model, simplify_gathers, simplify)
    assert "gather_elements" not in operators(found)
    assert_same_numbers(model, found, SIZES)


def test_a_broadcast_index_gathers_once():
    def before(dims, mask, table):
        index = op.strided_slice(mask, [0], [0], [1], assume_inbound=True)
        return op.take(table, op.broadcast_to(index, (7, dims["s"])), axis=0)

    model = make(MASK, TABLE, before)
    found, _ = apply(model, simplify_gathers, simplify)
    assert operators(found) == ["strided_slice", "take", "broadcast_to"]
    assert_same_numbers(model, found, SIZES)

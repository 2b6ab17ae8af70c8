"""ONNX models whose shapes or course depend on the values of their inputs, with inputs for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

node = helper.make_node
Feeds = dict[str, np.ndarray]


def port(name: str, kind: int, shape: Sequence[int | str] | None = None) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def graph(
    nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], **numbers: Any
) -> Any:
    weights = [onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in numbers.items()]
    return helper.make_graph(list(nodes), "g", list(inputs), list(outputs), weights)


def model(
    nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], **numbers: Any
) -> Any:
    made = graph(nodes, inputs, outputs, **numbers)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
RANDOM = np.random.default_rng()


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype("float32")


def found() -> tuple[Any, Iterator[Feeds]]:
    """Elements chosen by NonZero, used at their coordinates, and columns kept by Compress."""
    made = model(
        [
            node("NonZero", ["x"], ["i"]),
            node("Transpose", ["i"], ["t"]),
            node("GatherND", ["w", "t"], ["g"]),
            node("Relu", ["g"], ["y"]),
            node("Shape", ["y"], ["s"]),
            node("Compress", ["x", "c"], ["z"], axis=1),
        ],
        [port("x", FLOAT, ["a", "b"]), port("w", FLOAT, ["a", "b"]), port("c", BOOL, ["b"])],
        [port("y", FLOAT), port("s", INT), port("z", FLOAT)],
    )
    return made, (
        {
            "x": RANDOM.integers(0, 2, (rows, 5)).astype("float32"),
            "w": floats(rows, 5),
            "c": RANDOM.integers(0, 2, 5).astype(bool),
        }
        for rows in (3, 1, 33)
    )


def branches() -> tuple[Any, Iterator[Feeds]]:
    """Two branches of different shapes, one with a weight; both read a value from outside."""
    then = graph(
        [node("MatMul", ["h", "w"], ["m"]), node("Relu", ["m"], ["o"])],
        [],
        [port("o", FLOAT)],
        w=floats(5, 5),
    )
    other = graph(
        [node("Neg", ["h"], ["n"]), node("Slice", ["n", "s", "e"], ["p"])],
        [],
        [port("p", FLOAT)],
        s=np.array([0]),
        e=np.array([1]),
    )
    made = model(
        [
            node("Abs", ["x"], ["h"]),
            node("If", ["c"], ["y"], then_branch=then, else_branch=other),
            node("Concat", ["h", "y"], ["z"], axis=0),
        ],
        [port("x", FLOAT, ["n", 5]), port("c", BOOL, [])],
        [port("y", FLOAT), port("z", FLOAT)],
    )
    return made, (
        {"x": floats(n, 5), "c": np.array(choice)} for n in (1, 3, 17) for choice in (True, False)
    )


def growing() -> tuple[Any, Iterator[Feeds]]:
    """A carried value that grows, a condition on its sum, slices stacked until it ends."""
    body = graph(
        [
            node("Cast", ["i"], ["f"], to=1),
            node("Mul", ["x", "f"], ["xf"]),
            node("Concat", ["s", "xf"], ["t"], axis=0),
            node("ReduceSum", ["t"], ["sum"], keepdims=0),
            node("Less", ["sum", "most"], ["d"]),
            node("Add", ["x", "f"], ["o"]),
        ],
        [port("i", INT, []), port("c", BOOL, []), port("s", FLOAT)],
        [port("d", BOOL, []), port("t", FLOAT), port("o", FLOAT)],
    )
    made = model(
        [node("Loop", ["m", "", "x"], ["l", "z"], body=body), node("Neg", ["l"], ["y"])],
        [port("x", FLOAT, ["n", 3]), port("m", INT, []), port("most", FLOAT, [])],
        [port("y", FLOAT), port("z", FLOAT)],
    )
    cases = ((2, 5, 1e9), (2, 5, 3.0), (3, 100, 50.0), (3, 100, 5000.0))
    return made, (
        {
            "x": np.abs(floats(n, 3)),
            "m": np.array(count, "int64"),
            "most": np.array(most, "float32"),
        }
        for n, count, most in cases
    )


def swapping() -> tuple[Any, Iterator[Feeds]]:
    """Carried values that change places."""
    body = graph(
        [
            node("Identity", ["c"], ["d"]),
            node("Identity", ["a"], ["p"]),
            node("Identity", ["b"], ["q"]),
            node("Add", ["a", "b"], ["o"]),
        ],
        [port("i", INT, []), port("c", BOOL, []), port("a", FLOAT, [4]), port("b", FLOAT, [4])],
        [port("d", BOOL, []), port("q", FLOAT, [4]), port("p", FLOAT, [4]), port("o", FLOAT)],
    )
    made = model(
        [node("Loop", ["m", "", "x", "z"], ["u", "v", "w"], body=body)],
        [port("x", FLOAT, [4]), port("z", FLOAT, [4]), port("m", INT, [1])],
        [port("u", FLOAT), port("v", FLOAT), port("w", FLOAT)],
    )
    return made, (
        {"x": floats(4), "z": floats(4), "m": np.array([count], "int64")} for count in (3, 4, 0)
    )


def scanning() -> tuple[Any, Iterator[Feeds]]:
    """A scan of unknown length along an inner axis, backwards."""
    body = graph(
        [node("Add", ["s", "x"], ["t"]), node("Mul", ["t", "x"], ["o"])],
        [port("s", FLOAT, [3]), port("x", FLOAT, [3])],
        [port("t", FLOAT, [3]), port("o", FLOAT, [3])],
    )
    made = model(
        [
            node(
                "Scan",
                ["s0", "z"],
                ["u", "y"],
                body=body,
                num_scan_inputs=1,
                scan_input_axes=[1],
                scan_output_axes=[1],
                scan_input_directions=[1],
                scan_output_directions=[1],
            )
        ],
        [port("s0", FLOAT, [3]), port("z", FLOAT, [3, "n"])],
        [port("u", FLOAT), port("y", FLOAT)],
    )
    return made, ({"s0": floats(3), "z": floats(3, n)} for n in (1, 7, 40))


def nested() -> tuple[Any, Iterator[Feeds]]:
    """A loop around a branch around a loop and a NonZero."""
    inner = graph(
        [node("Identity", ["c"], ["d"]), node("Add", ["t", "x"], ["u"])],
        [port("j", INT, []), port("c", BOOL, []), port("t", FLOAT)],
        [port("d", BOOL, []), port("u", FLOAT)],
    )
    then = graph(
        [node("Loop", ["i", "", "x"], ["l"], body=inner), node("Relu", ["l"], ["r"])],
        [],
        [port("r", FLOAT)],
    )
    other = graph(
        [
            node("NonZero", ["x"], ["z"]),
            node("Cast", ["z"], ["f"], to=1),
            node("ReduceSum", ["f"], ["sum"], keepdims=0),
            node("Add", ["x", "sum"], ["k"]),
        ],
        [],
        [port("k", FLOAT)],
    )
    body = graph(
        [
            node("Identity", ["c0"], ["c1"]),
            node("Mod", ["i", "two"], ["odd"]),
            node("Cast", ["odd"], ["choice"], to=9),
            node("If", ["choice"], ["v"], then_branch=then, else_branch=other),
            node("Add", ["s", "v"], ["s1"]),
        ],
        [port("i", INT, []), port("c0", BOOL, []), port("s", FLOAT)],
        [port("c1", BOOL, []), port("s1", FLOAT)],
        two=np.array(2),
    )
    made = model(
        [node("Loop", ["m", "", "x"], ["y"], body=body)],
        [port("x", FLOAT, ["n"]), port("m", INT, [])],
        [port("y", FLOAT)],
    )
    return made, (
        {"x": RANDOM.integers(0, 2, n).astype("float32"), "m": np.array(count, "int64")}
        for n, count in ((3, 4), (5, 1), (5, 7))
    )


MODELS: tuple[Callable[[], tuple[Any, Iterator[Feeds]]], ...] = (
    found,
    branches,
    growing,
    swapping,
    scanning,
    nested,
)

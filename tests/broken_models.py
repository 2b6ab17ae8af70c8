"""Models with planted faults: each builder writes a file and names what `check` has to find."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

Planted: TypeAlias = "set[tuple[str, str]]"
"""(node, tensor or input; operator, "" for what is none) of every fault."""
Build: TypeAlias = Callable[[Path], Planted]

FLOAT = TensorProto.FLOAT


def node(operator: str, inputs: str, outputs: str, name: str, **more: object) -> NodeProto:
    return helper.make_node(operator, inputs.split(), outputs.split(), name=name, **more)


def save(
    path: Path,
    nodes: Sequence[NodeProto],
    *,
    outputs: str = "y",
    shape: Sequence[int | str] | None = ("n", 4),
    kind: int = FLOAT,
    weights: dict[str, np.ndarray] | None = None,
    tensors: Sequence[TensorProto] = (),
    opsets: dict[str, int] | None = None,
    more: Sequence[onnx.ValueInfoProto] = (),
) -> None:
    """x (shape) -> outputs by the nodes; w [4, 4], b [4] and the weights given are there."""
    arrays = {"w": np.ones((4, 4), np.float32), "b": np.ones(4, np.float32), **(weights or {})}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, shape), *more],
        [onnx.ValueInfoProto(name=name) for name in outputs.split()],
        [*(numpy_helper.from_array(array, name) for name, array in arrays.items()), *tensors],
    )
    imports = {"": 20, **(opsets or {})}
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid(d, v) for d, v in imports.items()], ir_version=10
    )
    path.write_bytes(model.SerializeToString())


def unknown_operators(path: Path) -> Planted:
    nodes = [node("Frobnicate", "x", "h", "a"), node("Whatever", "h", "y", "b")]
    save(path, nodes)
    return {("a", "Frobnicate"), ("b", "Whatever")}


def unknown_domain(path: Path) -> Planted:
    nodes = [node("Add", "x x", "h", "a", domain="my.own"), node("Relu", "h", "y", "r")]
    save(path, nodes, opsets={"my.own": 3})
    return {("a", "Add")}


def domain_not_imported(path: Path) -> Planted:
    save(path, [node("Gelu", "x", "y", "a", domain="com.microsoft")])
    return {("a", "Gelu")}


def unknown_contrib_operator(path: Path) -> Planted:
    nodes = [
        node("Teleport", "x", "h", "a", domain="com.microsoft"),
        node("Gelu", "x", "k", "fine", domain="com.microsoft"),
        node("Add", "h k", "y", "last"),
    ]
    save(path, nodes, opsets={"com.microsoft": 1})
    return {("a", "Teleport")}


def strings(path: Path) -> Planted:
    nodes = [node("Cast", "x", "s", "to_text", to=TensorProto.STRING), node("Relu", "x", "y", "r")]
    save(path, nodes, outputs="y s")
    return {("to_text", "Cast")}


def operator_of_later_opset(path: Path) -> Planted:
    save(path, [node("RMSNormalization", "x b", "y", "norm")])
    return {("norm", "RMSNormalization")}


def old_operator_set(path: Path) -> Planted:
    save(path, [node("Relu", "x", "y", "r")], opsets={"": 6})
    return {("", "")}


def new_operator_set_and_unknown_domain(path: Path) -> Planted:
    nodes = [node("Relu", "x", "h", "r"), node("Relu", "h", "y", "mine", domain="my.own")]
    save(path, nodes, opsets={"": 1000, "my.own": 1})
    return {("", ""), ("mine", "Relu")}


def wrong_rank(path: Path) -> Planted:
    nodes = [
        node("Transpose", "x", "h", "turn", perm=[0, 2, 1]),
        node("Relu", "h", "y", "after"),
        node("Conv", "x kernel", "z", "conv"),
    ]
    save(path, nodes, outputs="y z", weights={"kernel": np.ones((2, 3, 3, 3), np.float32)})
    return {("turn", "Transpose"), ("conv", "Conv")}


def conflicting_shapes(path: Path) -> Planted:
    nodes = [node("MatMul", "x v", "y", "product"), node("Add", "x c", "z", "sum")]
    weights = {"v": np.ones((5, 2), np.float32), "c": np.ones(3, np.float32)}
    save(path, nodes, outputs="y z", weights=weights)
    return {("product", "MatMul"), ("sum", "Add")}


def different_types(path: Path) -> Planted:
    nodes = [node("Add", "x i", "y", "sum"), node("MatMul", "x d", "z", "product")]
    weights = {"i": np.ones(4, np.int64), "d": np.ones((4, 4), np.float64)}
    save(path, nodes, outputs="y z", weights=weights)
    return {("sum", "Add"), ("product", "MatMul")}


def types_an_operator_does_not_take(path: Path) -> Planted:
    nodes = [node("Softmax", "x", "y", "s", axis=-1), node("Not", "x", "z", "n")]
    save(path, nodes, outputs="y z", kind=TensorProto.INT64)
    return {("s", "Softmax"), ("n", "Not")}


def cycle(path: Path) -> Planted:
    nodes = [
        node("Add", "x b2", "a", "one"),
        node("Relu", "a", "b2", "two"),
        node("Neg", "a", "y", "after"),
    ]
    save(path, nodes)
    return {("one", "")}


def two_cycles_and_a_dangling_name(path: Path) -> Planted:
    nodes = [
        node("Add", "x p", "q", "one"),
        node("Relu", "q", "p", "two"),
        node("Mul", "x r", "r", "three"),
        node("Sub", "x nowhere", "y", "four"),
        node("Neg", "y", "z", "five"),
    ]
    save(path, nodes, outputs="z")
    return {("one", ""), ("three", ""), ("four", "Sub")}


def dangling_names(path: Path) -> Planted:
    nodes = [node("Add", "x ghost", "y", "a"), node("Relu", "phantom", "z", "b")]
    save(path, nodes, outputs="y z")
    return {("a", "Add"), ("b", "Relu")}


def defined_twice(path: Path) -> Planted:
    save(path, [node("Relu", "x", "y", "a"), node("Neg", "x", "y", "b")])
    return {("b", "Neg")}


def output_of_nothing(path: Path) -> Planted:
    save(path, [node("Relu", "x", "y", "a")], outputs="y z")
    return {("z", "")}


def bad_attributes(path: Path) -> Planted:
    nodes = [
        node("Softmax", "x", "a", "far", axis=7),
        node("Concat", "x x", "c", "no_axis"),
        node("Relu", "x", "d", "extra", slope=1.0),
        node("LeakyRelu", "x", "e", "kind", alpha="much"),
    ]
    save(path, nodes, outputs="a c d e")
    names = {"far": "Softmax", "no_axis": "Concat", "extra": "Relu", "kind": "LeakyRelu"}
    return set(names.items())


def too_many_inputs(path: Path) -> Planted:
    nodes = [node("Relu", "x x", "y", "a"), node("MatMul", "x", "z", "b")]
    save(path, nodes, outputs="y z")
    return {("a", "Relu"), ("b", "MatMul")}


def impossible_reshape(path: Path) -> Planted:
    nodes = [node("Reshape", "w to", "y", "a"), node("Reshape", "w twice", "z", "b")]
    weights = {"to": np.array([3, 5], np.int64), "twice": np.array([-1, -1], np.int64)}
    save(path, nodes, outputs="y z", weights=weights)
    return {("a", "Reshape"), ("b", "Reshape")}


def bad_axes(path: Path) -> Planted:
    nodes = [
        node("Squeeze", "x axes", "y", "a"),
        node("Gather", "w where", "z", "b", axis=5),
        node("Split", "x", "p q", "c", axis=1, num_outputs=3),
    ]
    weights = {"axes": np.array([1], np.int64), "where": np.array([0], np.int64)}
    save(path, nodes, outputs="y z p", weights=weights)
    return {("a", "Squeeze"), ("b", "Gather"), ("c", "Split")}


def not_a_number_scale(path: Path) -> Planted:
    nodes = [
        node("QuantizeLinear", "x scale zero", "q", "quantise"),
        node("DequantizeLinear", "codes bad zero", "y", "dequantise"),
    ]
    weights = {
        "scale": np.array(np.nan, np.float32),
        "bad": np.array(np.inf, np.float32),
        "zero": np.array(0, np.uint8),
        "codes": np.ones((4, 4), np.uint8),
    }
    save(path, nodes, outputs="q y", weights=weights)
    return {("quantise", "QuantizeLinear"), ("dequantise", "DequantizeLinear")}


def _external(name: str, location: str, offset: int = 0) -> TensorProto:
    tensor = TensorProto(name=name, data_type=FLOAT, dims=[4, 4])
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in {"location": location, "offset": str(offset), "length": "64"}.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, text
    return tensor


def missing_external_data(path: Path) -> Planted:
    (path.parent / "there.bin").write_bytes(bytes(64))
    tensors = [
        _external("gone", "nowhere.bin"),
        _external("outside", "../../secret.bin"),
        _external("short", "there.bin", 32),
        _external("fine", "there.bin"),
    ]
    nodes = [
        node("MatMul", "x gone", "a", "one"),
        node("MatMul", "a outside", "c", "two"),
        node("MatMul", "x short", "d", "three"),
        node("MatMul", "x fine", "y", "four"),
    ]
    save(path, nodes, outputs="c d y", tensors=tensors)
    return {("gone", ""), ("outside", ""), ("short", "")}


def bytes_that_do_not_fit(path: Path) -> Planted:
    tensor = TensorProto(name="t", data_type=FLOAT, dims=[4, 4], raw_data=bytes(60))
    negative = TensorProto(name="u", data_type=FLOAT, dims=[-4], raw_data=bytes(16))
    nodes = [node("MatMul", "x t", "y", "a"), node("Add", "x u", "z", "b")]
    save(path, nodes, outputs="y z", tensors=[tensor, negative])
    return {("t", ""), ("u", "")}


def weight_of_complex_type(path: Path) -> Planted:
    tensor = TensorProto(name="t", data_type=TensorProto.COMPLEX64, dims=[4], raw_data=bytes(32))
    nodes = [node("Add", "x t", "y", "a"), node("Relu", "x", "z", "b")]
    save(path, nodes, outputs="y z", tensors=[tensor])
    return {("t", "")}


def inputs_without_rank_or_type(path: Path) -> Planted:
    more = [
        helper.make_tensor_value_info("shapeless", FLOAT, None),
        helper.make_tensor_value_info("words", TensorProto.STRING, ["n"]),
        helper.make_tensor_sequence_value_info("list", FLOAT, ["n"]),
    ]
    nodes = [
        node("Add", "x shapeless", "y", "a"),
        node("Identity", "words", "z", "b"),
        node("SequenceLength", "list", "l", "c"),
    ]
    save(path, nodes, outputs="y z", more=more)
    return {("shapeless", ""), ("words", ""), ("list", ""), ("c", "SequenceLength")}


def sequences(path: Path) -> Planted:
    nodes = [
        node("SequenceConstruct", "x x", "s", "make"),
        node("ConcatFromSequence", "s", "y", "join", axis=0),
    ]
    save(path, nodes)
    return {("make", "SequenceConstruct"), ("join", "ConcatFromSequence")}


def inside_a_branch(path: Path) -> Planted:
    branch = [
        helper.make_graph(
            [node(operator, "x", out, name)], name, [], [onnx.ValueInfoProto(name=out)]
        )
        for operator, out, name in (("Relu", "p", "good"), ("Frobnicate", "q", "bad"))
    ]
    nodes = [
        helper.make_node("If", ["c"], ["y"], name="choose", then_branch=branch[1],
                         else_branch=branch[0]),
        node("Bogus", "x", "z", "other"),
    ]  # fmt: skip
    save(path, nodes, outputs="y z", weights={"c": np.array(True)})
    return {("bad", "Frobnicate"), ("other", "Bogus")}


def inside_a_function(path: Path) -> Planted:
    body = [node("Frobnicate", "a", "h", "inner"), node("Relu", "h", "r", "fine")]
    opsets = [helper.make_opsetid("", 20)]
    save(path, [node("Block", "x", "y", "outer", domain="mine")], opsets={"mine": 1})
    model = onnx.load(str(path))
    model.functions.append(helper.make_function("mine", "Block", ["a"], ["r"], body, opsets))
    path.write_bytes(model.SerializeToString())
    return {("inner", "Frobnicate")}


def many_at_once(path: Path) -> Planted:
    tensor = TensorProto(name="t", data_type=FLOAT, dims=[4, 4], raw_data=bytes(60))
    nodes = [
        node("Frobnicate", "x", "a", "unknown"),
        node("Relu", "a", "b1", "after_unknown"),
        node("MatMul", "x v", "c", "shapes"),
        node("Softmax", "x", "d", "axis", axis=9),
        node("Add", "x ghost", "e", "dangling"),
        node("MatMul", "x t", "f", "reads_damaged"),
        node("Mul", "x x", "g", "domain", domain="my.own"),
        node("Tanh", "x", "y", "fine"),
    ]
    weights = {"v": np.ones((5, 2), np.float32)}
    outputs = "b1 c d e f g y"
    save(path, nodes, outputs=outputs, weights=weights, tensors=[tensor], opsets={"my.own": 1})
    return {
        ("unknown", "Frobnicate"),
        ("shapes", "MatMul"),
        ("axis", "Softmax"),
        ("dangling", "Add"),
        ("t", ""),
        ("domain", "Mul"),
    }


def not_a_model(path: Path) -> Planted:
    path.write_bytes(b"this is text, no protobuf at all" * 20)
    return {("", "")}


BROKEN: tuple[Build, ...] = (
    unknown_operators,
    unknown_domain,
    domain_not_imported,
    unknown_contrib_operator,
    strings,
    operator_of_later_opset,
    old_operator_set,
    new_operator_set_and_unknown_domain,
    wrong_rank,
    conflicting_shapes,
    different_types,
    types_an_operator_does_not_take,
    cycle,
    two_cycles_and_a_dangling_name,
    dangling_names,
    defined_twice,
    output_of_nothing,
    bad_attributes,
    too_many_inputs,
    impossible_reshape,
    bad_axes,
    not_a_number_scale,
    missing_external_data,
    bytes_that_do_not_fit,
    weight_of_complex_type,
    inputs_without_rank_or_type,
    sequences,
    inside_a_branch,
    inside_a_function,
    many_at_once,
    not_a_model,
)

"""Loads damaged models: each must import or be refused with a GraphcError, within seconds.

By hand, 2,000 cases: python tests/frontend/fuzz_models.py 2000 [first case]
"""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper

from graphc.errors import GraphcError
from graphc.frontend import load
from graphc.frontend.onnx.operators import REGISTRY

SECONDS = 10.0
EXTREMES = (0, 1, -1, 2, 3, -2, 7, 63, 64, 4096, 2**31 - 1, 2**31, -(2**31), 2**40, 2**62,
            2**63 - 1, -(2**63))  # fmt: skip

Inputs = dict[str, tuple[str, list[int | str | None]]]
Mutation = Callable[[ModelProto, random.Random], None]


# -- what is damaged -----------------------------------------------------------------------


def _model(
    nodes: list[onnx.NodeProto],
    inputs: Inputs,
    outputs: list[str],
    constants: dict[str, np.ndarray],
    opset: int = 20,
) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "fuzz",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), s)
            for name, (kind, s) in inputs.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def encoder() -> ModelProto:
    """An embedding and one attention layer, with the shape arithmetic of exporters."""
    rng = np.random.default_rng(0)
    n = helper.make_node
    nodes = [
        n("Shape", ["ids"], ["shape"]),
        n("Gather", ["shape", "zero"], ["b"], axis=0),
        n("Gather", ["shape", "one"], ["s"], axis=0),
        n("Range", ["zero", "s", "one"], ["at"]),
        n("Gather", ["table", "ids"], ["words"], axis=0),
        n("Gather", ["rows", "at"], ["places"], axis=0),
        n("Add", ["words", "places"], ["e"]),
        n("LayerNormalization", ["e", "g", "g"], ["x"], axis=-1, epsilon=1e-5),
        n("MatMul", ["x", "w"], ["qw"]),
        n("Unsqueeze", ["b", "axes0"], ["b1"]),
        n("Unsqueeze", ["s", "axes0"], ["s1"]),
        n("Concat", ["b1", "s1", "heads"], ["split"], axis=0),
        n("Reshape", ["qw", "split"], ["q4"]),
        n("Transpose", ["q4"], ["q"], perm=[0, 2, 1, 3]),
        n("Transpose", ["q4"], ["k"], perm=[0, 2, 3, 1]),
        n("MatMul", ["q", "k"], ["raw"]),
        n("Unsqueeze", ["mask", "axes12"], ["m4"]),
        n("Cast", ["m4"], ["mb"], to=TensorProto.BOOL),
        n("Where", ["mb", "zerof", "low"], ["bias"]),
        n("Add", ["raw", "bias"], ["masked"]),
        n("Softmax", ["masked"], ["p"], axis=-1),
        n("MatMul", ["p", "q"], ["mixed"]),
        n("Transpose", ["mixed"], ["back"], perm=[0, 2, 1, 3]),
        n("Concat", ["b1", "s1", "minus"], ["join"], axis=0),
        n("Reshape", ["back", "join"], ["y"]),
        n("ReduceMean", ["y", "axes1"], ["z"], keepdims=0),
    ]
    constants = {
        "zero": np.array(0), "one": np.array(1), "axes0": np.array([0]), "axes1": np.array([1]),
        "axes12": np.array([1, 2]), "heads": np.array([2, 4]), "minus": np.array([-1]),
        "zerof": np.array(0, "float32"), "low": np.array(-1e9, "float32"),
        "table": rng.normal(size=(20, 8)).astype("float32"),
        "rows": rng.normal(size=(16, 8)).astype("float32"),
        "g": np.ones(8, "float32"), "w": rng.normal(size=(8, 8)).astype("float32"),
    }  # fmt: skip
    inputs: Inputs = {
        "ids": ("int64", ["batch", "sequence"]),
        "mask": ("int64", ["batch", "sequence"]),
    }
    return _model(nodes, inputs, ["y", "z"], constants)


def pictures() -> ModelProto:
    """Convolution, pooling, padding and resizing."""
    n = helper.make_node
    nodes = [
        n("Conv", ["x", "w", "b"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]),
        n("BatchNormalization", ["c", "b", "b", "b", "v"], ["bn"]),
        n("Relu", ["bn"], ["r"]),
        n("MaxPool", ["r"], ["m"], kernel_shape=[2, 2], strides=[1, 1], pads=[0, 1, 0, 1]),
        n("AveragePool", ["m"], ["a"], kernel_shape=[2, 2], ceil_mode=1),
        n("ConvTranspose", ["a", "wt"], ["t"], strides=[2, 2], output_padding=[1, 1]),
        n("Resize", ["t", "", "scales"], ["s"], mode="linear"),
        n("Resize", ["s", "", "", "sizes"], ["z"], mode="cubic", axes=[2, 3]),
        n("Pad", ["z", "pads"], ["p"], mode="reflect"),
        n("DepthToSpace", ["p"], ["d"], blocksize=2),
        n("GlobalAveragePool", ["d"], ["g"]),
        n("Flatten", ["g"], ["y"], axis=1),
        n("Gemm", ["y", "wg"], ["o"], transB=1, alpha=0.5),
    ]
    constants = {
        "w": np.ones((4, 3, 3, 3), "float32"), "b": np.ones(4, "float32"),
        "v": np.ones(4, "float32"), "wt": np.ones((4, 4, 2, 2), "float32"),
        "scales": np.array([1, 1, 2, 2], "float32"), "sizes": np.array([8, 6]),
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "wg": np.ones((5, 1), "float32"),
    }  # fmt: skip
    return _model(nodes, {"x": ("float32", ["n", 3, 12, 10])}, ["o", "s"], constants)


def indexing() -> ModelProto:
    """Slices, gathers, splits and generators."""
    n = helper.make_node
    nodes = [
        n("Slice", ["x", "start", "end", "axes", "step"], ["a"]),
        n("Split", ["a", "parts"], ["a0", "a1"], axis=1),
        n("GatherElements", ["x", "i"], ["b"], axis=1),
        n("GatherND", ["x", "i"], ["c"], batch_dims=0),
        n("OneHot", ["i", "depth", "values"], ["d"], axis=-1),
        n("Tile", ["a0", "times"], ["e"]),
        n("Expand", ["row", "shape"], ["f"]),
        n("CumSum", ["x", "axis"], ["g"], reverse=1),
        n("ArgMax", ["x"], ["h"], axis=1, keepdims=0, select_last_index=1),
        n("Trilu", ["x", "axis"], ["j"], upper=0),
        n("ConstantOfShape", ["shape"], ["k"]),
        n("Squeeze", ["k"], ["l"]),
        n("Einsum", ["x", "row"], ["m"], equation="ij,kj->ik"),
        n("Clip", ["x", "", "one"], ["o"]),
        n("Mod", ["i", "i"], ["q"], fmod=1),
        n("Constant", [], ["r"], value_ints=[1, 2, 3]),
        n("EyeLike", ["x"], ["t"], k=1, dtype=7),
        n("Softmax", ["x"], ["u"], axis=0),
        n("Shape", ["x"], ["v"], start=-2, end=1),
    ]
    constants = {
        "start": np.array([0]), "end": np.array([-1]), "axes": np.array([1]),
        "step": np.array([1]), "parts": np.array([2, 1]), "depth": np.array(5),
        "values": np.array([0, 1], "float32"), "times": np.array([2, 2]),
        "row": np.ones((1, 4), "float32"), "shape": np.array([3, 4]), "axis": np.array(1),
        "one": np.array(1, "float32"),
    }  # fmt: skip
    inputs: Inputs = {"x": ("float32", ["n", 4]), "i": ("int64", ["n", 2])}
    outputs = ["a1", "b", "c", "d", "e", "f", "g", "h", "j", "l", "m", "o", "q", "r", "t", "u", "v"]
    return _model(nodes, inputs, outputs, constants)


def formulas() -> ModelProto:
    """Elementwise operators, reductions and shape arithmetic, partly in a function."""
    n = helper.make_node
    nodes = [
        n("Shape", ["x"], ["shape"]),
        n("Cast", ["shape"], ["sizes"], to=TensorProto.FLOAT),
        n("Div", ["sizes", "two"], ["halves"]),
        n("Floor", ["halves"], ["whole"]),
        n("Cast", ["whole"], ["half"], to=TensorProto.INT64),
        n("ReduceProd", ["half", "axes"], ["count"], keepdims=0),
        n("Max", ["count", "one"], ["some"]),
        n("Range", ["zero", "some", "one"], ["numbers"]),
        n("Mod", ["numbers", "seven"], ["rest"]),
        n("Gather", ["x", "rest"], ["picked"], axis=1),
        n("Equal", ["shape", "minus"], ["unknown"]),
        n("Where", ["unknown", "minus", "shape"], ["target"]),
        n("Reshape", ["x", "target"], ["same"]),
        n("Pow", ["same", "two"], ["square"]),
        n("ReduceSum", ["square", "axes"], ["sum"], keepdims=1),
        n("Sqrt", ["sum"], ["norm"]),
        n("Div", ["same", "norm"], ["unit"]),
        n("half_of", ["unit"], ["y"], domain="local", factor=0.5),
        n("LogSoftmax", ["y"], ["z"], axis=1),
        n("Sum", ["y", "z", "norm"], ["total"]),
        n("Xor", ["unknown", "unknown"], ["odd"]),
        n("PRelu", ["total", "two"], ["out"]),
        n("MeanVarianceNormalization", ["x4"], ["mvn"], axes=[0, 2]),
        n("Elu", ["mvn"], ["elu"], alpha=0.5),
    ]
    constants = {
        "two": np.array(2, "float32"), "axes": np.array([1]), "one": np.array(1),
        "zero": np.array(0), "seven": np.array(7), "minus": np.array([-1, -1]),
    }  # fmt: skip
    constants["axes"] = np.array([0])
    inputs: Inputs = {
        "x": ("float32", ["n", 8]),
        "x4": ("float32", [None, 3, None, 2]),
    }
    outputs = ["picked", "out", "odd", "elu"]
    model = _model(nodes, inputs, outputs, constants)
    body = [
        n("Constant", [], ["f"]),
        n("Mul", ["a", "f"], ["b"]),
    ]
    body[0].attribute.append(
        AttributeProto(name="value_float", type=AttributeProto.FLOAT, ref_attr_name="factor")
    )
    function = helper.make_function(
        "local", "half_of", ["a"], ["b"], body, [helper.make_opsetid("", 20)], ["factor"]
    )
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("local", 1))
    return model


def function_body(model: ModelProto, rng: random.Random) -> None:
    """A function that calls itself, or whose nodes are damaged."""
    for function in model.functions:
        node = rng.choice(function.node)
        choice = rng.randrange(3)
        if choice == 0:
            node.op_type, node.domain = function.name, function.domain
        elif choice == 1:
            node.input.append(rng.choice(["a", "b", "", "nothing"]))
        else:
            function.node.remove(node)


SEEDS = (encoder, pictures, indexing, formulas)


# -- how it is damaged ---------------------------------------------------------------------


def _node(model: ModelProto, rng: random.Random) -> onnx.NodeProto:
    return rng.choice(model.graph.node)


def attribute_value(model: ModelProto, rng: random.Random) -> None:
    nodes = [node for node in model.graph.node if node.attribute]
    attribute = rng.choice(rng.choice(nodes).attribute)
    if attribute.type == AttributeProto.INTS and attribute.ints:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(EXTREMES)
    elif attribute.type == AttributeProto.INTS:
        attribute.ints.append(rng.choice(EXTREMES))
    elif attribute.type == AttributeProto.STRING:
        attribute.s = rng.choice([b"", b"\xff\xfe", b"cubic", b"SAME_UPPER", b"i...j->", b"wrap"])
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = rng.choice([0.0, -1.0, float("nan"), float("inf"), 1e38])
    else:
        attribute.i = rng.choice(EXTREMES)


def attribute_shape(model: ModelProto, rng: random.Random) -> None:
    """Longer, shorter, gone, twice, or of another kind."""
    nodes = [node for node in model.graph.node if node.attribute]
    node = rng.choice(nodes)
    attribute = rng.choice(node.attribute)
    choice = rng.randrange(5)
    if choice == 0 and attribute.ints:
        del attribute.ints[-1]
    elif choice == 1:
        attribute.ints.append(rng.choice(EXTREMES))
    elif choice == 2:
        node.attribute.remove(attribute)
    elif choice == 3:
        node.attribute.add().CopyFrom(attribute)
    else:
        attribute.type = rng.choice([1, 2, 3, 4, 5, 6, 7, 8])


def new_attribute(model: ModelProto, rng: random.Random) -> None:
    name = rng.choice(["axis", "axes", "keepdims", "group", "auto_pad", "to", "mode", "perm",
                       "allowzero", "ceil_mode", "dilations", "batch_dims", "value"])  # fmt: skip
    value: object = rng.choice([rng.choice(EXTREMES), [rng.choice(EXTREMES)] * 2, "SAME_LOWER"])
    _node(model, rng).attribute.append(helper.make_attribute(name, value))


def operator(model: ModelProto, rng: random.Random) -> None:
    _node(model, rng).op_type = rng.choice(REGISTRY.names())[1]


def domain(model: ModelProto, rng: random.Random) -> None:
    _node(model, rng).domain = rng.choice(["my.domain", "com.microsoft", "ai.onnx", "ai.onnx.ml"])


def drop_node(model: ModelProto, rng: random.Random) -> None:
    model.graph.node.remove(_node(model, rng))


def repeat_node(model: ModelProto, rng: random.Random) -> None:
    model.graph.node.add().CopyFrom(_node(model, rng))


def move_node(model: ModelProto, rng: random.Random) -> None:
    node = onnx.NodeProto()
    node.CopyFrom(_node(model, rng))
    model.graph.node.remove(node)
    model.graph.node.insert(rng.randrange(len(model.graph.node) + 1), node)


def rewire(model: ModelProto, rng: random.Random) -> None:
    """An input becomes any other value, perhaps a later one (a cycle), or is dropped or added."""
    values = [name for node in model.graph.node for name in node.output]
    values += [item.name for item in model.graph.initializer]
    values += [item.name for item in model.graph.input]
    node = _node(model, rng)
    choice = rng.randrange(5)
    if choice == 0 and node.input:
        del node.input[-1]
    elif choice == 1:
        node.input.append(rng.choice(values))
    elif choice == 2 and node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice(["", "nothing"])
    elif node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice(values)


def outputs(model: ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    if rng.random() < 0.5:
        node.output.append("more")
    else:
        node.output[rng.randrange(len(node.output))] = rng.choice(["", "other", "ids", "y"])


def constant_value(model: ModelProto, rng: random.Random) -> None:
    """Shapes, axes and bounds with extreme numbers."""
    tensor = rng.choice([t for t in model.graph.initializer if t.data_type == TensorProto.INT64])
    array = numpy_helper.to_array(tensor).copy()
    if array.ndim == 0:
        array = np.array(rng.choice(EXTREMES))
    else:
        array[rng.randrange(len(array))] = rng.choice(EXTREMES)
    if rng.random() < 0.2:
        array = np.concatenate([np.atleast_1d(array)] * 2)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def constant_shape(model: ModelProto, rng: random.Random) -> None:
    tensor = rng.choice(model.graph.initializer)
    if tensor.dims and rng.random() < 0.7:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(EXTREMES)
    else:
        tensor.dims.append(rng.choice([1, 0, -1, 2]))


def constant_transposed(model: ModelProto, rng: random.Random) -> None:
    """The right number of bytes in another shape."""
    tensor = rng.choice(model.graph.initializer)
    array = numpy_helper.to_array(tensor)
    array = array.T if rng.random() < 0.5 else array.reshape(-1)
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))


def constant_type(model: ModelProto, rng: random.Random) -> None:
    tensor = rng.choice(model.graph.initializer)
    if rng.random() < 0.5:
        tensor.data_type = rng.randrange(0, 26)
    else:
        array = numpy_helper.to_array(tensor)
        kind = rng.choice(["float64", "int32", "bool", "float16", "uint8"])
        tensor.CopyFrom(numpy_helper.from_array(array.astype(kind), tensor.name))


def external(model: ModelProto, rng: random.Random) -> None:
    tensor = rng.choice(model.graph.initializer)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (
        (
            "location",
            rng.choice(["", "..", "/etc/passwd", "../x", "missing.bin", "a\0b", "x" * 999]),
        ),
        ("offset", rng.choice(["0", "-1", "x", "9" * 30])),
        ("length", rng.choice(["0", "-1", "4", "9" * 17])),
    ):
        tensor.external_data.add(key=key, value=value)


def graph_input(model: ModelProto, rng: random.Random) -> None:
    tensor = rng.choice(model.graph.input).type.tensor_type
    choice = rng.randrange(5)
    if choice == 0:
        tensor.elem_type = rng.randrange(0, 26)
    elif choice == 1:
        rng.choice(tensor.shape.dim).dim_value = rng.choice(EXTREMES)
    elif choice == 2:
        del tensor.shape.dim[-1]
    elif choice == 3:
        tensor.shape.dim.add().dim_param = rng.choice(["n", "sequence", "", "a*b"])
    else:
        tensor.ClearField("shape")


def opset(model: ModelProto, rng: random.Random) -> None:
    model.opset_import[0].version = rng.choice([7, 8, 9, 10, 11, 12, 13, 17, 18, 22, 24, 1, 0, -1,
                                                999])  # fmt: skip


FIELDS: tuple[Mutation, ...] = (
    attribute_value, attribute_value, attribute_shape, new_attribute, operator, domain, drop_node,
    repeat_node, move_node, rewire, rewire, outputs, constant_value, constant_value,
    constant_value, constant_shape, constant_transposed, constant_type, external, graph_input,
    opset, function_body,
)  # fmt: skip


_UNFIT = (ValueError, IndexError, TypeError, onnx.checker.ValidationError)


def damaged(case: int) -> bytes:
    """The bytes of case number `case`: always the same for the same number."""
    rng = random.Random(case)
    model = SEEDS[case % len(SEEDS)]()
    if rng.random() < 0.8:
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            # A mutation may not fit what an earlier one left: the case is then a milder one.
            with contextlib.suppress(*_UNFIT):
                rng.choice(FIELDS)(model, rng)
        return bytes(model.SerializeToString())
    data = bytearray(model.SerializeToString())
    choice = rng.randrange(4)
    if choice == 0:
        return bytes(data[: rng.randrange(len(data))])
    if choice == 1:
        for _ in range(rng.choice([1, 1, 4, 32])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif choice == 2:
        at = rng.randrange(len(data))
        data[at : at + rng.randrange(64)] = rng.randbytes(rng.randrange(64))
    else:
        at = rng.randrange(len(data))
        data[at:at] = data[: rng.randrange(len(data))]
    return bytes(data)


# -- running -------------------------------------------------------------------------------


def attempt(case: int, folder: Path) -> str:
    """Loads one case; "imported" or the name of the error. Anything else is a failure."""
    path = folder / "case.onnx"
    path.write_bytes(damaged(case))
    started = time.monotonic()
    try:
        load(path)
        result = "imported"
    except GraphcError as error:
        result = type(error).__name__
        assert str(error).strip(), f"case {case}: an empty message"
    except Exception as error:
        raise AssertionError(f"case {case}: {type(error).__name__}: {error}") from error
    seconds = time.monotonic() - started
    assert seconds < SECONDS, f"case {case}: {seconds:.1f} s"
    return result


def run(count: int, first: int = 0) -> Counter[str]:
    with tempfile.TemporaryDirectory() as folder:
        return Counter(attempt(case, Path(folder)) for case in range(first, first + count))


if __name__ == "__main__":
    import faulthandler

    faulthandler.enable()
    start = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with tempfile.TemporaryDirectory() as scratch:
        print(f"after a crash the model is {scratch}/case.onnx", file=sys.stderr)
        results: Counter[str] = Counter()
        failures = 0
        for number in range(start, start + int(sys.argv[1])):
            faulthandler.dump_traceback_later(60, exit=True)
            try:
                results[attempt(number, Path(scratch))] += 1
            except AssertionError as failure:
                failures += 1
                print(failure, file=sys.stderr)
        print(dict(results), failures, "failures")
        sys.exit(failures > 0)

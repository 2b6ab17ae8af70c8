"""Broken and hostile files: one typed error each, naming the place."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from relax_vm import build, compare, single

from graphc.check import check
from graphc.errors import ConfigError, GraphcError, ModelError, UnsupportedError
from graphc.frontend import load
from graphc.frontend.onnx import wire

X = {"x": ("float32", ("n", 4))}
W = np.arange(2000, dtype="float32").reshape(4, 500)


def perceptron() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="first"),
        helper.make_node("Relu", ["h"], ["y"], name="second"),
    ]
    return build(nodes, X, ["y"], {"w": W})


def _save(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_weights_are_views_of_the_file(tmp_path: Path) -> None:
    model = load(_save(perceptron(), tmp_path))
    array = model.params["w"]
    np.testing.assert_array_equal(array, W)
    assert not array.flags.owndata and not array.flags.writeable
    assert model.statistics == {"nodes": 2, "parameters": 2000, "bytes": 8000}


def test_the_split_keeps_everything_but_large_weights() -> None:
    data = perceptron().SerializeToString()
    parts = wire.split(memoryview(data))
    (extent,) = parts.weights
    assert extent is not None and extent.length == W.nbytes
    assert data[extent.start : extent.start + extent.length] == W.tobytes()
    stripped = onnx.ModelProto.FromString(parts.structure)
    original = perceptron()
    original.graph.initializer[0].ClearField("raw_data")
    assert stripped == original


@pytest.mark.parametrize("data", [b"", b"hello", b"\x00" * 100, b"\x0a\xff\xff\xff\xff\x0f"])
def test_not_a_model(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError, match="not an ONNX model"):
        load(path)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    data = perceptron().SerializeToString()
    path = tmp_path / "m.onnx"
    for length in range(0, len(data), 97):
        path.write_bytes(data[:length])
        with pytest.raises(ModelError):
            load(path)


def test_missing_and_wrong_files(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        load(tmp_path / "none.onnx")
    with pytest.raises(ModelError, match="no Hugging Face model"):
        load(_folder(tmp_path / "folder.onnx"))
    with pytest.raises(ConfigError, match=r"\.onnx"):
        load(tmp_path / "model.pb")


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


# -- graphs --------------------------------------------------------------------------------


def _cycle(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = "y"


def _undefined(model: onnx.ModelProto) -> None:
    model.graph.node[1].input[0] = "nothing"


def _twice(model: onnx.ModelProto) -> None:
    model.graph.node[1].output[0] = "h"


def _twice_weight(model: onnx.ModelProto) -> None:
    model.graph.initializer.add().CopyFrom(model.graph.initializer[0])


def _no_output(model: onnx.ModelProto) -> None:
    model.graph.output[0].name = "z"


def _shapes(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[:] = [5, 400]


def _bytes_missing(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[:] = [4, 501]


def _negative(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[:] = [-4, -500]


def _huge(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[:] = [2**40, 2**40]


def _endless(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2**41


def _wrong_type(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(W.astype("float64"), "w"))


def _not_text(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.add(name="axis", type=2, i=1)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_cycle, "cycle through MatMul node 'first', Relu node 'second'"),
        (_undefined, "Relu node 'second': input 'nothing'"),
        (_twice, "Relu node 'second': value 'h' is defined twice"),
        (_twice_weight, "'w' .*defined twice"),
        (_no_output, "output 'z'"),
        (_shapes, "MatMul node 'first'.* 4 and 5 do not match"),
        (_bytes_missing, "tensor w: 8000 bytes"),
        (_negative, "tensor w: .*negative"),
        (_huge, "tensor w: .*too large"),
        (_endless, "input 'x': axis 0 has length 2199"),
        (_wrong_type, "MatMul node 'first'.*float32, float64"),
        (_not_text, "MatMul node 'first'.*axis"),
    ],
)
def test_broken_graphs(
    tmp_path: Path, damage: Callable[[onnx.ModelProto], None], message: str
) -> None:
    model = perceptron()
    damage(model)
    with pytest.raises(ModelError, match=message) as caught:
        load(_save(model, tmp_path))
    assert not isinstance(caught.value, UnsupportedError)
    assert len(str(caught.value).splitlines()) <= 3


def test_nodes_in_any_order(tmp_path: Path) -> None:
    model = perceptron()
    nodes = list(reversed(model.graph.node))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    assert load(_save(model, tmp_path)).statistics["nodes"] == 2


# -- external data -------------------------------------------------------------------------


def external(folder: Path, **entries: str) -> Path:
    """The perceptron with its weight in weights.bin."""
    model = perceptron()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "weights.bin", **entries}.items():
        tensor.external_data.add(key=key, value=value)
    return _save(model, folder)


def test_external_data_is_mapped(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"\0" * 64 + W.tobytes())
    array = load(external(tmp_path, offset="64", length="8000")).params["w"]
    np.testing.assert_array_equal(array, W)
    assert not array.flags.owndata


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"location": "../weights.bin"}, "outside the model's folder"),
        ({"location": "/etc/passwd"}, "outside the model's folder"),
        ({"location": "link.bin"}, "outside the model's folder"),
        ({"location": "missing.bin"}, "missing.bin.*cannot be read"),
        ({"location": ""}, "file name"),
        ({"location": "."}, "not a file"),
        ({"offset": "65"}, "too short"),
        ({"offset": "-1"}, "offset"),
        ({"offset": "9" * 30}, "offset"),
        ({"length": "7999"}, "needs 8000"),
    ],
)
def test_external_data_is_confined(tmp_path: Path, entries: dict[str, str], message: str) -> None:
    folder = _folder(tmp_path / "model")
    (tmp_path / "weights.bin").write_bytes(W.tobytes())
    (folder / "weights.bin").write_bytes(W.tobytes() + b"\0" * 64)
    (folder / "link.bin").symlink_to(tmp_path / "weights.bin")
    with pytest.raises(ModelError, match=f"tensor w.*{message}"):
        load(external(folder, **entries))


# -- what is not compiled ------------------------------------------------------------------


def test_all_blockers_at_once(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Add", ["x", "x"], ["a"], name="mine", domain="my.domain"),
        helper.make_node("Bernoulli", ["a"], ["b"], name="data"),
        helper.make_node("RandomUniformLike", ["b"], ["y"], name="random"),
    ]
    model = build(nodes, X, ["y"])
    model.opset_import.append(helper.make_opsetid("my.domain", 3))
    path = _save(model, tmp_path)
    with pytest.raises(UnsupportedError) as caught:
        load(path)
    mine, data, random = map(str, caught.value.blockers)
    assert "'mine'" in mine and "my.domain::Add" in mine and "3 of my.domain" in mine
    assert "'data'" in data and "Bernoulli" in data and "of ai.onnx" in data
    assert "'random'" in random
    report = check(path)
    assert not report.ok and report.blockers == caught.value.blockers


def test_blockers_found_while_converting_are_joined(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Unsqueeze", ["x", "to"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="reader"),
        helper.make_node("Dropout", ["x", "", "yes"], ["c"], name="second"),
    ]
    inputs = {**X, "to": ("int64", (2,))}
    model = build(nodes, inputs, ["b", "c"], {"yes": np.array(True)})
    with pytest.raises(UnsupportedError) as caught:
        load(_save(model, tmp_path))
    first, second = map(str, caught.value.blockers)
    assert "'first'" in first and "input 1" in first and "'second'" in second


@pytest.mark.parametrize("version", [6, 1000])
def test_operator_sets(tmp_path: Path, version: int) -> None:
    model = perceptron()
    model.opset_import[0].version = version
    with pytest.raises(UnsupportedError, match=f"operator set {version}.*version_converter"):
        load(_save(model, tmp_path))


def test_types_that_are_not_compiled(tmp_path: Path) -> None:
    model = perceptron()
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING
    with pytest.raises(UnsupportedError, match=r"'x'.*string"):
        load(_save(model, tmp_path))


# -- dims and outputs ----------------------------------------------------------------------


def test_dims(tmp_path: Path) -> None:
    path = _save(perceptron(), tmp_path)
    fixed = load(path, dims={"n": 7}).signatures["main"]
    assert fixed.inputs[0].shape == (7, 4) and not fixed.dims
    (bounded,) = load(path, dims={"n": (2, 9)}).signatures["main"].dims
    assert (bounded.lower, bounded.upper) == (2, 9)
    with pytest.raises(ConfigError, match="called m: the model has n"):
        load(path, dims={"m": 3})
    for wrong in (0, -1, (3, 2), (-1, None)):
        with pytest.raises(ConfigError, match="dimension n"):
            load(path, dims={"n": wrong})


def test_more_outputs(tmp_path: Path) -> None:
    path = _save(perceptron(), tmp_path)
    ports = load(path, outputs=["h"]).signatures["main"].outputs
    assert [port.name for port in ports] == ["y", "h"]
    with pytest.raises(ModelError, match="'nothing'"):
        load(path, outputs=["nothing"])


def test_outputs_may_be_inputs_and_weights(tmp_path: Path) -> None:
    model = perceptron()
    for name in ("x", "w"):
        model.graph.output.add(name=name)
    model.graph.node.append(helper.make_node("Identity", ["h"], ["same"]))
    model.graph.output.add(name="same")
    imported = load(_save(model, tmp_path))
    assert [port.name for port in imported.signatures["main"].outputs] == ["y", "x", "w", "same"]


def test_unnamed_dimensions_get_names(tmp_path: Path) -> None:
    model = single("Relu", {"x": ("float32", (None, "x_0", None))})
    signature = load(_save(model, tmp_path)).signatures["main"]
    names = [dim.name for dim in signature.dims]
    assert len(set(names)) == 3 and "x_0" in names and names[2] == "x_2"


def test_assumed_equal_dimensions_are_constraints(tmp_path: Path) -> None:
    node = helper.make_node("Add", ["a", "b"], ["y"], name="sum")
    inputs = {"a": ("float32", ("n", 4)), "b": ("float32", ("m", 4))}
    ones = np.ones((3, 4), "float32")
    model = compare(build([node], inputs, ["y"]), tmp_path, {"a": ones, "b": ones})
    (constraint,) = model.signatures["main"].constraints
    assert {str(constraint.left), str(constraint.right)} == {"n", "m"}
    assert "'sum'" in constraint.reason


# -- functions -----------------------------------------------------------------------------


def with_function(body: list[onnx.NodeProto]) -> onnx.ModelProto:
    model = build([helper.make_node("f", ["x"], ["y"], domain="local", k=2.0)], X, ["y"])
    function = helper.make_function(
        "local", "f", ["a"], ["b"], body, [helper.make_opsetid("", 20),
                                          helper.make_opsetid("local", 1)], ["k"]
    )  # fmt: skip
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("local", 1))
    return model


def test_functions_of_the_model(tmp_path: Path) -> None:
    constant = helper.make_node("Constant", [], ["c"])
    constant.attribute.append(onnx.AttributeProto(name="value_float", type=1, ref_attr_name="k"))
    model = with_function([constant, helper.make_node("Mul", ["a", "c"], ["b"])])
    compare(model, tmp_path, {"x": np.ones((2, 4), "float32")})


def test_a_function_that_calls_itself(tmp_path: Path) -> None:
    model = with_function([helper.make_node("f", ["a"], ["b"], domain="local")])
    with pytest.raises(GraphcError, match="f calls itself"):
        load(_save(model, tmp_path))


def test_functions_that_grow_without_end(tmp_path: Path) -> None:
    """Ten calls of a function of ten calls of ...: refused before memory is gone."""
    model = with_function([helper.make_node("g0", ["a"], ["b"], domain="local")])
    for level in range(9):
        names = ["a", *(f"v{k}" for k in range(9)), "b"]
        body = [
            helper.make_node(f"g{level + 1}" if level < 8 else "Identity", [x], [y],
                             domain="local" if level < 8 else "")
            for x, y in itertools.pairwise(names)
        ]  # fmt: skip
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]
        model.functions.append(
            helper.make_function("local", f"g{level}", ["a"], ["b"], body, opsets)
        )
    with pytest.raises(ModelError, match="more than 200000 nodes"):
        load(_save(model, tmp_path))


def test_functions_of_the_standard(tmp_path: Path) -> None:
    """MeanVarianceNormalization has a body and no converter of ours."""
    model = single("MeanVarianceNormalization", {"x": ("float32", ("n", 3, "h", 5))})
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype("float32")
    compare(model, tmp_path, {"x": x}, tolerance=1e-4)


def test_check_reports(tmp_path: Path) -> None:
    report = check(_save(perceptron(), tmp_path))
    assert report.ok and report.signature is not None
    assert report.statistics["parameters"] == 2000

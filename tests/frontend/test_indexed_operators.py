"""Operators that gather, scatter, sort or sample, with symbolic sizes, against ONNX Runtime.

They run through the kernels that an artifact gets, not through TVM's virtual machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from plan_runner import Compiled
from relax_vm import assert_close, build, reference, single

from graphc.errors import ModelError
from graphc.frontend import load
from graphc.passes import pipeline
from graphc.targets import load as targets

RNG = np.random.default_rng(5)


def _normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def _check(
    model: onnx.ModelProto, folder: Path, *feeds: Mapping[str, np.ndarray], tolerance: float = 2e-5
) -> None:
    path = folder / "model.onnx"
    onnx.save(model, path)
    target = targets.get("host")
    compiled = Compiled(pipeline.graph(load(path), target), target)
    signature = compiled.model.signatures["main"]
    for feed in feeds:
        results = compiled([feed[port.name] for port in signature.inputs])
        for port, got, want in zip(signature.outputs, results, reference(model, feed), strict=True):
            assert_close(got, want, port.name, tolerance)


@pytest.mark.parametrize(("dtype", "axis", "largest"), [("int64", 0, 0), ("float32", 1, 0)])
def test_top_k(tmp_path: Path, dtype: str, axis: int, largest: int) -> None:
    model = single(
        "TopK", {"x": (dtype, ("a", "b", 9))}, constants={"k": np.array([3])}, outputs=2,
        axis=axis, largest=largest,
    )  # fmt: skip
    feeds = [{"x": RNG.integers(0, 6, shape).astype(dtype)} for shape in ((3, 5, 9), (4, 3, 9))]
    _check(model, tmp_path, *feeds)


def test_top_k_of_a_long_row(tmp_path: Path) -> None:
    """Rising and falling rows, ties and infinities among them."""
    model = single("TopK", {"x": ("float32", ("n", "m"))}, constants={"k": np.array([40])},
                   outputs=2)  # fmt: skip
    rising = np.linspace(-1, 1, 1000, dtype="float32")
    rows = np.stack([rising, rising[::-1], np.round(_normal(1000)), _normal(1000)])
    rows[3, ::7] = -np.inf
    rows[3, 5] = np.inf
    _check(model, tmp_path, {"x": rows})


@pytest.mark.parametrize("reduction", ["none", "max"])
def test_scatter(tmp_path: Path, reduction: str) -> None:
    value, updates = _normal(4, 5), _normal(3, 5)
    where = RNG.permuted(np.tile(np.arange(-4, 0), (5, 1)), axis=1)[:, :3].T.copy()
    shapes: dict[str, tuple[str, Sequence[int | str | None]]] = {
        "x": ("float32", ("n", "m")), "i": ("int64", ("k", "m")), "u": ("float32", ("k", "m"))
    }  # fmt: skip
    model = single("ScatterElements", shapes, axis=0, reduction=reduction, opset=18)
    _check(model, tmp_path, {"x": value, "i": where, "u": updates})
    shapes = {"x": ("float32", ("n", "m")), "i": ("int64", ("k", 1)), "u": ("float32", ("k", "m"))}
    model = single("ScatterND", shapes, reduction=reduction, opset=18)
    rows = np.array([[2], [-1], [0]])
    _check(model, tmp_path, {"x": value, "i": rows, "u": updates})


@pytest.mark.parametrize(
    ("mode", "padding", "aligned"),
    [
        ("nearest", "reflection", 0),
        ("linear", "zeros", 1),
        ("cubic", "border", 0),
        ("cubic", "reflection", 1),
    ],
)
def test_grid_sample(tmp_path: Path, mode: str, padding: str, aligned: int) -> None:
    shapes: dict[str, tuple[str, Sequence[int | str | None]]] = {
        "x": ("float32", ("n", 2, "h", "w")), "g": ("float32", ("n", "p", "q", 2))
    }  # fmt: skip
    model = single("GridSample", shapes, mode=mode, padding_mode=padding, align_corners=aligned)
    feed = {"x": _normal(2, 2, 5, 7), "g": _normal(2, 4, 3, 2)}
    _check(model, tmp_path, feed, tolerance=1e-4)


def test_regions(tmp_path: Path) -> None:
    shapes: dict[str, tuple[str, Sequence[int | str | None]]] = {
        "x": ("float32", ("n", 3, "h", "w")), "r": ("float32", ("k", 4)), "b": ("int64", ("k",))
    }  # fmt: skip
    regions = np.array([[0, 0, 6, 4], [1.5, 2, 3, 7.5], [-2, -2, 20, 20]], "float32")
    feed = {"x": _normal(2, 3, 8, 9), "r": regions, "b": np.array([0, 1, 1])}
    for more in ({"mode": "max", "sampling_ratio": 2}, {}):
        settings: dict[str, Any] = {"output_height": 3, "output_width": 2, **more}
        model = single("RoiAlign", shapes, opset=16, **settings)
        _check(model, tmp_path, feed)


def test_sequences(tmp_path: Path) -> None:
    model = single("ReverseSequence", {"x": ("float32", ("t", "b", 3)), "n": ("int64", ("b",))})
    _check(model, tmp_path, {"x": _normal(5, 4, 3), "n": np.array([5, 1, 2, 0]) + 0})
    model = single("Hardmax", {"x": ("float32", ("a", "b"))}, axis=0)
    _check(model, tmp_path, {"x": np.round(_normal(4, 6))})


def test_losses(tmp_path: Path) -> None:
    shapes: dict[str, tuple[str, Sequence[int | str | None]]] = {
        "x": ("float32", ("n", 5, "d")), "t": ("int64", ("n", "d")), "w": ("float32", (5,))
    }  # fmt: skip
    feed = {"x": _normal(3, 5, 4), "t": RNG.integers(0, 5, (3, 4)), "w": np.abs(_normal(5))}
    for name in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"):
        model = single(name, shapes, ignore_index=2, opset=13)
        _check(model, tmp_path, feed)


@pytest.mark.parametrize(("dtype", "causal"), [("float32", 1), ("float16", 0)])
def test_attention_with_a_cache(tmp_path: Path, dtype: str, causal: int) -> None:
    """Grouped heads, a soft cap and an additive mask over cache and new keys."""
    shapes: dict[str, tuple[str, Sequence[int | str | None]]] = {
        "q": (dtype, ("b", 4, "s", 8)), "k": (dtype, ("b", 2, "s", 8)),
        "v": (dtype, ("b", 2, "s", 8)), "m": (dtype, ("s", "t")),
        "pk": (dtype, ("b", 2, "p", 8)), "pv": (dtype, ("b", 2, "p", 8)),
    }  # fmt: skip
    model = single("Attention", shapes, outputs=3, opset=23, is_causal=causal, softcap=3.0)
    b, s, p = 2, 3, 4
    sizes = {"b": b, "s": s, "p": p, "t": s + p}
    feed = {
        name: _normal(*(sizes.get(str(n), n) for n in shape)).astype(kind)  # type: ignore[arg-type]
        for name, (kind, shape) in shapes.items()
    }
    _check(model, tmp_path, feed, tolerance=2e-5 if dtype == "float32" else 5e-3)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding(tmp_path: Path, interleaved: int) -> None:
    shapes: dict[str, tuple[str, Sequence[int | str | None]]] = {
        "x": ("float32", ("b", "s", 24)), "c": ("float32", (16, 3)), "z": ("float32", (16, 3)),
        "p": ("int64", ("b", "s")),
    }  # fmt: skip
    model = single("RotaryEmbedding", shapes, opset=23, num_heads=3, rotary_embedding_dim=6,
                   interleaved=interleaved)  # fmt: skip
    feed = {"x": _normal(2, 5, 24), "c": _normal(16, 3), "z": _normal(16, 3),
            "p": RNG.integers(0, 16, (2, 5))}  # fmt: skip
    _check(model, tmp_path, feed)


def test_determinant_and_transform(tmp_path: Path) -> None:
    model = single("Det", {"x": ("float32", ("n", 5, 5))})
    singular = np.ones((5, 5), "float32")
    _check(model, tmp_path, {"x": np.stack([*_normal(3, 5, 5), singular, np.eye(5)[::-1]])
                             .astype("float32")}, tolerance=1e-4)  # fmt: skip
    model = single("DFT", {"x": ("float32", ("n", 12, 1))}, order=["x"], onesided=1, axis=1,
                   opset=17)  # fmt: skip
    _check(model, tmp_path, {"x": _normal(3, 12, 1)})


def test_control_flow_that_is_known(tmp_path: Path) -> None:
    """A branch by the number of dimensions, and a loop of three steps that stacks what it makes."""
    info = onnx.helper.make_tensor_value_info
    make, number = onnx.helper.make_node, onnx.TensorProto
    branches = [
        onnx.helper.make_graph([make(kind, ["x"], [kind])], kind, [], [info(kind, 1, None)])
        for kind in ("Neg", "Abs")
    ]
    body = onnx.helper.make_graph(
        [make("Add", ["carried", "x"], ["sum"]), make("Identity", ["going"], ["goes"]),
         make("Neg", ["sum"], ["seen"])],
        "body",
        [info("i", number.INT64, []), info("going", number.BOOL, []), info("carried", 1, None)],
        [info("goes", number.BOOL, []), info("sum", 1, None), info("seen", 1, None)],
    )  # fmt: skip
    nodes = [
        make("Shape", ["x"], ["shape"]),
        make("Size", ["shape"], ["rank"]),
        make("Equal", ["rank", "two"], ["flat"]),
        make("If", ["flat"], ["y0"], then_branch=branches[0], else_branch=branches[1]),
        make("Loop", ["three", "", "x"], ["y1", "y2"], body=body),
    ]
    constants = {"two": np.array(2), "three": np.array(3)}
    model = build(nodes, {"x": ("float32", ("n", 4))}, ["y0", "y1", "y2"], constants)
    _check(model, tmp_path, {"x": _normal(3, 4)})


def test_pooling_with_places(tmp_path: Path) -> None:
    model = single("MaxPool", {"x": ("float32", ("n", 2, "h", 6))}, outputs=2,
                   kernel_shape=[2, 3], strides=[2, 1], pads=[0, 1, 1, 1])  # fmt: skip
    _check(model, tmp_path, {"x": _normal(2, 2, 5, 6)})
    model = single(
        "Resize", {"x": ("float32", ("n", 2, 9))}, constants={"s": np.float32([1, 1, 0.4])},
        order=["x", "", "s"], mode="linear", antialias=1,
    )  # fmt: skip
    _check(model, tmp_path, {"x": _normal(2, 2, 9)})


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    model = single("TopK", {"x": ("float32", (4,))}, constants={"k": np.array([5])}, outputs=2)
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(ModelError, match="k elements"):
        load(tmp_path / "model.onnx")

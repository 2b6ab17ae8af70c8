"""What a reference that is nudged allows: tight where steps are rare, nothing where they rule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny_models
from onnx import helper, numpy_helper

import graphc
from graphc import nudge, testing
from graphc.errors import VerificationError
from graphc.reference import Reference
from graphc.verify import verify


def vectors(model: onnx.ModelProto) -> dict[str, testing.Array]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def test_vectors_move_by_one_place_and_nothing_else(tmp_path: Path) -> None:
    path = tiny_models.perceptron(tmp_path / "mlp.onnx")
    before = vectors(onnx.load(str(path)))
    after = vectors(onnx.load_from_string(nudge.nudged_model(path, 1)))
    for name in ("w1", "w2"):
        np.testing.assert_array_equal(after[name], before[name])
    for name in ("b1", "b2"):
        np.testing.assert_array_max_ulp(after[name], before[name], maxulp=1)
        assert np.all(after[name] != before[name])
    assert nudge.nudged_model(path, 1) == nudge.nudged_model(path, 1)
    assert nudge.nudged_model(path, 1) != nudge.nudged_model(path, 2)


def test_sizes_and_the_largest_float_stay(tmp_path: Path) -> None:
    nodes = [helper.make_node("Resize", ["x", "", "scales"], ["big"]),
             helper.make_node("Add", ["big", "least"], ["y"])]  # fmt: skip
    least = np.full(6, np.finfo(np.float32).min, np.float32)
    kept = [numpy_helper.from_array(np.array([1, 2], np.float32), "scales"),
            numpy_helper.from_array(least, "least")]  # fmt: skip
    ports = [tiny_models.value("x", ["n", 3])], [tiny_models.value("y", ["n", 6])]
    path = tiny_models.save(
        tmp_path / "resize.onnx", helper.make_graph(nodes, "resize", *ports, kept)
    )
    after = vectors(onnx.load_from_string(nudge.nudged_model(path, 1)))
    np.testing.assert_array_equal(after["scales"], [1, 2])
    assert np.all(np.isfinite(after["least"]))


@pytest.mark.parametrize(
    ("spread", "limit"),
    [(0.0, nudge.LOWEST), (0.02, 0.08), (nudge.COMPARABLE, 0.4), (0.11, None), (np.inf, None)],
)
def test_limits(spread: float, limit: float | None) -> None:
    assert nudge.limit(spread) == limit


def test_the_spread_is_the_largest_over_the_outputs_norm() -> None:
    y = np.array([3.0, 4.0], np.float32)
    others = [{"y": y + np.float32(0.5)}, {"y": y}]
    assert nudge.spread({"y": y}, others) == {"y": pytest.approx(0.5 * 2**0.5 / 5)}


def quantising(path: Path, gain: float) -> Path:
    """y = sin(relu(gain * (round(x) @ w))), x rounded to 8 bits; the vector `gain` can be moved."""
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["r"]),
        helper.make_node("MatMul", ["r", "w"], ["h"], name="product"),
        helper.make_node("Mul", ["h", "gain"], ["g"]),
        helper.make_node("Relu", ["g"], ["p"], name="gate"),
        helper.make_node("Sin", ["p"], ["y"]),
    ]
    weights = [tiny_models.weight("w", 24, 40),
               numpy_helper.from_array(np.full(40, gain, np.float32), "gain")]  # fmt: skip
    ports = [tiny_models.value("x", ["batch", 24])], [tiny_models.value("y", ["batch", 40])]
    return tiny_models.save(path, helper.make_graph(nodes, "rounds", *ports, weights))


def test_a_model_that_rounds_is_held_to_what_it_moves_by(tmp_path: Path) -> None:
    path = quantising(tmp_path / "calm.onnx", 1.0)
    graphc.compile(path, output=tmp_path / "calm.gc")
    report = verify(tmp_path / "calm.gc", path)
    limits = {output.limit for case in report.cases for output in case.outputs}
    assert report.passed and not report.refused and limits == {nudge.LOWEST}


def test_a_model_that_moves_too_far_proves_nothing(tmp_path: Path) -> None:
    """The sine of a number of which a last place is more than a turn."""
    path = quantising(tmp_path / "wild.onnx", 1e8)
    with pytest.raises(VerificationError, match="not comparable"):
        graphc.compile(path, output=tmp_path / "wild.gc")


def test_the_nudged_bytes_run_as_the_file_does(tmp_path: Path) -> None:
    path = quantising(tmp_path / "calm.onnx", 1.0)
    x = np.random.default_rng().normal(size=(3, 24)).astype(np.float32)
    plain = Reference(path, 1).run({"x": x})
    moved = Reference(path, 1, data=nudge.nudged_model(path, 1)).run({"x": x})
    assert 0 < nudge.spread(plain, [moved])["y"] < 1e-5

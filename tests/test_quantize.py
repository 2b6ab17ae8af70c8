"""Quantised compiles, whole: they run, are proved, and say what they cost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import tiny_models

import graphc
from graphc.errors import ConfigError
from graphc.testing import compare


def batches(*sizes: int) -> list[np.ndarray]:
    return [np.random.default_rng(n).standard_normal((n, 24), dtype=np.float32) for n in sizes]


@pytest.mark.parametrize("scheme", ["int8", "int8-static", "w8"])
def test_schemes(scheme: str, tmp_path: Path) -> None:
    model = tiny_models.perceptron(tmp_path / "tiny.onnx")
    samples = tmp_path / "samples.npz"
    np.savez(samples, x=batches(256)[0])
    place = tmp_path / "small.gc"
    artifact = graphc.compile(model, output=place, quantize=scheme, calibration=samples)
    numerics, quality = artifact.manifest.numerics, artifact.manifest.quality
    assert numerics is not None
    assert numerics["passed"]
    assert quality is not None
    assert quality["scheme"] == scheme
    assert [layer["cosine"] > 0.999 for layer in quality["layers"]] == [True, True]
    session = onnxruntime.InferenceSession(str(model))
    with graphc.load(place) as loaded:
        for x in batches(1, 5, 40):
            (expected,) = session.run(None, {"x": x})
            assert compare(loaded(x=x)["y"], expected).cosine > 0.999


@pytest.mark.parametrize("scheme", ["q4-g16", "q8"])
def test_few_bits_with_free_dimensions(scheme: str, tmp_path: Path) -> None:
    """Batch and length are symbols: the proof in plain loops must keep them apart from its own."""
    model = tiny_models.embedding_and_product(tmp_path / "tiny.onnx")
    artifact = graphc.compile(model, output=tmp_path / "small.gc", quantize=scheme)
    numerics, quality = artifact.manifest.numerics, artifact.manifest.quality
    assert numerics is not None and numerics["passed"]
    assert quality is not None and quality["outputs"][0]["cosine"] > 0.98
    assert any("nbits" in kernel.template for kernel in artifact.manifest.kernels)


def test_a_model_without_large_weights_is_refused(tmp_path: Path) -> None:
    model = tiny_models.perceptron(tmp_path / "tiny.onnx")
    with pytest.raises(ConfigError, match="nothing to quantise"):
        graphc.compile(model, output=tmp_path / "small.gc", quantize="q4")


@pytest.mark.parametrize(("bound", "float_products"), [(0.5, 0), (1e-7, 2)])
def test_auto_keeps_the_bound(bound: float, float_products: int, tmp_path: Path) -> None:
    """A wide bound lets everything be small; a tight one nothing. Whether it pays is timed."""
    model = tiny_models.perceptron(tmp_path / "tiny.onnx")
    place = tmp_path / "auto.gc"
    artifact = graphc.compile(model, output=place, quantize="auto", max_error=bound)
    quality = artifact.manifest.quality
    assert quality is not None
    assert 1 - quality["outputs"][0]["cosine"] <= max(bound, 1e-6)
    small = [kernel for kernel in artifact.manifest.kernels if "int8" in kernel.template]
    assert float_products == 0 or not small


def test_smoothing_takes_care_of_large_columns(tmp_path: Path) -> None:
    """One input column in a thousand times larger steps would leave the others none."""
    model = tiny_models.perceptron(tmp_path / "tiny.onnx")
    samples = tmp_path / "samples.npz"
    x = batches(256)[0]
    x[:, 3] *= 1000
    np.savez(samples, x=x)
    errors = []
    for smooth in (0.0, 0.5):
        place = tmp_path / f"{smooth}.gc"
        artifact = graphc.compile(
            model, output=place, quantize="int8-static", calibration=samples, smooth=smooth
        )
        assert artifact.manifest.quality is not None
        layers = {layer["name"]: layer["error"] for layer in artifact.manifest.quality["layers"]}
        errors.append(sum(layers.values()))
    assert errors[1] < errors[0]


def test_refusals(tmp_path: Path) -> None:
    model = tiny_models.perceptron(tmp_path / "tiny.onnx")
    with pytest.raises(ConfigError, match=r"expected one of .*int8-static"):
        graphc.compile(model, output=tmp_path / "a.gc", quantize="int7")
    np.savez(tmp_path / "wrong.npz", z=np.zeros(3))
    with pytest.raises(ConfigError, match="no array for input 'x'"):
        graphc.compile(
            model,
            output=tmp_path / "b.gc",
            quantize="int8-static",
            calibration=tmp_path / "wrong.npz",
        )

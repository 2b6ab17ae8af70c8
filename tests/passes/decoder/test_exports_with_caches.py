"""Models exported with past keys and values: the cache is dropped and derived anew."""

from __future__ import annotations

from pathlib import Path

import group_query_model as model
import numpy as np
import pytest
import tiny_models
from onnx import TensorProto, helper
from stepping import Stepper, ragged_logits

from graphc import frontend
from graphc.passes import pipeline
from graphc.passes.decoder.derive import derive
from graphc.passes.decoder.specialise import NotADecoder, specialise


@pytest.mark.parametrize(("window", "softcap"), [(-1, 0.0), (5, 3.0)])
def test_group_query_attention(window: int, softcap: float, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model.build(path, window=window, softcap=softcap)
    derived = derive(pipeline.graph(specialise(frontend.load(path)), None))
    assert derived.decoder is not None
    assert [(c.heads, c.width) for c in derived.decoder.caches] == [(2, 16)] * 4
    assert derived.decoder.max_context == model.ROWS
    random = np.random.default_rng()
    sequences = {n: random.integers(0, model.VOCABULARY, k) for n, k in (("a", 33), ("b", 18))}
    found = ragged_logits(Stepper(derived), sequences)
    for name, tokens in sequences.items():
        np.testing.assert_allclose(found[name], model.full(path, tokens), atol=2e-5)


def test_states_of_an_encoder_are_no_cache(tmp_path: Path) -> None:
    """Floats of rank 3 as a cache is, but no output is them with more entries."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["x"]),
        helper.make_node("ReduceMax", ["states"], ["all"], axes=[1]),
        helper.make_node("Add", ["x", "all"], ["h"]),
        helper.make_node("MatMul", ["h", "head"], ["logits"]),
    ]
    inputs = [tiny_models.value("ids", ["batch", "sequence"], TensorProto.INT64),
              tiny_models.value("states", ["batch", "read", 8])]  # fmt: skip
    outputs = [tiny_models.value("logits", ["batch", "sequence", 50])]
    weights = [tiny_models.weight("table", 50, 8), tiny_models.weight("head", 8, 50)]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, weights)
    loaded = frontend.load(tiny_models.save(tmp_path / "decoder.onnx", graph))
    with pytest.raises(NotADecoder, match=r"input states .* is not one of text"):
        specialise(loaded)

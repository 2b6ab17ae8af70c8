"""Models exported with past keys and values: the cache is dropped and derived anew."""

from __future__ import annotations

from pathlib import Path

import group_query_model as model
import numpy as np
import pytest
from stepping import Stepper, ragged_logits

from graphc import frontend
from graphc.passes import pipeline
from graphc.passes.decoder.derive import derive
from graphc.passes.decoder.specialise import specialise


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

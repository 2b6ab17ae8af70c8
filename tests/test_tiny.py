"""The smoke test, under 10 s: a small model through every stage, and a second compile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import tiny_models

import graphc


def test_compile_run_and_compare(tmp_path: Path) -> None:
    model = tiny_models.perceptron(tmp_path / "tiny.onnx")
    stages: list[str] = []
    artifact = graphc.compile(model, output=tmp_path / "tiny.gc", progress=stages.append)
    assert not artifact.cached and stages[-1] == "verify"
    assert artifact.manifest.numerics is not None

    loaded = graphc.load(tmp_path / "tiny.gc")
    session = onnxruntime.InferenceSession(str(model))
    for batch in (1, 2, 7, 33):
        x = np.random.default_rng(batch).standard_normal((batch, 24), dtype=np.float32)
        (expected,) = session.run(None, {"x": x})
        np.testing.assert_allclose(loaded(x=x)["y"], expected, atol=1e-5)
    loaded.close()

    again = graphc.compile(model, output=tmp_path / "again.gc")
    assert again.cached
    files = sorted(p for p in (tmp_path / "tiny.gc").rglob("*") if p.is_file())
    for path in files:
        copy = tmp_path / "again.gc" / path.relative_to(tmp_path / "tiny.gc")
        assert path.read_bytes() == copy.read_bytes(), path

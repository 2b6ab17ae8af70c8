"""Runs imported models on an artifact's kernels, without linking, against ONNX Runtime."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

sys.path.append(str(Path(__file__).resolve().parents[1] / "codegen"))

from plan_runner import Compiled
from relax_vm import TOLERANCE, reference

from graphc.frontend import load
from graphc.passes.pipeline import graph
from graphc.targets import load as targets


def compiled(model: onnx.ModelProto, folder: Path) -> Compiled:
    """The model's kernels, ready to run."""
    path = folder / "model.onnx"
    onnx.save(model, path)
    return Compiled(graph(load(path), targets.get("host")))


def run(runner: Compiled, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs for named inputs."""
    return runner([feeds[port.name] for port in runner.plan.signature.inputs])


def compare(
    model: onnx.ModelProto,
    folder: Path,
    *feeds: Mapping[str, np.ndarray],
    tolerance: float | None = None,
) -> Compiled:
    """Every output close to ONNX Runtime's, integers equal."""
    runner = compiled(model, folder)
    for feed in feeds:
        names = [port.name for port in runner.plan.signature.outputs]
        for name, got, want in zip(names, run(runner, feed), reference(model, feed), strict=True):
            assert got.dtype == want.dtype, (name, got.dtype, want.dtype)
            assert got.shape == want.shape, (name, got.shape, want.shape)
            bound = 0.0
            if got.dtype.kind == "f":
                bound = tolerance if tolerance is not None else TOLERANCE[str(got.dtype)]
            np.testing.assert_allclose(got, want, rtol=bound, atol=bound, err_msg=name)
    return runner

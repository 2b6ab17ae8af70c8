"""graphc behind ONNX's own interface for backends: import, passes, lowering, kernels, a run.

Every stage is the one that makes an artifact, up to the kernels; the plan is then run in this
process instead of being linked.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep, namedtupledict

sys.path.append(str(Path(__file__).resolve().parents[1] / "codegen"))

from plan_runner import Compiled

from graphc.errors import UnsupportedError
from graphc.frontend import load
from graphc.ir import Model, Port
from graphc.passes import pipeline
from graphc.targets import load as targets


class Prepared(BackendRep):  # type: ignore[misc]
    """A compiled model; `fixed` names the inputs whose values were compiled in."""

    def __init__(self, compiled: Compiled, names: Sequence[str], fixed: frozenset[str]) -> None:
        self._compiled = compiled
        self._names = list(names)
        self.fixed = fixed

    def run(self, inputs: Sequence[np.ndarray], **kwargs: Any) -> tuple[np.ndarray, ...]:
        signature = self._compiled.model.exported["main"]
        given = dict(zip(self._names, inputs, strict=False))
        feeds = [_carried(port, given[port.name]) for port in signature.inputs]
        results = self._compiled(feeds)
        names = [port.name for port in signature.outputs]
        named = namedtupledict("Outputs", names)
        return tuple(named(*map(_uncarried, signature.outputs, results)))


def _carried(port: Port, array: np.ndarray) -> np.ndarray:
    """A value of a narrow type in the type that holds it: the same integer, or a float's code."""
    if not port.narrow:
        assert str(array.dtype) == port.dtype, (port.name, array.dtype, port.dtype)
        return array
    return array.view("uint8") if port.narrow.startswith("float") else array.astype(port.dtype)


def _uncarried(port: Port, array: np.ndarray) -> np.ndarray:
    if not port.narrow:
        return array
    dtype = np.dtype(getattr(ml_dtypes, port.narrow))
    return array.view(dtype) if port.narrow.startswith("float") else array.astype(dtype)


class GraphcBackend(Backend):  # type: ignore[misc]
    """ONNX's backend interface; `prepare` also takes inputs whose values may be compiled in."""

    @classmethod
    def prepare(
        cls,
        model: onnx.ModelProto,
        device: str = "CPU",
        settings: Mapping[str, np.ndarray] | None = None,
        **kwargs: Any,
    ) -> Prepared:
        from cases import with_fixed

        names = [info.name for info in model.graph.input]
        fixed: frozenset[str] = frozenset()
        try:
            imported = _load(model)
        except UnsupportedError:
            if not settings:
                raise
            imported = _load(with_fixed(model, settings))
            fixed = frozenset(settings)
        target = targets.get("host")
        return Prepared(Compiled(pipeline.graph(imported, target), target), names, fixed)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device.startswith("CPU")


def _load(model: onnx.ModelProto) -> Model:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        return load(path)

"""Other runtimes that `graphc bench` runs beside an artifact, on the same file, inputs and threads.

onnxruntime      its CPU provider, as in graphc/reference.py
openvino         float32 (INFERENCE_PRECISION_HINT), latency hint, one stream
openvino-bf16    the same in bfloat16
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from graphc.errors import ConfigError, ToolError
from graphc.testing import Array

Run = Callable[[Mapping[str, Array]], object]
Maker = Callable[[Path, int], Run]


def names() -> tuple[str, ...]:
    """What `make` knows."""
    return tuple(_PEERS)


def parse(text: str) -> tuple[str, ...]:
    """Names separated by commas; ConfigError for one that is not known."""
    wanted = tuple(name.strip() for name in text.split(","))
    for name in wanted:
        if name not in _PEERS:
            raise ConfigError(f"--against {name!r}: expected {', '.join(_PEERS)}")
    return wanted


def make(name: str, model: Path, threads: int) -> Run:
    """The model loaded by that runtime, ready to run; ToolError when it is not installed."""
    return _PEERS[name](model, threads)


def _onnxruntime(model: Path, threads: int) -> Run:
    from graphc.reference import Reference

    return Reference(model, threads).run


def _openvino(precision: str) -> Maker:
    def load(model: Path, threads: int) -> Run:
        try:
            openvino: Any = importlib.import_module("openvino")
        except ImportError as error:
            raise ToolError("openvino is not installed: pip install openvino") from error
        options = {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": "1",
            "INFERENCE_NUM_THREADS": str(threads),
            "INFERENCE_PRECISION_HINT": precision,
        }
        try:
            request = openvino.compile_model(str(model), "CPU", options).create_infer_request()
        except RuntimeError as error:
            line = str(error).strip().splitlines()[0]
            raise ToolError(f"{model}: openvino cannot load it: {line}") from error
        return lambda feeds: request.infer(dict(feeds), share_inputs=True, share_outputs=True)

    return load


_PEERS: Final[Mapping[str, Maker]] = {
    "onnxruntime": _onnxruntime,
    "openvino": _openvino("f32"),
    "openvino-bf16": _openvino("bf16"),
}

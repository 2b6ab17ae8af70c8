"""Importers: a model that somebody exported -> Model, chosen by the file's suffix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from graphc.errors import ConfigError
from graphc.ir import Model


def load(
    source: str | Path,
    *,
    dims: Mapping[str, int | tuple[int, int | None]] | None = None,
    outputs: Sequence[str] = (),
) -> Model:
    """Imports an exported model with its dimensions symbolic.

    `dims` fixes a dimension (a number) or bounds it (a pair, both ends included, None for no upper
    bound). `outputs` names more values of the model to return, to compare them one by one.
    Raises ConfigError for arguments, ModelError for a broken model and UnsupportedError, with
    every reason at once, for a model that cannot be compiled.
    """
    path = Path(source)
    if path.suffix != ".onnx":
        raise ConfigError(
            f"{path}: graphc imports .onnx files: export the model to ONNX, "
            "with torch.onnx.export for example"
        )
    from graphc.frontend.onnx import load as load_onnx

    return load_onnx(path, dims=dims, outputs=outputs)

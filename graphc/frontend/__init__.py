"""Importers: a model that somebody exported -> Model, chosen by the file's suffix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from graphc.errors import ConfigError, ModelError
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
    if path.suffix == ".onnx" and not path.is_dir():
        from graphc.frontend.onnx import load as load_onnx

        return load_onnx(path, dims=dims, outputs=outputs)
    if path.suffix == ".pt2" and not path.is_dir():
        from graphc.frontend.torch_export import load as load_torch

        return load_torch(path, dims=dims, outputs=outputs)
    if path.suffix == ".gguf" and not path.is_dir():
        from graphc.frontend.gguf import load as load_gguf

        return load_gguf(path, dims=dims, outputs=outputs)
    if path.is_dir():
        from graphc.frontend import huggingface

        if not huggingface.is_folder(path):
            raise ModelError(f"{path}: a folder without config.json is no Hugging Face model")
        from graphc.frontend import packed_folder

        if packed_folder.packing_of(path) is not None:
            return packed_folder.load(path, dims=dims, outputs=outputs)
        return huggingface.load(path, dims=dims, outputs=outputs)
    raise ConfigError(
        f"{path}: graphc imports .onnx, .pt2 and .gguf files and Hugging Face folders: export the "
        "model with torch.onnx.export or torch.export.save"
    )


def companions(source: Path) -> dict[str, bytes]:
    """Files that the artifact keeps for who runs it: tokenizer, chat template, where to stop."""
    if source.suffix == ".gguf" and not source.is_dir():
        from graphc.frontend import gguf

        return gguf.companions(source)
    if not source.is_dir():
        return {}
    from graphc.frontend import huggingface

    return huggingface.companions(source)

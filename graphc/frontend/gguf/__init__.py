"""GGUF files: llama.cpp's format, weights kept packed, the graph by transformers and export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from graphc import env
from graphc.errors import UnsupportedError
from graphc.frontend.gguf.reader import read
from graphc.ir import Model

if TYPE_CHECKING:
    import torch

    from graphc.frontend import huggingface


def load(
    path: Path,
    *,
    dims: Mapping[str, int | tuple[int, int | None]] | None = None,
    outputs: Sequence[str] = (),
) -> Model:
    """Imports the file at `path`; see `graphc.frontend.load`."""
    from graphc.frontend import packed
    from graphc.frontend.gguf.module import build

    built = build(read(path))
    return packed.load(built.module, built.weights, path, dims, outputs)


def reference(path: Path) -> tuple[torch.nn.Module, dict[str, huggingface.Input]]:
    """The module with all its weights in float32, and what it is to be called with."""
    from graphc.frontend import huggingface
    from graphc.frontend.gguf.module import build

    module = build(read(path), packed=False).module
    return module, huggingface.inputs_of(module, path)


def companions(path: Path) -> dict[str, bytes]:
    """The tokenizer rebuilt from the file; what cannot be is said and left out."""
    from graphc.frontend.gguf import tokenizer

    try:
        return tokenizer.companions(read(path))
    except UnsupportedError as error:
        env.log(0, f"no tokenizer.json: {error}")
        return {}

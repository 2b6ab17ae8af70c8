"""GGUF files: llama.cpp's format, weights kept packed, the graph by transformers and export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphc import env
from graphc.errors import UnsupportedError
from graphc.frontend.gguf.reader import read
from graphc.ir import Model, QuantizedWeight, Source, Weights

if TYPE_CHECKING:
    import torch

    from graphc.frontend import huggingface
    from graphc.frontend.gguf.tensors import Weight


def load(
    path: Path,
    *,
    dims: Mapping[str, int | tuple[int, int | None]] | None = None,
    outputs: Sequence[str] = (),
) -> Model:
    """Imports the file at `path`; see `graphc.frontend.load`."""
    from graphc.frontend import huggingface
    from graphc.frontend.gguf.module import build
    from graphc.frontend.torch_export import load_program

    built = build(read(path))
    inputs = huggingface.inputs_of(built.module, path)
    exported, names = huggingface.export(built.module, inputs, str(path))

    def imported() -> Model:
        return load_program(exported, names, dims=dims, outputs=outputs, source=str(path))

    places = _places(built.module, built.weights)
    model = imported()
    lost = places.keys() - {_place(array) for array in model.params.values()}
    if lost:  # the importer computed something of them: that needs their values
        for place in lost:
            parameter, weight = places.pop(place)
            parameter.data.copy_(_tensor(weight.read()))
        model = imported()
    return _packed(model, {place: weight for place, (_, weight) in places.items()})


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


def _places(
    module: torch.nn.Module, weights: Mapping[str, Weight]
) -> dict[int, tuple[torch.nn.Parameter, Weight]]:
    """The parameters that were left unread, by the address of their memory."""
    return {
        parameter.data_ptr(): (parameter, weights[name])
        for name, parameter in module.named_parameters()
        if name in weights and weights[name].quantized is not None
    }


def _packed(model: Model, weights: Mapping[int, Weight]) -> Model:
    """The model with these weights as codes, and as floats made when they are read."""
    params: dict[str, Source] = {}
    quantized: dict[str, QuantizedWeight] = {}
    for name, array in model.params.items():
        weight = weights.get(_place(array))
        if weight is None or weight.quantized is None:
            params[name] = array
            continue
        assert array.shape == weight.shape, (name, array.shape, weight.shape)
        params[name] = weight.read
        quantized[name] = weight.quantized
    return replace(model, params=Weights(params), quantized=quantized)


def _place(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def _tensor(array: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(np.require(array, np.float32, ["C", "W"]))

"""Modules whose weights stay packed: exported by their shapes, imported with codes for values.

Weights of few bits are not filled in: they are memory that nobody has written to, while
torch.export only looks at shapes. What the importer computes from such a weight all the same gets
its values, and the import is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphc.errors import ModelError
from graphc.frontend import huggingface
from graphc.frontend.torch_export import load_program
from graphc.ir import Model, QuantizedWeight, Source, Weights

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Weight:
    """A weight of a module: its float32 value, and how it is made of codes if it is."""

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]
    quantized: QuantizedWeight | None = None


def empty(kind: Any, config: Any, path: Path) -> Any:
    """A module of transformers without memory for its parameters; buffers are computed."""
    import torch
    from accelerate import init_empty_weights

    from graphc.frontend.torch_export.program import quiet

    try:
        with quiet(), init_empty_weights(include_buffers=False):
            build = kind.from_config if hasattr(kind, "from_config") else kind._from_config
            return build(config, dtype=torch.float32)
    except Exception as error:
        raise ModelError(
            f"{path}: transformers cannot build it: {huggingface.brief(error)}"
        ) from error


def fill(module: Any, weights: Mapping[str, Weight], path: Path, packed: bool) -> Any:
    """The module in evaluation mode with these weights; if `packed`, those of few bits unread."""
    import torch

    state: dict[str, Any] = {}
    for name, parameter in dict(module.named_parameters()).items():
        found = weights.get(name)
        if found is None:
            continue
        if tuple(parameter.shape) != found.shape:
            raise ModelError(
                f"{path}: {name} has the shape {list(found.shape)}, its configuration says "
                f"{list(parameter.shape)}"
            )
        left = packed and found.quantized is not None
        state[name] = torch.empty(found.shape) if left else _tensor(found.read())
    module.load_state_dict(state, strict=False, assign=True)
    module.tie_weights()
    missing = [name for name, value in module.named_parameters() if value.is_meta]
    if missing:
        raise ModelError(
            f"{path}: it has no weights for {', '.join(missing[:3])} ({len(missing)} in all)"
        )
    module = module.eval().requires_grad_(False)
    huggingface.dense_experts(module)
    return module


def load(
    module: torch.nn.Module,
    weights: Mapping[str, Weight],
    path: Path,
    dims: Mapping[str, int | tuple[int, int | None]] | None,
    outputs: Sequence[str],
) -> Model:
    """The model of a module that `fill` has left packed."""
    inputs = huggingface.inputs_of(module, path)
    exported, names = huggingface.export(module, inputs, str(path))

    def imported() -> Model:
        return load_program(exported, names, dims=dims, outputs=outputs, source=str(path))

    places = _places(module, weights)
    model = imported()
    lost = places.keys() - {_place(array) for array in model.params.values()}
    if lost:
        for place in lost:
            parameter, weight = places.pop(place)
            parameter.data.copy_(_tensor(weight.read()))
        model = imported()
    return _packed(model, {place: weight for place, (_, weight) in places.items()})


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

    return torch.from_numpy(np.require(array, np.float32, ["C", "W", "O"]))

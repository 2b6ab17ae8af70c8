"""A live module or program: exported where needed, saved with the names of its dimensions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from graphc.errors import ConfigError, UnsupportedError
from graphc.frontend.torch_export.archive import NAMES_FILE
from graphc.frontend.torch_export.program import quiet


def save(
    module: torch.nn.Module | torch.export.ExportedProgram,
    inputs: Sequence[Any] | Mapping[str, Any],
    dynamic: Any,
    path: Path,
) -> None:
    """Writes a .pt2 file of the module, or of the program; `inputs` by position or by name."""
    arguments: tuple[Any, ...] = () if isinstance(inputs, Mapping) else tuple(inputs)
    named = dict(inputs) if isinstance(inputs, Mapping) else {}
    names: dict[str, str] = {}
    if isinstance(module, torch.export.ExportedProgram):
        exported = module
    elif isinstance(module, torch.nn.Module):
        if not arguments and not named:
            raise ConfigError("from_torch needs example inputs to export a module with")
        exported = _exported(module, arguments, named, dynamic)
    else:
        raise ConfigError(
            f"from_torch takes a torch.nn.Module or an ExportedProgram, not {type(module).__name__}"
        )
    if dynamic is not None:
        names = dim_names(exported, arguments, named, dynamic)
    with quiet():
        torch.export.save(exported, path, extra_files={NAMES_FILE: json.dumps(names)})


def _exported(
    module: torch.nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], dynamic: Any
) -> torch.export.ExportedProgram:
    if module.training:
        raise ConfigError("the module is in training mode: call its eval() first")
    try:
        with quiet(), torch.no_grad():
            return torch.export.export(
                module, arguments, named, dynamic_shapes=dynamic, strict=False
            )
    except Exception as error:
        raise UnsupportedError(
            f"torch.export cannot trace {type(module).__name__}: {str(error).strip()[:600]}"
        ) from error


def dim_names(
    exported: torch.export.ExportedProgram,
    arguments: Sequence[Any],
    named: Mapping[str, Any],
    dynamic: Any,
) -> dict[str, str]:
    """torch's symbols -> the names of the Dims that the axes were given."""
    tensors = [
        node.meta["val"]
        for node, spec in zip(
            (node for node in exported.graph.nodes if node.op == "placeholder"),
            exported.graph_signature.input_specs,
            strict=True,
        )
        if spec.kind is torch.export.graph_signature.InputKind.USER_INPUT
    ]
    leaves = torch.utils._pytree.tree_leaves((tuple(arguments), dict(named)))
    if len(leaves) != len(tensors):
        return {}
    order = {id(leaf): number for number, leaf in enumerate(leaves)}
    names: dict[str, str] = {}
    for leaf, axis, name in _pairs((*arguments, *named.values()), _aligned(dynamic, named)):
        tensor = tensors[order[id(leaf)]] if id(leaf) in order else None
        if isinstance(tensor, torch.Tensor) and axis < tensor.dim():
            extent = tensor.shape[axis]
            if isinstance(extent, torch.SymInt) and extent.node.expr.is_Symbol:
                names.setdefault(str(extent.node.expr), name)
    return names


def _aligned(dynamic: Any, named: Mapping[str, Any]) -> Any:
    """The dynamic shapes in the order of the arguments."""
    if isinstance(dynamic, Mapping):
        return [dynamic.get(name) for name in named] if named else list(dynamic.values())
    return dynamic


def _pairs(value: Any, spec: Any) -> Iterator[tuple[Any, int, str]]:
    """(tensor, axis, Dim's name) of everything that has a named Dim."""
    if isinstance(value, torch.Tensor):
        axes = spec.items() if isinstance(spec, Mapping) else enumerate(spec or ())
        for axis, dim in axes:
            name = getattr(dim, "__name__", None)
            if isinstance(axis, int) and isinstance(name, str) and name.isidentifier():
                yield value, axis, name
    elif isinstance(value, Mapping) and isinstance(spec, Mapping):
        for key in value:
            yield from _pairs(value[key], spec.get(key))
    elif isinstance(value, (list, tuple)) and isinstance(spec, (list, tuple)):
        for item, own in zip(value, spec, strict=False):
            yield from _pairs(item, own)

"""An exported program made ready: functional, decomposed to what graphc converts, all named."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.export.graph_signature import InputKind, OutputKind

from graphc.errors import ModelError, UnsupportedError, blockers_of
from graphc.frontend.torch_export.operators import OPERATORS


@dataclass(frozen=True)
class Program:
    """`inputs` are the graph's tensor inputs; `weights` the arrays of its other placeholders.

    `outputs` pairs a name with the node that makes it. `dims` names torch's symbols, `ranges` has
    their bounds, both included, None where there is none.
    """

    graph: torch.fx.Graph
    inputs: tuple[tuple[str, torch.Tensor], ...]
    weights: Mapping[str, tuple[str, np.ndarray]]
    outputs: tuple[tuple[str, Any], ...]
    dims: Mapping[str, str]
    ranges: Mapping[str, tuple[int, int | None]]


def prepare(exported: torch.export.ExportedProgram, names: Mapping[str, str]) -> Program:
    """Decomposes a program; `names` are those of its dimensions' symbols, as far as known."""
    table = torch.export.default_decompositions()
    for operator in [op for op in table if _short(op) in OPERATORS]:
        table.pop(operator)
    try:
        with quiet():
            exported = exported.run_decompositions(table)
    except Exception as error:
        raise ModelError(
            f"torch cannot decompose the exported program: {type(error).__name__}: "
            f"{str(error).strip()[:300]}"
        ) from error
    _check_signature(exported)  # now: changes in place are visible after the decomposition only
    inputs, weights = _placeholders(exported)
    return Program(
        graph=exported.graph,
        inputs=tuple(inputs),
        weights=weights,
        outputs=tuple(_outputs(exported)),
        dims=dict(_dim_names(inputs, names)),
        ranges={
            str(symbol): (max(_bound(bounds.lower) or 0, 0), _bound(bounds.upper))
            for symbol, bounds in exported.range_constraints.items()
        },
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Without torch's warnings: they are about its own insides."""
    loggers = [logging.getLogger(name) for name in ("torch.export", "torch._export", "torch.fx")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _short(operator: Any) -> str:
    """aten.add.Tensor -> add.Tensor; the names of other libraries stay as they are."""
    return str(operator).removeprefix("aten.")


def _bound(number: Any) -> int | None:
    return int(number) if number.is_Integer else None  # both infinities are none


def _check_signature(exported: torch.export.ExportedProgram) -> None:
    """Nothing may be left of a run but its outputs."""
    found = []
    for spec in exported.graph_signature.output_specs:
        if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION):
            found.append(
                f"it changes the buffer {spec.target}: return the new value as an output and take "
                "the old one as an input"
            )
        elif spec.kind is OutputKind.USER_INPUT_MUTATION:
            found.append(f"it changes its input {spec.target}: return a changed copy instead")
        elif spec.kind not in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT, OutputKind.TOKEN):
            found.append(f"it has an output of kind {spec.kind.name}")
    for item in exported.graph_signature.input_specs:
        if item.kind is InputKind.CUSTOM_OBJ:
            found.append(f"it uses the object {item.target}, which is no tensor")
    if found:
        blockers = [b for text in found for b in blockers_of(UnsupportedError(text))]
        raise UnsupportedError("the exported program is not a function:", blockers)


def _placeholders(
    exported: torch.export.ExportedProgram,
) -> tuple[list[tuple[str, torch.Tensor]], dict[str, tuple[str, np.ndarray]]]:
    nodes = [node for node in exported.graph.nodes if node.op == "placeholder"]
    inputs: list[tuple[str, torch.Tensor]] = []
    weights: dict[str, tuple[str, np.ndarray]] = {}
    arrays: dict[tuple[Any, ...], np.ndarray] = {}
    for node, spec in zip(nodes, exported.graph_signature.input_specs, strict=True):
        if spec.kind is InputKind.USER_INPUT:
            if isinstance(node.meta.get("val"), torch.Tensor):
                inputs.append((node.name, node.meta["val"]))
            elif isinstance(node.meta.get("val"), torch.SymInt):
                raise UnsupportedError(
                    f"input {node.name} is a number that changes: pass it as a tensor, or fix it"
                )
            continue
        if spec.kind is InputKind.TOKEN:
            continue  # the node that takes it is refused
        target = str(spec.target)
        stored = exported.state_dict.get(target)
        if stored is None:
            stored = exported.constants.get(target)
        if not isinstance(stored, torch.Tensor):
            raise ModelError(f"weight {target} has no value")
        weights[node.name] = (target, _array(stored, arrays))
    return inputs, weights


def _array(tensor: torch.Tensor, known: dict[tuple[Any, ...], np.ndarray]) -> np.ndarray:
    """The tensor's memory as numpy's, one array for those that are tied."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        raise UnsupportedError(
            f"a weight is a {tensor.layout} tensor on {tensor.device}: make it dense, on the CPU"
        )
    tensor = tensor.detach()
    key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
    if key not in known:
        tensor = tensor.contiguous().resolve_neg().resolve_conj()
        if tensor.dtype is torch.bfloat16:
            known[key] = tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        else:
            known[key] = tensor.numpy()
    return known[key]


def _outputs(exported: torch.export.ExportedProgram) -> Iterator[tuple[str, Any]]:
    """Names from the containers that the module returns: logits, past.0, ..."""
    (node,) = [node for node in exported.graph.nodes if node.op == "output"]
    made = [
        argument
        for argument, spec in zip(node.args[0], exported.graph_signature.output_specs, strict=True)
        if spec.kind in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
    ]
    names = leaf_names(exported.call_spec.out_spec, len(made))
    for name, argument in zip(names, made, strict=True):
        if isinstance(argument, torch.fx.Node):  # not None, or a number that is always the same
            yield name, argument


def leaf_names(spec: Any, count: int) -> list[str]:
    """A name for each leaf of nested containers, from the keys that lead to it."""
    names: list[str] = []
    for name in _paths(spec, ()):
        while name in names:
            name += "_"
        names.append(name)
    return names if len(names) == count else [f"output_{number}" for number in range(count)]


def input_names(exported: torch.export.ExportedProgram) -> tuple[str, ...]:
    """The tensors that a call takes, in order."""
    nodes = (node for node in exported.graph.nodes if node.op == "placeholder")
    specs = exported.graph_signature.input_specs
    return tuple(
        node.name
        for node, spec in zip(nodes, specs, strict=True)
        if spec.kind is InputKind.USER_INPUT
    )


def _paths(spec: Any, path: tuple[str, ...]) -> Iterator[str]:
    if spec is None:
        return
    children = spec.children() if hasattr(spec, "children") else spec.children_specs
    if spec.type is None or (not children and spec.num_leaves == 1):
        yield ".".join(path) or "output"
        return
    keys = spec.context if isinstance(spec.context, (list, tuple)) else range(len(children))
    if len(keys) != len(children):
        keys = range(len(children))
    for key, child in zip(keys, children, strict=True):
        only = len(children) == 1 and not path and isinstance(key, int)
        label = f"output_{key}" if isinstance(key, int) and not path else str(key)
        yield from _paths(child, path if only else (*path, label))


def _dim_names(
    inputs: list[tuple[str, torch.Tensor]], names: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """A name for each symbol that is the extent of an input's axis by itself."""
    taken: dict[str, str] = {}
    for name, tensor in inputs:
        for axis, extent in enumerate(tensor.shape):
            if isinstance(extent, int) or not extent.node.expr.is_Symbol:
                continue
            symbol = str(extent.node.expr)
            if symbol in taken:
                continue
            chosen = names.get(symbol, f"{name}_{axis}")
            while chosen in taken.values():
                chosen += "_"
            taken[symbol] = chosen
            yield symbol, chosen

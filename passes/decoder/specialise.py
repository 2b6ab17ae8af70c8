"""A causal language model's inputs: tokens stay, everything else becomes what it always is.

    tokens [batch, sequence]                    ----->   [1, sequence]
    attention mask                              ----->   ones: who sees whom is the pages' business
    position ids                                ----->   0 .. sequence - 1
    token type ids                              ----->   zeros
    past keys and values [.., past, ..]         ----->   empty, and their outputs are dropped

Of the outputs the logits [batch, sequence, vocabulary] are kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from graphc.codegen.rewrite import walk
from graphc.ir import Dim, Expr, Model, Port, Signature, Weights
from graphc.passes.decoder.replay import Replay
from graphc.passes.evaluate import numpy_dtype
from graphc.passes.graph import Graph
from graphc.passes.node import Node
from graphc.passes.shapes import dims_of

_LOGITS = "logits"


class NotADecoder(Exception):
    """Why a model is kept as it is; completes "not a causal language model: ..."."""


@dataclass(frozen=True)
class _Interface:
    tokens: Port
    batch: Expr
    length: tirx.Var
    masks: tuple[Port, ...]
    positions: tuple[Port, ...]
    zeros: tuple[Port, ...]
    pasts: tuple[Port, ...]
    logits: int


def specialise(model: Model) -> Model:
    """The model of `tokens` [1, sequence] alone; raises NotADecoder with the reason."""
    signature = model.signatures.get("main")
    if signature is None or len(model.signatures) != 1:
        raise NotADecoder("it has several functions")
    found = _interface(signature)
    dims = _dims(signature, found)
    graph = Graph(model)
    builder = relax.BlockBuilder()
    replay = Replay(builder, dims)
    length = found.length
    tokens = relax.Var(found.tokens.name, relax.TensorType((1, length), found.tokens.dtype))
    logits = graph.outputs[found.logits]
    nodes = _reached(graph, [logits])
    params = [node.var for node in nodes if node.op == "param"]
    fillings = _fillings(found, length)
    with builder.function("main", [tokens, *params], attrs={"num_input": 1}):
        with builder.dataflow():
            for node in nodes:
                if node.op == "input":
                    fill = fillings.get(node.name)
                    shape = replay.shape(node)
                    replay.values[node] = tokens if fill is None else fill(builder, shape)
            replay.run(nodes, [_extended_cache])
            result = builder.emit_output(relax.Tuple([replay.values[logits]]))
        builder.emit_func_output(result)
    function = builder.get()["main"]
    var = tvm.ir.GlobalVar("main")
    relax.expr._update_type(var, function.ty)
    others = {g: f for g, f in model.mod.functions_items() if g.name_hint != "main"}
    mod = tvm.IRModule({**others, var: function}, model.mod.attrs)
    (dim,) = (d for d in signature.dims if d.name == length.name)
    port = signature.outputs[found.logits]
    outputs = (Port(port.name, port.dtype, (1, length, port.shape[2])),)
    inputs = (dataclasses.replace(found.tokens, shape=(1, length)),)
    bounds = Dim(dim.name, max(dim.lower, 1), dim.upper)
    used = [param.name for param in params]
    return dataclasses.replace(
        model,
        mod=mod,
        params=Weights(model.params).only(used),
        quantized={name: model.quantized[name] for name in used if name in model.quantized},
        signatures={"main": Signature(inputs, outputs, (bounds,))},
    )


def _interface(signature: Signature) -> _Interface:
    """Tells the inputs apart by type, rank and the words that exporters agree on."""
    tokens: list[Port] = []
    groups: dict[str, list[Port]] = {"mask": [], "position": [], "type": [], "past": []}
    for port in signature.inputs:
        kinds = [kind for kind in groups if kind in port.name.lower()]
        is_integer = port.dtype.startswith(("int", "uint"))
        if "past" in kinds or ("mask" not in kinds and _is_extended(port, signature)):
            groups["past"].append(port)
        elif kinds:
            groups[kinds[0]].append(port)
        elif is_integer and len(port.shape) == 2:
            tokens.append(port)
        else:
            raise NotADecoder(f"input {port.name} of shape {list(port.shape)} is not one of text")
    if len(tokens) != 1:
        names = ", ".join(port.name for port in tokens) or "none"
        raise NotADecoder(f"it has not exactly one input of tokens [batch, sequence]: {names}")
    batch, length = tokens[0].shape
    if not isinstance(length, tirx.Var):
        raise NotADecoder(
            f"{tokens[0].name} has the fixed length {length}: export it with a dynamic one"
        )
    return _Interface(
        tokens[0],
        batch,
        length,
        tuple(groups["mask"]),
        tuple(groups["position"]),
        tuple(groups["type"]),
        tuple(groups["past"]),
        _logits(signature, length),
    )


def _is_extended(port: Port, signature: Signature) -> bool:
    """Whether an output may be this cache with more entries; an encoder's states have none."""
    fixed = [isinstance(extent, int) and extent for extent in dims_of(port.shape)]
    return len(fixed) >= 3 and any(
        output.dtype == port.dtype
        and fixed == [isinstance(extent, int) and extent for extent in dims_of(output.shape)]
        for output in signature.outputs
    )


def _logits(signature: Signature, length: tirx.Var) -> int:
    fits = [
        number
        for number, port in enumerate(signature.outputs)
        if len(port.shape) == 3
        and "float" in port.dtype
        and isinstance(dims_of(port.shape)[2], int)
        and length in variables(port.shape[1])
    ]
    named = [number for number in fits if signature.outputs[number].name == _LOGITS]
    if not fits:
        shown = ", ".join(f"{port.name} {list(port.shape)}" for port in signature.outputs[:3])
        raise NotADecoder(f"no output is of shape [batch, sequence, vocabulary]: {shown}")
    return (named or fits)[0]


def _dims(signature: Signature, found: _Interface) -> dict[Any, Expr]:
    """Batch 1, no past, masks as long as the tokens."""
    dims: dict[Any, Expr] = {}
    for variable in variables(found.batch):
        dims[variable] = 1
    for port in found.pasts:
        for extent in port.shape:
            for variable in variables(extent):
                dims.setdefault(variable, 1 if variable in variables(found.batch) else 0)
    for port in (*found.masks, *found.positions, *found.zeros):
        for extent in port.shape:
            for variable in variables(extent) - set(dims) - {found.length}:
                dims[variable] = found.length
    known = {variable.name for variable in dims} | {found.length.name}
    free = [dim.name for dim in signature.dims if dim.name not in known]
    if free:
        raise NotADecoder(f"dimension {free[0]} is neither the batch nor the tokens' length")
    return dims


def _extended_cache(replay: Replay, node: Node) -> Any | None:
    """An empty cache [b, h, 0, d] that a kernel extends by [b, s, h, d] is these [b, h, s, d]."""
    if node.op != "call_tir" or not node.expr.args[0].name_hint.startswith("extend_cache"):
        return None
    past, new = node.inputs[:2]
    if replay.shape(past)[2] != 0:
        return None
    return replay.emit(relax.op.permute_dims(replay.values[new], [0, 2, 1, 3]), node.name)


def _fillings(found: _Interface, length: tirx.Var) -> Mapping[str, Any]:
    """What stands for the inputs that are not tokens."""

    def full(value: float, dtype: str) -> Any:
        def fill(builder: relax.BlockBuilder, shape: Sequence[Any]) -> Any:
            if any(isinstance(extent, int) and extent == 0 for extent in shape):
                extents = [extent if isinstance(extent, int) else 1 for extent in shape]
                return relax.const(np.zeros(extents, numpy_dtype(dtype)), dtype)
            return builder.emit(relax.op.full(shape, relax.const(value, dtype), dtype))

        return fill

    def count(dtype: str) -> Any:
        def fill(builder: relax.BlockBuilder, shape: Sequence[Any]) -> Any:
            numbers = builder.emit(relax.op.arange(0, length, 1, dtype))
            return builder.emit(relax.op.reshape(numbers, shape))

        return fill

    fillings = {port.name: full(1, port.dtype) for port in found.masks}
    fillings |= {port.name: full(0, port.dtype) for port in (*found.zeros, *found.pasts)}
    return fillings | {port.name: count(port.dtype) for port in found.positions}


def variables(extent: Expr) -> set[Any]:
    """The variables in a dimension."""
    if isinstance(extent, int):
        return set()
    return {part for part in walk(extent) if isinstance(part, tirx.Var)}


def _reached(graph: Graph, outputs: Sequence[Node]) -> list[Node]:
    """What the outputs are computed from, in order."""
    graph.outputs = list(outputs)
    return graph.nodes()

"""LSTM, GRU and RNN: the products with the input at once, then a kernel that loops over time."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import relax, s_tir
from tvm.relax import op

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.ops.slice import sliced
from graphc.frontend.onnx.recurrence import DEFAULTS, GATES, Activation, Cell, kernel
from graphc.frontend.onnx.table import Convert, Operator, Result, Table
from graphc.frontend.onnx.values import TensorValue, Value
from graphc.ir import Expr

_OPAQUE = 8
"""TVM's OpPatternKind: nothing is fused with the kernel."""

_ACTIVATIONS = {
    "LSTM": ("Sigmoid", "Tanh", "Tanh"),
    "GRU": ("Sigmoid", "Tanh"),
    "RNN": ("Tanh",),
}


@dataclass(frozen=True)
class _Layer:
    """The operands of a node, checked; `x` is [steps, batch, inputs] in `dtype`."""

    kind: str
    x: Value
    dtype: str
    hidden: int
    weight: Value  # [directions, gates * hidden, inputs]
    recurrent: Value  # [directions, gates * hidden, hidden]
    bias: Value | None  # [directions, 2 * gates * hidden]
    lengths: Value | None
    h: Value | None  # [directions, batch, hidden]
    c: Value | None
    peepholes: Value | None  # [directions, 3 * hidden]

    @property
    def steps(self) -> Expr:
        return self.x.shape[0]

    @property
    def batch(self) -> Expr:
        return self.x.shape[1]

    @property
    def width(self) -> int:
        return GATES[self.kind] * self.hidden


def _recurrent(kind: str) -> Convert:
    def convert(context: Context, node: Node) -> Result:
        return _layer(context, node, kind)

    return convert


def _layer(context: Context, node: Node, kind: str) -> Result:
    direction = node.choice("direction", "forward", ("forward", "reverse", "bidirectional"))
    backward = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[direction]
    by_batch = bool(node.integer("layout", 0))
    layer = _operands(context, node, kind, len(backward), by_batch)
    activations = _activations(node, kind, len(backward))
    parts = [
        _direction(context, node, layer, number, reverse, activations[number])
        for number, reverse in enumerate(backward)
    ]
    results = [_joined(context, node, layer, parts, by_batch)]
    for state in range(2 if kind == "LSTM" else 1):
        results.append(_state(context, node, layer, parts, state, by_batch))
    given = node.input(0).dtype
    if given != layer.dtype:
        results = [
            context.emit(op.astype(value.var, given), f"{value.name}.narrow") for value in results
        ]
    return results


def _operands(context: Context, node: Node, kind: str, directions: int, by_batch: bool) -> _Layer:
    x, weight, recurrent = node.input(0), node.input(1), node.input(2)
    node.need_float(x)
    optional = [node.optional(index) for index in (3, 5, 6, 7)]
    node.same_dtype(x, weight, recurrent, *(value for value in optional if value is not None))
    for value in (x, weight, recurrent):
        node.need_rank(value, 3, 3)
    hidden = context.symbols.simplify(recurrent.shape[2])
    width = GATES[kind]
    if not isinstance(hidden, int) or hidden < 1:
        raise node.unsupported(f"a hidden size {hidden} that is not fixed")
    if node.integer("hidden_size", hidden) != hidden:
        raise node.error(f"hidden_size is not {hidden}, the size of its recurrent weight")
    dtype = "float64" if x.dtype == "float64" else "float32"
    x = _wide(context, x, dtype)
    if by_batch:
        x = _swapped(context, x, f"{node.label}.x")
    where = node.label
    batch, inputs = x.shape[1], x.shape[2]
    weight = context.cast_shape(weight, [directions, width * hidden, inputs], where)
    recurrent = context.cast_shape(recurrent, [directions, width * hidden, hidden], where)
    bias, h, c, peepholes = (None if v is None else _wide(context, v, dtype) for v in optional)
    if bias is not None:
        bias = context.cast_shape(bias, [directions, 2 * width * hidden], where)
    if kind != "LSTM":
        c = peepholes = None
    if peepholes is not None:
        peepholes = context.cast_shape(peepholes, [directions, 3 * hidden], where)
    states = [None if v is None or not by_batch else _swapped(context, v, v.name) for v in (h, c)]
    h, c = (new or old for new, old in zip(states, (h, c), strict=True))
    h, c = (
        None if v is None else context.cast_shape(v, [directions, batch, hidden], where)
        for v in (h, c)
    )
    lengths = node.optional(4)
    if lengths is not None:
        if lengths.dtype != "int32":
            raise node.error(f"sequence_lens is {lengths.dtype}, it must be int32")
        lengths = context.cast_shape(lengths, [batch], where)
    return _Layer(
        kind,
        x,
        dtype,
        hidden,
        _wide(context, weight, dtype),
        _wide(context, recurrent, dtype),
        bias,
        lengths,
        h,
        c,
        peepholes,
    )


def _wide(context: Context, value: Value, dtype: str) -> Value:
    """float16 and bfloat16 are computed in float32."""
    if value.dtype == dtype:
        return value
    return context.emit(op.astype(context.expr(value), dtype), f"{value.name}.wide")


def _swapped(context: Context, value: Value, name: str) -> TensorValue:
    """The first two dimensions exchanged."""
    axes = [1, 0, *range(2, value.rank)]
    return context.emit(op.permute_dims(context.expr(value), axes), f"{name}.swapped")


def _activations(node: Node, kind: str, directions: int) -> list[tuple[Activation, ...]]:
    """The functions of each direction; alphas and betas go to those that take one, in order."""
    usual = _ACTIVATIONS[kind]
    names = list(usual) * directions
    given = node.attributes.get("activations")
    if given:
        names = [name.decode() if isinstance(name, bytes) else str(name) for name in given]
    if len(names) != len(usual) * directions:
        raise node.error(f"it has {len(names)} activations, {len(usual) * directions} are needed")
    alphas = list(node.numbers("activation_alpha", ()))
    betas = list(node.numbers("activation_beta", ()))
    found = []
    for name in names:
        key = name.lower()
        if key not in DEFAULTS:
            raise node.unsupported(f"activation {name!r} is not compiled")
        alpha, beta = DEFAULTS[key]
        if alpha is not None and alphas:
            alpha = alphas.pop(0)
        if beta is not None and betas:
            beta = betas.pop(0)
        found.append(Activation(key, alpha or 0.0, beta or 0.0))
    return [tuple(found[start : start + len(usual)]) for start in range(0, len(found), len(usual))]


# -- one direction -------------------------------------------------------------------------


def _part(context: Context, value: Value, index: int, name: str) -> TensorValue:
    """value[index] along the first axis."""
    one = sliced(context, value, {0: (index, 1, 1)}, f"{name}.slice")
    return context.tensor(context.reshape(one, value.shape[1:], name))


def _columns(context: Context, value: Value, start: int, end: int, name: str) -> TensorValue:
    return context.tensor(sliced(context, value, {value.rank - 1: (start, end - start, 1)}, name))


def _direction(
    context: Context,
    node: Node,
    layer: _Layer,
    number: int,
    reverse: bool,
    activations: tuple[Activation, ...],
) -> TensorValue:
    """Steps and, behind them, the state: [steps + states, batch, hidden]."""
    name = f"{node.label}.{number}"
    reset_after = layer.kind == "GRU" and bool(node.integer("linear_before_reset", 0))
    weight = _part(context, layer.weight, number, f"{name}.w")
    recurrent = _part(context, layer.recurrent, number, f"{name}.r")
    turned = context.emit(op.permute_dims(weight.var, [1, 0]), f"{name}.wt")
    product = op.matmul(context.expr(layer.x), turned.var)
    shape = [layer.steps, layer.batch, layer.width]
    projected = context.emit(product, f"{name}.projected", shape, node.label)
    own_bias: TensorValue | None = None
    if layer.bias is not None:
        bias = _part(context, layer.bias, number, f"{name}.b")
        projected, own_bias = _biased(context, layer, projected, bias, reset_after, name)
    elif reset_after:
        own_bias = _zeros(context, layer, [layer.hidden], f"{name}.none")
    states = [
        _zeros(context, layer, [layer.batch, layer.hidden], f"{name}.start")
        if value is None
        else _part(context, value, number, f"{name}.initial")
        for value in ((layer.h, layer.c) if layer.kind == "LSTM" else (layer.h,))
    ]
    peepholes = None
    if layer.peepholes is not None:
        peepholes = _part(context, layer.peepholes, number, f"{name}.p")
    cell = Cell(
        kind=layer.kind,
        hidden=layer.hidden,
        dtype=layer.dtype,
        reverse=reverse,
        activations=activations,
        clip=node.number("clip", 0.0),
        lengths=layer.lengths is not None,
        peepholes=peepholes is not None,
        coupled=bool(node.integer("input_forget", 0)) if layer.kind == "LSTM" else False,
        reset_after=reset_after,
    )
    across = context.emit(op.permute_dims(recurrent.var, [1, 0]), f"{name}.rt")
    operands = [projected, across, *states, layer.lengths, peepholes, own_bias]
    return _call(context, layer, cell, [v for v in operands if v is not None], name)


def _biased(
    context: Context,
    layer: _Layer,
    projected: TensorValue,
    bias: TensorValue,
    reset_after: bool,
    name: str,
) -> tuple[TensorValue, TensorValue | None]:
    """Both biases added to the projection; a GRU that resets afterwards keeps one of them."""
    width, hidden = layer.width, layer.hidden
    first = _columns(context, bias, 0, width, f"{name}.wb")
    second = _columns(context, bias, width, 2 * width, f"{name}.rb")
    own = None
    if reset_after:
        own = _columns(context, second, 2 * hidden, 3 * hidden, f"{name}.rbh")
        early = _columns(context, second, 0, 2 * hidden, f"{name}.rbzr")
        none = _zeros(context, layer, [hidden], f"{name}.zero")
        second = context.emit(op.concat([early.var, none.var], axis=0), f"{name}.rb0")
    total = context.emit(op.add(first.var, second.var), f"{name}.bias")
    return context.emit(op.add(projected.var, total.var), f"{name}.gates", projected.shape), own


def _zeros(context: Context, layer: _Layer, shape: list[Expr], name: str) -> TensorValue:
    return context.emit(op.zeros(tuple(shape), layer.dtype), name, shape)


def _call(
    context: Context, layer: _Layer, cell: Cell, operands: list[Value], name: str
) -> TensorValue:
    steps = context.symbols.simplify(layer.steps + cell.states)
    shape = (steps, layer.batch, layer.hidden)
    function = kernel(
        cell,
        [*(value.shape for value in operands), shape],
        [*(value.dtype for value in operands), layer.dtype],
    ).with_attr("op_pattern", _OPAQUE)
    function = s_tir.renew_defs(function).without_attr("global_symbol")
    call = relax.call_tir(
        context.builder.add_func(function, cell.kind.lower()),
        [context.expr(value) for value in operands],
        relax.TensorType(shape, layer.dtype),
    )
    return context.emit(call, f"{name}.steps", shape)


# -- results -------------------------------------------------------------------------------


def _joined(
    context: Context, node: Node, layer: _Layer, parts: list[TensorValue], by_batch: bool
) -> TensorValue:
    """Y: [steps, directions, batch, hidden], or [batch, steps, directions, hidden]."""
    name = node.outputs[0] or f"{node.label}.y"
    rows = []
    for number, part in enumerate(parts):
        cut = sliced(context, part, {0: (0, layer.steps, 1)}, f"{name}.{number}.cut")
        shape = [layer.steps, 1, layer.batch, layer.hidden]
        rows.append(context.tensor(context.reshape(cut, shape, f"{name}.{number}")))
    shape = [layer.steps, len(parts), layer.batch, layer.hidden]
    if not by_batch:
        return _concatenated(context, rows, 1, name, shape)
    joined = _concatenated(context, rows, 1, f"{name}.joined", shape)
    return context.emit(op.permute_dims(joined.var, [2, 0, 1, 3]), name)


def _state(
    context: Context,
    node: Node,
    layer: _Layer,
    parts: list[TensorValue],
    state: int,
    by_batch: bool,
) -> TensorValue:
    """Y_h or Y_c: [directions, batch, hidden], or [batch, directions, hidden]."""
    named = node.outputs[state + 1] if state + 1 < len(node.outputs) else ""
    name = named or f"{node.label}.state{state}"
    rows = []
    for number, part in enumerate(parts):
        place = layer.steps + state
        window = {0: (place, 1, 1)}
        rows.append(context.tensor(sliced(context, part, window, f"{name}.{number}.cut")))
    shape: list[Expr] = [len(parts), layer.batch, layer.hidden]
    if not by_batch:
        return _concatenated(context, rows, 0, name, shape)
    joined = _concatenated(context, rows, 0, f"{name}.joined", shape)
    return context.emit(op.permute_dims(joined.var, [1, 0, 2]), name)


def _concatenated(
    context: Context, rows: list[TensorValue], axis: int, name: str, shape: list[Expr]
) -> TensorValue:
    if len(rows) == 1:
        return rows[0]
    return context.emit(op.concat([row.var for row in rows], axis=axis), name, shape)


TABLE: Table = {
    ("", "LSTM", 7): Operator(_recurrent("LSTM")),
    ("", "GRU", 7): Operator(_recurrent("GRU")),
    ("", "RNN", 7): Operator(_recurrent("RNN")),
}

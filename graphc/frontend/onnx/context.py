"""Where converters put what they make: Relax bindings with known shapes, weights, index checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import ir, relax, s_tir, te, tirx
from tvm.relax import op

from graphc.errors import ModelError
from graphc.frontend.onnx import narrow, points
from graphc.frontend.onnx.extents import identical, scalar, shape_of, variables
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.regions import Point, Region
from graphc.frontend.onnx.symbols import MAX_ELEMENTS, Symbols, same
from graphc.frontend.onnx.values import (
    INTEGERS,
    Interval,
    KnownValue,
    Ratio,
    TensorValue,
    Value,
    numpy_dtype,
)
from graphc.ir import Expr, Model, QuantizedWeight, Weights

FOLD_LIMIT = 4096
"""Arrays of at most this many elements are computed while importing."""

MAX_CONST = 16
"""Larger constants are parameters of the Relax function."""


class Context:
    """The Relax function under construction, for one attempt at an import."""

    def __init__(
        self, symbols: Symbols, outputs: frozenset[str], beside: Model | None = None
    ) -> None:
        """`beside` is a model whose module and weights the function is added to."""
        self.symbols = symbols
        self.builder = relax.BlockBuilder(None if beside is None else beside.mod)
        self.quantized: dict[str, QuantizedWeight] = {} if beside is None else {**beside.quantized}
        plain = {} if beside is None else beside.params
        self.params = {name: plain[name] for name in plain if name not in self.quantized}
        self.param_vars: list[relax.Var] = []
        self.ranges: dict[str, tuple[int, int]] = {}
        self._outputs = outputs
        self._names: set[str] = set()
        self._ready: dict[int, tuple[np.ndarray, relax.Expr]] = {}
        self.points: list[Point] = []

    @contextmanager
    def function(self, name: str = "main") -> Iterator[None]:
        """The Relax function that everything is emitted into."""
        try:
            with self.builder.function(name):
                yield
        except BaseException:
            # TVM warns on standard error of a block that was begun and never ended.
            self.builder._end_block()
            raise

    @contextmanager
    def region(self) -> Iterator[Region]:
        """Collects what is emitted in it, for a branch or an iteration, instead of binding it."""
        around, region = self._ready, Region()
        self._ready = dict(around)
        self.builder._begin_dataflow_block()
        try:
            with self.symbols.scope() as region.constraints:
                yield region
        finally:
            region.bindings = list(self.builder._end_block().bindings)
            # Weights are the whole function's; what was computed is the region's own.
            everywhere = set(self.param_vars)
            self._ready = around | {
                key: made
                for key, made in self._ready.items()
                if not isinstance(made[1], relax.Var) or made[1] in everywhere
            }

    # -- emitting --------------------------------------------------------------------------

    def emit(
        self, call: relax.Expr, name: str, shape: Sequence[Expr] | None = None, where: str = ""
    ) -> TensorValue:
        """Binds `call` and gives its value.

        `shape` is what ONNX says the result's shape is; needed where Relax does not find it.
        """
        var = self.builder.normalize(call)
        dtype = str(var.ty.dtype)
        found = shape_of(var)
        if shape is None:
            if found is None:
                raise ModelError(f"{where or name}: the shape of the result is not known")
            shape = tuple(self.symbols.simplify(extent) for extent in found)
        else:
            shape = tuple(shape)
        self._check_count(shape, where or name)
        if found is None or not identical(found, shape):
            self._check_cast(found, shape, where or name)
            var = self.builder.emit(var, f"{name}.unshaped")
            var = self.builder.match_cast(var, relax.TensorType(shape, dtype), name)
            if name in self._outputs:
                var = self.builder.emit_output(var, name)
        elif name in self._outputs:
            var = self.builder.emit_output(var, name)
        else:
            var = self.builder.emit(var, name)
        return TensorValue(name, dtype, shape, var)

    def _check_cast(self, found: Sequence[Expr] | None, shape: Sequence[Expr], where: str) -> None:
        if found is None:
            return
        assert len(found) == len(shape), (where, found, shape)
        for left, right in zip(found, shape, strict=True):
            self.symbols.unify(self.symbols.simplify(left), right, where)

    def _check_count(self, shape: Sequence[Expr], where: str) -> None:
        count = 1
        for extent in shape:
            if isinstance(extent, int):
                if extent < 0:
                    raise ModelError(f"{where}: shape {list(shape)} has a negative dimension")
                count *= extent
        if count > MAX_ELEMENTS:
            raise ModelError(f"{where}: a tensor of shape {list(shape)} is too large")

    def emit_te(
        self,
        name: str,
        compute: Callable[..., te.Tensor],
        args: Sequence[Value],
        shape: Sequence[Expr],
        kernel: str,
        attrs: Mapping[str, int] = {},
    ) -> TensorValue:
        """Binds the result of a TE compute over `args`; `kernel` names the PrimFunc.

        `attrs` are the PrimFunc's: op_pattern, what may be fused with it (TVM's OpPatternKind),
        where TVM would guess wrong; graphc.unpacks, whose result is not to be kept as a weight.

        The compute may use the dimensions of its arguments and of its result. TVM's own emit_te
        knows those of the arguments only, and orders the others by address.
        """
        self._check_count(shape, name)
        inputs = [
            te.placeholder(value.shape, value.dtype, f"x{index}")
            for index, value in enumerate(args)
        ]
        result = compute(*inputs)
        bound = {e for value in args for e in value.shape if isinstance(e, tirx.Var)}
        free = [var for var in variables((*shape, *(e for v in args for e in v.shape)))
                if var not in bound]  # fmt: skip
        function = s_tir.renew_defs(te.create_prim_func([*inputs, *free, result], "int64"))
        for key, attr in attrs.items():
            function = function.with_attr(key, attr)
        call = relax.call_tir(
            self.builder.add_func(function.without_attr("global_symbol"), kernel),
            [*(self.expr(value) for value in args), *free],
            relax.TensorType(tuple(shape), result.dtype),
        )
        return self.emit(call, name, shape)

    def expr(self, value: Value) -> relax.Expr:
        """The value as a Relax expression; known ones become constants, parameters or kernels."""
        if isinstance(value, TensorValue):
            return value.var
        made = self._ready.get(id(value.data))
        if made is None:
            made = (value.data, self._materialise(value))
            self._ready[id(value.data)] = made
        return made[1]

    def tensor(self, value: Value) -> TensorValue:
        """The value at run time."""
        if isinstance(value, TensorValue):
            return value
        return TensorValue(
            value.name,
            value.dtype,
            value.shape,
            self.expr(value),
            self.interval(value),
            narrow=value.narrow,
        )

    def _materialise(self, value: KnownValue) -> relax.Expr:
        if value.narrow and narrow.BY_NAME[value.narrow].bits == 4 and value.data.size > MAX_CONST:
            return self._packed(value)
        if value.symbolic:
            return self._symbolic(value)
        if value.data.size <= MAX_CONST:
            return relax.const(np.require(value.data, requirements=["C", "A"]), value.dtype)
        return self.param(value.name, value.data, value.dtype)

    def _packed(self, value: KnownValue) -> relax.Expr:
        """A weight of 4-bit values: a parameter with two to a byte, and what unpacks it."""
        packed = KnownValue(value.name, "uint8", narrow.pack(value.data))
        shape = value.data.shape
        compute = narrow.unpacked(shape, narrow.BY_NAME[value.narrow])
        unpacked = self.emit_te(
            f"{value.name}.unpacked", compute, [packed], shape, "unpack", {"graphc.unpacks": 1}
        )
        return unpacked.var

    def param(self, name: str, data: np.ndarray, dtype: str) -> relax.Var:
        """A weight: a parameter of the function whose value stays outside."""
        self._check_count(data.shape, name)
        unique, count = name or "weight", 1
        while unique in self._names or not self._is_free(unique, data):
            unique, count = f"{name}_{count}", count + 1
        self._names.add(unique)
        var = relax.Var(unique, relax.TensorType(data.shape, dtype))
        self.params[unique] = data
        self.param_vars.append(var)
        return var

    def quantized_param(
        self, name: str, weight: QuantizedWeight, shape: tuple[int, int]
    ) -> relax.Var:
        """A weight of few bits: a float32 parameter whose value is made when it is read."""
        self._check_count(shape, name)
        unique, count = name or "weight", 1
        while unique in self._names or not self._is_free(unique, weight):
            unique, count = f"{name}_{count}", count + 1
        self._names.add(unique)
        var = relax.Var(unique, relax.TensorType(shape, "float32"))
        self.quantized[unique] = weight
        self.param_vars.append(var)
        return var

    def weights(self) -> Weights:
        """The values of all parameters."""
        return Weights({**self.params, **{n: w.plain for n, w in self.quantized.items()}})

    def _is_free(self, name: str, value: np.ndarray | QuantizedWeight) -> bool:
        """Whether no other function has a different weight of this name."""
        if name not in self.params and name not in self.quantized:
            return True
        if isinstance(value, np.ndarray):
            return name in self.params and _alike(self.params[name], value)
        other = self.quantized.get(name)
        if other is None or (other.group, other.bits) != (value.group, value.bits):
            return False
        return other.transposed == value.transposed and all(
            _alike(read(other), read(value))
            for read in (QuantizedWeight.read_codes, QuantizedWeight.read_scales)
        )

    def reserve(self, name: str) -> None:
        """Keeps `name`, an input's, from being a weight's."""
        self._names.add(name)

    def _symbolic(self, value: KnownValue) -> relax.Expr:
        """One-element ranges joined: [n, n + 1) holds n."""
        parts = [self._scalar(element, value.dtype) for element in value.data.flat]
        flat = self.builder.emit(op.concat(parts, axis=0)) if len(parts) > 1 else parts[0]
        return self.builder.emit(op.reshape(flat, value.data.shape), value.name)

    def _scalar(self, element: Any, dtype: str) -> relax.Expr:
        if isinstance(element, Ratio):
            left = self.builder.emit(op.astype(self._one(element.numerator), dtype))
            right = self.builder.emit(op.astype(self._one(element.denominator), dtype))
            return self.builder.emit(op.divide(left, right))
        if isinstance(element, tirx.Expr):
            one = self._one(element)
            return one if dtype == "int64" else self.builder.emit(op.astype(one, dtype))
        return relax.const(np.array([element], numpy_dtype(dtype)), dtype)

    def _one(self, element: Expr) -> relax.Expr:
        if isinstance(element, int):
            return relax.const(np.array([element], "int64"), "int64")
        return self.builder.emit(op.arange(element, element + 1, 1, "int64"))

    def constant(self, number: Any, dtype: str) -> relax.Expr:
        """A scalar constant."""
        return relax.const(np.array(number, numpy_dtype(dtype)), dtype)

    def scalar(self, number: Any, dtype: str) -> KnownValue:
        """A scalar as a value."""
        return KnownValue("", dtype, np.array(number, numpy_dtype(dtype)))

    def reshape(self, value: Value, shape: Sequence[Expr], name: str) -> Value:
        """The value in another shape of as many elements."""
        if identical(value.shape, shape):
            return value
        if isinstance(value, KnownValue) and all(isinstance(extent, int) for extent in shape):
            return replace(value, name=name, data=value.data.reshape([int(e) for e in shape]))
        return self.emit(op.reshape(self.expr(value), tuple(shape)), name, shape)

    # -- shapes ----------------------------------------------------------------------------

    def broadcast(self, node: Node, *values: Value) -> tuple[list[relax.Expr], tuple[Expr, ...]]:
        """The values with dimensions that Relax sees to be equal, and the common shape."""
        shape = self.broadcast_shape(node, *(value.shape for value in values))
        return [self.aligned(node.label, value, shape) for value in values], shape

    def broadcast_shape(self, node: Node, *shapes: Sequence[Expr]) -> tuple[Expr, ...]:
        """ONNX's multidirectional broadcasting; dimensions that must agree are assumed equal."""
        rank = max(len(shape) for shape in shapes)
        result: list[Expr] = []
        for axis in range(-rank, 0):
            common: Expr = 1
            for shape in shapes:
                if -axis > len(shape) or same(shape[axis], 1):
                    continue
                extent = shape[axis]
                common = (
                    extent
                    if same(common, 1)
                    else self.symbols.unify(common, extent, f"{node.label} broadcasts them")
                )
            result.append(common)
        return tuple(result)

    def aligned(self, where: str, value: Value, shape: Sequence[Expr]) -> relax.Expr:
        """`value` with each dimension that is not 1 spelled as in `shape`."""
        wanted = [
            extent if same(extent, 1) else shape[len(shape) - value.rank + axis]
            for axis, extent in enumerate(value.shape)
        ]
        return self.expr(self.cast_shape(value, wanted, where))

    def cast_shape(self, value: Value, shape: Sequence[Expr], where: str) -> Value:
        """The same value with its dimensions spelled as in `shape`, assumed to be equal."""
        if len(shape) != value.rank:
            raise ModelError(f"{where}: {value.rank} dimensions where {len(shape)} are needed")
        for left, right in zip(value.shape, shape, strict=True):
            self.symbols.unify(left, right, where)
        if all(same(a, b) for a, b in zip(value.shape, shape, strict=True)):
            return value
        cast = self.builder.match_cast(
            self.expr(value), relax.TensorType(tuple(shape), value.dtype), value.name
        )
        interval = value.interval if isinstance(value, TensorValue) else self.interval(value)
        source = value.source if isinstance(value, TensorValue) else ""
        return TensorValue(
            value.name, value.dtype, tuple(shape), cast, interval, source, value.narrow
        )

    def broadcast_to(
        self, value: Value, shape: Sequence[Expr], name: str, node: Node | None = None
    ) -> Value:
        """The value spread to `shape`; itself when it has that shape."""
        shape = tuple(shape)
        if identical(value.shape, shape):
            return value
        expr = self.aligned(node.label if node else name, value, shape)
        return self.emit(op.broadcast_to(expr, shape), name, shape)

    # -- known integers --------------------------------------------------------------------

    def known_ints(self, node: Node, index: int) -> list[Expr]:
        """Input `index`, a list of integers; those that a run computes become dimensions."""
        value = node.input(index)
        node.need_integer(value)
        node.need_rank(value, 0, 1)
        if not isinstance(value, KnownValue):
            return self.measured(node, value)
        if value.data.size > FOLD_LIMIT:
            raise node.error(f"input {index} has {value.data.size} elements")
        if any(isinstance(element, Ratio) for element in value.data.flat):
            raise node.unsupported(f"input {index} is a shape that is not a whole number")
        return [e if isinstance(e, tirx.Expr) else int(e) for e in value.data.flat]

    def measured(
        self, node: Node, value: Value, least: int = 0, most: int | None = None, name: str = ""
    ) -> list[Expr]:
        """Integers that a run computes, as dimensions that become known then.

        A run whose integers are not in [least, most] fails, saying so.
        """
        count = self.symbols.product(value.shape)
        if not isinstance(count, int):
            raise node.unsupported(
                f"{value.name!r} sets a shape of an unknown number of dimensions"
            )
        if value.dtype != "int64":
            value = self.emit(op.astype(self.expr(value), "int64"), f"{value.name}.int64")
        label = name or value.name
        names = [f"{label}.{axis}" for axis in range(count)] if count > 1 else [label]
        return points.measure(self, value, names, [(least, most)] * count, node.label)

    def shape_ints(self, node: Node, index: int) -> list[Expr]:
        """Input `index`, a list of integers that may depend on dimensions but not on data."""
        value = node.input(index)
        if not isinstance(value, KnownValue):
            raise node.unsupported(
                f"input {index} ({value.name!r}) sets a shape and depends on the values of the "
                "inputs: export the model so that shapes depend on shapes only"
            )
        return self.known_ints(node, index)

    def fixed_ints(self, node: Node, index: int) -> list[int]:
        """Input `index`, a list of integers that depend on nothing."""
        if not isinstance(node.input(index), KnownValue):
            raise node.unsupported(f"input {index} must not depend on the values of the inputs")
        values = self.known_ints(node, index)
        fixed = [value for value in values if isinstance(value, int)]
        if len(fixed) != len(values):
            raise node.unsupported(f"input {index} must not depend on the inputs' dimensions")
        return fixed

    # -- indices ---------------------------------------------------------------------------

    def interval(self, value: Value) -> Interval | None:
        """What is known of an integer tensor's elements."""
        if isinstance(value, TensorValue):
            return value.interval
        if value.dtype not in INTEGERS or value.data.size == 0:
            return None
        if not value.symbolic:
            return Interval(int(value.data.min()), int(value.data.max()), True)
        elements = list(value.data.flat)
        if len(elements) > MAX_CONST or any(isinstance(e, (Ratio, float)) for e in elements):
            return None
        low = high = elements[0]
        for element in elements[1:]:
            low = self.symbols.minimum(low, element)
            high = self.symbols.maximum(high, element)
        return Interval(low, high, True)

    def indices(self, node: Node, value: Value, extent: Expr) -> relax.Expr:
        """Indices into an axis of `extent` elements, in range and not negative.

        ONNX allows -extent .. extent - 1. What the importer cannot prove is checked at run time.
        """
        if value.dtype not in ("int32", "int64"):
            raise node.error(f"indices must be int32 or int64, these are {value.dtype}")
        interval = self.interval(value)
        last = self.symbols.simplify(extent - 1)
        if interval is not None and interval.reached:
            self.symbols.imply_at_most(
                interval.high, last, f"{node.label} indexes an axis of {extent} elements"
            )
        if interval is not None and self.symbols.at_most(interval.high, last):
            if self.symbols.at_most(0, interval.low):
                return self.expr(value)
            if self.symbols.at_most(self.symbols.simplify(-extent), interval.low):
                return self.wrapped(value, extent)
        if isinstance(value, KnownValue) and not value.symbolic and isinstance(extent, int):
            raise node.error(
                f"indices {interval and interval.low} to {interval and interval.high} are out of "
                f"range for an axis of {extent} elements"
            )
        tensor = self.tensor(value)
        self._note_range(tensor, extent)
        return self.wrapped(self.checked(node, tensor, -extent, last), extent)

    def _note_range(self, tensor: TensorValue, extent: Expr) -> None:
        if tensor.source and isinstance(extent, int):
            low, high = self.ranges.get(tensor.source, (0, extent - 1))
            self.ranges[tensor.source] = (max(low, 0), min(high, extent - 1))

    def checked(self, node: Node, tensor: TensorValue, low: Expr, high: Expr) -> TensorValue:
        """The same integers after a check at run time that all are in [low, high]."""
        call = op.call_pure_packed(
            "graphc.check_indices",
            tensor.var,
            relax.prim_value(self.symbols.simplify(low)),
            relax.prim_value(high),
            ir.StringImm(node.label),
            ty_args=relax.TensorType(tensor.shape, tensor.dtype),
        )
        return self.emit(call, f"{tensor.name}.checked")

    def wrapped(self, value: Value, extent: Expr) -> relax.Expr:
        """Negative indices count from the end."""
        if isinstance(value, KnownValue) and not value.symbolic and isinstance(extent, int):
            data = np.where(value.data < 0, value.data + extent, value.data)
            return self.expr(KnownValue(value.name, value.dtype, data.astype(value.dtype)))
        indices = self.expr(value)
        size = self.expr(scalar(extent, value.dtype))
        zero = self.constant(0, value.dtype)
        negative = self.builder.emit(op.less(indices, zero))
        moved = self.builder.emit(op.add(indices, size))
        return self.builder.emit(op.where(negative, moved, indices), f"{value.name}.wrapped")


def _alike(left: np.ndarray, right: np.ndarray) -> bool:
    same_kind = left.shape == right.shape and left.dtype == right.dtype
    return left is right or (same_kind and np.array_equal(left, right))

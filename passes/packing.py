"""What a packing rule may ask for and emit: weights as matrices, packed parameters, kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import tvm
from tvm import relax, tirx

from graphc.ir import Model
from graphc.targets.target import Target
from graphc.weights_file import release

# TVM's OpPatternKind kOpaque.
_OPAQUE = 8

Form: TypeAlias = Callable[[np.ndarray], np.ndarray]
"""How a weight's value is seen as a matrix [depth, width]."""


@dataclass(frozen=True)
class Matrix:
    """A weight as a matrix [depth, width]: `of(weight)`."""

    depth: int
    width: int
    of: Form


def plain(weight: np.ndarray) -> np.ndarray:
    """A weight that is a matrix [depth, width] as it is."""
    return weight


class Packing:
    """One function on its way through the rules.

    `builder` emits bindings in front of the call that a rule rewrites; `model` holds the values
    from which packed parameters are made, each when it is written to the artifact.
    """

    def __init__(
        self,
        model: Model,
        target: Target,
        builder: relax.BlockBuilder,
        binding_of: Callable[[Any], Any],
        weights: Sequence[Any],
    ) -> None:
        self.model, self.target, self.builder = model, target, builder
        self._binding_of = binding_of
        self.weights = {weight.name: weight for weight in weights}
        self.packed: dict[str, Any] = {}
        self.values: dict[str, Callable[[], np.ndarray]] = {}
        self.fusable: set[str] = set()
        self._made: dict[tuple[Any, ...], Any] = {}

    def operator(self, call: relax.Call) -> tuple[str, Any]:
        """The name and attributes of what is called: an operator, or a composite function."""
        callee = call.op
        if isinstance(callee, tvm.ir.GlobalVar):
            callee = self.builder.get()[callee]
        if isinstance(callee, relax.Function):
            attrs = callee.attrs
            return (str(attrs["Composite"]), attrs) if "Composite" in attrs else ("", attrs)
        return getattr(callee, "name", ""), call.attrs

    def definition(self, expr: Any) -> Any:
        """The expression that a variable is bound to; the expression itself when it has none."""
        if not isinstance(expr, relax.Var):
            return expr
        value = self._binding_of(expr)
        return expr if value is None else value

    def is_weight(self, expr: Any, *dtypes: str) -> bool:
        """Whether it is a weight of the model, of one of these dtypes where some are given."""
        if not isinstance(expr, relax.Var) or expr.name not in self.weights:
            return False
        return not dtypes or str(expr.ty.dtype) in dtypes

    def parameter(
        self, name: str, shape: Sequence[int], dtype: str, make: Callable[[], np.ndarray]
    ) -> Any:
        """A parameter whose value is made when it is read; the same name is the same parameter."""
        if name not in self.packed:
            self.packed[name] = relax.Var(name, relax.TensorType(list(shape), dtype))
            self.values[name] = make
        return self.packed[name]

    def packed_weight(
        self,
        weight: Any,
        of: Form,
        tag: str,
        shape: Sequence[int],
        dtype: str,
        pack: Callable[[np.ndarray], np.ndarray],
    ) -> Any:
        """The parameter pack(of(value of the weight)), called after the weight, form and `tag`."""
        form = "" if of is plain else f".{of.__name__}"
        make = functools.partial(_packed_value, self.model, weight.name, of, pack)
        return self.parameter(f"{weight.name}{form}.{tag}", shape, dtype, make)

    def once(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """What `make` gave for this key the first time."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def emit(self, expr: Any) -> Any:
        """Binds an expression to a new variable."""
        return self.builder.emit(expr)

    def te(self, computation: Any, *operands: Any) -> Any:
        """Binds the call of a TE computation, which TVM fuses like any other operator."""
        name = computation.__name__
        return self.emit(self.builder.call_te(computation, *operands, primfunc_name_hint=name))

    def kernel(self, computation: Any, *operands: Any) -> relax.Call:
        """The call of a TE computation that a kernel template schedules, pointwise work fused in.

        The computation's root has the attribute graphc.template.
        """
        name = computation.__name__
        call = self.builder.call_te(computation, *operands, primfunc_name_hint=name)
        self.fusable.add(call.args[0].name_hint)
        return call

    def scheduled(
        self, function: tirx.PrimFunc, operands: Sequence[Any], result: Any
    ) -> relax.Call:
        """The call of a kernel that a template has written whole; nothing is fused with it."""
        name = (
            str(function.attrs["global_symbol"]) if "global_symbol" in function.attrs else "kernel"
        )
        function = function.with_attr("op_pattern", _OPAQUE)
        return relax.call_tir(self.builder.add_func(function, name), list(operands), result)


def _packed_value(
    model: Model, name: str, of: Form, pack: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    value = model.params[name]
    packed = pack(of(value))
    release(value)
    return packed

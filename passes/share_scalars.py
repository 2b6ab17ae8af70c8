"""Makes weights of numbers that differ between operators that are otherwise alike.

    multiply(x, 0.0123), multiply(y, 0.0345), ...   ----->   multiply(x, s0), multiply(y, s1), ...

A number in a kernel makes it a kernel of its own. The scales of a quantised model differ in every
layer; as arguments they leave one kernel for all layers, which is compiled once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container
from typing import Any

import numpy as np
import tvm
from tvm import ir, relax

_OPERATORS = frozenset(f"relax.{name}" for name in ("add", "subtract", "multiply", "divide"))
_FEWEST = 3
"""With fewer values the kernels that are saved do not pay for the loads."""


def share_scalars(
    mod: tvm.IRModule, name: str, taken: Container[str]
) -> tuple[tvm.IRModule, dict[str, np.ndarray]]:
    """The module with such numbers as parameters of the function, and their values under names
    that are not `taken`."""
    values: dict[tuple[str, ...], set[bytes]] = defaultdict(set)

    def note(expr: Any) -> None:
        if isinstance(expr, ir.Call):
            for place, key in _places(expr):
                values[key].add(_bytes(expr.args[place]))

    relax.analysis.post_order_visit(mod[name].body, note)
    alike = {key for key, found in values.items() if len(found) >= _FEWEST}
    if not alike:
        return mod, {}
    sharer = _Sharer(mod, alike, taken)
    return sharer.run(name), sharer.values


def _places(call: relax.Call) -> list[tuple[int, tuple[str, ...]]]:
    """Operands that are one float, with what the operator is apart from their values."""
    operator = getattr(call.op, "name", "")
    if operator not in _OPERATORS:
        return []
    found: list[tuple[int, tuple[str, ...]]] = []
    for place, other in ((0, 1), (1, 0)):
        number = call.args[place]
        if isinstance(number, ir.GenericConst) and not isinstance(
            call.args[other], ir.GenericConst
        ):
            value = number.value.numpy()
            if value.size == 1 and value.dtype == np.float32:
                key = (operator, str(place), str(value.shape), str(call.args[other].ty))
                found.append((place, key))
    return found


def _bytes(number: Any) -> bytes:
    data: bytes = number.value.numpy().tobytes()
    return data


@relax.expr_functor.mutator
class _Sharer(relax.PyExprMutator):  # type: ignore[misc]
    def __init__(
        self, mod: tvm.IRModule, alike: set[tuple[str, ...]], taken: Container[str]
    ) -> None:
        super().__init__(mod)
        self.mod, self.alike, self.taken = mod, alike, taken
        self.params: dict[tuple[bytes, int], relax.Var] = {}
        self.values: dict[str, np.ndarray] = {}

    def run(self, name: str) -> tvm.IRModule:
        gvar = self.mod.get_global_var(name)
        function = self.visit_expr(self.mod[gvar])
        params = [*function.params, *self.params.values()]
        self.builder_.update_func(
            gvar,
            relax.Function(
                params, function.body, function.ret_ty, function.is_pure, function.attrs
            ),
        )
        return self.builder_.get()

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        args = list(call.args)
        for place, key in _places(call):
            if key in self.alike:
                args[place] = self._param(call.args[place])
        if args != list(call.args):
            call = relax.Call(call.op, args, call.attrs, call.ty_args, call.span)
        return self.visit_expr_post_order(call)

    def _param(self, number: Any) -> relax.Var:
        value = np.asarray(number.value.numpy())
        key = (value.tobytes(), value.ndim)
        if key not in self.params:
            name = f"scalar{len(self.params)}"
            while name in self.taken:
                name += "_"
            self.params[key] = relax.Var(name, relax.TensorType(value.shape, str(value.dtype)))
            self.values[name] = value
        return self.params[key]

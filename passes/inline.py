"""Puts a composite's definition in the place of a call of it, with the call's dimensions."""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx


def is_composite(function: Any) -> bool:
    """Whether a private function stands for an operator of its own."""
    return function.attrs is not None and "Composite" in function.attrs


def inline(mutator: Any, callee: relax.Function, call: relax.Call) -> relax.Expr:
    """The result of the callee's body, whose bindings `mutator` (a PyExprMutator) emits."""
    callee = _with_dimensions_of(relax.utils.copy_with_new_vars(callee), call)
    for param, argument in zip(callee.params, call.args, strict=True):
        mutator.set_var_remap(param, argument)
    assert isinstance(callee.body, relax.SeqExpr)
    for block in callee.body.blocks:
        for binding in block.bindings:
            mutator.visit_binding(binding)
    return mutator.visit_expr(callee.body.body)


def _with_dimensions_of(callee: relax.Function, call: relax.Call) -> relax.Function:
    """The composite with the call's dimensions in place of the variables of its own."""
    places: dict[Any, Any] = {}
    for param, argument in zip(callee.params, call.args, strict=True):
        types = (param.ty, argument.ty)
        if not all(isinstance(ty, relax.TensorType) for ty in types):
            continue
        for own, given in zip(param.ty.shape, argument.ty.shape, strict=True):
            if isinstance(own, tirx.Var):
                places.setdefault(own, given)
    return callee.bind_symbolic_vars(places) if places else callee

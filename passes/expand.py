"""The plain form of a model: every composite as its own definition, nothing packed."""

from __future__ import annotations

from dataclasses import replace

import tvm
from tvm import relax
from tvm.ir import GlobalVar

from graphc.ir import Model
from graphc.passes.inline import inline, is_composite


def expand(model: Model) -> Model:
    """The same computation in the operators that composites stand for."""
    return replace(model, mod=_Expander(model.mod).run())


@relax.expr_functor.mutator
class _Expander(relax.PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.mod = mod

    def run(self) -> tvm.IRModule:
        for gvar, function in self.mod.functions.items():
            if isinstance(function, relax.Function) and not is_composite(function):
                self.builder_.update_func(gvar, self.visit_expr(function))
        return self.builder_.get()

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        callee = self.mod[call.op] if isinstance(call.op, GlobalVar) else None
        if isinstance(callee, relax.Function) and is_composite(callee):
            return inline(self, callee, call)
        return call

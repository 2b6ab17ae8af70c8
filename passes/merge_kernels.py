"""Leaves one of several kernels that are the same but for the names of their variables.

TVM merges equal kernels as it makes them, but takes dimensions that occur only inside of
expressions, such as (n - 1) // 32 + 1, for different ones.
"""

from __future__ import annotations

from collections import defaultdict

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import GlobalVar


def merge_kernels(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with its calls led to the first of equal kernels, by name, and without others."""
    alike: dict[int, list[tuple[GlobalVar, tirx.PrimFunc]]] = defaultdict(list)
    instead: dict[GlobalVar, GlobalVar] = {}
    for gvar, function in sorted(mod.functions.items(), key=lambda item: item[0].name_hint):
        if not isinstance(function, tirx.PrimFunc):
            continue
        nameless = function.without_attr("global_symbol")
        known = alike[tvm_ffi.structural_hash(nameless, map_free_vars=True)]
        for first, other in known:
            if tvm_ffi.structural_equal(nameless, other, map_free_vars=True):
                instead[gvar] = first
                break
        else:
            known.append((gvar, nameless))
    return _Redirect(mod, instead).run() if instead else mod


@relax.expr_functor.mutator
class _Redirect(relax.PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: tvm.IRModule, instead: dict[GlobalVar, GlobalVar]) -> None:
        super().__init__(mod)
        self.mod, self.instead = mod, instead

    def run(self) -> tvm.IRModule:
        for gvar, function in self.mod.functions.items():
            if isinstance(function, relax.Function):
                self.builder_.update_func(gvar, self.visit_expr(function))
        mod = self.builder_.get()
        kept = {g: f for g, f in mod.functions.items() if g not in self.instead}
        return tvm.IRModule(kept, mod.attrs)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        kernel = call.args[0] if len(call.args) else None
        if not isinstance(kernel, GlobalVar) or kernel not in self.instead:
            return call
        args = [self.instead[kernel], *list(call.args)[1:]]
        return relax.Call(call.op, args, call.attrs, call.ty_args, call.span)

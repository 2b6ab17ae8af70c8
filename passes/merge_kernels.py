"""Makes the kernels of a module and their names a matter of the model alone, each kernel once.

    gemm7(x, w, n, m), gemm9(x, w, m, n)   ----->   gemm_1(x, w, m, n) for both

TVM merges equal kernels as it makes them, but takes dimensions that occur only inside of
expressions, such as (n - 1) // 32 + 1, for different ones. It also passes them in the order of a
set, which is that of addresses in memory: what it merges and how it numbers the rest would differ
from compile to compile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import ir, relax, tirx
from tvm.ir import GlobalVar

Order: TypeAlias = list[int]
"""Which of the old parameters stands at each place."""


def merge_kernels(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with dimensions passed in order of occurrence, its calls led to the first of
    equal kernels, and what is left numbered in the order of calls."""
    order = {gvar: _order(mod[gvar]) for gvar in _called(mod)}
    kernels = {gvar: _permuted(mod[gvar], order[gvar]) for gvar in order}
    instead = _first_of_equals(kernels)
    names = _names(kernels, instead)
    new = {gvar: _renamed(gvar, names[gvar]) for gvar in kernels if instead[gvar] is gvar}
    calls = {gvar: (new[instead[gvar]], order[gvar]) for gvar in kernels}
    kept = {new[gvar]: _symbol(kernels[gvar], names[gvar]) for gvar in new}
    return _Redirect(mod, calls).run(kept)


def _called(mod: tvm.IRModule) -> list[GlobalVar]:
    """The kernels in the order in which the functions, by name, call them; then the others."""
    found: dict[GlobalVar, None] = {}

    def note(expr: Any) -> None:
        if isinstance(expr, GlobalVar) and isinstance(mod[expr], tirx.PrimFunc):
            found.setdefault(expr)

    by_name = sorted(mod.functions.items(), key=lambda item: item[0].name_hint)
    for _, function in by_name:
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function.body, note)
    for gvar, _ in by_name:
        note(gvar)
    return list(found)


def _order(function: tirx.PrimFunc) -> Order:
    """Numbers among the parameters in the order in which shapes, then the body, have them."""
    params = list(function.params)
    occurs: dict[Any, None] = {}
    buffers = [param for param in params if isinstance(param.ty, tirx.BufferType)]
    for part in (*(extent for buffer in buffers for extent in buffer.shape), function.body):
        tvm_ffi.structural_walk(part, (ir.Var, occurs.setdefault), order="post")
    place = {variable: number for number, variable in enumerate(occurs)}
    numbers = [at for at, param in enumerate(params) if isinstance(param.ty, ir.PrimType)]
    ordered = iter(sorted(numbers, key=lambda at: place.get(params[at], len(place))))
    return [next(ordered) if at in numbers else at for at in range(len(params))]


def _permuted(function: tirx.PrimFunc, order: Order) -> tirx.PrimFunc:
    if order == sorted(order):
        return function
    params = [function.params[at] for at in order]
    return tirx.PrimFunc(params, function.body, function.ret_type, function.attrs)


def _first_of_equals(kernels: dict[GlobalVar, tirx.PrimFunc]) -> dict[GlobalVar, GlobalVar]:
    """For each kernel the first that is the same but for the names of its variables."""
    alike: dict[int, list[tuple[GlobalVar, tirx.PrimFunc]]] = defaultdict(list)
    instead: dict[GlobalVar, GlobalVar] = {}
    for gvar, function in kernels.items():
        nameless = function.without_attr("global_symbol")
        known = alike[tvm_ffi.structural_hash(nameless, map_free_vars=True)]
        for first, other in known:
            if tvm_ffi.structural_equal(nameless, other, map_free_vars=True):
                instead[gvar] = first
                break
        else:
            known.append((gvar, nameless))
            instead[gvar] = gvar
    return instead


def _names(
    kernels: Iterable[GlobalVar], instead: dict[GlobalVar, GlobalVar]
) -> dict[GlobalVar, str]:
    """Names of the kernels that are left. Those that differ in their last number are counted anew
    after the shortest of them, which TVM chose before it had to number any."""
    families: dict[str, list[GlobalVar]] = defaultdict(list)
    for gvar in kernels:
        families[gvar.name_hint.rstrip("0123456789_")].append(gvar)
    names: dict[GlobalVar, str] = {}
    for family in families.values():
        base = min((gvar.name_hint for gvar in family), key=lambda name: (len(name), name))
        left = [gvar for gvar in family if instead[gvar] is gvar]
        for number, gvar in enumerate(left):
            names[gvar] = f"{base}_{number}" if number else base
    return names


def _renamed(gvar: GlobalVar, name: str) -> GlobalVar:
    new = GlobalVar(name)
    relax.expr._update_type(new, gvar.ty)
    return new


def _symbol(function: tirx.PrimFunc, name: str) -> tirx.PrimFunc:
    """The kernel under the name of its symbol, if it has one."""
    if function.attrs is None or "global_symbol" not in function.attrs:
        return function
    return function.with_attr("global_symbol", name)


@relax.expr_functor.mutator
class _Redirect(relax.PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: tvm.IRModule, calls: dict[GlobalVar, tuple[GlobalVar, Order]]) -> None:
        super().__init__(mod)
        self.mod, self.calls = mod, calls

    def run(self, kernels: dict[GlobalVar, tirx.PrimFunc]) -> tvm.IRModule:
        functions = {
            gvar: self.visit_expr(function)
            for gvar, function in self.mod.functions.items()
            if isinstance(function, relax.Function)
        }
        return tvm.IRModule({**kernels, **functions}, self.mod.attrs)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        kernel = call.args[0] if len(call.args) else None
        if not isinstance(kernel, GlobalVar) or kernel not in self.calls:
            return call
        instead, order = self.calls[kernel]
        passed = list(call.args[1].fields)
        passed = [passed[at] for at in order if at < len(passed)]
        args = [instead, relax.Tuple(passed), *list(call.args)[2:]]
        return relax.Call(call.op, args, call.attrs, call.ty_args, call.span)

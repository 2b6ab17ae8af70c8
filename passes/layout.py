"""Packs weights for the kernel templates that will read them; the first rule that accepts wins.

    product(x, w: param)  ----->  template(x, packed w: param)

The packed weight takes the place of the plain one in `Model.params`; nothing is packed at run time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import tvm
from tvm import relax

from graphc.ir import Model, Weights
from graphc.passes.pack_bf16 import pack_bf16
from graphc.passes.pack_by_channel import pack_by_channel
from graphc.passes.pack_convolution import pack_convolution
from graphc.passes.pack_int8 import pack_int8
from graphc.passes.pack_matmul import pack_matmul
from graphc.passes.pack_nbits import pack_nbits
from graphc.passes.packing import Packing
from graphc.targets.target import Target

Rule: TypeAlias = Callable[[Packing, relax.Call], relax.Expr | None]
"""What stands for a call, or None when the call is not the rule's."""

RULES: tuple[Rule, ...] = (
    pack_matmul,
    pack_bf16,
    pack_int8,
    pack_by_channel,
    pack_nbits,
    pack_convolution,
)

# TVM's OpPatternKind kOutEWiseFusable: pointwise operators may be fused behind, nothing before.
_FUSABLE = 4


def layout(model: Model, target: Target) -> Model:
    """A model whose products with weights read them packed.

    A device's kernels read weights as they are: row by row, which is what its threads want.
    """
    if target.device is not None:
        return model
    packed, dropped = 0, set[str]()
    for name in model.signatures:
        packer = _Packer(model, model.mod[name], target)
        mod = packer.run(name)
        packed += len(packer.packing.values.keys() - set(model.params))
        params = Weights(model.params).but(packer.packing.values)
        dropped |= packer.dropped
        model = replace(model, mod=mod, params=params)
    read = {param.name for name in model.signatures for param in model.mod[name].params}
    params = Weights(model.params).but({}, dropped - read)  # another function may read them plain
    statistics = {**model.statistics, "packed weights": packed}
    return replace(model, params=params, statistics=statistics)


@relax.expr_functor.mutator
class _Packer(relax.PyExprMutator):  # type: ignore[misc]
    """Rewrites one function; weights that nobody reads any more are dropped at the end."""

    def __init__(self, model: Model, function: Any, target: Target) -> None:
        super().__init__(model.mod)
        self.function, self.exported = function, list(model.signatures)
        self.num_input = int(function.attrs["num_input"])
        weights = list(function.params)[self.num_input :]
        self.packing = Packing(model, target, self.builder_, self.lookup_binding, weights)
        self.dropped: set[str] = set()

    def run(self, name: str) -> tvm.IRModule:
        function = self.visit_expr(self.function)
        inputs = list(function.params)[: self.num_input]
        weights = [*self.packing.weights.values(), *self.packing.packed.values()]
        gvar = self.builder_.get().get_global_var(name)

        def over(kept: list[Any]) -> Any:
            return relax.Function(
                [*inputs, *kept], function.body, function.ret_ty, function.is_pure, function.attrs
            )

        self.builder_.update_func(gvar, over(weights))
        # What a rule read through another binding, such as a cast of the weight, is dead by now.
        mod = relax.transform.DeadCodeElimination(self.exported)(self.builder_.get())
        function = mod[name]
        used = {v.name for v in relax.analysis.free_vars(function.body)}
        params = list(function.params)
        inputs, weights = params[: self.num_input], params[self.num_input :]
        mod[mod.get_global_var(name)] = over([w for w in weights if w.name in used])
        self.dropped = {w.name for w in weights} - used
        return self._mark_fusable(mod)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        for rule in RULES:
            new = rule(self.packing, call)
            if new is not None:
                return new
        return call

    def _mark_fusable(self, mod: tvm.IRModule) -> tvm.IRModule:
        for gvar, function in mod.functions.items():
            if gvar.name_hint in self.packing.fusable:
                mod[gvar] = function.with_attr("op_pattern", _FUSABLE)
        return mod

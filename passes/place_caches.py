"""Decides how each cache of a language model lies in memory, and calls the kernels that know it.

    cache_append(cache, value, slots)           ----->  a kernel that writes in place
    paged_attention(q, keys, values, ...)       ----->  a kernel over pages

A cache that only these two use gets the order and the type that are fast for them (see
codegen/templates/pages.py); one that another operator reads stays as the graph has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Final

import tvm
from tvm import relax
from tvm.ir import GlobalVar

from graphc import env
from graphc.codegen.templates import lookup
from graphc.codegen.templates.pages import PAGE, Pages
from graphc.config import CACHE_DTYPES
from graphc.ir import CacheInfo, Model
from graphc.passes.paged import CACHE_APPEND, PAGED_ATTENTION
from graphc.targets.target import Target

OPAQUE: Final = 8  # TVM's OpPatternKind kOpaque: nothing is fused with the kernel


@dataclass(frozen=True)
class _Uses:
    """What a function does with one cache."""

    as_keys: bool = False
    as_values: bool = False
    otherwise: bool = False


def place_caches(model: Model, target: Target, cache_dtype: str = "f32") -> Model:
    """The model with its caches placed, kept as `cache_dtype`; one without caches as it is."""
    if model.decoder is None:
        return model
    name = model.decoder.function
    function = model.mod[name]
    inputs = len(model.signatures[name].inputs)
    params = {param.name: param for param in list(function.params)[:inputs]}
    caches = {cache.name: cache for cache in model.decoder.caches}
    uses = _find_uses(model.mod, function, {params[cache] for cache in caches})
    layouts = {
        cache.name: _layout(cache, uses[params[cache.name]], CACHE_DTYPES[cache_dtype])
        for cache in model.decoder.caches
    }
    placer = _Placer(model.mod, target, {params[name]: layouts[name] for name in caches})
    mod = placer.run(name)
    for cache, pages in layouts.items():
        if pages.order == "rows":
            env.log(1, f"{cache}: stays {pages.dtype} in rows, other operators read it")
    signature = model.signatures[name]
    ports = tuple(
        replace(
            port, dtype=layouts[port.name].dtype, shape=_shape(port.shape[0], layouts[port.name])
        )
        if port.name in layouts
        else port
        for port in signature.inputs
    )
    decoder = replace(
        model.decoder,
        caches=tuple(replace(c, dtype=layouts[c.name].dtype) for c in model.decoder.caches),
    )
    signatures = {**model.signatures, name: replace(signature, inputs=ports)}
    return replace(model, mod=mod, signatures=signatures, decoder=decoder)


def _shape(pages: Any, layout: Pages) -> tuple[Any, ...]:
    return (pages, PAGE, layout.heads, layout.stored)


def _layout(cache: CacheInfo, uses: _Uses, dtype: str) -> Pages:
    if uses.otherwise:
        return Pages("rows", cache.heads, cache.width, cache.dtype)
    order = "values" if uses.as_values else "keys"
    return Pages(order, cache.heads, cache.width, dtype)


def _composite(mod: tvm.IRModule, call: Any) -> str:
    """The composite that a call calls, "" for every other expression."""
    if not isinstance(call, relax.Call) or not isinstance(call.op, GlobalVar):
        return ""
    callee = mod[call.op]
    has_name = isinstance(callee, relax.Function) and callee.attrs and "Composite" in callee.attrs
    return str(callee.attrs["Composite"]) if has_name else ""


def _find_uses(mod: tvm.IRModule, function: Any, caches: set[Any]) -> dict[Any, _Uses]:
    """Uses of every cache, followed through the results of appends."""
    root: dict[Any, Any] = {cache: cache for cache in caches}
    uses = {cache: _Uses() for cache in caches}

    def note(var: Any, **use: bool) -> None:
        if var in root:
            uses[root[var]] = replace(uses[root[var]], **use)

    for block in function.body.blocks:
        for binding in block.bindings:
            value = binding.value
            kind = _composite(mod, value)
            arguments = list(value.args) if isinstance(value, relax.Call) else []
            if kind == CACHE_APPEND and arguments[0] in root:
                root[binding.var] = root[arguments[0]]
                arguments = arguments[1:]
            elif kind == PAGED_ATTENTION:
                note(arguments[1], as_keys=True)
                note(arguments[2], as_values=True)
                arguments = [arguments[0], *arguments[3:]]
            elif isinstance(value, relax.Var) and value in root:
                root[binding.var] = root[value]
                continue
            free = relax.analysis.free_vars(value) if not kind else arguments
            for var in free:
                note(var, otherwise=True)
    for var in relax.analysis.free_vars(function.body.body):
        note(var, otherwise=True)
    return uses


@relax.expr_functor.mutator
class _Placer(relax.PyExprMutator):  # type: ignore[misc]
    """Rewrites one function; `layouts` are by the parameters that are caches."""

    def __init__(self, mod: tvm.IRModule, target: Target, layouts: Mapping[Any, Pages]) -> None:
        super().__init__(mod)
        self.mod, self.target = mod, target
        self.orders: dict[Any, str] = {}
        self.layouts = layouts

    def run(self, name: str) -> tvm.IRModule:
        gvar = self.mod.get_global_var(name)
        function = self.mod[gvar]
        params = []
        for param in function.params:
            layout = self.layouts.get(param)
            if layout is None:
                params.append(param)
                continue
            shape = list(_shape(param.ty.shape[0], layout))
            placed = relax.Var(param.name, relax.TensorType(shape, layout.dtype))
            self.set_var_remap(param, placed)
            self.orders[placed] = layout.order
            params.append(placed)
        body = self.visit_expr(function.body)
        function = relax.Function(params, body, function.ret_ty, function.is_pure, function.attrs)
        self.builder_.update_func(gvar, function)
        return self.builder_.get()

    def visit_var_binding_(self, binding: Any) -> None:
        kind = _composite(self.mod, binding.value)
        if kind not in (CACHE_APPEND, PAGED_ATTENTION):
            super().visit_var_binding_(binding)
            return
        attrs = self.mod[binding.value.op].attrs
        arguments = [self.visit_expr(argument) for argument in binding.value.args]
        new = self._append(arguments) if kind == CACHE_APPEND else self._attention(arguments, attrs)
        if new is None:
            super().visit_var_binding_(binding)
            return
        value = self.builder_.emit(new)
        if kind == CACHE_APPEND:
            self.orders[value] = self.orders[arguments[0]]
        elif str(binding.var.ty.dtype) != "float32":
            value = self.builder_.emit(relax.op.astype(value, str(binding.var.ty.dtype)))
        self.set_var_remap(binding.var, value)

    def _append(self, arguments: list[Any]) -> Any | None:
        cache, value, slots = arguments
        if cache not in self.orders:
            return None
        order = {"order": self.orders[cache]}
        return self._kernel(CACHE_APPEND, [cache, self._wide(value), slots], order, cache.ty)

    def _attention(self, arguments: list[Any], attrs: Any) -> Any | None:
        q, keys, values, *rest = arguments
        if keys not in self.orders or values not in self.orders:
            return None
        orders = {"key_order": self.orders[keys], "value_order": self.orders[values]}
        tokens, heads, _ = q.ty.shape
        result = relax.TensorType([tokens, heads, int(attrs["width"])], "float32")
        arguments = [self._wide(q), keys, values, *rest]
        return self._kernel(PAGED_ATTENTION, arguments, {**attrs, **orders}, result)

    def _wide(self, value: Any) -> Any:
        """The kernels compute in float32, whatever the model does."""
        if str(value.ty.dtype) == "float32":
            return value
        return self.builder_.emit(relax.op.astype(value, "float32"))

    def _kernel(self, name: str, arguments: list[Any], attrs: Any, result: Any) -> Any | None:
        typed = [SimpleNamespace(ty=argument.ty) for argument in arguments]
        kernel = lookup(name, typed, attrs, result, self.target)
        if kernel is None:
            return None
        gvar = self.builder_.add_func(
            kernel.with_attr("op_pattern", OPAQUE), name.rpartition(".")[2]
        )
        return relax.call_tir(gvar, arguments, result)

"""Counts the multiply-adds of a function's contractions, as a polynomial over its dimensions.

    matmul [.., m, k] x [.., k, n]   2 k * elements of the result
    conv                             2 * elements of the result * (channels / groups) * window
    sum over k of a[..] * b[..]      2 k * elements of the result     (kernels that importers write)

What pointwise operators and plain reductions do beside them is not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tvm import ir, relax, tirx

from graphc.codegen.builder import simplify
from graphc.codegen.expression import text
from graphc.codegen.kernel import is_contraction, read_kernel
from graphc.codegen.rewrite import rewrite
from graphc.ir import Model

Term: TypeAlias = "tuple[int, tuple[str, ...]]"

_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")


@dataclass
class Work:
    """Multiplications and additions: number for each product of symbolic dimensions."""

    terms: Counter[tuple[str, ...]] = field(default_factory=Counter)
    factors: dict[str, Any] = field(default_factory=dict)

    def add(self, dims: Sequence[Any], times: int = 2) -> None:
        """`times` the product of `dims`."""
        symbolic: list[str] = []
        for dim in dims:
            if isinstance(dim, int | tirx.IntImm):
                times *= int(dim)
            else:
                symbolic.append(text(dim))
                self.factors[symbolic[-1]] = dim
        if times:
            self.terms[tuple(sorted(symbolic))] += times

    def record(self) -> dict[str, object]:
        """As the manifest has it: the formula for people, and its terms for `value`."""
        ordered = sorted(self.terms.items(), key=lambda term: (-len(term[0]), term[0]))
        terms = [[times, [_nested(self.factors[f]) for f in names]] for names, times in ordered]
        return {"text": self.text(), "terms": terms}

    def text(self) -> str:
        """`2048*batch*sequence + 4*batch*sequence*sequence`."""
        ordered = sorted(self.terms.items(), key=lambda term: (len(term[0]), term[0]))
        shown = (
            "*".join((str(times), *(f if f.isidentifier() else f"({f})" for f in names)))
            for names, times in ordered
        )
        return " + ".join(shown) or "0"


def count(model: Model, name: str = "main") -> Work:
    """The work of one run of an exported function, before or after the layout pass."""
    work = Work()
    _function(model.mod, model.mod[name], work, {})
    return work


def _function(
    mod: ir.IRModule, function: relax.Function, work: Work, bound: Mapping[Any, Any]
) -> None:
    for call in _calls(function):
        _call(mod, call, work, bound)


def _calls(function: relax.Function) -> Iterator[relax.Call]:
    found: list[relax.Call] = []
    relax.analysis.post_order_visit(
        function.body, lambda e: found.append(e) if isinstance(e, ir.Call) else None
    )
    return iter(found)


def _call(mod: ir.IRModule, call: relax.Call, work: Work, bound: Mapping[Any, Any]) -> None:
    if isinstance(call.op, ir.GlobalVar):
        callee = mod[call.op]
        if isinstance(callee, relax.Function):
            inner: dict[Any, Any] = {}
            for param, argument in zip(callee.params, call.args, strict=True):
                _bind(param.ty, argument.ty, inner, bound)
            _function(mod, callee, work, inner)
        return
    name = getattr(call.op, "name", "").removeprefix("relax.").removeprefix("nn.")
    if name == "matmul":
        depth = call.args[0].ty.shape.values[-1]
        work.add(_dims([*call.ty.shape.values, depth], bound))
    elif name in _CONVOLUTIONS:
        window = list(call.args[1].ty.shape.values)[1:]
        work.add(_dims([*call.ty.shape.values, *window], bound))
    elif name.removesuffix("_transpose") in _CONVOLUTIONS:
        window = list(call.args[1].ty.shape.values)[1:]
        work.add(_dims([*call.args[0].ty.shape.values, *window], bound))
    elif name in ("call_tir", "call_tir_inplace") and isinstance(mod[call.args[0]], tirx.PrimFunc):
        _kernel(mod[call.args[0]], call, work, bound)


def _kernel(
    function: tirx.PrimFunc, call: relax.Call, work: Work, bound: Mapping[Any, Any]
) -> None:
    """Sums of products in a kernel that was written out."""
    kernel = read_kernel(function, "kernel")
    if kernel is None:
        return
    inner: dict[Any, Any] = {}
    results = call.ty.fields if isinstance(call.ty, ir.TupleType) else [call.ty]
    types = [*(argument.ty for argument in call.args[1].fields), *results]
    for param, ty in zip(function.params, types, strict=False):
        if hasattr(param, "shape") and hasattr(ty, "shape"):
            _bind(param, ty, inner, bound)
    for stage in kernel.stages:
        if is_contraction(stage):
            work.add(_dims([*stage.spatial_extents, *stage.reduce_extents], inner))


def _bind(formal: Any, actual: Any, inner: dict[Any, Any], outer: Mapping[Any, Any]) -> None:
    """Variables in the shape of a parameter stand for what the argument has there."""
    if not hasattr(formal, "shape") or formal.shape is None:
        return
    dims = getattr(formal.shape, "values", formal.shape)
    for dim, extent in zip(dims, actual.shape.values, strict=True):
        if isinstance(dim, tirx.Var):
            inner.setdefault(dim, _dims([extent], outer)[0])


def _dims(dims: Sequence[Any], bound: Mapping[Any, Any]) -> list[Any]:
    """With the variables of a called function replaced by what they stand for."""
    if not bound:
        return list(dims)
    return [
        dim
        if isinstance(dim, int | tirx.IntImm)
        else simplify(rewrite(dim, lambda n: bound.get(n) if isinstance(n, tirx.Var) else None))
        for dim in dims
    ]


def _nested(expr: Any) -> object:
    """A dimension as plain data: a number, a name, or [operator, operand, operand]."""
    if isinstance(expr, int | tirx.IntImm):
        return int(expr)
    if isinstance(expr, tirx.Var):
        return str(expr.name)
    if isinstance(expr, tirx.Cast):
        return _nested(expr.value)
    names = {
        tirx.Add: "+",
        tirx.Sub: "-",
        tirx.Mul: "*",
        tirx.FloorDiv: "//",
        tirx.Div: "//",
        tirx.FloorMod: "%",
        tirx.Mod: "%",
        tirx.Min: "min",
        tirx.Max: "max",
    }
    symbol = names.get(type(expr))
    return ["?"] if symbol is None else [symbol, _nested(expr.a), _nested(expr.b)]

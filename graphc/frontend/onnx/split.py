"""A dataflow with points -> a program: segments between the points, each a Relax function.

    a = f(x); p = point 0 (a); b = g(p); c = h(x)
    -----> segment 0: x -> a, c    point 0: a -> p    segment 1: p -> b

A binding goes into the earliest segment that has all that it reads, dimensions included. What one
segment makes and another reads becomes a value of the program.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import ir, relax, tirx

from graphc import flow
from graphc.frontend.onnx.extents import variables
from graphc.frontend.onnx.points import dims_of_type, reads
from graphc.frontend.onnx.regions import (
    FLOW,
    BindPoint,
    BranchPoint,
    Point,
    Region,
    dims_of,
)
from graphc.ir import Constraint, Dim, Expr, Port, Signature


@dataclass(frozen=True)
class Split:
    """A program, its module, and the signatures of its segments."""

    program: flow.Program
    mod: tvm.IRModule
    signatures: Mapping[str, Signature]


def split(
    mod: tvm.IRModule,
    name: str,
    signature: Signature,
    points: Sequence[Point],
    weights: Iterable[relax.Var],
    dims: Mapping[str, Dim],
    named: Mapping[str, tirx.Var],
) -> Split:
    """The function `name` of the module as a program; `dims` and `named` are all dimensions."""
    function = mod[name]
    splitter = _Splitter(mod, name, points, {var.name for var in weights}, dims, named)
    inputs = list(function.params[: len(signature.inputs)])
    env = {
        var: splitter.value(var, port.name)
        for var, port in zip(inputs, signature.inputs, strict=True)
    }
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    results = _results(function.body.body, bindings)
    region = Region([], bindings, results, list(signature.constraints))
    body = splitter.block(region, dict(env))
    signature = replace(signature, constraints=body.constraints)
    program = flow.Program(
        signature, tuple(splitter.values), tuple(env.values()), replace(body, constraints=())
    )
    functions = {
        gvar: made for gvar, made in mod.functions_items() if gvar.name_hint != name
    } | splitter.functions
    return Split(program, tvm.IRModule(functions, mod.attrs), splitter.signatures)


def _results(result: Any, bindings: Sequence[Any]) -> list[relax.Var]:
    if isinstance(result, relax.Var):
        result = next(binding.value for binding in bindings if binding.var.same_as(result))
    return list(result.fields)


class _Splitter:
    def __init__(
        self,
        mod: tvm.IRModule,
        name: str,
        points: Sequence[Point],
        weights: set[str],
        dims: Mapping[str, Dim],
        named: Mapping[str, tirx.Var],
    ) -> None:
        self.values: list[flow.Value] = []
        self.functions: dict[Any, Any] = {}
        self.signatures: dict[str, Signature] = {}
        self._name, self._points, self._weights = name, points, weights
        self._dims, self._named = dims, named
        self._taken = {gvar.name_hint for gvar in mod.get_global_vars()}

    def value(self, var: relax.Var, name: str = "") -> int:
        """A new value of a variable's type."""
        shape = tuple(int(e) if isinstance(e, tirx.IntImm) else e for e in var.ty.shape)
        self.values.append(flow.Value(name or var.name, str(var.ty.dtype), shape))
        return len(self.values) - 1

    def block(self, region: Region, env: dict[Any, int]) -> flow.Block:
        """The steps of a region; `env` has the values around it and gains those of its own."""
        levels = _Levels(region, self._points)
        self._cross(levels, region, env)
        late: list[list[Constraint]] = [[] for _ in levels.points]
        early: list[Constraint] = []
        for constraint in region.constraints:
            level = levels.of_dims(_dims((constraint.left, constraint.right)))
            (late[level - 1] if level else early).append(constraint)
        steps: list[flow.Step] = []
        for level in range(len(levels.points) + 1):
            steps += self._segment(levels.bindings[level], env)
            if level < len(levels.points):
                point, call, _ = levels.points[level]
                items = [levels.items[level][at] for at in sorted(levels.items[level])]
                steps.append(self._point(point, call, items, env, tuple(late[level])))
        results = tuple(env[var] for var in region.results)
        return flow.Block(tuple(steps), results, tuple(early))

    def _cross(self, levels: _Levels, region: Region, env: dict[Any, int]) -> None:
        """Numbers the values that cross from a segment or a point to another."""
        for items in levels.items:
            for item in items.values():
                env[item] = self.value(item)
        wanted: dict[Any, None] = dict.fromkeys(region.results)
        for level, bindings in enumerate(levels.bindings):
            for binding in bindings:
                for var in reads(binding.value)[0]:
                    if levels.level.get(var, level) != level:
                        wanted.setdefault(var)
        for _, call, _ in levels.points:
            wanted.update(dict.fromkeys(_arguments(call)))
        for var in wanted:
            if var not in env:
                env[var] = self.value(var)

    # Segments

    def _segment(self, bindings: Sequence[Any], env: Mapping[Any, int]) -> list[flow.Step]:
        if not bindings:
            return []
        own = {binding.var for binding in bindings}
        outputs = [var for var in own if var in env]
        outputs.sort(key=lambda var: env[var])
        if not outputs:
            return []
        used = dict.fromkeys(v for b in bindings for v in reads(b.value)[0] if v not in own)
        inputs = [var for var in used if var.name not in self._weights]
        weights = [var for var in used if var.name in self._weights]
        dims = set[str]().union(
            *(reads(b.value)[1] | dims_of_type(b.var.ty) for b in bindings),
            *(dims_of_type(var.ty) for var in inputs),
        )
        params = [relax.Var(var.name, var.ty) for var in inputs]
        bare = {e.name for var in inputs for e in var.ty.shape if isinstance(e, ir.Var)}
        hidden = sorted(dims - bare)
        if hidden:
            shape = [self._named[name] for name in hidden]
            params.append(relax.Var("dimensions", relax.TensorType(shape, "bool")))
        results = [relax.Var(var.name, var.ty) for var in outputs]
        body = [
            *(relax.VarBinding(old, new) for old, new in zip(inputs, params, strict=False)),
            *bindings,
            *(relax.VarBinding(new, old) for old, new in zip(outputs, results, strict=True)),
        ]
        name = self._function(params, weights, body, results)
        self.signatures[name] = Signature(
            tuple(Port(p.name, str(p.ty.dtype), tuple(p.ty.shape)) for p in params),
            tuple(Port(r.name, str(r.ty.dtype), tuple(r.ty.shape)) for r in results),
            tuple(self._dims[dim] for dim in sorted(dims)),
        )
        return [
            flow.Call(name, tuple(env[var] for var in inputs), tuple(env[var] for var in outputs))
        ]

    def _function(
        self,
        params: Sequence[relax.Var],
        weights: Sequence[relax.Var],
        bindings: Sequence[Any],
        results: Sequence[relax.Var],
    ) -> str:
        count = len(self.signatures)
        while f"{self._name}_{count}" in self._taken:
            count += 1
        name = f"{self._name}_{count}"
        self._taken.add(name)
        result = relax.Tuple(list(results))
        body = relax.SeqExpr([relax.DataflowBlock(list(bindings))], result)
        function = relax.Function(
            [*params, *weights], body, relax.TupleType([r.ty for r in results])
        )
        function = function.with_attr("global_symbol", name).with_attr("num_input", len(params))
        function = relax.utils.copy_with_new_vars(function)
        gvar = ir.GlobalVar(name)
        relax.expr._update_type(gvar, function.ty)
        self.functions[gvar] = function
        return name

    # Points

    def _point(
        self,
        point: Point,
        call: Any,
        items: Sequence[Any],
        env: Mapping[Any, int],
        constraints: tuple[Constraint, ...],
    ) -> flow.Step:
        args = [env[var] for var in _arguments(call)]
        outputs = tuple(env[item] for item in items)
        if isinstance(point, BindPoint):
            return flow.Bind(args[0], self._bounds(point.dims), point.where, constraints)
        if isinstance(point, BranchPoint):
            first, second = (self.block(region, dict(env)) for region in point.regions)
            return flow.Branch(
                args[0], (first, second), outputs, self._bounds(point.dims), point.extents,
                point.where, constraints,
            )  # fmt: skip
        inner = dict(env)
        for param in point.region.params:
            inner[param] = self.value(param)
        body = self.block(point.region, inner)
        return flow.Loop(
            limit=point.limit,
            condition=args[point.carried] if point.conditional else None,
            step=self._dims[point.step.name],
            initial=tuple(args[: point.carried]),
            inner=tuple(inner[param] for param in point.region.params),
            inner_dims=self._bounds(point.inner_dims),
            initial_extents=point.initial_extents,
            next_extents=point.next_extents,
            body=body,
            observed=tuple((self._dims[dim.name], extent) for dim, extent in point.observed),
            outputs=outputs[: point.carried],
            stacked=outputs[point.carried :],
            dims=self._bounds(point.dims),
            outer_extents=point.outer_extents,
            where=point.where,
            constraints=constraints,
        )

    def _bounds(self, dims: Iterable[tirx.Var]) -> tuple[Dim, ...]:
        return tuple(self._dims[dim.name] for dim in dims)


class _Levels:
    """The level of a binding: how many of the region's points it has to wait for."""

    def __init__(self, region: Region, points: Sequence[Point]) -> None:
        self.points: list[tuple[Point, Any, Any]] = []  # with their calls and variables
        self.items: list[dict[int, Any]] = []  # a point's results that are read
        self.level: dict[Any, int] = {}
        self.bindings: list[list[Any]] = [[]]
        self._dims: dict[str, int] = {}
        made: dict[Any, int] = {}
        for binding in region.bindings:
            var, value = binding.var, binding.value
            number = _point(value)
            if number is not None:
                made[var] = len(self.points)
                self.points.append((points[number], value, var))
                self.items.append({})
                self.bindings.append([])
                for dim in dims_of(points[number]):
                    self._dims[dim.name] = len(self.points)
            elif isinstance(value, relax.TupleGetItem) and value.tuple_value in made:
                at = made[value.tuple_value]
                self.items[at][int(value.index)] = var
                self.level[var] = at + 1
            else:
                tensors, dims = reads(value)
                levels = [self.level.get(other, 0) for other in tensors]
                level = max([*levels, self.of_dims(dims | dims_of_type(var.ty))])
                self.level[var] = level
                self.bindings[level].append(binding)

    def of_dims(self, names: Iterable[str]) -> int:
        """The level from which on dimensions are known."""
        return max((self._dims.get(name, 0) for name in names), default=0)


def _point(value: Any) -> int | None:
    """The number of the point that an expression calls."""
    if isinstance(value, ir.Call) and isinstance(value.args[0] if value.args else None, ir.Expr):
        callee = value.args[0]
        if getattr(callee, "global_symbol", "") == FLOW:
            return int(value.args[1].value)
    return None


def _arguments(call: Any) -> list[Any]:
    return list(call.args)[2:]


def _dims(exprs: Iterable[Expr]) -> set[str]:
    return {var.name for var in variables(list(exprs))}

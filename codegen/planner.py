"""A lowered Relax function -> its static plan: tensors, arena buffers with lifetimes, steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from tvm import relax, tirx
from tvm.ir import GenericConst

from graphc.codegen.expression import variables
from graphc.codegen.plan import (
    Assign,
    Branch,
    Buffer,
    CheckIndices,
    Clear,
    Continue,
    Copy,
    Enter,
    Expose,
    FunctionPlan,
    Kernel,
    Loop,
    Measure,
    Observe,
    Scalar,
    Stage,
    Step,
    Storage,
    Store,
    Tensor,
)
from graphc.codegen.plan import walk as walk_steps
from graphc.codegen.rewrite import rewrite
from graphc.ir import Expr, Model, Signature

CHECK_INDICES = "graphc.check_indices"
FLOPS = "graphc.flops"
IN_PLACE = "graphc.inplace"
"""Attribute of a kernel: the number of the argument, a cache, whose memory its result is."""


def plan(model: Model, name: str) -> FunctionPlan:
    """The plan of the function `name` of a lowered model."""
    planner = Planner(model, name, model.signatures[name])
    caches = _caches(model, name)
    inputs = [
        planner.tensor(
            Storage.CACHE if port.name in caches else Storage.INPUT,
            position,
            port.dtype,
            port.shape,
            port.name,
        )
        for position, port in enumerate(planner.signature.inputs)
    ]
    results = planner.segment(name, inputs)
    planner.check_caches(caches)
    return planner.finish(results)


class Planner:
    """Walks the bindings of functions once; a value is the number of a tensor from then on."""

    def __init__(self, model: Model, name: str, signature: Signature) -> None:
        self.model, self.name, self.signature = model, name, signature
        self.tensors: list[Tensor] = []
        self.steps: list[Step] = []
        self.values: dict[Any, Any] = {}  # a tensor's number, or a list of them for a tuple
        self.weights: dict[str, int] = {}  # name -> tensor
        self.stages: list[Stage] = []
        self.dim_stages = {dim.name: 0 for dim in signature.dims}
        self.slots = 0

    def segment(self, name: str, inputs: Sequence[int]) -> list[int]:
        """Plans what the Relax function `name` does with these tensors; its results.

        It may have more inputs, which carry dimensions only.
        """
        function = self.model.mod[name]
        count = int(function.attrs["num_input"])
        for number, param in zip(inputs, function.params, strict=False):
            self.values[param] = number
        for param in function.params[count:]:
            self.values[param] = self._weight(param)
        body = function.body
        assert isinstance(body, relax.SeqExpr), type(body)
        for block in body.blocks:
            for binding in block.bindings:
                self._bind(binding)
        result = body.body
        if isinstance(result, relax.Tuple):
            return [self._value(field) for field in result.fields]
        numbers = self.values[result]
        assert isinstance(numbers, list), "a graph function returns a tuple"
        return numbers

    def finish(self, results: Sequence[int]) -> FunctionPlan:
        """The plan, when all steps are there; `results` are the outputs' tensors."""
        self._outputs(results)
        self._free_indices()
        return FunctionPlan(
            name=self.name,
            signature=self.signature,
            tensors=tuple(self.tensors),
            buffers=self._lifetimes(),
            steps=tuple(self.steps),
            weights=tuple(self.weights),
            stages=tuple(self.stages),
            slots=self.slots,
        )

    def check_caches(self, caches: Iterable[str]) -> None:
        """A cache that no kernel writes would forget every token."""
        written = {n for step in self.steps if isinstance(step, Kernel) for n in step.writes}
        missing = sorted(set(caches) - {self.tensors[number].name for number in written})
        assert not missing, f"{self.name}: no kernel writes {missing}"

    def stage(self, shape: Iterable[Expr]) -> int:
        """The stage that makes a shape known."""
        names = {name for extent in shape for name in variables(extent)}
        return max((self.dim_stages[name] for name in names), default=0)

    # Bindings

    def _bind(self, binding: Any) -> None:
        value = binding.value
        if isinstance(binding, relax.MatchCast):
            self.values[binding.var] = self._view(self._value(value), binding.ty)
            return
        if isinstance(value, relax.Tuple):
            self.values[binding.var] = [self._value(f) for f in value.fields]
            return
        if isinstance(value, relax.TupleGetItem):
            self.values[binding.var] = self.values[value.tuple_value][value.index]
            return
        if isinstance(value, relax.Call):
            self.values[binding.var] = self._call(value, binding.var)
            return
        self.values[binding.var] = self._value(value)

    def _call(self, call: Any, var: Any) -> Any:
        operator = getattr(call.op, "name", "")
        if operator == "relax.reshape":
            return self._view(self._value(call.args[0]), call.ty)
        if operator == "relax.call_pure_packed" and call.args[0].global_symbol == CHECK_INDICES:
            _, tensor, low, high, where = call.args
            at = self._value(tensor)
            self.steps.append(CheckIndices(at, low, high, str(where.value)))
            return at
        assert operator == "relax.call_tir", f"the lowered {self.name} still calls {call.op}"
        gvar, arguments = call.args[0], call.args[1]
        kernel = self.model.mod[gvar]
        attrs = kernel.attrs or {}
        results = call.ty.fields if isinstance(call.ty, relax.TupleType) else [call.ty]
        if IN_PLACE in attrs:
            outputs = [self._written_in_place(arguments.fields[int(attrs[IN_PLACE])], call)]
        else:
            outputs = [
                self.tensor(Storage.ARENA, -1, str(ty.dtype), ty.shape, var.name) for ty in results
            ]
        args: list[int | Scalar] = []
        for argument in arguments.fields:
            is_tensor = isinstance(argument.ty, relax.TensorType)
            args.append(self._value(argument) if is_tensor else Scalar(argument))
        args.extend(outputs)
        if len(call.args) > 2:
            args.extend(Scalar(value) for value in call.args[2])
        template = str(attrs.get("graphc.template", ""))
        flops = self._flops(kernel, args)
        self.steps.append(Kernel(gvar.name_hint, tuple(args), tuple(outputs), template, flops))
        return outputs if isinstance(call.ty, relax.TupleType) else outputs[0]

    def _flops(self, kernel: Any, args: list[int | Scalar]) -> Expr | None:
        """The kernel's own count, over its parameters' dimensions, in terms of the function's."""
        count = kernel.attrs.get(FLOPS) if kernel.attrs else None
        if count is None:
            return None
        dims: dict[Any, Any] = {}
        for param, arg in zip(kernel.params, args, strict=True):
            if isinstance(arg, Scalar):
                dims[param] = arg.value
                continue
            shape = getattr(param, "shape", ())
            dims |= dict(zip(shape, self.tensors[arg].shape, strict=True)) if shape else {}

        def value(node: Any) -> Any | None:
            return dims.get(node) if isinstance(node, tirx.Var) else None

        flops: Expr = rewrite(count, value)
        return flops

    def _written_in_place(self, argument: Any, call: Any) -> int:
        """The argument that a kernel writes; its value from before must not be read after it."""
        number = self._value(argument)
        tensor = self.tensors[number]
        assert tensor.storage is Storage.CACHE, f"{call.args[0]} writes to {tensor}"
        return self._view(number, call.ty)

    def _value(self, expr: Any) -> int:
        if isinstance(expr, GenericConst):
            raise AssertionError(f"a constant {expr.ty} was left outside the kernels")
        number: int = self.values[expr]
        return number

    def tensor(
        self, storage: Storage, index: int, dtype: str, shape: Iterable[Expr], name: str
    ) -> int:
        """A new tensor; an arena tensor (index -1) gets a buffer of its own number."""
        number = len(self.tensors)
        at = number if index < 0 else index
        self.tensors.append(Tensor(storage, at, dtype, tuple(shape), name))
        return number

    def _view(self, source: int, ty: Any) -> int:
        base = self.tensors[source]
        return self.tensor(base.storage, base.index, str(ty.dtype), ty.shape, base.name)

    def _weight(self, param: Any) -> int:
        if param.name not in self.weights:
            at, ty = len(self.weights), param.ty
            self.weights[param.name] = self.tensor(
                Storage.WEIGHT, at, str(ty.dtype), ty.shape, param.name
            )
        return self.weights[param.name]

    # Outputs and lifetimes

    def _outputs(self, numbers: Sequence[int]) -> None:
        """Lets kernels write outputs in place; outputs that are something else are copied."""
        moved: dict[int, int] = {}  # arena buffer -> output
        for position, number in enumerate(numbers):
            tensor = self.tensors[number]
            if tensor.storage is Storage.ARENA and tensor.index not in moved:
                late = self.stage(self.signature.outputs[position].shape)
                # An output gets memory when its shape is known: not after its kernel ran.
                if late == 0 or self._first_stage(tensor.index) == late:
                    moved[tensor.index] = position
        for number, tensor in enumerate(self.tensors):
            if tensor.storage is Storage.ARENA and tensor.index in moved:
                self.tensors[number] = replace(
                    tensor, storage=Storage.OUTPUT, index=moved[tensor.index]
                )
        for position, number in enumerate(numbers):
            tensor = self.tensors[number]
            if tensor.storage is Storage.OUTPUT and tensor.index == position:
                continue
            port = self.signature.outputs[position]
            target = self.tensor(Storage.OUTPUT, position, tensor.dtype, port.shape, port.name)
            self.steps.append(Copy(number, target))

    def _first_stage(self, buffer: int) -> int:
        """The stage of what is first written to an arena buffer."""
        views = (t for t in self.tensors if t.storage is Storage.ARENA and t.index == buffer)
        return self.stage(next(views).shape)

    def _free_indices(self) -> None:
        """Numbers the arena buffers that are left by stage and, in each, in order of first use."""
        first: dict[int, int] = {}
        for tensor in self.tensors:
            if tensor.storage is Storage.ARENA:
                first.setdefault(tensor.index, self.stage(tensor.shape))
        order = sorted(first, key=lambda buffer: first[buffer])
        numbers = {buffer: number for number, buffer in enumerate(order)}
        self.buffer_stages = [first[buffer] for buffer in order]
        for at, tensor in enumerate(self.tensors):
            if tensor.storage is Storage.ARENA:
                self.tensors[at] = replace(tensor, index=numbers[tensor.index])

    def _lifetimes(self) -> tuple[Buffer, ...]:
        places = {id(step): at for at, step in enumerate(walk_steps(self.steps))}
        first, last = dict[int, int](), dict[int, int]()
        self._touch(self.steps, places, first, last)
        return tuple(
            Buffer(first.get(buffer, -1), last.get(buffer, -1), stage)
            for buffer, stage in enumerate(self.buffer_stages)
        )

    def _touch(
        self,
        steps: Sequence[Step],
        places: dict[int, int],
        first: dict[int, int],
        last: dict[int, int],
    ) -> None:
        for step in steps:
            for number in tensors_of(step):
                tensor = self.tensors[number]
                if tensor.storage is Storage.ARENA:
                    first.setdefault(tensor.index, places[id(step)])
                    last[tensor.index] = places[id(step)]
            if isinstance(step, Branch):
                self._touch(step.then, places, first, last)
                self._touch(step.other, places, first, last)
            elif isinstance(step, Loop):
                start = places[id(step)]
                self._touch(step.body, places, first, last)
                end = max(places[id(inner)] for inner in walk_steps([step]))
                for buffer, begin in first.items():
                    if begin < start <= last[buffer]:  # the next iteration reads it again
                        last[buffer] = end


def _caches(model: Model, name: str) -> frozenset[str]:
    """The inputs of the function that are a language model's caches."""
    if model.decoder is None or model.decoder.function != name:
        return frozenset()
    return frozenset(cache.name for cache in model.decoder.caches)


def tensors_of(step: Step) -> list[int]:
    """The tensors that a step itself reads or writes."""
    if isinstance(step, Kernel):
        return [a for a in step.args if isinstance(a, int)]
    if isinstance(step, CheckIndices | Measure):
        return [step.tensor]
    if isinstance(step, Copy):
        return [step.source, step.target]
    if isinstance(step, Store):
        return [step.source]
    if isinstance(step, Branch | Continue):
        return [step.condition]
    if isinstance(step, Loop):
        return [] if step.condition is None else [step.condition]
    assert isinstance(step, Assign | Observe | Enter | Clear | Expose), step
    return []

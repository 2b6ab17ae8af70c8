"""A lowered Relax function -> its static plan: tensors, arena buffers with lifetimes, steps."""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx
from tvm.ir import GenericConst

from graphc.codegen.plan import (
    Buffer,
    CheckIndices,
    Copy,
    FunctionPlan,
    Kernel,
    Scalar,
    Step,
    Storage,
    Tensor,
)
from graphc.codegen.rewrite import rewrite
from graphc.ir import Expr, Model

CHECK_INDICES = "graphc.check_indices"
FLOPS = "graphc.flops"
IN_PLACE = "graphc.inplace"
"""Attribute of a kernel: the number of the argument, a cache, whose memory its result is."""


def plan(model: Model, name: str) -> FunctionPlan:
    """The plan of the function `name` of a lowered model."""
    return _Planner(model, name).run()


class _Planner:
    """Walks the bindings once; a value is the number of a tensor from then on."""

    def __init__(self, model: Model, name: str) -> None:
        self.model, self.name = model, name
        self.function = model.mod[name]
        self.signature = model.signatures[name]
        self.tensors: list[Tensor] = []
        self.steps: list[Step] = []
        self.values: dict[Any, Any] = {}  # a tensor's number, or a list of them for a tuple
        self.weights: list[str] = []

    def run(self) -> FunctionPlan:
        inputs = len(self.signature.inputs)
        caches = _caches(self.model, self.name)
        for position, param in enumerate(self.function.params):
            if position < inputs:
                port = self.signature.inputs[position]
                storage = Storage.CACHE if port.name in caches else Storage.INPUT
                self.values[param] = self._tensor(storage, position, param.ty, port.name)
            else:
                self.weights.append(param.name)
                at = len(self.weights) - 1
                self.values[param] = self._tensor(Storage.WEIGHT, at, param.ty, param.name)
        body = self.function.body
        assert isinstance(body, relax.SeqExpr), type(body)
        for block in body.blocks:
            for binding in block.bindings:
                self._bind(binding)
        self._outputs(body.body)
        self._free_indices()
        return FunctionPlan(
            name=self.name,
            signature=self.signature,
            tensors=tuple(self.tensors),
            buffers=self._lifetimes(),
            steps=tuple(self.steps),
            weights=tuple(self.weights),
        )

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
            outputs = [self._tensor(Storage.ARENA, -1, ty, var.name) for ty in results]
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

    def _tensor(self, storage: Storage, index: int, ty: Any, name: str) -> int:
        """A new tensor; an arena tensor (index -1) gets a buffer of its own number."""
        number = len(self.tensors)
        at = number if index < 0 else index
        self.tensors.append(Tensor(storage, at, str(ty.dtype), tuple(ty.shape), name))
        return number

    def _view(self, source: int, ty: Any) -> int:
        base = self.tensors[source]
        return self._tensor(base.storage, base.index, ty, base.name)

    # Outputs and lifetimes

    def _outputs(self, result: Any) -> None:
        """Lets kernels write outputs in place; outputs that are something else are copied."""
        value = self.values[result] if not isinstance(result, relax.Tuple) else None
        numbers = [self._value(f) for f in result.fields] if value is None else value
        assert isinstance(numbers, list), "a graph function returns a tuple"
        moved: dict[int, int] = {}  # arena buffer -> output
        for position, number in enumerate(numbers):
            tensor = self.tensors[number]
            if tensor.storage is Storage.ARENA and tensor.index not in moved:
                moved[tensor.index] = position
        for number, tensor in enumerate(self.tensors):
            if tensor.storage is Storage.ARENA and tensor.index in moved:
                self.tensors[number] = Tensor(
                    Storage.OUTPUT, moved[tensor.index], tensor.dtype, tensor.shape, tensor.name
                )
        for position, number in enumerate(numbers):
            tensor = self.tensors[number]
            if tensor.storage is Storage.OUTPUT and tensor.index == position:
                continue
            target = len(self.tensors)
            port = self.signature.outputs[position]
            self.tensors.append(
                Tensor(Storage.OUTPUT, position, tensor.dtype, tensor.shape, port.name)
            )
            self.steps.append(Copy(number, target))

    def _free_indices(self) -> None:
        """Numbers the arena buffers that are left 0, 1, 2, ... in order of first use."""
        numbers: dict[int, int] = {}
        for at, tensor in enumerate(self.tensors):
            if tensor.storage is Storage.ARENA:
                index = numbers.setdefault(tensor.index, len(numbers))
                self.tensors[at] = Tensor(
                    tensor.storage, index, tensor.dtype, tensor.shape, tensor.name
                )
        self.buffer_count = len(numbers)

    def _lifetimes(self) -> tuple[Buffer, ...]:
        first = [-1] * self.buffer_count
        last = [-1] * self.buffer_count
        for at, step in enumerate(self.steps):
            for number in _tensors_of(step):
                tensor = self.tensors[number]
                if tensor.storage is Storage.ARENA:
                    if first[tensor.index] < 0:
                        first[tensor.index] = at
                    last[tensor.index] = at
        return tuple(Buffer(a, b) for a, b in zip(first, last, strict=True))


def _caches(model: Model, name: str) -> frozenset[str]:
    """The inputs of the function that are a language model's caches."""
    if model.decoder is None or model.decoder.function != name:
        return frozenset()
    return frozenset(cache.name for cache in model.decoder.caches)


def _tensors_of(step: Step) -> list[int]:
    if isinstance(step, Kernel):
        return [a for a in step.args if isinstance(a, int)]
    if isinstance(step, CheckIndices):
        return [step.tensor]
    return [step.source, step.target]

"""Small Relax models for the tests of the passes, compared by structure and by numbers.

A model is written as a function of its inputs and weights that returns Relax expressions; shapes
are tuples of ints and names of symbolic dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx

from graphc.ir import Dim, Model, Port, Signature
from graphc.passes.evaluate import evaluate, numpy_dtype
from graphc.passes.graph import Graph
from graphc.passes.node import Node
from graphc.passes.report import Report

op, nn, const = relax.op, relax.op.nn, relax.const

Shape = Sequence["int | str"]

# One table of tolerances for every test of numbers, by dtype: absolute and relative.
TOLERANCE = {"float32": (2e-5, 2e-5), "float16": (5e-3, 5e-3)}


def make(
    inputs: Mapping[str, tuple[Shape, str]],
    params: Mapping[str, np.ndarray],
    body: Callable[..., Any],
    dims: Sequence[Dim] = (),
) -> Model:
    """The Model of `body(dims, *inputs, *params)`, where `dims[name]` is a symbolic dimension."""
    names = {dim for shape, _ in inputs.values() for dim in shape if isinstance(dim, str)}
    symbols = {name: tirx.Var(name, "int64") for name in sorted(names)}

    def var(name: str, shape: Shape, dtype: str) -> relax.Var:
        extents = [symbols[dim] if isinstance(dim, str) else dim for dim in shape]
        return relax.Var(name, relax.TensorType(extents, dtype))

    variables = [var(name, *spec) for name, spec in inputs.items()]
    variables += [var(name, array.shape, str(array.dtype)) for name, array in params.items()]
    builder = relax.BlockBuilder()
    with builder.function("main", variables, attrs={"num_input": len(inputs)}):
        with builder.dataflow():
            results = body(symbols, *variables)
            results = results if isinstance(results, (tuple, list)) else [results]
            results = [
                value if isinstance(value, relax.Var) else builder.emit(value) for value in results
            ]
            gv = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(gv)
    known = {dim.name: dim for dim in dims}
    signature = Signature(
        tuple(
            Port(name, dtype, tuple(symbols.get(dim, dim) for dim in shape))
            for name, (shape, dtype) in inputs.items()
        ),
        tuple(
            Port(f"y{number}", str(value.ty.dtype), tuple(value.ty.shape.values))
            for number, value in enumerate(results)
        ),
        tuple(known.get(name, Dim(name)) for name in symbols),
    )
    return Model(builder.get(), dict(params), {"main": signature})


def apply(model: Model, *passes: Callable[[Model, Report], Model]) -> tuple[Model, Report]:
    """The model after some passes, well formed, and what they reported."""
    report = Report()
    for run in passes:
        model = run(model, report)
        relax.analysis.well_formed(model.mod)
    return model, report


def operators(model: Model) -> list[str]:
    """The names of the operators of main, in order."""
    (block,) = model.mod["main"].body.blocks
    names = []
    for binding in block.bindings:
        if isinstance(binding.value, tvm.ir.Call) and not isinstance(binding, relax.MatchCast):
            callee = binding.value.op
            known = isinstance(callee, tvm.ir.Op)
            names.append(callee.name.removeprefix("relax.") if known else callee.name_hint)
        elif isinstance(binding, relax.MatchCast):
            names.append("match_cast")
        elif isinstance(binding.value, relax.TupleGetItem):
            names.append("tuple_get_item")
    return names


def assert_same_module(found: Model, expected: Model) -> None:
    """Equal modules up to names of variables, and equal weights in the order of the parameters."""
    equal = tvm_ffi.structural_equal(found.mod, expected.mod, map_free_vars=True)
    assert equal, f"found\n{found.mod.script()}\nexpected\n{expected.mod.script()}"
    for left, right in zip(_weights(found), _weights(expected), strict=True):
        np.testing.assert_array_equal(left, right)


def _weights(model: Model) -> list[np.ndarray]:
    function = model.mod["main"]
    start = int(function.attrs["num_input"])
    return [np.asarray(model.params[param.name]) for param in list(function.params)[start:]]


def random_inputs(model: Model, dims: Mapping[str, int], seed: int = 0) -> list[np.ndarray]:
    """One value for every input; integers and booleans are 0 or 1."""
    generator = np.random.default_rng(seed)
    values = []
    for port in model.signatures["main"].inputs:
        shape = [dims[dim.name] if hasattr(dim, "name") else int(dim) for dim in port.shape]
        if port.dtype.startswith(("int", "bool", "uint")):
            values.append(generator.integers(0, 2, shape).astype(port.dtype))
        else:
            values.append(generator.standard_normal(shape).astype(numpy_dtype(port.dtype)))
    return values


def execute(model: Model, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs on TVM's own virtual machine."""
    target = tvm.target.Target({"kind": "llvm"})
    machine = relax.VirtualMachine(relax.build(model.mod, target), tvm.cpu())
    arguments = [tvm.runtime.tensor(np.ascontiguousarray(x)) for x in [*inputs, *_weights(model)]]
    return [result.numpy() for result in machine["main"](*arguments)]


def assert_same_numbers(
    before: Model, after: Model, dims: Mapping[str, int] | None = None, seed: int = 0
) -> None:
    """Both models give the same outputs for random inputs."""
    inputs = random_inputs(before, dims or {}, seed)
    for left, right in zip(execute(before, inputs), execute(after, inputs), strict=True):
        assert left.dtype == right.dtype
        assert left.shape == right.shape
        absolute, relative = TOLERANCE.get(str(left.dtype), (0, 0))
        np.testing.assert_allclose(left, right, atol=absolute, rtol=relative, equal_nan=True)


def interpret(model: Model, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs by numpy, for fixed shapes and the operators that constant folding knows."""
    graph = Graph(model)
    names = [port.name for port in model.signatures["main"].inputs]
    values = dict(zip(names, inputs, strict=True))
    known: dict[Node, np.ndarray] = {}
    for node in graph.nodes():
        if node.op == "input":
            known[node] = values[node.name]
        elif node.is_constant:
            known[node] = graph.value(node)
        elif node.op == "nn.relu":
            known[node] = np.maximum(known[node.inputs[0]], 0)
        else:
            known[node] = evaluate(node, [known[source] for source in node.inputs])
    return [known[node] for node in graph.outputs]

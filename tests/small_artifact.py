"""A hand-made artifact for tests of the runtime: no importer, no passes, a few TE kernels.

main    ids [batch, sequence] in [-50, 49], x [batch, sequence, 8]
        -> y    [batch, sequence, 8]    2 * (table[ids] + x) + bias, through arena buffers
           flat [batch*sequence, 8]     the same values, written through a reshaped view
           x_copy, bias_copy            outputs that are an input and a weight
           even [batch, sequence]       bool
square  a [n, n + 1] with n == 3 needed by a constraint -> b [n + 1, n]  (int32)
broken  x [batch] -> y [batch], whose kernel is called with a tensor of another rank
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import s_tir, te, tirx

from graphc import artifact
from graphc.codegen import host, link
from graphc.codegen.plan import (
    Buffer,
    CheckIndices,
    Copy,
    FunctionPlan,
    Kernel,
    Scalar,
    Storage,
    Tensor,
)
from graphc.ir import Constraint, Dim, Port, Signature

ROWS, WIDTH, MAX_SEQUENCE = 50, 8, 64
Array = npt.NDArray[Any]


def weights(rows: int = ROWS) -> dict[str, Array]:
    """The table and the bias; `rows` makes the file as large as a test needs."""
    random = np.random.default_rng(0)
    return {
        "table": random.standard_normal((rows, WIDTH)).astype("float32"),
        "bias": random.standard_normal(WIDTH).astype("float32"),
        "order": np.arange(7, dtype="int64"),
    }


def feeds(batch: int = 3, sequence: int = 5, seed: int = 1) -> dict[str, Array]:
    """Inputs of `main`."""
    random = np.random.default_rng(seed)
    return {
        "ids": random.integers(-ROWS, ROWS, (batch, sequence)),
        "x": random.standard_normal((batch, sequence, WIDTH)).astype("float32"),
    }


def reference(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """What `main` computes."""
    table, bias = weights()["table"], weights()["bias"]
    y = 2 * (table[inputs["ids"]] + inputs["x"]) + bias
    return {
        "y": y,
        "flat": y.reshape(-1, WIDTH),
        "x_copy": inputs["x"],
        "bias_copy": bias,
        "even": inputs["ids"] % 2 == 0,
    }


def kernels(rows: int = ROWS, features: tuple[str, ...] = ()) -> bytes:
    """The object file of all kernels."""
    functions = {**_main_kernels(rows), **_other_kernels()}
    mod = {}
    for name, function in functions.items():
        schedule = s_tir.Schedule(function.with_attr("global_symbol", name))
        for block in schedule.get_child_blocks(schedule.get_sblock("root")):
            schedule.parallel(schedule.get_loops(block)[0])
        mod[name] = schedule.mod["main"].with_attr("global_symbol", name)
    options: dict[str, Any] = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64"}
    if features:
        options["mattr"] = [f"+{feature}" for feature in features]
    library = tvm.compile(tvm.IRModule(mod), target=tvm.target.Target(options))
    return _object_bytes(library)


def plans(rows: int = ROWS) -> list[FunctionPlan]:
    """The three functions above."""
    return [_main_plan(rows), _square_plan(), _broken_plan()]


def build(place: Path, *, rows: int = ROWS, triple: str = link.DEFAULT_TRIPLE) -> Path:
    """Compile, link and publish the artifact at `place`."""
    with artifact.publish(place) as draft:
        table = draft.write_weights(weights(rows))
        source = host.print_program(plans(rows), table, ["sse2"])
        link.build(source, [kernels(rows)], draft.path, triple=triple)
        draft.write_manifest(
            artifact.Manifest(
                target=artifact.TargetInfo("test", "x86_64", triple, ("sse2",)),
                functions=tuple(host.describe(plan) for plan in plans(rows)),
                weights=table,
                kernels=(artifact.KernelInfo("embed", "test"),),
                source="hand-made",
            )
        )
    return place


def _object_bytes(library: Any) -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "kernels.o"
        library.mod.write_to_file(str(path))
        return path.read_bytes()


def _main_kernels(rows: int) -> dict[str, Any]:
    b, s = tirx.Var("b", "int64"), tirx.Var("s", "int64")
    n = tirx.Var("n", "int64")
    ids = te.placeholder((b, s), "int64", name="ids")
    x = te.placeholder((b, s, WIDTH), "float32", name="x")
    table = te.placeholder((rows, WIDTH), "float32", name="table")

    def element(i: Any, j: Any, k: Any) -> Any:
        row = tirx.if_then_else(ids[i, j] < 0, ids[i, j] + ROWS, ids[i, j])
        return table[row, k] + x[i, j, k]

    embedded = te.compute((b, s, WIDTH), element, name="embedded")
    wide = te.placeholder((n, WIDTH), "float32", name="wide")
    bias = te.placeholder((WIDTH,), "float32", name="bias")
    factor = tirx.Var("factor", "int64")
    scaled = te.compute(
        (n, WIDTH), lambda i, k: wide[i, k] * factor.astype("float32") + bias[k], name="scaled"
    )
    even = te.compute(
        (b, s), lambda i, j: tirx.floormod(ids[i, j], 2).equal(tirx.const(0, "int64")), name="even"
    )
    return {
        "embed": te.create_prim_func([ids, table, x, embedded]),
        "scale": te.create_prim_func([wide, bias, factor, scaled]),
        "is_even": te.create_prim_func([ids, even]),
    }


def _other_kernels() -> dict[str, Any]:
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    a = te.placeholder((n, m), "int32", name="a")
    b = te.compute((m, n), lambda i, j: a[j, i], name="b")
    return {"turn": te.create_prim_func([a, b])}


def _main_plan(rows: int) -> FunctionPlan:
    b, s = tirx.Var("batch", "int64"), tirx.Var("sequence", "int64")
    cube, flat = (b, s, WIDTH), (b * s, WIDTH)
    signature = Signature(
        inputs=(
            Port("ids", "int64", (b, s), (-ROWS, ROWS - 1)),
            Port("x", "float32", cube),
        ),
        outputs=(
            Port("y", "float32", cube),
            Port("flat", "float32", flat),
            Port("x_copy", "float32", cube),
            Port("bias_copy", "float32", (WIDTH,)),
            Port("even", "bool", (b, s)),
        ),
        dims=(Dim("batch"), Dim("sequence", 1, MAX_SEQUENCE)),
    )
    tensors = (
        Tensor(Storage.INPUT, 0, "int64", (b, s), "ids"),
        Tensor(Storage.INPUT, 1, "float32", cube, "x"),
        Tensor(Storage.WEIGHT, 0, "float32", (rows, WIDTH), "table"),
        Tensor(Storage.WEIGHT, 1, "float32", (WIDTH,), "bias"),
        Tensor(Storage.ARENA, 0, "float32", cube, "embedded"),
        Tensor(Storage.ARENA, 0, "float32", flat, "embedded (reshaped)"),
        Tensor(Storage.ARENA, 1, "float32", flat, "scaled"),
        Tensor(Storage.ARENA, 1, "float32", cube, "scaled (reshaped)"),
        Tensor(Storage.OUTPUT, 0, "float32", cube, "y"),
        Tensor(Storage.OUTPUT, 1, "float32", flat, "flat"),
        Tensor(Storage.OUTPUT, 2, "float32", cube, "x_copy"),
        Tensor(Storage.OUTPUT, 3, "float32", (WIDTH,), "bias_copy"),
        Tensor(Storage.OUTPUT, 4, "bool", (b, s), "even"),
    )
    steps = (
        CheckIndices(0, -ROWS, ROWS - 1, "where: Gather node /embeddings/Gather"),
        Kernel("embed", (0, 2, 1, 4), (4,), "test"),
        Kernel("scale", (5, 3, Scalar(2), 6), (6,), "test"),
        Kernel("scale", (5, 3, Scalar(b * 0 + 2), 9), (9,), "test"),
        Copy(7, 8),
        Copy(1, 10),
        Copy(3, 11),
        Kernel("is_even", (0, 12), (12,), "test"),
    )
    return FunctionPlan(
        "main", signature, tensors, (Buffer(1, 3), Buffer(2, 4)), steps, ("table", "bias")
    )


def _square_plan() -> FunctionPlan:
    n = tirx.Var("n", "int64")
    signature = Signature(
        inputs=(Port("key", "int32", (n,)), Port("a", "int32", (n, n + 1))),
        outputs=(Port("b", "int32", (n + 1, n)),),
        dims=(Dim("n", 1, 5),),
        constraints=(Constraint(n * 2, 6, 'node "/sq" multiplies [n*2] and [6] */ %s'),),
    )
    tensors = (
        Tensor(Storage.INPUT, 1, "int32", (n, n + 1), "a"),
        Tensor(Storage.OUTPUT, 0, "int32", (n + 1, n), "b"),
    )
    return FunctionPlan("square", signature, tensors, (), (Kernel("turn", (0, 1), (1,)),), ())


def _broken_plan() -> FunctionPlan:
    b = tirx.Var("batch", "int64")
    signature = Signature(
        inputs=(Port("x", "int32", (b,)),),
        outputs=(Port("y", "int32", (b,)),),
        dims=(Dim("batch"),),
    )
    tensors = (
        Tensor(Storage.INPUT, 0, "int32", (b,), "x"),
        Tensor(Storage.OUTPUT, 0, "int32", (b,), "y"),
    )
    return FunctionPlan("broken", signature, tensors, (), (Kernel("turn", (0, 1), (1,)),), ())

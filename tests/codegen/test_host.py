"""The printed host program: its lines, what is shared in it, and names that attack C."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import small_artifact
from c_compiler import compile_c
from tvm import tirx

from graphc.artifact import WeightTable
from graphc.codegen import host
from graphc.codegen.plan import CheckIndices, FunctionPlan, Kernel, Storage, Tensor
from graphc.errors import ConfigError
from graphc.ir import Constraint, Dim, Port, Signature
from graphc.weights_file import table_digest, write

EMPTY = WeightTable((), 4096, table_digest(()))


@pytest.fixture
def table(tmp_path: Path) -> WeightTable:
    return write(tmp_path / "weights.bin", small_artifact.weights())


def test_steps_are_one_readable_line_each(table: WeightTable) -> None:
    source = host.print_program(small_artifact.plans(), table)
    run = source[source.index("static int f0_run") : source.index("/* square */")]
    assert run.splitlines()[1:5] == [
        "  /* 0: -50 <= ids [batch, sequence] <= 49 */",
        "  if (gc_step_check(f, 0, f->scalars[0], f->scalars[1], "
        '"where: Gather node /embeddings/Gather")) return f->error->code;',
        "  /* 1: embedded [batch, sequence, 8] = embed(ids [batch, sequence], table [50, 8], "
        "x [batch, sequence, 8]) */",
        '  if (gc_step_kernel(f, "embed", __tvm_ffi_embed, 0, 4)) return f->error->code;',
    ]
    assert "  /* 5: x_copy [batch, sequence, 8] = x [batch, sequence, 8] */" in run
    assert run.count("gc_step_kernel") == 4 and run.count("gc_step_copy") == 3


def test_equal_shapes_are_computed_once(table: WeightTable) -> None:
    source = host.print_program(small_artifact.plans(), table)
    bind = source[source.index("static int f0_bind") : source.index("static int f0_run")]
    assert bind.count("/* [batch, sequence, 8] */") == 1
    assert bind.count("gc_mul(f, n_batch, n_sequence)") == 1
    assert re.search(r"s\[\d+\] = n_batch; s\[\d+\] = n_sequence; s\[\d+\] = 8;", bind)


def test_same_plans_same_text(table: WeightTable) -> None:
    features = ["sse2", "avx2"]
    first = host.print_program(small_artifact.plans(), table, features)
    assert first == host.print_program(small_artifact.plans(), table, features[::-1])


def test_unknown_feature(table: WeightTable) -> None:
    assert {"avx2", "avx512bf16", "dotprod", "i8mm"} <= host.KNOWN_CPU_FEATURES
    with pytest.raises(ConfigError, match="'quantum' cannot be checked at run time"):
        host.print_program(small_artifact.plans(), table, ["avx2", "quantum"])


HOSTILE = 'x*/ int bad; /* "\\ %s %n ??/\n\r\x00\x07é日\N{ZERO WIDTH SPACE}' + "n" * 3000


def hostile_plan() -> FunctionPlan:
    """Every string that comes from a model is hostile, and two dimensions clean to one name."""
    n, m = tirx.Var("a b", "int64"), tirx.Var("a/b", "int64")
    signature = Signature(
        inputs=(Port(HOSTILE, "int64", (n, m), (0, 3)),),
        outputs=(),
        dims=(Dim("a b"), Dim("a/b", 1, 4)),
        constraints=(Constraint(n, m, HOSTILE),),
    )
    tensors = (Tensor(Storage.INPUT, 0, "int64", (n, m), HOSTILE),)
    steps = (CheckIndices(0, 0, 3, HOSTILE),)
    return FunctionPlan(HOSTILE, signature, tensors, (), steps, ())


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    source = host.print_program([hostile_plan()], EMPTY)
    assert source.isascii() and "int bad; */" not in source
    (tmp_path / "host.c").write_text(source)
    flags = ["-c", "-Wall", "-Wextra", "-Werror", "-std=c11"]
    compile_c([*flags, tmp_path / "host.c"], tmp_path / "host.o")


def test_describe() -> None:
    info = host.describe(small_artifact.plans()[1])
    assert info.inputs[1].shape == ("n", "n + 1") and info.outputs[0].shape == ("n + 1", "n")
    assert info.constraints[0].startswith("n*2 == 6: node")
    assert [(dim.name, dim.lower, dim.upper) for dim in info.dims] == [("n", 1, 5)]


def test_plans_that_cannot_be(table: WeightTable) -> None:
    plan = small_artifact.plans()[0]
    signature = replace(plan.signature, dims=(*plan.signature.dims, Dim("free")))
    with pytest.raises(AssertionError, match="dimension 'free' is bound by no input"):
        host.print_program([replace(plan, signature=signature)], table)
    with pytest.raises(AssertionError, match="no C identifier"):
        host.print_program([replace(plan, steps=(Kernel("a b", (0,), ()),))], table)
    beyond = replace(plan.tensors[0], index=7)
    with pytest.raises(AssertionError, match="index=7"):
        host.print_program([replace(plan, tensors=(beyond, *plan.tensors[1:]))], table)

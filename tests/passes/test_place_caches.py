"""Where caches are placed: by what reads them, whatever type is asked for."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import relax, tirx

from graphc.codegen import templates
from graphc.codegen.plan import Kernel, Storage
from graphc.codegen.planner import plan
from graphc.ir import CacheInfo, DecoderInfo, Dim, Model, Port, Signature
from graphc.passes import paged
from graphc.passes.lower import lower
from graphc.passes.place_caches import place_caches
from graphc.targets import load as targets

op = relax.op
HEADS, DEPTH = 2, 8


def model(read: str = "", shared: bool = False, dtype: str = "float32") -> Model:
    """One attention; `read` names a cache that another operator reads as well."""
    t, s, p, n = (tirx.Var(name, "int64") for name in ("t", "s", "p", "n"))
    names = ["keys"] if shared else ["keys", "values"]
    ports = [
        Port("q", "float32", (t, 2 * HEADS, DEPTH)),
        Port("value", dtype, (t, HEADS, DEPTH)),
        Port("slots", "int32", (t,)),
        Port("starts", "int32", (s + 1,)),
        Port("lengths", "int32", (s,)),
        Port("table", "int32", (s, p)),
        *(Port(name, dtype, (n, paged.PAGE_SIZE, HEADS, DEPTH)) for name in names),
    ]
    inputs = [relax.Var(x.name, relax.TensorType(list(x.shape), x.dtype)) for x in ports]
    builder = relax.BlockBuilder()
    append = builder.add_func(paged.append_function(HEADS, DEPTH, dtype), "append")
    what = paged.PagedAttention(0.5, DEPTH)
    extents = [HEADS, DEPTH]
    function = paged.attention_function(what, 2 * HEADS, extents, extents, dtype)
    attend = builder.add_func(function, "attend")
    q, value, slots, *batch = inputs[:6]
    with builder.function("step", inputs, attrs={"num_input": len(inputs)}):
        with builder.dataflow():
            caches = {
                name: builder.emit(relax.Call(append, [cache, value, slots]))
                for name, cache in zip(names, inputs[6:], strict=True)
            }
            keys, values = caches["keys"], caches[names[-1]]
            out = builder.emit(relax.Call(attend, [q, keys, values, *batch]))
            results = [out]
            if read:
                results.append(builder.emit(op.take(caches[read], slots, axis=0)))
            result = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(result)
    outputs = [Port("out", "float32", (t, 2 * HEADS, DEPTH))]
    outputs += [Port("read", dtype, (t, paged.PAGE_SIZE, HEADS, DEPTH))] * bool(read)
    signature = Signature(
        tuple(ports), tuple(outputs), tuple(Dim(name) for name in ("t", "s", "p", "n"))
    )
    caches_info = tuple(CacheInfo(name, HEADS, DEPTH, dtype) for name in names)
    return Model(builder.get(), {}, {"step": signature}, decoder=DecoderInfo(caches_info, 100, 64))


def placed(source: Model, cache_dtype: str) -> tuple[dict[str, tuple[str, int]], list[Any]]:
    """Type and last extent of each cache, and the kernels of the plan that write to one."""
    target = targets.get("host")
    result = place_caches(source, target, cache_dtype)
    relax.analysis.well_formed(result.mod)
    caches = {
        port.name: (port.dtype, int(port.shape[3]))
        for port in result.signatures["step"].inputs
        if port.name in ("keys", "values")
    }
    made = plan(lower(result, target), "step")
    writes = [
        step
        for step in made.steps
        if isinstance(step, Kernel)
        and any(made.tensors[w].storage is Storage.CACHE for w in step.writes)
    ]
    for step in writes:  # in place: the result is the argument's memory
        written = made.tensors[step.writes[0]]
        assert written.index == made.tensors[step.args[0]].index
        assert step.template.startswith("cache_append")
    return caches, writes


@pytest.mark.parametrize(
    ("dtype", "kind", "stored"),
    [("f32", "float32", 8), ("bf16", "bfloat16", 8), ("f16", "float16", 8), ("int8", "int8", 12)],
)
def test_caches_of_attention_alone(dtype: str, kind: str, stored: int) -> None:
    caches, writes = placed(model(), dtype)
    assert caches == {"keys": (kind, stored), "values": (kind, stored)} and len(writes) == 2
    caches, writes = placed(model(shared=True), dtype)
    assert caches == {"keys": (kind, stored)} and len(writes) == 1


@pytest.mark.parametrize("read", ["keys", "values"])
def test_a_cache_that_others_read_stays_as_it_is(read: str) -> None:
    caches, writes = placed(model(read), "int8")
    assert caches[read] == ("float32", 8) and len(writes) == 2
    assert caches["values" if read == "keys" else "keys"] == ("int8", 12)


def test_a_model_in_half_precision() -> None:
    caches, writes = placed(model(dtype="float16"), "bf16")
    assert caches == {"keys": ("bfloat16", 8), "values": ("bfloat16", 8)} and len(writes) == 2


def test_a_cache_that_no_kernel_writes_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {k: v for k, v in templates.OPERATORS.items() if k != paged.CACHE_APPEND}
    monkeypatch.setattr(templates, "OPERATORS", others)  # as for a device without such a kernel
    target = targets.get("host")
    lowered = lower(place_caches(model(), target, "f32"), target)
    with pytest.raises(AssertionError, match=r"step: no kernel writes \['keys', 'values'\]"):
        plan(lowered, "step")


def test_other_models_are_left_alone() -> None:
    source = model()
    assert place_caches(
        Model(source.mod, {}, source.signatures), targets.get("host"), "int8"
    ).mod.same_as(source.mod)

"""The attention kernel against float64, at token counts around the edges of its tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from references import attention as reference
from tvm import relax, tirx

from graphc.codegen.cpu import build_module
from graphc.codegen.templates import attention
from graphc.targets import load as targets

TOKENS = [(1, 1, 1), (1, 1, 20), (2, 5, 5), (1, 6, 6), (2, 7, 16), (1, 17, 17), (3, 13, 70)]
TOKENS += [(1, 130, 130), (2, 64, 200)]


class Argument:
    """What a template asks of a call's argument: its type."""

    def __init__(self, shape: list[Any]) -> None:
        self.ty = relax.TensorType(shape, "float32")


def kernel(
    heads: int, groups: int, depth: int, values: int, bias: str, causal: bool, guard: bool
) -> Any:
    b, s, t = (tirx.Var(name, "int64") for name in "bst")
    arguments = [
        Argument([b, s, heads, depth]),
        Argument([b, t, groups, depth]),
        Argument([b, t, groups, values]),
    ]
    if bias:
        extents = {"b": b, "h": heads, "s": s, "1": 1}
        arguments.append(Argument([*(extents[c] for c in bias), t]))
    attrs = {"scale": 0.3, "causal": causal, "guard": guard}
    host = targets.get("host")
    result = Argument([b, s, heads, values]).ty
    function = attention.build(arguments, attrs, result, host)
    assert function is not None
    return build_module({"attention": function}, host)["attention"]


@pytest.mark.parametrize(
    ("heads", "groups", "depth", "values", "bias", "causal", "guard"),
    [
        (4, 4, 32, 32, "", False, False),
        (4, 2, 64, 64, "", True, False),
        (3, 3, 24, 24, "b1s", False, True),
        (2, 1, 20, 13, "1hs", True, True),
        (2, 2, 16, 80, "b11", False, False),
    ],
)
def test_equals_the_formula(
    heads: int, groups: int, depth: int, values: int, bias: str, causal: bool, guard: bool
) -> None:
    import tvm

    run = kernel(heads, groups, depth, values, bias, causal, guard)
    random = np.random.default_rng(7)
    for batch, queries, keys in TOKENS:
        shapes = [
            (batch, queries, heads, depth),
            (batch, keys, groups, depth),
            (batch, keys, groups, values),
        ]
        inputs = [random.standard_normal(shape).astype("float32") for shape in shapes]
        mask = None
        if bias:
            extents = {"b": batch, "h": heads, "s": queries, "1": 1}
            shape = (*(extents[c] for c in bias), keys)
            mask = random.standard_normal(shape).astype("float32")
            mask[..., keys // 2 + 1 :] = -np.inf
            if guard:
                mask[0, 0, 0] = -np.inf
            inputs.append(mask)
        out = tvm.runtime.tensor(np.full((batch, queries, heads, values), 9, "float32"))
        run(*map(tvm.runtime.tensor, inputs), out)
        expected = reference(*inputs[:3], 0.3, mask, causal, guard)
        np.testing.assert_allclose(out.numpy(), expected, atol=3e-6, rtol=1e-5)


def test_a_row_that_sees_nothing_is_nan_without_the_guard() -> None:
    import tvm

    run = kernel(1, 1, 16, 16, "b1s", False, False)
    q = np.ones((1, 1, 1, 16), "float32")
    mask = np.full((1, 1, 1, 1), -np.inf, "float32")
    out = tvm.runtime.tensor(np.zeros_like(q))
    run(*(tvm.runtime.tensor(x) for x in (q, q, q, mask)), out)
    assert np.isnan(out.numpy()).all()

"""Schemes of few bits: names, round-to-nearest and GPTQ, and which weights of a model take part."""

from __future__ import annotations

import numpy as np
import pytest
from relax_models import make, nn, op, operators

from graphc.errors import ConfigError
from graphc.passes import rounding
from graphc.passes.keep_quantized import keep_quantized
from graphc.passes.nbits_scheme import parse
from graphc.passes.quantize_nbits import quantize_nbits
from graphc.passes.quantized_products import quantized_products
from graphc.passes.report import Report

GENERATOR = np.random.default_rng()


def test_names() -> None:
    scheme = parse("q4-sym-g128-gptq-head6")
    assert scheme is not None
    assert (scheme.bits, scheme.group, scheme.symmetric, scheme.gptq) == (4, 128, True, True)
    assert (scheme.head_bits, scheme.embedding_bits) == (6, 6)
    assert parse("int8") is None
    assert parse("q9") is None
    with pytest.raises(ConfigError, match="groups of 24"):
        parse("q4-g24")


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [3, 4, 8])
def test_nearest_is_within_half_a_step(bits: int, symmetric: bool) -> None:
    weight = GENERATOR.standard_normal((64, 12)).astype(np.float32)
    weight[:32, 3] = 0
    grid = rounding.grid(weight, bits, 32, symmetric)
    packed = grid.packed(rounding.nearest(weight, grid), "int8")
    # The symmetric grid has one step less on the other side of its largest element.
    limit = np.repeat(np.abs(grid.scales), 32, 0) * (1.01 if symmetric else 0.51)
    assert (np.abs(packed.plain() - weight) <= limit + 2e-3).all()
    assert (packed.minima is None) == symmetric


def test_gptq_beats_nearest_on_correlated_inputs() -> None:
    mixing = GENERATOR.standard_normal((64, 64)) * np.geomspace(1, 0.02, 64)[:, None]
    x = (GENERATOR.standard_normal((400, 64)) @ mixing).astype(np.float32)
    x[:, 5] = 0
    weight = GENERATOR.standard_normal((64, 24)).astype(np.float32)
    grid = rounding.grid(weight, 3, 32, False)
    errors = {}
    moments = x.T.astype(float) @ x
    for name, codes in {
        "nearest": rounding.nearest(weight, grid),
        "gptq": rounding.gptq(weight, grid, moments),
    }.items():
        errors[name] = np.linalg.norm(x @ (grid.packed(codes, "int8").plain() - weight))
    assert errors["gptq"] < 0.7 * errors["nearest"], errors


def test_products_tables_and_heads_of_a_model() -> None:
    def body(dims, rows, table, inner, small, head):
        x = op.take(table, rows, axis=0)
        x = nn.relu(op.matmul(x, inner))
        x = op.add(op.matmul(x, small), x)
        return op.matmul(x, op.permute_dims(head))

    params = {
        "table": GENERATOR.standard_normal((128, 64)).astype(np.float32),
        "inner": GENERATOR.standard_normal((64, 64)).astype(np.float32),
        "small": np.eye(64, dtype=np.float32)[:, :64] * 0,
        "head": GENERATOR.standard_normal((128, 64)).astype(np.float32),
    }
    scheme = parse("q4")
    assert scheme is not None
    model = make({"rows": (("b", "s"), "int64")}, params, body)
    found = quantize_nbits(model, scheme)
    shown = {n: (q.bits, q.group, q.transposed) for n, q in found.quantized.items()}
    assert shown == {
        "table": (8, 32, True),
        "inner": (4, 32, False),
        "small": (4, 32, False),
        "head": (8, 32, True),
    }
    final = quantized_products(keep_quantized(found, Report()), Report())
    assert [name for name in operators(final) if "quantized" in name] == [
        "quantized_take",
        "quantized_matmul",
        "quantized_matmul_1",
        "quantized_matmul_2",
    ] or operators(final).count("quantized_matmul") >= 2


def test_gptq_collects_the_moments_of_each_input() -> None:
    weight = GENERATOR.standard_normal((64, 64)).astype(np.float32)
    model = make({"x": (("b", "s", 64), "float32")}, {"w": weight}, lambda _, x, w: op.matmul(x, w))
    seen = []

    def run(observed, data):
        seen.append([port.name for port in observed.signatures["main"].outputs])
        return [[feeds["x"] @ weight, feeds["x"][0].T @ feeds["x"][0]] for feeds in data]

    scheme = parse("q3-g64-gptq")
    assert scheme is not None
    data = [{"x": GENERATOR.standard_normal((1, 100, 64)).astype(np.float32)} for _ in range(2)]
    found = quantize_nbits(model, scheme, run, data)
    assert seen == [["y0", "graphc.moments.0"]]
    assert found.quantized["w"].group == 64
    with pytest.raises(ConfigError, match="--calibration"):
        quantize_nbits(model, scheme)

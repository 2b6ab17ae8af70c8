"""Random mixtures of experts, within what ONNX Runtime's CPU provider takes."""

from __future__ import annotations

from typing import Any

import numpy as np
from contrib_models import Case, normal
from test_matmul import packed

HIDDEN, INNER, EXPERTS = 32, 64, 4


def _routing(rng: np.random.Generator) -> tuple[dict[str, Any], int]:
    name = str(rng.choice(["relu", "silu", "gelu", "identity", "swiglu", "swiglu"]))
    attributes: dict[str, Any] = {
        "activation_type": name,
        "k": int(rng.integers(1, 4)),
        "normalize_routing_weights": int(rng.integers(2)),
    }
    if name == "swiglu":
        attributes["swiglu_fusion"] = 1
        if rng.random() < 0.6:
            limits = {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 1.5}
            attributes |= limits
    return attributes, INNER * (2 if name == "swiglu" else 1)


def _tokens(case: Case, rng: np.random.Generator) -> None:
    if rng.random() < 0.5:
        case.feed(normal(rng, 2, 3, HIDDEN), ("b", "s", HIDDEN))
        case.feed(normal(rng, 6, EXPERTS), ("t", EXPERTS))
    else:
        case.feed(normal(rng, 5, HIDDEN), ("t", HIDDEN)).feed(normal(rng, 5, EXPERTS),
                                                              ("t", EXPERTS))  # fmt: skip


def dense(rng: np.random.Generator) -> Case:
    attributes, wide = _routing(rng)
    case = Case("MoE", attributes)
    _tokens(case, rng)
    for outputs, inputs in ((wide, HIDDEN), (HIDDEN, INNER)):
        case.constant(normal(rng, EXPERTS, outputs, inputs) / 5)
        case.constant(normal(rng, EXPERTS, outputs) if rng.random() < 0.6 else None)
    return case


def quantized(rng: np.random.Generator) -> Case:
    attributes, wide = _routing(rng)
    bits, size = int(rng.choice([4, 8])), int(rng.choice([0, 16, 32]))
    if bits == 8:
        size = 0  # with blocks ONNX Runtime rounds the activations to 8 bits, too
    attributes |= {"expert_weight_bits": bits}
    if size:
        attributes["block_size"] = size
    case = Case("QMoE", attributes)
    _tokens(case, rng)
    zeros = []
    for outputs, inputs in ((wide, HIDDEN), (HIDDEN, INNER)):
        q = rng.integers(0, 1 << bits, (EXPERTS, outputs, inputs))
        blocks = (inputs // size,) if size else ()
        case.constant(packed(q, bits))
        case.constant(np.abs(normal(rng, EXPERTS, outputs, *blocks)) * 0.2 / (1 << (bits - 1)))
        case.constants[case.names[-1]] = case.constants[case.names[-1]].astype("float32")
        case.constant(normal(rng, EXPERTS, outputs) if rng.random() < 0.6 else None)
        zeros.append(packed(rng.integers(0, 1 << bits, (EXPERTS, outputs, *blocks)), bits))
    case.constant(None).constant(None).constant(None)
    if rng.random() < 0.5:
        case.constant(zeros[0]).constant(zeros[1])
    return case

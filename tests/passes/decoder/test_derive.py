"""Derived steps against the full forward of the same model, and models that must be refused."""

from __future__ import annotations

import numpy as np
import pytest
import toy_decoders as toys
from relax_models import execute, op
from stepping import Stepper, ragged_logits
from toy_decoders import SIZE, VOCABULARY, Toy

from graphc.ir import Model
from graphc.passes import pipeline
from graphc.passes.decoder.derive import derive
from graphc.passes.decoder.lane import Mixes
from graphc.passes.decoder.mask import NotCausal
from graphc.passes.decoder.specialise import NotADecoder, specialise
from graphc.passes.graph import Graph
from graphc.passes.paged import PAGED_ATTENTION


def stepped(model: Model) -> Model:
    return derive(pipeline.graph(specialise(model), None))


def attention(model: Model) -> dict[str, object]:
    """The attributes of its one attention."""
    graph = Graph(model, "step")
    callees = [graph.callee(node).attrs for node in graph.nodes() if node.op == "call"]
    (found,) = (attrs for attrs in callees if attrs["Composite"] == PAGED_ATTENTION)
    return {name: found[name] for name in ("scale", "window", "softcap", "has_slopes", "has_sinks")}


def assert_steps_equal_the_whole(model: Model, derived: Model) -> None:
    random = np.random.default_rng()
    sequences = {name: random.integers(0, VOCABULARY, n) for name, n in (("a", 37), ("b", 17))}
    found = ragged_logits(Stepper(derived), sequences)
    for name, tokens in sequences.items():
        (whole,) = execute(model, [tokens[None]])
        np.testing.assert_allclose(found[name], whole[0], atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(
    ("toy", "attributes"),
    [
        (Toy(toys.by_comparison, groups=2), {}),
        (Toy(toys.by_table, groups=1), {}),
        (Toy(toys.by_tril), {}),
        (Toy(toys.windowed(5), softcap=2.5, sinks=True, groups=2),
         {"window": 5, "softcap": 2.5, "has_sinks": True}),
        (Toy(toys.alibi), {"has_slopes": True}),
    ],
    ids=["comparison", "table", "tril", "window, cap and sink", "alibi"],
)  # fmt: skip
def test_a_step_equals_the_whole(toy: Toy, attributes: dict[str, object]) -> None:
    model = toys.build(toy)
    derived = stepped(model)
    plain = {"scale": pytest.approx(SIZE**-0.5), "window": 0, "softcap": 0.0}
    expected = {**plain, "has_slopes": False, "has_sinks": False, **attributes}
    assert attention(derived) == expected
    assert derived.decoder is not None
    assert {(c.heads, c.width) for c in derived.decoder.caches} == {(toy.groups, SIZE)}
    assert derived.decoder.max_context == toys.ROWS
    assert_steps_equal_the_whole(model, derived)


def test_a_wide_window_is_found_without_a_wide_mask() -> None:
    derived = stepped(toys.build(Toy(toys.windowed(40))))
    assert attention(derived)["window"] == 40


def test_only_rows_that_are_wanted_pass_the_head() -> None:
    derived = stepped(toys.build(Toy(toys.by_comparison)))
    graph = Graph(derived, "step")
    head = graph.outputs[0]
    while head.op != "matmul":
        head = head.inputs[0]
    assert [str(extent) for extent in head.shape] == ["1", "logit_rows", str(VOCABULARY)]


@pytest.mark.parametrize(
    ("toy", "error", "match"),
    [
        (Toy(toys.unmasked), NotCausal, "there is no mask"),
        (Toy(toys.peeking), NotCausal, "the query at 0 sees the key at 1"),
        (Toy(toys.by_comparison, mix=lambda x: op.add(x, op.mean(x, [1], True))), Mixes,
         r"\(mean\) mixes positions"),
        (Toy(toys.by_comparison, mix=lambda x: op.flip(x, 1)), Mixes, "mixes positions"),
        (Toy(toys.by_comparison, mix=lambda x: op.cumsum(x, 1)), Mixes, "mixes positions"),
    ],
    ids=["no mask", "sees the next", "mean", "flip", "cumsum"],
)  # fmt: skip
def test_what_mixes_positions_is_named(toy: Toy, error: type[NotADecoder], match: str) -> None:
    with pytest.raises(error, match=match):
        stepped(toys.build(toy))

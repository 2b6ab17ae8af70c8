"""recognise_attention: exported spellings, and what must not be taken for attention."""

from __future__ import annotations

import numpy as np
import pytest
from relax_models import apply, assert_same_numbers, const, execute, make, nn, op, operators
from tvm import relax

from graphc.passes.recognise_attention import recognise_attention
from graphc.passes.simplify import simplify

H, D = 3, 8
LOWEST = float(np.finfo(np.float32).min)
QKV = dict.fromkeys(("q", "k", "v"), (("b", "s", H * D), "float32"))
MASK = {"mask": (("b", "s"), "bool")}
SIZES = {"b": 2, "s": 5}


def n(value, dtype="float32"):
    return const(np.asarray(value, dtype), dtype)


def emit(value):
    return relax.BlockBuilder.current().emit(value)


def heads(dims, x, count=H):
    """[b, s, h d] -> [b, h, s, d]"""
    return emit(op.permute_dims(op.reshape(x, (dims["b"], dims["s"], count, D)), [0, 2, 1, 3]))


def merged(dims, x):
    return op.reshape(op.permute_dims(x, [0, 2, 1, 3]), (dims["b"], dims["s"], H * D))


def turned(dims, k):
    return op.permute_dims(k, [0, 1, 3, 2])


def additive(dims, mask):
    mask = op.reshape(mask, (dims["b"], 1, 1, dims["s"]))
    return emit(op.where(mask, n(0.0), n(LOWEST)))


def attention(dims, q, k, v, scores=lambda x: x, weights=lambda x: x):
    product = op.matmul(heads(dims, q), turned(dims, heads(dims, k)))
    p = weights(emit(nn.softmax(scores(product), -1)))
    return merged(dims, op.matmul(p, heads(dims, v)))


def guarded(p):
    return op.where(op.isnan(p), n(0.0), p)


def attributes(model):
    (function,) = (
        function
        for var, function in model.mod.functions_items()
        if var.name_hint.startswith("attention")
    )
    return {key: function.attrs[key] for key in ("Composite", "scale", "causal", "guard")}


def scaled_keys_with_joined_axes(dims, q, k, v, mask):
    """What torch.onnx.export makes of scaled_dot_product_attention."""
    b, s = dims["b"], dims["s"]
    root = n(D**-0.25)
    turned_keys = op.reshape(
        op.permute_dims(op.reshape(heads(dims, k), (b * H, s, D)), [0, 2, 1]), (b, H, D, s)
    )
    product = op.matmul(op.multiply(heads(dims, q), root), op.multiply(turned_keys, root))
    p = emit(nn.softmax(op.add(product, additive(dims, mask)), -1))
    return merged(dims, op.matmul(guarded(p), heads(dims, v)))


def keys_in_one_transpose(dims, q, k, v, mask):
    """Older exports: the head split and the transpose of the keys are one permute_dims."""
    keys = op.permute_dims(op.reshape(k, (dims["b"], dims["s"], H, D)), [0, 2, 3, 1])
    scores = op.divide(op.matmul(heads(dims, q), keys), n(D**0.5))
    p = nn.softmax(op.add(scores, additive(dims, mask)), -1)
    return merged(dims, op.matmul(p, heads(dims, v)))


def query_scaled_first(dims, q, k, v, mask):
    query = heads(dims, op.multiply(q, n(D**-0.5)))
    scores = op.add(additive(dims, mask), op.matmul(query, turned(dims, heads(dims, k))))
    return merged(dims, op.matmul(nn.softmax(scores, -1), heads(dims, v)))


def chosen(dims, q, k, v, mask):
    keep = op.reshape(mask, (dims["b"], 1, 1, dims["s"]))
    keep = op.broadcast_to(keep, (dims["b"], H, dims["s"], dims["s"]))
    return attention(dims, q, k, v, lambda x: op.where(keep, op.multiply(x, n(D**-0.5)), n(LOWEST)))


def filled(dims, q, k, v, mask):
    drop = op.reshape(op.logical_not(mask), (dims["b"], 1, 1, dims["s"]))
    return attention(dims, q, k, v, lambda x: op.where(drop, n(LOWEST), op.multiply(x, n(D**-0.5))))


def scaled_after_the_mask(dims, q, k, v, mask):
    bias = op.reshape(op.astype(mask, "float32"), (dims["b"], 1, 1, dims["s"]))
    return attention(dims, q, k, v, lambda x: op.multiply(op.add(x, bias), n(D**-0.5)))


SPELLINGS = {
    spelling.__name__: (spelling, guard)
    for spelling, guard in (
        (scaled_keys_with_joined_axes, True),
        (keys_in_one_transpose, False),
        (query_scaled_first, False),
        (chosen, False),
        (filled, False),
        (scaled_after_the_mask, False),
    )
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(name):
    spelling, guard = SPELLINGS[name]
    model = make({**QKV, **MASK}, {}, spelling)
    found, report = apply(model, simplify, recognise_attention, simplify)
    assert report.hits["recognise_attention"] == 1
    assert not report.misses
    names = operators(found)
    assert names.count("attention") == 1
    assert not {"permute_dims", "matmul", "nn.softmax"} & set(names)
    attrs = attributes(found)
    if name == "query_scaled_first":  # before the head split: it stays with the projection
        assert attrs.pop("scale") == 1.0
        assert "multiply" in names
    else:
        assert attrs.pop("scale") == pytest.approx(D**-0.5, rel=1e-6)
    assert attrs == {"Composite": "graphc.attention", "causal": False, "guard": guard}


def test_numbers_of_all_spellings_at_once():
    def body(dims, q, k, v, mask):
        return [spelling(dims, q, k, v, mask) for spelling, _ in SPELLINGS.values()]

    model = make({**QKV, **MASK}, {}, body)
    found, report = apply(model, simplify, recognise_attention, simplify)
    assert report.hits["recognise_attention"] == len(SPELLINGS)
    assert_same_numbers(model, found, SIZES)


def test_rows_that_are_masked_throughout():
    """where(mask, scores, lowest) and its additive bias agree there; -inf gives NaN, guarded 0."""

    def body(dims, q, k, v, mask):
        infinite = op.where(
            op.reshape(mask, (dims["b"], 1, 1, dims["s"])), n(0.0), n(float("-inf"))
        )
        return [
            chosen(dims, q, k, v, mask),
            attention(dims, q, k, v, lambda x: op.add(x, infinite), guarded),
            attention(dims, q, k, v, lambda x: op.add(x, infinite)),
        ]

    model = make({**QKV, **MASK}, {}, body)
    found, _ = apply(model, simplify, recognise_attention, simplify)
    generator = np.random.default_rng(0)
    values = [generator.standard_normal((2, 5, H * D)).astype(np.float32) for _ in range(3)]
    values.append(np.zeros((2, 5), bool))
    before, after = execute(model, values), execute(found, values)
    np.testing.assert_allclose(before[0], after[0], atol=1e-6)
    np.testing.assert_array_equal(after[1], 0)
    assert np.isnan(before[2]).all()
    assert np.isnan(after[2]).all()


def test_equal_attentions_share_one_function():
    def body(dims, q, k, v, mask):
        x = emit(keys_in_one_transpose(dims, q, k, v, mask))
        return keys_in_one_transpose(dims, x, x, x, mask)

    found, report = apply(make({**QKV, **MASK}, {}, body), simplify, recognise_attention)
    assert report.hits["recognise_attention"] == 2
    assert len(found.mod.get_global_vars()) == 2


def test_without_mask_and_with_other_key_length():
    inputs = {"q": (("b", "s", H * D), "float32"), "k": (("b", "t", H * D), "float32")}

    def body(dims, q, k):
        key = {"b": dims["b"], "s": dims["t"]}
        scores = op.multiply(op.matmul(heads(dims, q), turned(key, heads(key, k))), n(D**-0.5))
        return merged(dims, op.matmul(nn.softmax(scores, -1), heads(key, op.exp(k))))

    model = make(inputs, {}, body)
    found, _report = apply(model, simplify, recognise_attention, simplify)
    assert sorted(operators(found)) == ["attention", "exp", *["reshape"] * 4]
    assert_same_numbers(model, found, {"b": 2, "s": 3, "t": 4})


def test_operands_in_another_layout_are_transposed_first():
    inputs = dict.fromkeys("qkv", ((2, H, 5, D), "float32"))

    def body(dims, q, k, v):
        return op.matmul(nn.softmax(op.matmul(q, turned(dims, k)), -1), v)

    model = make(inputs, {}, body)
    found, _report = apply(model, recognise_attention)
    assert operators(found) == ["permute_dims"] * 3 + ["attention", "permute_dims"]
    assert_same_numbers(model, found)


def test_one_head_in_three_dimensions():
    inputs = dict.fromkeys("qkv", (("b", "s", D), "float32"))

    def body(dims, q, k, v):
        scores = op.multiply(op.matmul(q, op.permute_dims(k, [0, 2, 1])), n(0.3))
        return op.matmul(nn.softmax(scores, -1), v)

    model = make(inputs, {}, body)
    found, report = apply(model, recognise_attention, simplify)
    assert report.hits["recognise_attention"] == 1
    assert operators(found).count("reshape") == 4
    assert_same_numbers(model, found, SIZES)


def repeated(dims, x, groups):
    b, s, times = dims["b"], dims["s"], H // groups
    x = op.expand_dims(heads(dims, x, groups), [2])
    return op.reshape(op.broadcast_to(x, (b, groups, times, s, D)), (b, H, s, D))


GROUPED = {
    "q": (("b", "s", H * D), "float32"),
    **dict.fromkeys(("k", "v"), (("b", "s", D), "float32")),
}


def test_grouped_heads():
    def body(dims, q, k, v):
        keys = op.permute_dims(repeated(dims, k, 1), [0, 1, 3, 2])
        scores = op.multiply(op.matmul(heads(dims, q), keys), n(D**-0.5))
        return merged(dims, op.matmul(nn.softmax(scores, -1), repeated(dims, v, 1)))

    model = make(GROUPED, {}, body)
    found, _report = apply(model, simplify, recognise_attention, simplify)
    assert sorted(operators(found)) == ["attention", *["reshape"] * 4]
    assert_same_numbers(model, found, SIZES)


def test_keys_grouped_otherwise_than_values_are_repeated():
    inputs = {**GROUPED, "v": QKV["v"]}

    def body(dims, q, k, v):
        keys = op.permute_dims(repeated(dims, k, 1), [0, 1, 3, 2])
        scores = op.matmul(heads(dims, q), keys)
        return merged(dims, op.matmul(nn.softmax(scores, -1), heads(dims, v)))

    model = make(inputs, {}, body)
    found, _report = apply(model, simplify, recognise_attention, simplify)
    assert "attention" in operators(found)
    assert "broadcast_to" in operators(found)
    assert_same_numbers(model, found, SIZES)


def test_several_biases_are_added_up():
    def body(dims, q, k, v, mask, table):
        table = op.reshape(table, (1, H, 1, 1))
        position = emit(op.broadcast_to(table, (1, H, dims["s"], dims["s"])))
        return attention(dims, q, k, v, lambda x: op.add(op.add(x, position), additive(dims, mask)))

    params = {"table": np.arange(H, dtype=np.float32)}
    model = make({**QKV, **MASK}, params, body)
    found, report = apply(model, recognise_attention)
    assert report.hits["recognise_attention"] == 1
    assert_same_numbers(model, found, SIZES)


def test_a_softmax_in_float32_between_casts():
    inputs = dict.fromkeys("qkv", (("b", "s", H * D), "float16"))

    def body(dims, q, k, v, mask):
        scores = op.matmul(heads(dims, q), turned(dims, heads(dims, k)))
        scores = op.multiply(scores, n(D**-0.5, "float16"))
        scores = op.add(op.astype(scores, "float32"), additive(dims, mask))
        p = op.astype(guarded(emit(nn.softmax(scores, -1))), "float16")
        return merged(dims, op.matmul(p, heads(dims, v)))

    model = make({**inputs, **MASK}, {}, body)
    found, report = apply(model, simplify, recognise_attention, simplify)
    assert report.hits["recognise_attention"] == 1
    assert attributes(found)["guard"] is True
    assert "astype" not in operators(found)
    assert_same_numbers(model, found, SIZES)


def misses(body, inputs=None):
    model = make(inputs or {**QKV, **MASK}, {}, body)
    found, report = apply(model, recognise_attention)
    assert report.hits.total() == 0
    assert "nn.softmax" in operators(found)
    (sentence,) = report.misses
    assert sentence.startswith("attention: softmax at ")
    return sentence


def test_a_fill_that_is_too_small():
    def body(dims, q, k, v, mask):
        keep = op.reshape(mask, (dims["b"], 1, 1, dims["s"]))
        return attention(dims, q, k, v, lambda x: op.where(keep, x, n(-1e4)))

    assert "masks with -10000" in misses(body)


def test_a_mask_that_broadcasts_over_the_keys():
    def body(dims, q, k, v, mask):
        bias = op.reshape(op.astype(mask, "float32"), (dims["b"], 1, dims["s"], 1))
        return attention(dims, q, k, v, lambda x: op.add(x, bias))

    model = make({**QKV, **MASK}, {}, body)
    found, report = apply(model, recognise_attention)
    assert report.hits["recognise_attention"] == 1
    assert_same_numbers(model, found, SIZES)


def test_weights_that_are_read_elsewhere():
    def body(dims, q, k, v, mask):
        kept = []

        def keep(p):
            kept.append(p)
            return p

        return [attention(dims, q, k, v, weights=keep), op.sum(kept[0])]

    assert "also used by" in misses(body)


def test_weights_that_are_an_output():
    def body(dims, q, k, v, mask):
        kept = []

        def keep(p):
            kept.append(p)
            return p

        return [attention(dims, q, k, v, weights=keep), kept[0]]

    assert "are an output" in misses(body)


def test_scores_that_pass_through_something_else():
    def body(dims, q, k, v, mask):
        return attention(dims, q, k, v, lambda x: op.tanh(x))

    assert "its scores come from tanh" in misses(body)


def test_softmax_over_the_heads():
    def body(dims, q, k, v, mask):
        product = op.matmul(heads(dims, q), turned(dims, heads(dims, k)))
        return merged(dims, op.matmul(nn.softmax(product, 1), heads(dims, v)))

    assert "not over the keys" in misses(body)


def test_a_choice_between_two_tensors():
    def body(dims, q, k, v, mask):
        keep = op.reshape(mask, (dims["b"], 1, 1, dims["s"]))
        return attention(dims, q, k, v, lambda x: op.where(keep, x, op.exp(x)))

    assert "not constant" in misses(body)

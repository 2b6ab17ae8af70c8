"""The driver: order, checks, failures that name the pass, statistics, dumps and debug output."""

from __future__ import annotations

import pytest
from relax_models import assert_same_module, make, nn, op, operators
from tvm import relax

from graphc.errors import UnsupportedError
from graphc.passes import pipeline
from graphc.passes.graph import rewrite
from graphc.passes.simplify import simplify

X = {"x": (("b", "s", 12), "float32")}


def model():
    return make(X, {}, lambda dims, x: nn.relu(op.reshape(x, (dims["b"], dims["s"], 12))))


def breaks(model, report):
    raise ValueError("broken")


def leaves_a_mess(model, report):
    """A function whose body reads a variable that nothing binds."""

    def change(graph):
        (node,) = [node for node in graph.nodes() if node.op == "nn.relu"]
        node.ty = relax.TensorType((3,), "int64")

    return rewrite(model, change)


def refuses(model, report):
    raise UnsupportedError("no such thing")


def test_passes_have_distinct_files_and_run_in_order():
    names = [apply.__name__ for apply in pipeline.GRAPH_PASSES]
    assert all(apply.__module__.endswith(f".{apply.__name__}") for apply in pipeline.GRAPH_PASSES)
    assert names.index("recognise_softmax") < names.index("recognise_attention")
    assert names.index("recognise_layer_norm") < names.index("recognise_rms_norm")


def test_statistics_count_hits():
    found = pipeline.graph(model(), None)
    assert operators(found) == ["nn.relu"]
    assert found.statistics == {"cancel_reshape": 1}


def test_running_twice_changes_nothing_more():
    once = pipeline.graph(model(), None)
    assert_same_module(pipeline.graph(once, None), once)


def test_a_failing_pass_is_named_with_those_before_it():
    with pytest.raises(pipeline.PassError, match=r"^breaks failed after simplify: broken$") as info:
        pipeline.run((simplify, breaks), model())
    assert isinstance(info.value.__cause__, ValueError)


def test_a_pass_that_leaves_a_malformed_module_is_named():
    with pytest.raises(pipeline.PassError, match=r"^leaves_a_mess failed after none: "):
        pipeline.run((leaves_a_mess, simplify), model())


def test_errors_with_a_remedy_pass_through():
    with pytest.raises(UnsupportedError, match="no such thing"):
        pipeline.run((refuses,), model())


def test_dump_and_debug(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GRAPHC_DUMP", str(tmp_path))
    monkeypatch.setenv("GRAPHC_DEBUG", "2")
    pipeline.run((simplify,), model())
    assert "R.nn.relu" in (tmp_path / "graph_01_simplify.py").read_text()
    shown = capsys.readouterr().err
    assert "simplify" in shown
    assert "1 cancel_reshape" in shown


def test_debug_shows_near_misses(monkeypatch, capsys):
    monkeypatch.setenv("GRAPHC_DEBUG", "2")

    def body(dims, x):
        e = relax.BlockBuilder.current().emit(op.exp(x))
        return op.divide(e, op.sum(e, [-1], True))

    pipeline.graph(make(X, {}, body), None)
    assert "near miss: softmax: exp / sum at" in capsys.readouterr().err

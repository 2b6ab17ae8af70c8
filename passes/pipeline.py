"""The graph passes in run order, and the driver that checks, times and reports each of them."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tvm import relax

from graphc import env
from graphc.errors import GraphcError
from graphc.ir import Model
from graphc.passes.fold_constants import fold_constants
from graphc.passes.fold_known_values import fold_known_values
from graphc.passes.fold_scales import fold_scales
from graphc.passes.keep_quantized import keep_quantized
from graphc.passes.merge_duplicates import merge_duplicates
from graphc.passes.recognise_attention import recognise_attention
from graphc.passes.recognise_gelu import recognise_gelu
from graphc.passes.recognise_integer_products import recognise_integer_products
from graphc.passes.recognise_layer_norm import recognise_layer_norm
from graphc.passes.recognise_quantized_weights import recognise_quantized_weights
from graphc.passes.recognise_rms_norm import recognise_rms_norm
from graphc.passes.recognise_softmax import recognise_softmax
from graphc.passes.report import Report
from graphc.passes.simplify import simplify
from graphc.passes.simplify_gathers import simplify_gathers

Pass: TypeAlias = Callable[[Model, Report], Model]

GRAPH_PASSES: tuple[Pass, ...] = (
    recognise_integer_products,  # before their weights are folded into floats
    recognise_quantized_weights,
    fold_constants,
    simplify,
    merge_duplicates,  # before the recognisers: they take a value that occurs twice for one
    keep_quantized,  # after simplify has cancelled what lies between weights and products
    fold_known_values,
    simplify_gathers,  # after the indices that are known
    simplify,
    fold_constants,
    fold_scales,
    recognise_softmax,
    recognise_layer_norm,
    recognise_rms_norm,  # after layer_norm, whose centred value would match here too
    recognise_gelu,
    recognise_attention,  # after softmax
    simplify,  # cancels the transposes that attention leaves
    fold_constants,
    merge_duplicates,
)


class PassError(AssertionError):
    """A pass failed or left a module that is not well formed: a fault of graphc's own."""


def graph(model: Model, target: object) -> Model:
    """Simplify the model and recognise composite operators, for any target.

    `Model.statistics` gains the number of hits of each rewrite.
    """
    del target  # what a device can do matters from `layout` on
    return run(GRAPH_PASSES, model)


def run(passes: Sequence[Pass], model: Model) -> Model:
    """Apply passes in order; each must leave the module well formed."""
    report, ran = Report(), list[str]()
    _check(model)
    for number, apply in enumerate(passes, 1):
        name, before, start = apply.__name__, report.hits.copy(), time.perf_counter()
        seen = len(report.misses)
        try:
            model = apply(model, report)
            _check(model)
        except GraphcError:
            raise
        except Exception as error:
            raise PassError(f"{name} failed after {', '.join(ran) or 'none'}: {error}") from error
        ran.append(name)
        _show(name, report.hits - before, report.misses[seen:], time.perf_counter() - start)
        _dump(f"graph_{number:02}_{name}.py", model)
    statistics = Counter(model.statistics) + report.hits
    return dataclasses.replace(model, statistics=dict(sorted(statistics.items())))


def _check(model: Model) -> None:
    """Fail if the module breaks Relax's rules or its weights are not those in `params`."""
    relax.analysis.well_formed(model.mod)
    for name in model.signatures:
        function = model.mod[name]
        for param in list(function.params)[int(function.attrs["num_input"]) :]:
            assert param.name in model.params, f"weight {param.name} has no value"


def _show(name: str, hits: Counter[str], misses: Sequence[str], seconds: float) -> None:
    if env.debug() < 1:
        return
    total = sum(hits.values())
    env.log(1, f"  {name:<22} {seconds * 1e3:7.1f} ms {total:5} hits")
    for rewrite, count in sorted(hits.items()):
        env.log(2, f"    {count:5} {rewrite}")
    for sentence in misses:
        env.log(2, f"    near miss: {sentence}")


def _dump(name: str, model: Model) -> None:
    if env.dump() is not None:
        env.write_dump(name, str(model.mod.script()))
    if env.debug() >= 5:
        env.log(5, str(model.mod.script()))

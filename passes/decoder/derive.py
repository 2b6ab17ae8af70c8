"""From a causal language model with batch 1 to its step over paged caches; see DESIGN section 8.

demand      attentions over the tokens, everything else keeps tokens apart   (recognise, roles)
mask        what is added to the scores, as attributes                       (mask)
cut         what is cached of each token                                     (cut)
rewrite     the function `step`                                              (rewrite)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from tvm import tirx

from graphc.ir import DecoderInfo, Model
from graphc.passes import pipeline
from graphc.passes.decoder import cut, recognise
from graphc.passes.decoder.lane import Lane
from graphc.passes.decoder.mask import Mask, fit
from graphc.passes.decoder.positions import dependent
from graphc.passes.decoder.probe import Probe, check_independent, longest
from graphc.passes.decoder.recognise import Site
from graphc.passes.decoder.rewrite import Attention, Step, weight
from graphc.passes.decoder.roles import Lanes
from graphc.passes.decoder.specialise import NotADecoder
from graphc.passes.fold_constants import fold_constants
from graphc.passes.graph import Graph
from graphc.passes.merge_duplicates import merge_duplicates
from graphc.passes.node import Node
from graphc.passes.simplify import simplify

_CLEAN = (simplify, fold_constants, merge_duplicates)

UNLIMITED = 1 << 20
"""The longest sequence where neither positions nor the export set a limit."""


def derive(model: Model, max_context: int | None = None) -> Model:
    """The Model of `step`; raises NotADecoder with the reason."""
    graph = Graph(model)
    length = model.signatures["main"].inputs[0].shape[1]
    assert isinstance(length, tirx.Var), length
    tokens = dependent(graph)
    found = recognise.sites(graph, length, tokens)
    if not found:
        raise NotADecoder("no attention pairs its tokens")
    tokens = _with_new(tokens, found)
    limit = _limit(graph, tokens, length)
    masks = {
        node: fit(graph, length, site.biases, _heads(site), limit) for node, site in found.items()
    }
    lanes = _lanes(graph, length, found, tokens)
    check_independent(graph, lanes.keys() - found.keys(), length)
    attentions = {
        node: _attention(graph, site, masks[node], tokens, length, lanes)
        for node, site in found.items()
    }
    lanes = _lanes(graph, length, found, tokens, attentions)
    step = Step(graph, length, attentions, lanes)
    (logits,) = graph.outputs
    info = DecoderInfo(
        caches=tuple(step.caches),
        vocabulary=int(logits.shape[-1]),
        max_context=min(max_context or UNLIMITED, limit or UNLIMITED),
    )
    return pipeline.run(_CLEAN, step.model(info))


def _with_new(tokens: set[Node], sites: Mapping[Node, Site]) -> set[Node]:
    """The nodes that depend on tokens, with those that were emitted for the operands of sites."""
    found = set(tokens)
    for site in sites.values():
        for operand in (site.q, site.k, site.v):
            stack, fresh = [operand], list[Node]()
            while stack:
                node = stack.pop()
                if node not in found and node.inputs:
                    fresh.append(node)
                    stack.extend(node.inputs)
            found.update(fresh)
    return found


def _limit(graph: Graph, tokens: Collection[Node], length: tirx.Var) -> int | None:
    """The longest sequence, by the tables of positions and the bounds of the export."""
    (dim,) = graph.model.signatures["main"].dims
    found = [n for n in (longest(graph, tokens, length), dim.upper) if n is not None]
    return min(found, default=None)


def _heads(site: Site) -> int:
    return int(site.q.shape[1])


def _attention(
    graph: Graph,
    site: Site,
    mask: Mask,
    tokens: Collection[Node],
    length: tirx.Var,
    lanes: dict[Node, Lane | None],
) -> Attention:
    keys, values = cut.kept(graph, site, tokens, length, lanes)
    graph.at(site.node)
    slopes = sinks = None
    if mask.slopes is not None:
        slopes = weight(graph, mask.slopes, "slopes")
    if site.sinks is not None:
        array = recognise.head_sinks(site, Probe(graph, length).at(site.sinks, [0, 1, 5]))
        sinks = weight(graph, np.broadcast_to(array, _heads(site)), "sinks")
    return Attention(site, mask, keys, values, sinks, slopes)


def _lanes(
    graph: Graph,
    length: tirx.Var,
    sites: Mapping[Node, Site],
    tokens: Collection[Node],
    attentions: Mapping[Node, Attention] | None = None,
) -> dict[Node, Lane | None]:
    """The lanes of everything that the step computes; raises Mixes."""
    plain = attentions or {
        node: Attention(
            site,
            Mask(),
            cut.Kept(site.k, 1, 1),
            cut.Kept(site.v, 1, 1),
        )
        for node, site in sites.items()
    }
    step = Step(graph, length, plain, {})
    return Lanes(graph, length, sites, tokens).find(step.reached(graph.outputs))

"""Which of ONNX's own node cases count, and which of their inputs real models hold as constants."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto

# Inputs that set a shape, an axis or a form. Exporters write them as initializers; the cases pass
# them at run time, because a case has nothing else than a node. One that graphc does not take at
# run time is made an initializer of the case's model, and the case is listed under "fixed".
_SETTINGS: Mapping[str, tuple[int, ...]] = {
    "AffineGrid": (1,),
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "Compress": (1,),
    "ConstantOfShape": (0,),
    "CumProd": (1,),
    "CumSum": (1,),
    "DFT": (1, 2),
    "Dropout": (1, 2),
    "Expand": (1,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "If": (0,),
    "Loop": (0, 1),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "ReduceL1": (1,),
    "ReduceL2": (1,),
    "ReduceLogSum": (1,),
    "ReduceLogSumExp": (1,),
    "ReduceMax": (1,),
    "ReduceMean": (1,),
    "ReduceMin": (1,),
    "ReduceProd": (1,),
    "ReduceSum": (1,),
    "ReduceSumSquare": (1,),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}


@dataclass(frozen=True)
class Case:
    """One case: a serialised model, its inputs and what they must give.

    `settings` are those of its inputs that only set a shape, an axis or a form.
    """

    name: str
    model: bytes
    inputs: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]
    rtol: float
    atol: float
    settings: frozenset[str]


def collect() -> list[Case]:
    """ONNX's node cases without training, string, sequence and optional types, sorted by name.

    Left out too is the domain ai.onnx.preview, which is not part of the standard.
    """
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = [case for case in collect_testcases(None) if _counts(case.name, case.model)]
    operators = {case.name: _settings(case.model) for case in found}
    cases = []
    for case in found:
        (inputs, outputs), *more = case.data_sets
        assert not more, case.name
        base = case.name.partition("_expanded")[0]
        cases.append(
            Case(
                name=case.name,
                model=case.model.SerializeToString(),
                inputs=tuple(_array(value) for value in inputs),
                outputs=tuple(_array(value) for value in outputs),
                rtol=case.rtol,
                atol=case.atol,
                settings=operators.get(base, operators[case.name]),
            )
        )
    return sorted(cases, key=lambda case: case.name)


def _array(value: np.ndarray | TensorProto) -> np.ndarray:
    if isinstance(value, TensorProto):
        return onnx.numpy_helper.to_array(value)
    return np.asarray(value)


def _counts(name: str, model: ModelProto) -> bool:
    preview = any(entry.domain.startswith("ai.onnx.preview") for entry in model.opset_import)
    return not preview and "train" not in name and _only_tensors(model.graph)


def _only_tensors(graph: GraphProto) -> bool:
    """Nothing in the graph is a string, a sequence or an optional."""
    for info in (*graph.input, *graph.output, *graph.value_info):
        kind = info.type.WhichOneof("value")
        if kind != "tensor_type" or info.type.tensor_type.elem_type == TensorProto.STRING:
            return False
    for attribute in _attributes(graph):
        if attribute.type == AttributeProto.GRAPH and not _only_tensors(attribute.g):
            return False
        if attribute.type == AttributeProto.TENSOR and attribute.t.data_type == TensorProto.STRING:
            return False
        if attribute.name == "to" and attribute.i == TensorProto.STRING:
            return False
    return True


def _attributes(graph: GraphProto) -> Iterator[AttributeProto]:
    for node in graph.node:
        yield from node.attribute


def _settings(model: ModelProto) -> frozenset[str]:
    """The graph inputs that a node takes where `_SETTINGS` says."""
    given = {info.name for info in model.graph.input}
    return frozenset(
        name
        for node in model.graph.node
        for index, name in enumerate(node.input)
        if name in given and index in _SETTINGS.get(node.op_type, ())
    )


def with_fixed(model: ModelProto, values: Mapping[str, np.ndarray]) -> ModelProto:
    """The model with some of its inputs made initializers."""
    fixed = ModelProto()
    fixed.CopyFrom(model)
    kept = [info for info in fixed.graph.input if info.name not in values]
    del fixed.graph.input[:]
    fixed.graph.input.extend(kept)
    fixed.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in values.items()
    )
    return fixed

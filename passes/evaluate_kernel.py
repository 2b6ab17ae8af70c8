"""Run a TIR kernel on numpy arrays while compiling: constant folding for what Relax lacks.

The importer writes such operators (Resize, say) as kernels. They are compiled for the machine that
compiles, whatever the target, and used once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tvm
from tvm import tirx

from graphc.passes.evaluate import Array, numpy_dtype
from graphc.passes.graph import Graph
from graphc.passes.node import Node


def can_run_kernel(graph: Graph, node: Node) -> bool:
    """Whether the node calls a kernel of the module with fixed shapes and one result."""
    if node.op != "call_tir" or not node.is_tensor or node.static_shape is None:
        return False
    return len(node.args) == 2 and isinstance(graph.kernel(node), tirx.PrimFunc)


def run_kernel(graph: Graph, node: Node, arrays: Sequence[Array]) -> Array:
    """The result of the kernel."""
    function = graph.kernel(node).with_attr("global_symbol", "kernel")
    module = tvm.compile(tvm.IRModule({"kernel": function}), tvm.target.Target({"kind": "llvm"}))
    result = tvm.runtime.tensor(np.zeros(node.static_shape or (), numpy_dtype(node.dtype)))
    operands = [tvm.runtime.tensor(np.require(a, requirements=["C"])) for a in arrays]
    module["kernel"](*operands, result)
    return np.asarray(result.numpy())

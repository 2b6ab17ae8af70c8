"""Kernel templates for devices with work-groups: thread-bound loops instead of vectors and threads.

The same two kinds as for CPUs: `OPERATORS` write a kernel for one operator, `SCHEDULES` take a
fused function apart. The first answer wins; `elements` takes every kernel.
"""

from __future__ import annotations

from graphc.codegen.templates.gpu import attention, elements, matmul, rows

OPERATORS = {
    "graphc.attention": (attention.build,),
    "relax.nn.layer_norm": (rows.build_layer_norm,),
    "relax.nn.rms_norm": (rows.build_rms_norm,),
    "relax.nn.softmax": (rows.build_softmax,),
}

SCHEDULES = (matmul.apply, elements.apply)

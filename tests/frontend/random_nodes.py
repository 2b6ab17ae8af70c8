"""What a random graph's nodes may be: each function adds one at random, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from random_graphs import FLOATS, INTEGERS, Growing

ALL: Final = (*FLOATS, *INTEGERS, "bool")
SOME_FLOATS: Final = "Exp Log Sqrt Tanh Sigmoid Erf Softplus Softsign Sin Cos Atan Reciprocal Elu"
MORE_FLOATS: Final = "Selu LeakyRelu HardSigmoid HardSwish Mish Gelu Celu Sinh ThresholdedRelu"
UNARY: Final = f"{SOME_FLOATS} {MORE_FLOATS} Abs Neg Relu Floor Ceil Round Sign Identity".split()


def unary(g: Growing) -> None:
    op = g.rng.choice(UNARY)
    name = g.pick(FLOATS if g.rng.random() < 0.8 else INTEGERS)
    if name:
        g.add(op, [name])


def binary(g: Growing) -> None:
    op = g.rng.choice(["Add", "Sub", "Mul", "Max", "Min", "Div", "Pow", "Mod", "PRelu"])
    name = g.pick((*FLOATS, *INTEGERS))
    if not name:
        return
    dtype = g.values[name].dtype
    if op in ("Div", "Pow", "Mod"):  # an integer division by zero kills the process
        attributes = {"fmod": 1} if op == "Mod" and dtype in FLOATS else {}
        g.add(op, [name, g.partner(name, dtype, 1, 4)], **attributes)
        return
    pair = [name, g.partner(name, dtype)]
    if op != "PRelu":
        g.rng.shuffle(pair)
    g.add(op, pair)


def comparison(g: Growing) -> None:
    name = g.pick((*FLOATS, "int64", "int32"))
    op = g.rng.choice(["Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"])
    if name:
        g.add(op, [name, g.partner(name, g.values[name].dtype)])


def logical(g: Growing) -> None:
    name = g.pick(["bool"])
    if name and g.rng.random() < 0.3:
        g.add("Not", [name])
    elif name:
        g.add(g.rng.choice(["And", "Or", "Xor"]), [name, g.partner(name, "bool")])


def where(g: Growing) -> None:
    name = g.pick(ALL)
    if name:
        g.add("Where", [g.partner(name, "bool"), name, g.partner(name, g.values[name].dtype)])


def cast(g: Growing) -> None:
    name = g.pick(ALL)
    if name:
        dtype = g.rng.choice(ALL)
        unsigned = dtype.startswith("u") and g.values[name].dtype in FLOATS
        if not unsigned or min(array.min() for array in g.values[name].arrays) >= 0:
            code = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "bool": 9}
            g.add("Cast", [name], to=code.get(dtype, 10 if dtype == "float16" else 11))


def clip(g: Growing) -> None:
    name = g.pick((*FLOATS, *INTEGERS))
    if name:
        dtype = g.values[name].dtype
        low, high = (g.constant(bound, dtype) for bound in (g.rng.randint(0, 1), 2))
        g.add("Clip", [name, *g.rng.choice([(low,), (low, high), ("", high)])])


def matmul(g: Growing) -> None:
    name = g.pick([*FLOATS, "int32"], 1)
    if not name:
        return
    value = g.values[name]
    other = g.pick([value.dtype], 1) if g.rng.random() < 0.4 else None
    depth = value.shape[-1]
    if other is None and depth is not None:
        lead = [value.shape[0] or 1] if value.rank == 3 and g.rng.random() < 0.3 else []
        width = g.rng.choice([[], [1], [5], [8], [17], [32]])
        other = g.constant(g.array(value.dtype, [*lead, depth, *width], -1, 2), value.dtype)
    if other:
        g.add("MatMul", [name, other])


def gemm(g: Growing) -> None:
    name = g.pick(FLOATS, 2, lambda value: value.rank == 2)
    if not name:
        return
    value, across = g.values[name], g.rng.randint(0, 1)
    depth = value.shape[0 if across else 1]
    if depth is None:
        return
    width, turned = g.rng.choice([1, 7, 16]), g.rng.randint(0, 1)
    weight = g.array(value.dtype, [width, depth] if turned else [depth, width], -1, 2)
    inputs = [name, g.constant(weight, value.dtype)]
    if g.rng.random() < 0.7:
        shape = g.rng.choice([(width,), (1, width), (1, 1), ()])
        inputs.append(g.constant(g.array(value.dtype, shape), value.dtype))
    scales = {"alpha": 0.5, "beta": 2.0} if g.rng.random() < 0.5 else {}
    g.add("Gemm", inputs, transA=across, transB=turned, **scales)


def einsum(g: Growing) -> None:
    name = g.pick(FLOATS, 2, lambda value: value.rank == 2)
    other = g.pick(FLOATS, 2, lambda value: value.rank == 2)
    if name and other:
        equation = g.rng.choice(["ij,jk->ik", "ij,kj->ik", "ij,ij->i", "ij,ik->jk", "ab,cd->acbd"])
        g.add("Einsum", [name, other], equation=equation)


def reduction(g: Growing) -> None:
    kinds = ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSumExp", "LogSum"]
    op = "Reduce" + g.rng.choice(kinds)
    name = g.pick((*FLOATS, "int64", "int32"))
    if not name:
        return
    rank = g.values[name].rank
    axes = [axis - g.rng.choice([0, rank]) for axis in g.rng.sample(range(rank), rank)]
    axes = axes[: g.rng.randint(0, rank)]
    settings: dict[str, Any] = {"keepdims": g.rng.randint(0, 1)}
    if op != "ReduceSum" and g.opset < 18:
        g.add(op, [name], **settings, **({"axes": axes} if axes else {}))
    else:
        if not axes:
            settings["noop_with_empty_axes"] = g.rng.randint(0, 1)
        g.add(op, [name, *([g.constant(axes)] if axes else [])], **settings)


def along(g: Growing) -> None:
    """Operators with one axis."""
    op = g.rng.choice(
        ["Softmax", "LogSoftmax", "Hardmax", "ArgMax", "ArgMin", "CumSum", "Flatten", "TopK"]
    )
    name = g.pick(FLOATS if g.rng.random() < 0.8 else ALL, 1)
    if not name:
        return
    rank = g.values[name].rank
    axis = g.rng.randint(-rank, rank - 1)
    flags = {key: g.rng.randint(0, 1) for key in ("keepdims", "select_last_index")}
    if op == "CumSum":
        flags = {"exclusive": g.rng.randint(0, 1), "reverse": g.rng.randint(0, 1)}
        g.add(op, [name, g.constant(axis)], **flags)
    elif op == "TopK":
        count = g.constant([g.rng.randint(1, 3)])
        g.add(op, [name, count], 2, axis=axis, largest=g.rng.randint(0, 1))
    else:
        g.add(op, [name], axis=axis, **(flags if op.startswith("Arg") else {}))


def normalization(g: Growing) -> None:
    name = g.pick(FLOATS, 2)
    if not name:
        return
    value = g.values[name]
    axis = g.rng.choice([-1, -1, -2])
    shape = value.shape[axis:]
    channels = value.shape[1]
    if g.rng.random() < 0.6 and None not in shape:
        inputs = [g.constant(g.array(value.dtype, shape), value.dtype) for _ in range(2)]
        inputs = inputs[: g.rng.randint(1, 2)]
        g.add("LayerNormalization", [name, *inputs], axis=axis, epsilon=0.1)
    elif channels is not None:
        weights = [g.constant(g.array(value.dtype, [channels], 1), value.dtype) for _ in range(4)]
        if g.rng.random() < 0.5:
            g.add("BatchNormalization", [name, *weights])
        else:
            g.add("InstanceNormalization", [name, *weights[:2]], epsilon=0.1)


def transpose(g: Growing) -> None:
    name = g.pick(ALL, 2)
    if name:
        rank = g.values[name].rank
        g.add("Transpose", [name], perm=g.rng.sample(range(rank), rank))


def reshape(g: Growing) -> None:
    name = g.pick(ALL)
    if not name:
        return
    value = g.values[name]
    sizes = [0 if dim is None or g.rng.random() < 0.3 else dim for dim in value.shape]
    action = g.rng.choice(["merge", "split", "free", "one", "flat"])
    if action == "merge" and value.rank > 1:
        at = g.rng.randrange(value.rank - 1)
        sizes = [*sizes[:at], -1, *value.shape[at + 2 :]]
    elif action == "split" and value.rank:
        at = g.rng.randrange(value.rank)
        sizes[at : at + 1] = g.rng.choice([[2, -1], [-1, 2], [1, -1], [-1, 4]])
    elif action == "free" and value.rank:
        sizes[g.rng.randrange(value.rank)] = -1
    elif action == "one":
        sizes.append(1)
    else:
        sizes = g.rng.choice([[-1], [1, -1], [-1, 2]])
    if None not in sizes:
        g.add("Reshape", [name, g.constant(sizes)])


def axes(g: Growing) -> None:
    name = g.pick(ALL)
    if not name:
        return
    value = g.values[name]
    ones = [axis for axis, dim in enumerate(value.shape) if dim == 1]
    if ones and g.rng.random() < 0.6:
        g.add("Squeeze", [name, g.constant([g.rng.choice(ones)])])
    elif value.rank < 4:
        g.add("Unsqueeze", [name, g.constant([g.rng.randint(-value.rank - 1, value.rank)])])


def concat(g: Growing) -> None:
    name = g.pick(ALL, 1)
    if not name:
        return
    value = g.values[name]
    others = [g.pick([value.dtype], 1, lambda v: v.rank == value.rank) for _ in range(2)]
    inputs = [name, *(other for other in others if other)]
    g.rng.shuffle(inputs)
    g.add("Concat", inputs, axis=g.rng.randint(-value.rank, value.rank - 1))


def slices(g: Growing) -> None:
    name = g.pick(ALL, 1)
    if not name:
        return
    rank = g.values[name].rank
    chosen = g.rng.sample(range(rank), g.rng.randint(1, rank))
    rows = []
    for axis in chosen:
        step = g.rng.choice([1, 1, 2, -1, -2])
        low, high = g.rng.choice([0, 1, -3, -100]), g.rng.choice([2, 3, -1, 100, 2**62])
        rows.append((low, high, axis, step) if step > 0 else (high, low, axis - rank, step))
    g.add("Slice", [name, *(g.constant(column) for column in zip(*rows, strict=True))])


def gather(g: Growing) -> None:
    name = g.pick(ALL, 1)
    if not name:
        return
    value = g.values[name]
    axis = g.rng.randrange(value.rank)
    size = min(array.shape[axis] for array in value.arrays)
    if g.rng.random() < 0.6:
        shape = g.rng.choice([(), (1,), (3,), (2, 2)])
        indices = g.numbers.integers(-size, size, shape)
        g.add("Gather", [name, g.constant(indices)], axis=axis - g.rng.choice([0, value.rank]))
    else:
        shape = tuple(1 if dim is None else dim for dim in value.shape)
        indices = g.numbers.integers(-size, size, shape)
        g.add("GatherElements", [name, g.constant(indices)], axis=axis)


def expand(g: Growing) -> None:
    name = g.pick(ALL)
    if not name:
        return
    value = g.values[name]
    if g.rng.random() < 0.5:
        sizes = [g.rng.choice([1, 3]) if dim == 1 else 1 for dim in value.shape]
        g.add("Expand", [name, g.constant([*([2] * g.rng.randint(0, 1)), *sizes])])
    else:
        g.add("Tile", [name, g.constant([g.rng.randint(1, 3) for _ in value.shape])])


def pad(g: Growing) -> None:
    name = g.pick(FLOATS if g.rng.random() < 0.7 else ALL, 1)
    if name:
        modes = ["constant", "constant", "reflect", "edge"]
        mode = g.rng.choice(modes if g.opset < 19 else [*modes, "wrap"])
        low = -1 if mode == "constant" else 0
        pads = [g.rng.randint(low, 1) for _ in range(2 * g.values[name].rank)]
        filling = [g.constant(2, g.values[name].dtype)] if g.rng.random() < 0.5 else []
        g.add("Pad", [name, g.constant(pads), *filling], mode=mode)


def split(g: Growing) -> None:
    name = g.pick(ALL, 1)
    if not name:
        return
    value = g.values[name]
    axis = g.rng.randrange(value.rank)
    size = value.shape[axis]
    if size and size > 1:
        first = g.rng.randint(1, size - 1)
        g.add("Split", [name, g.constant([first, size - first])], 2, axis=axis - value.rank)


def convolution(g: Growing) -> None:
    name = g.pick(FLOATS, 3, lambda value: value.shape[1] is not None)
    if not name:
        return
    value = g.values[name]
    channels, space = value.shape[1], value.rank - 2
    assert channels is not None
    groups = g.rng.choice([1, channels])
    kernel = [g.rng.randint(1, 3) for _ in range(space)]
    settings: dict[str, Any] = {
        "strides": [g.rng.randint(1, 2) for _ in range(space)],
        "pads": [g.rng.randint(0, 1) for _ in range(2 * space)],
        "dilations": [g.rng.randint(1, 2) for _ in range(space)],
        "group": groups,
    }
    turned = g.rng.random() < 0.25
    wide = 2 * groups
    shape = (channels, 2, *kernel) if turned else (wide, channels // groups, *kernel)
    inputs = [name, g.constant(g.array(value.dtype, shape, -1, 2), value.dtype)]
    if g.rng.random() < 0.5:
        inputs.append(g.constant(g.array(value.dtype, [wide]), value.dtype))
    g.add("ConvTranspose" if turned else "Conv", inputs, **settings)


def pool(g: Growing) -> None:
    name = g.pick(FLOATS, 3)
    op = g.rng.choice(["MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"])
    if name and op.startswith("Global"):
        g.add(op, [name])
    elif name:
        space = g.values[name].rank - 2
        settings: dict[str, Any] = {"count_include_pad": 1} if op[0] == "A" else {}
        settings["kernel_shape"] = [g.rng.randint(2, 3) for _ in range(space)]
        settings["strides"] = [g.rng.randint(1, 2) for _ in range(space)]
        settings["pads"] = [g.rng.randint(0, 1) for _ in range(2 * space)]
        g.add(op, [name], ceil_mode=g.rng.randint(0, 1), **settings)


def quantize(g: Growing) -> None:
    name = g.pick(["float32"])
    if not name:
        return
    scale = g.constant(g.rng.choice([0.25, 0.5, 0.03]), "float32")
    zero = g.constant(g.rng.choice([0, 3, 100]), g.rng.choice(["uint8", "int8"]))
    if g.rng.random() < 0.3:
        g.add("DynamicQuantizeLinear", [name], 3)
    else:
        g.add("QuantizeLinear", [name, scale, zero])


def dequantize(g: Growing) -> None:
    name = g.pick(["uint8", "int8"])
    if not name:
        return
    value = g.values[name]
    last = value.shape[-1] if value.rank > 1 else None
    choice = g.rng.random()
    if choice < 0.4 and last is not None:
        other = g.constant(g.numbers.integers(0, 100, (last, 9)), g.rng.choice(["uint8", "int8"]))
        g.add("MatMulInteger", [name, other, g.constant(2, value.dtype)])
    elif choice < 0.7 and last is not None:
        scale = g.constant(g.numbers.integers(1, 9, last) / 8, "float32")
        zero = g.constant(g.numbers.integers(0, 9, last), value.dtype)
        g.add("DequantizeLinear", [name, scale, zero], axis=-1)
    else:
        g.add("DequantizeLinear", [name, g.constant(0.1, "float32"), g.constant(3, value.dtype)])


def by_shape(g: Growing) -> None:
    """A tensor's shape, and what exporters compute with it."""
    name = g.pick(ALL, 1)
    if not name:
        return
    value = g.values[name]
    if g.rng.random() < 0.5:
        g.add("Shape", [name])
    elif g.add("Shape", [name]):
        shape = g.nodes[-1].output[0]
        if value.rank and g.rng.random() < 0.5:
            g.add("Expand", [g.constant(np.ones([1]), "float32"), shape])
        else:
            g.add("ConstantOfShape", [shape])


def triangle(g: Growing) -> None:
    name = g.pick(ALL, 2)
    if name:
        g.add("Trilu", [name, g.constant(g.rng.randint(-2, 2))], upper=g.rng.randint(0, 1))


NODES: Final[list[Callable[[Growing], None]]] = [
    *[unary, binary, matmul, reduction, along, reshape] * 2,
    *[comparison, logical, where, cast, clip, gemm, einsum, normalization, transpose, axes],
    *[concat, slices, gather, expand, pad, split, convolution, pool, quantize, dequantize],
    *[by_shape, triangle],
]

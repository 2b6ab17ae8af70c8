"""Attributes that convolution and pooling share: kernel, strides, dilations and padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.node import Node
from graphc.ir import Expr

_LARGEST = 2**20


@dataclass(frozen=True)
class Window:
    """A sliding window over the spatial axes; `before` and `after` are the padding."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def padding(self) -> list[int]:
        """As Relax wants it: all befores, then all afters."""
        return [*self.before, *self.after]

    def reach(self, axis: int) -> int:
        """How many elements a dilated kernel spans."""
        return self.dilations[axis] * (self.kernel[axis] - 1) + 1


def spatial(node: Node, name: str, count: int, default: int, least: int = 1) -> tuple[int, ...]:
    """A list attribute with one number for each spatial axis."""
    values = node.integers(name, (default,) * count)
    if len(values) != count or not all(least <= value < _LARGEST for value in values):
        raise node.error(f"{name} {list(values)} must be {count} numbers from {least} up")
    return values


def window(context: Context, node: Node, kernel: Sequence[int], extents: Sequence[Expr]) -> Window:
    """The window with automatic padding resolved."""
    count = len(kernel)
    if not all(0 < size < _LARGEST for size in kernel):
        raise node.error(f"kernel {list(kernel)} must be positive")
    strides = spatial(node, "strides", count, 1)
    dilations = spatial(node, "dilations", count, 1)
    mode = node.choice("auto_pad", "NOTSET", ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"))
    if mode in ("NOTSET", "VALID"):
        pads = (0,) * (2 * count) if mode == "VALID" else spatial(node, "pads", 2 * count, 0, 0)
        return Window(tuple(kernel), strides, dilations, pads[:count], pads[count:])
    before, after = [], []
    for axis, extent in enumerate(extents):
        total = _same_padding(node, extent, kernel[axis], strides[axis], dilations[axis])
        small, large = total // 2, total - total // 2
        before.append(small if mode == "SAME_UPPER" else large)
        after.append(large if mode == "SAME_UPPER" else small)
    return Window(tuple(kernel), strides, dilations, tuple(before), tuple(after))


def _same_padding(node: Node, extent: Expr, kernel: int, stride: int, dilation: int) -> int:
    reach = dilation * (kernel - 1) + 1
    if stride == 1:
        return reach - 1
    if not isinstance(extent, int):
        raise node.unsupported(
            f"automatic padding with stride {stride} of a dimension {extent} that is not fixed: "
            "export with explicit pads"
        )
    return max((-(-extent // stride) - 1) * stride + reach - extent, 0)


def positions(
    context: Context, node: Node, given: Window, extents: Sequence[Expr], ceil: bool = False
) -> list[Expr]:
    """How many window positions fit on each axis."""
    result: list[Expr] = []
    for axis, extent in enumerate(extents):
        stride, symbols = given.strides[axis], context.symbols
        room = symbols.simplify(extent + given.before[axis] + given.after[axis] - given.reach(axis))
        symbols.require_at_most(0, room, f"{node.label} moves a window of {given.reach(axis)}")
        count = symbols.simplify(symbols.floordiv(room + (stride - 1 if ceil else 0), stride) + 1)
        if ceil:
            # A window may not start in the padding behind the last element.
            starts = symbols.floordiv(extent + given.before[axis] - 1, stride)
            count = symbols.minimum(count, symbols.simplify(starts + 1))
        result.append(count)
    return result

"""Convolutions become packed products: against a direct sum in float64."""

from __future__ import annotations

import numpy as np
import pytest
from plan_runner import Compiled
from relax_models import make, nn, op


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype("float32")


def convolve(x: np.ndarray, w: np.ndarray, stride: int, pad: int) -> np.ndarray:
    """Cross-correlation, NCHW and OIHW."""
    x = np.pad(x.astype(float), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    view = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(2, 3))
    return np.einsum("bchwyx,ocyx->bohw", view[:, :, ::stride, ::stride], w)


def transposed(
    x: np.ndarray, w: np.ndarray, stride: int, pad: int, extra: int, dilation: int
) -> np.ndarray:
    """The adjoint of `convolve`: every input element adds its weighted kernel. IOHW."""
    batch, _, height, width = x.shape
    reach = dilation * (w.shape[2] - 1) + 1
    full = [(n - 1) * stride + reach + extra for n in (height, width)]
    out = np.zeros((batch, w.shape[1], *full))
    for i in range(height):
        for j in range(width):
            term = np.einsum("bc,coyx->boyx", x[:, :, i, j].astype(float), w)
            top, left = i * stride, j * stride
            out[:, :, top : top + reach : dilation, left : left + reach : dilation] += term
    return out[:, :, pad : full[0] - pad, pad : full[1] - pad]


@pytest.mark.parametrize(
    ("kernel", "stride", "pad"), [(14, 14, 0), (3, 1, 1), (3, 2, 0), (1, 1, 0)]
)
def test_conv2d(kernel: int, stride: int, pad: int) -> None:
    w, bias = random(8, 3, kernel, kernel), random(1, 8, 1, 1)
    inputs = {"x": (("b", 3, 28, 28), "float32")}

    def body(_, x, w, bias):
        return nn.relu(op.add(nn.conv2d(x, w, strides=[stride] * 2, padding=[pad] * 2), bias))

    run = Compiled(make(inputs, {"w": w, "bias": bias}, body))
    assert "gemm" in run.templates
    x = random(2, 3, 28, 28)
    expected = np.maximum(convolve(x, w, stride, pad) + bias, 0)
    np.testing.assert_allclose(run([x])[0], expected, atol=1e-4)


@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "extra", "dilation"),
    [
        (4, 2, 1, 0, 1),
        (3, 2, 1, 1, 1),
        (2, 2, 0, 0, 1),
        (3, 1, 1, 0, 1),
        (2, 3, 0, 0, 1),
        (3, 2, 1, 0, 2),
    ],
)
def test_conv2d_transpose(kernel: int, stride: int, pad: int, extra: int, dilation: int) -> None:
    w = random(3, 5, kernel, kernel)
    inputs = {"x": (("b", 3, 6, 6), "float32")}

    def body(_, x, w):
        return nn.conv2d_transpose(
            x,
            w,
            strides=[stride] * 2,
            padding=[pad] * 2,
            output_padding=[extra] * 2,
            dilation=[dilation] * 2,
        )

    run = Compiled(make(inputs, {"w": w}, body))
    assert "gemm" in run.templates
    x = random(2, 3, 6, 6)
    expected = transposed(x, w, stride, pad, extra, dilation)
    np.testing.assert_allclose(run([x])[0], expected, atol=1e-5)


def test_grouped_convolution_keeps_the_direct_loops() -> None:
    w = random(4, 2, 3, 3)
    inputs = {"x": (("b", 4, 9, 9), "float32")}
    run = Compiled(make(inputs, {"w": w}, lambda _, x, w: nn.conv2d(x, w, groups=2)))
    assert "gemm" not in run.templates
    x = random(1, 4, 9, 9)
    halves = [convolve(x[:, i : i + 2], w[i : i + 2], 1, 0) for i in (0, 2)]
    np.testing.assert_allclose(run([x])[0], np.concatenate(halves, 1), atol=1e-5)

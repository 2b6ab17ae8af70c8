"""Ranges of activations, and SmoothQuant's factors."""

from __future__ import annotations

import numpy as np
import pytest

from graphc.passes import calibrate


def test_every_range_includes_zero() -> None:
    for method in calibrate.METHODS.values():
        span = method(np.linspace(3, 5, 100, dtype=np.float32))
        assert span.low == 0
        assert span.zero == 0
        assert span.high == pytest.approx(5, rel=1e-3)


def test_a_value_alone_does_not_stretch_a_percentile() -> None:
    values = np.random.default_rng(0).standard_normal(100_000).astype("float32")
    values[0] = 1000
    assert calibrate.minmax(values).high == 1000
    assert calibrate.percentile(values).high < 6


def test_entropy_lies_between() -> None:
    """Long thin tails are cut, the bulk is kept."""
    values = np.random.default_rng(1).laplace(size=100_000).astype("float32")
    values[:5] = 300
    span = calibrate.entropy(values)
    assert 5 < span.high <= 300
    assert calibrate.entropy(np.zeros(9, "float32")).scale == 1.0


def test_codes_reach_both_ends() -> None:
    span = calibrate.Range(-1.0, 3.0)
    ends = np.rint(np.array([-1.0, 0.0, 3.0]) / span.scale) + span.zero
    np.testing.assert_array_equal(ends, [0, span.zero, 255])


def test_smoothing_balances_columns_and_rows() -> None:
    x = np.array([[1, 100, 0]], "float32")
    w = np.array([[2.0], [0.5], [1.0]], "float32")
    factors = calibrate.smoothing([x], w, 0.5)
    np.testing.assert_allclose(factors[:2], np.sqrt([1 / 2, 100 / 0.5]), rtol=1e-5)
    assert factors[2] == 1  # nothing was seen there

"""Random inputs and the measure of difference."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

from graphc import testing
from graphc.errors import ConfigError, InputError


@dataclass(frozen=True)
class Port:
    name: str
    dtype: str
    shape: tuple[int | str, ...]
    value_range: tuple[int, int] | None = None


IDS = Port("ids", "int64", ("batch", "sequence"), (3, 9))
MASK = Port("mask", "int32", ("batch", "sequence"))
IMAGE = Port("image", "float32", ("batch", 3))
PORTS = (IDS, MASK, IMAGE)


def test_inputs_follow_the_ports() -> None:
    feeds = testing.random_inputs(PORTS, {"batch": 64, "sequence": 33})
    ids, mask, image = (feeds[port.name] for port in PORTS)
    assert (ids.min(), ids.max(), ids.dtype) == (3, 9, np.int64)
    assert mask.dtype == np.int32 and set(np.unique(mask)) == {0, 1}
    assert (mask[:, 0] == 1).all() and (np.diff(mask, axis=1) <= 0).all()
    assert (mask[0] == 1).all()
    assert len(set(mask.sum(1))) > 10
    assert image.dtype == np.float32 and 0.8 < image.std() < 1.2


def test_inputs_are_the_same_each_time_and_differ_by_seed_and_name() -> None:
    dims = {"batch": 2, "sequence": 5}
    first = testing.random_input(IDS, dims)
    assert (first == testing.random_input(IDS, dims)).all()
    assert (first != testing.random_input(IDS, dims, seed=1)).any()
    assert (first != testing.random_input(Port("ids2", "int64", IDS.shape, (3, 9)), dims)).any()


def test_a_scalar_and_a_boolean() -> None:
    assert testing.random_input(Port("n", "int64", ()), {}) == 1
    assert testing.random_input(Port("m", "bool", (3, 4)), {}).dtype == np.bool_


def test_feeds_fill_in_what_is_missing() -> None:
    ids = np.zeros((2, 5), np.int64)
    feeds = testing.feeds(PORTS, {}, {"ids": ids})
    assert feeds["ids"] is ids
    assert feeds["mask"].shape == (2, 5) and feeds["image"].shape == (2, 3)


@pytest.mark.parametrize(
    ("dims", "inputs", "error"),
    [
        ({"batch": 2}, {}, ConfigError),
        ({"batch": 2, "sequence": 3, "other": 4}, {}, ConfigError),
        ({"batch": 3}, {"ids": np.zeros((2, 5))}, ConfigError),
        ({}, {"ids": np.zeros((2, 5)), "mask": np.zeros((3, 5))}, InputError),
        ({}, {"ids": np.zeros(2)}, InputError),
        ({"batch": 2, "sequence": 3}, {"nothing": np.zeros(2)}, InputError),
    ],
)
def test_feeds_that_contradict(
    dims: dict[str, int], inputs: dict[str, testing.Array], error: type[Exception]
) -> None:
    with pytest.raises(error):
        testing.feeds(PORTS, dims, inputs)


def test_feeds_are_not_drawn_unasked() -> None:
    with pytest.raises(InputError, match="--random"):
        testing.feeds(PORTS, {"batch": 1, "sequence": 1}, {}, draw=False)


def test_difference() -> None:
    e = np.array([0.5, -2.0, 100.0], np.float32)
    d = testing.compare(e + np.array([1e-3, 0, 0], np.float32), e)
    assert d.max_abs == pytest.approx(1e-3, rel=1e-3)
    assert d.max_rel == pytest.approx(1e-5, rel=1e-3)
    assert d.worst == pytest.approx(1e-3 / np.sqrt(np.mean(e.astype(float) ** 2)), rel=1e-3)
    assert d.cosine == pytest.approx(1)
    assert testing.compare(e, e) == testing.Difference(0, 0, pytest.approx(1), 0, 0)


def test_difference_of_what_is_not_finite() -> None:
    e = np.array([np.nan, np.inf, -np.inf, 1.0])
    assert testing.compare(e.copy(), e).worst == 0
    for k, value in enumerate((0.0, 0.0, np.inf, np.nan)):
        a = e.copy()
        a[k] = value
        assert testing.compare(a, e).worst == math.inf
    assert testing.compare(np.zeros(3), np.zeros(4)).worst == math.inf
    assert testing.compare(np.zeros(0), np.zeros(0)).worst == 0
    assert testing.compare(np.zeros(3), np.zeros(3)).cosine == 1


def test_tolerance() -> None:
    assert testing.tolerance("float32") == 1e-4
    assert testing.tolerance("int64") == 0
    assert testing.tolerance("float32", 0.1) == 0.1

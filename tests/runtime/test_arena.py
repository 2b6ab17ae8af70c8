"""Placement of arena buffers at run time: never two in one place while both live, and compact."""

from __future__ import annotations

import ctypes

import pytest
from c_compiler import compile_c
from hypothesis import given, settings
from hypothesis import strategies as st

from graphc.artifact import RUNTIME


class _Buffer(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int32) for name in ("first", "last", "stage"))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    output = tmp_path_factory.mktemp("arena") / "arena.so"
    dll = ctypes.CDLL(str(compile_c(["-O2", "-shared", "-fPIC", RUNTIME / "arena.c"], output)))
    dll.gc_place_buffers.restype = ctypes.c_size_t
    return dll


def place(
    library: ctypes.CDLL, lives: list[tuple[int, int]], sizes: list[int]
) -> tuple[int, list[int]]:
    n = len(lives)
    buffers = (_Buffer * n)(*lives)
    rounded, offsets = (ctypes.c_size_t * n)(*sizes), (ctypes.c_size_t * n)()
    total = library.gc_place_buffers(
        n, buffers, ctypes.c_size_t(64), rounded, offsets, (ctypes.c_int32 * (2 * n))()
    )
    return total, list(offsets)


LIFE = st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1]))
BUFFERS = st.lists(st.tuples(LIFE, st.integers(0, 5000)), min_size=1, max_size=60)


@settings(max_examples=400, deadline=None)
@given(BUFFERS)
def test_live_buffers_never_overlap(
    library: ctypes.CDLL, buffers: list[tuple[tuple[int, int], int]]
) -> None:
    lives, sizes = [life for life, _ in buffers], [size for _, size in buffers]
    total, offsets = place(library, lives, sizes)
    for i, (first, last) in enumerate(lives):
        assert offsets[i] % 64 == 0
        assert offsets[i] + sizes[i] <= total
        for j in range(i):
            lives_together = first <= lives[j][1] and lives[j][0] <= last
            apart = offsets[i] + sizes[i] <= offsets[j] or offsets[j] + sizes[j] <= offsets[i]
            assert not lives_together or apart or 0 in (sizes[i], sizes[j])
    peak = max(
        sum((s + 63) // 64 * 64 for (f, t), s in zip(lives, sizes, strict=True) if f <= step <= t)
        for step in range(60)
    )
    assert peak <= total <= sum((size + 63) // 64 * 64 for size in sizes)


def test_chain_needs_two_buffers(library: ctypes.CDLL) -> None:
    lives = [(i, i + 1) for i in range(20)]
    total, _ = place(library, lives, [640] * 20)
    assert total == 2 * 640


@pytest.mark.parametrize("sizes", [[1 << 63], [1 << 62, 1 << 62, 1 << 62, 1 << 62]])
def test_overflow_is_reported(library: ctypes.CDLL, sizes: list[int]) -> None:
    total, _ = place(library, [(0, 1)] * len(sizes), sizes)
    assert total == ctypes.c_size_t(-1).value

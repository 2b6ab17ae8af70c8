"""vocabulary.bin: numbered sections of little-endian words, with what the C side searches in.

file     "graphcV1", count, count x (offset, bytes), then the sections, each aligned to 8
set      4 words of bits for ASCII, n, n x (first, last) code points, ascending
map      n, n code points ascending, n + 1 offsets, bytes (what each becomes, in UTF-8)
trie     nodes, edges, nodes + 1 first edges, nodes values (0: none, else value + 1),
         edges targets, edges bytes (ascending within a node)
words    plain u32; strings: n, n + 1 offsets, bytes
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

MAGIC: Final = b"graphcV1"
CODE_POINTS: Final = 0x110000
_ALIGNMENT: Final = 8
NONE: Final = 0xFFFFFFFF


class Layout:
    """Sections in the order in which they are added; equal ones are kept once."""

    def __init__(self) -> None:
        self._sections: list[bytes] = []
        self._known: dict[bytes, int] = {}

    def add(self, data: bytes) -> int:
        """A section's number."""
        if data not in self._known or self._known[data] == 0:
            self._known[data] = len(self._sections)
            self._sections.append(data)
        return self._known[data]

    def replace_first(self, words: Iterable[int]) -> None:
        """Give the first section its contents, once the numbers of all others are known."""
        self._sections[0] = _words(words)

    def add_words(self, words: Iterable[int]) -> int:
        return self.add(_words(words))

    def add_doubles(self, values: Iterable[float]) -> int:
        return self.add(np.fromiter(values, "<f8").tobytes())

    def add_set(self, members: npt.NDArray[np.bool_]) -> int:
        """`members` [CODE_POINTS]."""
        edges = np.flatnonzero(np.diff(np.concatenate([[False], members, [False]]).astype(np.int8)))
        ranges = edges.reshape(-1, 2) - np.array([0, 1])
        ascii_bits: list[int] = np.packbits(members[:128], bitorder="little").view("<u4").tolist()
        flat: list[int] = ranges.ravel().tolist()
        return self.add_words([*ascii_bits, len(ranges), *flat])

    def add_map(self, mapping: Mapping[int, str]) -> int:
        keys = sorted(mapping)
        return self.add(_words([len(keys), *keys]) + _strings([mapping[k].encode() for k in keys]))

    def add_strings(self, strings: Sequence[bytes]) -> int:
        return self.add(_words([len(strings)]) + _strings(strings))

    def add_trie(self, values: Mapping[bytes, int]) -> int:
        """Keys are not empty; nodes are numbered level by level."""
        children: list[dict[int, int]] = [{}]
        found = [0]
        for key in sorted(values):
            node = 0
            for byte in key:
                if byte not in children[node]:
                    children[node][byte] = len(children)
                    children.append({})
                    found.append(0)
                node = children[node][byte]
            found[node] = values[key] + 1
        ordered = [sorted(edges.items()) for edges in children]
        first: list[int] = np.cumsum([0, *map(len, ordered)]).tolist()
        targets = [target for edges in ordered for _, target in edges]
        labels = bytes(byte for edges in ordered for byte, _ in edges)
        head = [len(children), len(targets), *first, *found, *targets]
        return self.add(_words(head) + labels)

    def to_bytes(self) -> bytes:
        """The file."""
        table: list[int] = []
        at = _aligned(len(MAGIC) + 4 + 8 * len(self._sections))
        for data in self._sections:
            table += [at, len(data)]
            at = _aligned(at + len(data))
        head = MAGIC + _words([len(self._sections), *table])
        parts = [head, *self._sections]
        return b"".join(part + b"\0" * (-len(part) % _ALIGNMENT) for part in parts)


def _words(values: Iterable[int]) -> bytes:
    array: npt.NDArray[Any] = np.fromiter(values, np.uint64)
    assert array.size == 0 or int(array.max()) <= NONE
    return array.astype("<u4").tobytes()


def _strings(strings: Sequence[bytes]) -> bytes:
    offsets: list[int] = np.cumsum([0, *map(len, strings)]).tolist()
    return _words(offsets) + b"".join(strings)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT

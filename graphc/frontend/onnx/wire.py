"""Splits an ONNX file into its structure and its weights without parsing the weights.

Protobuf would copy every weight at least once. This walks the wire format instead, notes where
each initializer's `raw_data` lies in the file, and returns the rest of the file for protobuf.
Field numbers: ModelProto.graph = 7, GraphProto.initializer = 5, TensorProto.raw_data = 9
(onnx.proto, protobuf encoding guide).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from graphc.errors import ModelError

_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Smaller tensors stay in the structure, where protobuf reads them.
_SMALL = 256


@dataclass(frozen=True)
class Extent:
    """Bytes [start, start + length) of the file."""

    start: int
    length: int


@dataclass(frozen=True)
class Split:
    """The model without large weights, and each initializer's extent in the file, in order."""

    structure: bytes
    weights: tuple[Extent | None, ...]


def split(data: memoryview) -> Split:
    """Raises ModelError when `data` is not well-formed protobuf as far as it is walked."""
    pieces: list[bytes] = []
    weights: list[Extent | None] = []
    for number, kind, start, body, end in _fields(data, 0, len(data)):
        if number == _GRAPH and kind == _BYTES:
            graph = b"".join(_graph(data, body, end, weights))
            pieces.append(_field(_GRAPH, graph))
        else:
            pieces.append(bytes(data[start:end]))
    return Split(b"".join(pieces), tuple(weights))


def _graph(
    data: memoryview, begin: int, stop: int, weights: list[Extent | None]
) -> Iterator[bytes]:
    for number, kind, start, body, end in _fields(data, begin, stop):
        if number != _INITIALIZER or kind != _BYTES:
            yield bytes(data[start:end])
            continue
        extent, tensor = _tensor(data, body, end)
        weights.append(extent)
        yield _field(_INITIALIZER, tensor)


def _tensor(data: memoryview, begin: int, stop: int) -> tuple[Extent | None, bytes]:
    pieces: list[bytes] = []
    extent: Extent | None = None
    for number, kind, start, body, end in _fields(data, begin, stop):
        if number == _RAW_DATA and kind == _BYTES and end - body > _SMALL:
            extent = Extent(body, end - body)
        else:
            pieces.append(bytes(data[start:end]))
    return extent, b"".join(pieces)


def _fields(data: memoryview, position: int, stop: int) -> Iterator[tuple[int, int, int, int, int]]:
    """(field number, wire type, start, start of the content, end) of each field."""
    while position < stop:
        start = position
        key, position = _varint(data, position, stop)
        body = position
        kind = key & 7
        if kind == _VARINT:
            _, position = _varint(data, position, stop)
        elif kind == _FIXED64:
            position += 8
        elif kind == _FIXED32:
            position += 4
        elif kind == _BYTES:
            length, body = _varint(data, position, stop)
            position = body + length
        else:
            raise _broken(start)
        if position > stop or key >> 3 == 0:
            raise _broken(start)
        yield key >> 3, kind, start, body, position


def _varint(data: memoryview, position: int, stop: int) -> tuple[int, int]:
    value = shift = 0
    while position < stop and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
    raise _broken(position)


def _field(number: int, content: bytes) -> bytes:
    return _encode(number << 3 | _BYTES) + _encode(len(content)) + content


def _encode(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _broken(position: int) -> ModelError:
    return ModelError(
        f"not an ONNX model: the protobuf breaks off or is damaged at byte {position}"
    )

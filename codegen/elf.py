"""Reads what matters of a linked ELF file: its machine, what it needs and what it exports.

Layout: System V ABI, chapters 4 (headers) and 5 (dynamic section); 64-bit little-endian only.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from graphc.errors import ToolError

_MACHINES: Final = {40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_DYNAMIC: Final = struct.Struct("<QQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_SHT_DYNAMIC: Final = 6
_SHT_DYNSYM: Final = 11
_DT_NEEDED: Final = 1
_DT_SONAME: Final = 14
_LOCAL: Final = 0


@dataclass(frozen=True)
class ElfInfo:
    """`machine` as uname says it; `needed` are the sonames of the libraries it loads."""

    machine: str
    needed: tuple[str, ...]
    soname: str
    exported: tuple[str, ...]


def read(path: Path) -> ElfInfo:
    """Read a linked executable or library; ToolError when it is no 64-bit little-endian ELF."""
    data = path.read_bytes()
    try:
        return _read(data)
    except (struct.error, ValueError, IndexError, OverflowError) as error:
        raise ToolError(f"{path}: not a readable ELF file: {error}") from error


def _read(data: bytes) -> ElfInfo:
    header = _HEADER.unpack_from(data)
    if header[0][:6] != b"\x7fELF\x02\x01":
        raise ValueError("not 64-bit little-endian ELF")
    machine, table, entry, count = header[2], header[6], header[11], header[12]
    sections = [_SECTION.unpack_from(data, table + i * entry) for i in range(count)]
    needed: list[str] = []
    exported: list[str] = []
    soname = ""
    for section in sections:
        kind, offset, size, link = section[1], section[4], section[5], section[6]
        if kind not in (_SHT_DYNAMIC, _SHT_DYNSYM):
            continue
        strings = sections[link][4]
        if kind == _SHT_DYNAMIC:
            for tag, value in _DYNAMIC.iter_unpack(data[offset : offset + size]):
                if tag == _DT_NEEDED:
                    needed.append(_string(data, strings + value))
                if tag == _DT_SONAME:
                    soname = _string(data, strings + value)
        else:
            for name, info, _, where, _, _ in _SYMBOL.iter_unpack(data[offset : offset + size]):
                if where != 0 and info >> 4 != _LOCAL:
                    exported.append(_string(data, strings + name))
    return ElfInfo(
        machine=_MACHINES.get(machine, f"machine {machine}"),
        needed=tuple(needed),
        soname=soname,
        exported=tuple(sorted(exported)),
    )


def _string(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode("utf-8", "replace")

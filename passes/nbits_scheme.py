"""Names of the schemes for weights of few bits: q4, q8, q4-sym-g128, q3-g64-gptq, q4-head4 ...

q<bits>[-sym][-g<group>][-gptq][-head<bits>][-embed<bits>]
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from graphc.errors import ConfigError

EXAMPLES: Final = ("q4", "q8", "q4-g128", "q4-sym-g128-gptq", "q3-g64", "q4-head4")

_NAME: Final = re.compile(r"q([2-8])(-sym)?(?:-g(\d+))?(-gptq)?(?:-head(\d))?(?:-embed(\d))?")


@dataclass(frozen=True)
class NbitsScheme:
    """Bits and group of the products' weights; of the last products; of tables that are gathered.

    The last products (a language model's head) and the tables take 8 bits unless they are told to.
    """

    bits: int
    group: int
    symmetric: bool
    gptq: bool
    head_bits: int
    embedding_bits: int


def parse(name: str) -> NbitsScheme | None:
    """The scheme of this name, None when it is no name of this kind."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    bits, symmetric, group, gptq, head, embedding = match.groups()
    size = int(group or 32)
    if size not in (16, 32, 64, 128, 256):
        raise ConfigError(f"quantize = {name!r}: groups of {size}, expected 16, 32, 64, 128 or 256")
    outer = max(8, int(bits))
    for number in (head, embedding):
        if number is not None and not 2 <= int(number) <= 8:
            raise ConfigError(f"quantize = {name!r}: {number} bits, expected 2 to 8")
    return NbitsScheme(
        bits=int(bits),
        group=size,
        symmetric=symmetric is not None or int(bits) == 8,
        gptq=gptq is not None,
        head_bits=int(head or outer),
        embedding_bits=int(embedding or head or outer),
    )

"""graphc: an ahead-of-time compiler from exported transformers to self-contained libraries.

The names below are imported on first use: loading and running an artifact never imports the
compiler, and `graphc --help` imports next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "CompileConfig",
    "GraphcError",
    "SamplingParams",
    "compile",
    "from_torch",
    "load",
]

if TYPE_CHECKING:
    from graphc.compiler import compile, from_torch
    from graphc.config import CompileConfig
    from graphc.errors import GraphcError
    from graphc.llm.llm import LLM
    from graphc.llm.sampling import SamplingParams
    from graphc.module import load

_HOMES = {
    "CompileConfig": "graphc.config",
    "GraphcError": "graphc.errors",
    "LLM": "graphc.llm.llm",
    "SamplingParams": "graphc.llm.sampling",
    "compile": "graphc.compiler",
    "from_torch": "graphc.compiler",
    "load": "graphc.module",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'graphc' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)

"""Reads a .pt2 file without executing anything that is in it; its weights stay memory-mapped.

`torch.export.load` unpickles sample inputs, pickled weights and custom objects, and evaluates the
file's shape expressions and guards as Python. Here the pickles are never read, and expressions,
guards and call targets are checked against what torch itself writes before torch sees them.
"""

from __future__ import annotations

import ast
import json
import logging
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphc.errors import ModelError, UnsupportedError

if TYPE_CHECKING:
    import torch

NAMES_FILE = "graphc_dims.json"
"""An extra file of the archive: the names of torch's dimension symbols."""

_MAX_PROGRAM = 1 << 30
# A name in the file is looked up in torch and called: torch.hub.load would be one, too.
_CALLS = re.compile(
    r"torch\.ops\.aten\.(__(and|or|xor|lshift|rshift)__|[A-Za-z0-9]\w*|_[A-Za-z0-9]\w*)"
    r"(\.[A-Za-z0-9]\w*)?"
    r"|torch\.sym_[a-z]+"
    r"|_operator\.(add|sub|mul|floordiv|truediv|mod|pow|neg|eq|ne|lt|le|gt|ge|and_|or_|getitem)"
    r"|math\.(trunc|ceil|floor|sqrt)"
)
_SYMPY = frozenset(
    [
        "Symbol",
        "Integer",
        "Rational",
        "Float",
        "Mul",
        "Add",
        "Pow",
        "Max",
        "Min",
        "Abs",
        "Mod",
        "Eq",
        "Ne",
        "Lt",
        "Le",
        "Gt",
        "Ge",
        "And",
        "Or",
        "Not",
        "Equality",
        "Unequality",
        "StrictLessThan",
        "LessThan",
        "StrictGreaterThan",
        "GreaterThan",
        "FloorDiv",
        "ModularIndexing",
        "Where",
        "PythonMod",
        "CleanDiv",
        "CeilToInt",
        "FloorToInt",
        "CeilDiv",
        "LShift",
        "RShift",
        "PowByNatural",
        "FloatPow",
        "FloatTrueDiv",
        "IntTrueDiv",
        "TruncToFloat",
        "TruncToInt",
        "RoundToInt",
        "RoundDecimal",
        "ToFloat",
        "OpaqueUnaryFn_sqrt",
        "IsNonOverlappingAndDenseIndicator",
    ]
)
_PATHS = frozenset({"size", "L"})
_SHAPE_SYNTAX = (
    ast.Expression, ast.Call, ast.Name, ast.Load, ast.Constant, ast.keyword, ast.Attribute,
    ast.Subscript, ast.Compare, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.And, ast.Or, ast.Not,
    ast.USub, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Div, ast.Mod, ast.Eq, ast.NotEq,
    ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Index,
)  # fmt: skip
_BUILTIN_CONTAINERS = frozenset(
    {None, "builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"}
)
# How torch numbers element types in its schema.
_DTYPES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32",
    8: "float64", 12: "bool", 13: "bfloat16", 28: "uint16",
}  # fmt: skip


def read(path: Path) -> tuple[torch.export.ExportedProgram, dict[str, str]]:
    """The program in the file and the names of its dimensions' symbols, as far as it has them.

    Raises ModelError for a damaged file, UnsupportedError for one that needs code of its own.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _Reader(path, archive).program()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError) as error:
        raise ModelError(f"{path}: not a .pt2 file, or a damaged one: {error}") from error


class _Reader:
    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self._path, self._archive = path, archive
        self._entries = {
            entry.filename.partition("/")[2]: entry
            for entry in archive.infolist()
            if "/" in entry.filename
        }

    def program(self) -> tuple[torch.export.ExportedProgram, dict[str, str]]:
        models = [name for name in self._entries if name.startswith("models/")]
        if models != ["models/model.json"]:
            raise ModelError(
                f"{self._path}: it holds {len(models)} programs that torch.export.save wrote, one "
                "is needed: save it with torch 2.8 or later"
            )
        record = self._json("models/model.json")
        _check(self._path, record)
        names = self._json(f"extra/{NAMES_FILE}") if f"extra/{NAMES_FILE}" in self._entries else {}
        weights = self._tensors("data/weights/", "data/weights/model_weights_config.json")
        constants = self._tensors("data/constants/", "data/constants/model_constants_config.json")
        return _deserialized(self._path, record, weights, constants), {
            str(symbol): str(name) for symbol, name in names.items() if str(name).isidentifier()
        }

    def _json(self, name: str) -> dict[str, Any]:
        entry = self._entry(name)
        if entry.file_size > _MAX_PROGRAM:
            raise ModelError(f"{self._path}: {name} has {entry.file_size} bytes")
        try:
            record = json.loads(self._archive.read(entry))
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{self._path}: {name} is not JSON: {error}") from error
        if not isinstance(record, dict):
            raise ModelError(f"{self._path}: {name} is not a JSON object")
        return record

    def _entry(self, name: str) -> zipfile.ZipInfo:
        if name not in self._entries:
            raise ModelError(f"{self._path}: it has no {name}: save it with torch.export.save")
        return self._entries[name]

    def _tensors(self, folder: str, config: str) -> dict[str, torch.Tensor]:
        """The tensors of one folder, mapped; those that share a file share their memory."""
        import torch

        tensors: dict[str, torch.Tensor] = {}
        files: dict[str, torch.Tensor] = {}
        entries = self._json(config).get("config")
        if not isinstance(entries, dict):
            raise ModelError(f"{self._path}: {config} has no entries")
        for name, meta in entries.items():
            if meta.get("use_pickle") or not meta.get("tensor_meta"):
                raise UnsupportedError(
                    f"{self._path}: {name} is a pickled object, which could execute code: "
                    "export the model with plain tensors"
                )
            place, layout = str(meta["path_name"]), meta["tensor_meta"]
            if place not in files:
                files[place] = self._flat(folder + place, layout["dtype"])
            tensor = self._strided(name, files[place], layout)
            tensors[name] = (
                torch.nn.Parameter(tensor, requires_grad=False) if meta.get("is_param") else tensor
            )
        return tensors

    def _flat(self, name: str, dtype: int) -> torch.Tensor:
        """All elements of an entry; the file has it uncompressed, and aligned by torch's writer."""
        import torch

        if dtype not in _DTYPES:
            raise UnsupportedError(f"{self._path}: {name} has torch's element type {dtype}")
        kind = getattr(torch, _DTYPES[dtype])
        entry = self._entry(name)
        if entry.compress_type != zipfile.ZIP_STORED or not entry.file_size:
            data = np.frombuffer(self._archive.read(entry), np.uint8).copy()
        else:
            with self._archive.open(entry) as stream:  # checks the entry's own header
                start = stream._orig_compress_start  # type: ignore[attr-defined]
            data = np.memmap(self._path, np.uint8, "c", start, (entry.file_size,))
        if data.size % kind.itemsize:
            raise ModelError(f"{self._path}: {name} has {data.size} bytes of {_DTYPES[dtype]}")
        if not data.size:
            return torch.empty(0, dtype=kind)
        return torch.from_numpy(data).view(kind)

    def _strided(self, name: str, flat: torch.Tensor, layout: dict[str, Any]) -> torch.Tensor:
        sizes = [_number(item) for item in layout["sizes"]]
        strides = [_number(item) for item in layout["strides"]]
        offset = _number(layout["storage_offset"])
        last = offset + sum((size - 1) * step for size, step in zip(sizes, strides, strict=True))
        if min([*sizes, *strides, offset], default=0) < 0 or (
            0 not in sizes and last >= flat.numel()
        ):
            raise ModelError(f"{self._path}: {name} reaches outside its {flat.numel()} elements")
        return flat.as_strided(sizes, strides, offset)


def _number(item: Any) -> int:
    value = item.get("as_int") if isinstance(item, dict) else item
    if not isinstance(value, int):
        raise ModelError(f"a tensor's size is {item}, a number is needed")
    return value


def _deserialized(
    path: Path, record: dict[str, Any], weights: Any, constants: Any
) -> torch.export.ExportedProgram:
    from torch._export.serde import schema
    from torch._export.serde.serialize import ExportedProgramDeserializer, _bytes_to_dataclass

    quiet = logging.getLogger("torch._export.serde.serialize")
    level = quiet.level
    quiet.setLevel(logging.ERROR)
    try:
        program = _bytes_to_dataclass(schema.ExportedProgram, json.dumps(record).encode())
        return ExportedProgramDeserializer().deserialize(program, weights, constants, {})
    except Exception as error:
        raise ModelError(
            f"{path}: torch cannot read it: {type(error).__name__}: {str(error)[:300]}"
        ) from error
    finally:
        quiet.setLevel(level)


# -- what torch would evaluate -------------------------------------------------------------


def _check(path: Path, record: dict[str, Any]) -> None:
    """Refuses what torch does not write; makes dictionaries of outputs of other libraries."""
    for owner, key, value in _strings(record):
        if key == "expr_str":
            _check_expression(path, value, _SYMPY)
        elif key in ("in_spec", "out_spec"):
            owner[key] = _plain_containers(path, value)
        elif key == "target" and "inputs" in owner and not _CALLS.fullmatch(value):
            raise UnsupportedError(
                f"{path}: it calls {value}, which is neither an ATen operator nor arithmetic: "
                "export the model without it"
            )
    for guard in record.get("guards_code") or ():
        _check_expression(path, guard, _PATHS)
    graph = record.get("graph_module", {})
    for node in graph.get("graph", {}).get("nodes", ()) if isinstance(graph, dict) else ():
        kept = node.get("metadata") or {}
        node["metadata"] = {
            key: kept[key] for key in ("stack_trace", "nn_module_stack") if key in kept
        }


def _strings(record: Any) -> Iterator[tuple[dict[str, Any], str, str]]:
    pending = [record]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            for key, value in item.items():
                if isinstance(value, str):
                    yield item, key, value
                else:
                    pending.append(value)
        elif isinstance(item, list):
            pending.extend(item)


def _check_expression(path: Path, text: Any, names: frozenset[str]) -> None:
    """Only numbers, symbols, arithmetic and `names`: nothing that could call anything else."""
    problem = ModelError(f"{path}: {str(text)[:100]!r} is not an expression over dimensions")
    try:
        tree = ast.parse(str(text), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise problem from error
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        allowed = isinstance(node, _SHAPE_SYNTAX)
        if isinstance(node, ast.Name) and id(node) in called:
            allowed = node.id in names
        elif isinstance(node, ast.Name):
            allowed = node.id in names or node.id in ("oo", "int_oo", "true", "false") or (
                node.id[:1] in "suz_" and node.id.lstrip("suz_").isdigit()
            )  # fmt: skip
        elif isinstance(node, ast.Attribute):
            allowed = node.attr in names
        if not allowed:
            raise problem


def _plain_containers(path: Path, text: str) -> str:
    """A tree of containers in which every class of another library is a plain dictionary."""
    try:
        protocol, tree = json.loads(text)
        pending = [tree]
        while pending:
            node = pending.pop()
            pending.extend(node["children_spec"])
            if node["type"] in _BUILTIN_CONTAINERS:
                continue
            keys = json.loads(node["context"])
            if not isinstance(keys, list) or len(keys) != len(node["children_spec"]):
                raise ValueError(f"container {node['type']}")
            node["type"] = "builtins.dict"
        return json.dumps([protocol, tree])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path}: its inputs or outputs are not described: {error}") from error

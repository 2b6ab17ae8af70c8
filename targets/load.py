"""Reads a device's TOML file, on top of the one that it names as its base, into a Target."""

from __future__ import annotations

import difflib
import re
import sys
from pathlib import Path
from typing import Any, Final

from graphc import env
from graphc.errors import ConfigError
from graphc.targets import detect
from graphc.targets.target import Device, Link, Target

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_BUILT_IN: Final = Path(__file__).resolve().parent
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]*")

# Every key that a file may have, and the type of its value; a nested dict is a table.
_SCHEMA: Final[dict[str, Any]] = {
    "description": str,
    "base": str,
    "qemu_cpu": str,
    "machine": str,
    "vector_bits": int,
    "vector_registers": int,
    "threads": int,
    "features": list,
    "dtypes": list,
    "cache": {"l1": int, "l2": int, "l3": int},
    "tvm": {"kind": str, "mtriple": str, "mcpu": str, "mattr": list},
    "link": {"triple": str, "glibc": str},
    "device": {"kind": str, "max_threads": int, "shared_bytes": int},
}
# Lists add to the base's list; everything else replaces it.
_OPTIONAL: Final = {
    "base",
    "qemu_cpu",
    "tvm.mattr",
    "device.kind",
    "device.max_threads",
    "device.shared_bytes",
}


def names() -> list[str]:
    """All devices that have a file, and `host`."""
    files = {path.stem for folder in _folders() for path in folder.glob("*.toml")}
    return ["host", *sorted(files)]


def get(name: str) -> Target:
    """The target of that name; `host` is the machine that this runs on."""
    if name == "host":
        return _host()
    return _target(name, _inherit(name, ()))


def _folders() -> list[Path]:
    own = env.targets_dir()
    return [_BUILT_IN] if own is None else [own, _BUILT_IN]


def _file(name: str) -> Path:
    if _NAME.fullmatch(name):
        for folder in _folders():
            path = folder / f"{name}.toml"
            if path.is_file():
                return path
    near = difflib.get_close_matches(name, names(), n=1)
    hint = f"did you mean {near[0]}?" if near else f"known targets: {', '.join(names())}"
    raise ConfigError(f"unknown target {name!r}: {hint}")


def _inherit(name: str, seen: tuple[str, ...]) -> dict[str, Any]:
    if name in seen:
        raise ConfigError(f"target {seen[0]}: bases run in a circle, {' -> '.join((*seen, name))}")
    path = _file(name)
    try:
        own = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: not a readable TOML file: {error}") from error
    _validate(path, own, _SCHEMA, "")
    if "base" not in own:
        return own
    return _merge(_inherit(own["base"], (*seen, name)), own)


def _merge(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in own.items():
        if isinstance(value, dict):
            merged[key] = _merge(base.get(key, {}), value)
        elif isinstance(value, list):
            merged[key] = base.get(key, []) + value
        else:
            merged[key] = value
    return merged


def _validate(path: Path, table: dict[str, Any], schema: dict[str, Any], prefix: str) -> None:
    for key, value in table.items():
        where = f"{path}: {prefix}{key}"
        if key not in schema:
            near = difflib.get_close_matches(key, schema, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(schema)}"
            raise ConfigError(f"{where}: unknown key, {hint}")
        kind = schema[key]
        if isinstance(kind, dict):
            if not isinstance(value, dict):
                raise ConfigError(f"{where} = {value!r}: expected a table")
            _validate(path, value, kind, f"{prefix}{key}.")
        elif not isinstance(value, kind) or isinstance(value, bool):
            raise ConfigError(f"{where} = {value!r}: expected {_WORDS[kind]}")
        elif kind is list and not all(isinstance(item, str) for item in value):
            raise ConfigError(f"{where} = {value!r}: expected a list of strings")


_WORDS: Final = {str: "a string", int: "a whole number", list: "a list of strings"}


def _target(name: str, data: dict[str, Any]) -> Target:
    for key, kind in _SCHEMA.items():
        keys = [f"{key}.{inner}" for inner in kind] if isinstance(kind, dict) else [key]
        for dotted in keys:
            outer, _, inner = dotted.partition(".")
            present = inner in data.get(outer, {}) if inner else outer in data
            if not present and dotted not in _OPTIONAL:
                raise ConfigError(f"target {name}: {dotted} is missing and no base gives it")
    tvm = {k: tuple(v) if isinstance(v, list) else v for k, v in data["tvm"].items()}
    return Target(
        name=name,
        description=data["description"],
        machine=data["machine"],
        features=frozenset(data["features"]),
        vector_bits=data["vector_bits"],
        vector_registers=data["vector_registers"],
        threads=data["threads"],
        l1=data["cache"]["l1"],
        l2=data["cache"]["l2"],
        l3=data["cache"]["l3"],
        dtypes=frozenset(data["dtypes"]),
        link=Link(**data["link"]),
        tvm=tvm,
        qemu_cpu=data.get("qemu_cpu", ""),
        device=_device(name, data["device"]) if "device" in data else None,
    )


def _device(name: str, table: dict[str, Any]) -> Device:
    for key in _SCHEMA["device"]:
        if key not in table:
            raise ConfigError(f"target {name}: device.{key} is missing and no base gives it")
    return Device(**table)


def _host() -> Target:
    """The most capable built-in device that this machine can stand for, and what it has besides."""
    host = detect.machine()
    known = [get(path.stem) for path in sorted(_BUILT_IN.glob("*.toml"))]
    fits = [
        t
        for t in known
        if t.device is None and t.machine == host.machine and t.features <= host.features
    ]
    if not fits:
        raise ConfigError(
            f"target host: no target for this {host.machine} machine: "
            f"name one of {', '.join(t.name for t in known)} to compile for another"
        )
    base = max(fits, key=lambda t: (len(t.features), t.name))
    extra = sorted(host.extras - base.features)
    tvm = dict(base.tvm)
    if extra:
        attributes = tvm.get("mattr", ())
        assert isinstance(attributes, tuple), attributes
        tvm["mattr"] = (*attributes, *(f"+{feature}" for feature in extra))
    return Target(
        name="host",
        description=f"this machine: {base.name}" + "".join(f" + {e}" for e in extra),
        machine=base.machine,
        features=base.features | frozenset(extra),
        vector_bits=base.vector_bits,
        vector_registers=base.vector_registers,
        threads=host.cores,
        l1=host.caches.get(1, base.l1),
        l2=host.caches.get(2, base.l2),
        l3=host.caches.get(3, base.l3),
        dtypes=base.dtypes | {detect.EXTRAS[e] for e in extra if detect.EXTRAS[e]},
        link=base.link,
        tvm=tvm,
    )

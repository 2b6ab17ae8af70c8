"""Prints the static plans of a model as C: tables, a bind and a run function for each.

What a table's fields mean is said in graphc/runtime/program.h. Names come from an untrusted model:
they appear in string literals and comments only, escaped, never as identifiers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from graphc.artifact import RUNTIME
from graphc.codegen.device import DeviceKernel
from graphc.codegen.expression import c_text, text, variables
from graphc.codegen.flow_text import FlowText
from graphc.codegen.literals import comment as _comment
from graphc.codegen.literals import quote as _quote
from graphc.codegen.plan import (
    CheckIndices,
    Copy,
    FunctionPlan,
    Kernel,
    Scalar,
    Step,
    Storage,
)
from graphc.codegen.templates.pages import PAGE
from graphc.errors import ConfigError
from graphc.ir import DecoderInfo, Dim, Expr, Port
from graphc.manifest import CacheRecord, DimInfo, FunctionInfo, LanguageInfo, PortInfo
from graphc.weights_file import DTYPE_BITS, WeightTable

_KERNEL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# DLPack's type codes; what is not here starts with int, uint or float.
_CODES: Final = {"bool": 6, "bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12}
_STORAGE: Final = {
    Storage.INPUT: "GC_INPUT",
    Storage.OUTPUT: "GC_OUTPUT",
    Storage.WEIGHT: "GC_WEIGHT",
    Storage.ARENA: "GC_ARENA",
    Storage.CACHE: "GC_CACHE",
    Storage.SLOT: "GC_SLOT",
}
_INDEX_DTYPES: Final = ("int32", "int64")


def _known_features() -> frozenset[str]:
    """The features that cpu_features.c can check: its tables are the only list."""
    source = RUNTIME / "cpu_features.c"
    return frozenset(re.findall(r'\{"([a-z0-9.-]+)", ', source.read_text(encoding="utf-8")))


KNOWN_CPU_FEATURES: Final = _known_features()


def print_program(
    plans: Sequence[FunctionPlan],
    weights: WeightTable,
    cpu_features: Sequence[str] = (),
    device: str | None = None,
    device_kernels: Sequence[DeviceKernel] = (),
    decoder: DecoderInfo | None = None,
) -> str:
    """The host program of a model that exports `plans`, in C11, to be linked with its kernels.

    `device` names the back end that runs `device_kernels`; without one kernels run on the CPU.
    Raises ConfigError for a CPU feature that the runtime cannot check.
    """
    unknown = sorted(set(cpu_features) - KNOWN_CPU_FEATURES)
    if unknown:
        raise ConfigError(
            f"cpu feature {unknown[0]!r} cannot be checked at run time: add it to "
            "graphc/runtime/cpu_features.c"
        )
    numbers = {entry.name: number for number, entry in enumerate(weights.entries)}
    functions = [_Function(f"f{i}", plan, numbers) for i, plan in enumerate(plans)]
    kernels = sorted({name for plan in plans for name in plan.kernels()})
    lines = [
        "/* Written by graphc: the static plan of a compiled model. */",
        '#include "program.h"',
    ]
    lines += ["", *(_declaration(name) for name in kernels)]
    for function in functions:
        lines += ["", *function.lines()]
    lines += ["", *_table("gc_weight", "weights", _weight_rows(weights))]
    lines += _table("char *const", "features", [_quote(name) for name in sorted(cpu_features)])
    rows = [row for function in functions for row in function.row()]
    lines += [*_table("gc_function_plan", "functions", rows)]
    lines += [_code(number, kernel.code) for number, kernel in enumerate(device_kernels)]
    kernel_rows = [_kernel_row(number, kernel) for number, kernel in enumerate(device_kernels)]
    lines += _table("gc_device_kernel", "kernels", kernel_rows)
    if decoder is not None:
        lines += _decoder(decoder, plans)
    sizes = len(plans), len(cpu_features), len(device_kernels)
    lines += ["", *_program(weights, *sizes, device, decoder is not None)]
    return "\n".join(lines) + "\n"


def describe(plan: FunctionPlan) -> FunctionInfo:
    """What the manifest says of an exported function."""
    signature = plan.signature
    return FunctionInfo(
        name=plan.name,
        inputs=tuple(_port_info(port) for port in signature.inputs),
        outputs=tuple(_port_info(port) for port in signature.outputs),
        dims=tuple(DimInfo(dim.name, dim.lower, dim.upper) for dim in signature.dims),
        constraints=tuple(
            f"{text(c.left)} == {text(c.right)}: {c.reason}" for c in signature.constraints
        ),
        choice=signature.choice,
    )


def describe_decoder(decoder: DecoderInfo | None, cache_dtype: str) -> LanguageInfo | None:
    """What the manifest says of a language model."""
    if decoder is None:
        return None
    return LanguageInfo(
        function=decoder.function,
        page_size=decoder.page_size,
        caches=tuple(CacheRecord(c.name, c.heads, c.width, c.dtype) for c in decoder.caches),
        vocabulary=decoder.vocabulary,
        max_context=decoder.max_context,
        ragged=decoder.ragged,
        cache_dtype=cache_dtype,
    )


@dataclass
class _Function:
    """One plan on its way to C; `prefix` is what its identifiers begin with."""

    prefix: str
    plan: FunctionPlan
    weight_numbers: Mapping[str, int]
    shapes: dict[tuple[str, ...], int] = field(default_factory=dict)
    shape_titles: dict[tuple[str, ...], str] = field(default_factory=dict)
    scalars: dict[str, int] = field(default_factory=dict)
    shape_stages: dict[tuple[str, ...], int] = field(default_factory=dict)
    scalar_stages: dict[str, int] = field(default_factory=dict)
    args: list[str] = field(default_factory=list)
    work: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    size: int = 0

    def __post_init__(self) -> None:
        for dim in self._dims():
            clean = re.sub(r"[^A-Za-z0-9_]", "_", dim.name)
            name, again = f"n_{clean}", 1
            while name in self.names.values():
                again += 1
                name = f"n_{clean}_{again}"
            self.names[dim.name] = name
        bound = {
            text(dim)
            for port in self.plan.signature.inputs
            for dim in port.shape
            if not isinstance(dim, int)
        }
        for dim in self.plan.signature.dims:
            assert dim.name in bound, f"dimension {dim.name!r} is bound by no input"

    def _dims(self) -> list[Dim]:
        """All dimensions in the order of gc_frame.dims."""
        return [*self.plan.signature.dims, *(d for stage in self.plan.stages for d in stage.dims)]

    def _stage(self, exprs: Sequence[Expr]) -> int:
        """The stage from which on all of them are known."""
        stages = self.plan.stage_of_dims()
        return max((stages[name] for expr in exprs for name in variables(expr)), default=0)

    def lines(self) -> list[str]:
        """Everything of the function but its row in the table of functions."""
        signature, p = self.plan.signature, self.prefix
        lines = [f"/* {_comment(self.plan.name)} */"]
        dims = [f"{{{_quote(d.name)}, {d.lower}, {_number(d.upper)}}}" for d in signature.dims]
        lines += _table("gc_dim", f"{p}_dims", dims)
        for kind, ports in (("inputs", signature.inputs), ("outputs", signature.outputs)):
            lines += self._ports(kind, ports)
        order = {dim.name: i for i, dim in enumerate(signature.dims)}
        symbols = [order.get(text(d), -1) for port in signature.inputs for d in port.shape]
        lines += _numbers(f"{p}_input_symbols", symbols)
        lines += _numbers(
            f"{p}_input_shapes", [self._shape(port.shape) for port in signature.inputs]
        )
        lines += _numbers(
            f"{p}_output_shapes", [self._shape(port.shape) for port in signature.outputs]
        )
        lines += _table("gc_tensor_plan", f"{p}_tensors", self._tensor_rows())
        stages = [self._stage(port.shape) for port in signature.outputs]
        lines += _numbers(f"{p}_output_stages", stages)
        buffers = [f"{{{b.first}, {b.last}, {b.stage}}}" for b in self.plan.buffers]
        lines += _table("gc_buffer_plan", f"{p}_buffers", buffers)
        lines += _numbers(f"{p}_weights", [self.weight_numbers[name] for name in self.plan.weights])
        places = {dim.name: f"f->dims[{i}]" for i, dim in enumerate(self._dims())}
        run = FlowText(self._step, self._tensor_text, places).lines(self.plan.steps)
        lines += _table("int32_t", f"{p}_args", self.args)
        lines += _table("gc_work", f"{p}_work", self.work)
        for stage in range(len(self.plan.stages) + 1):
            lines += ["", *self._bind(stage)]
        lines += ["", *_table("gc_stage_plan", f"{p}_stages", self._stage_rows())]
        lines += ["", f"static int {p}_run(gc_frame *f) {{", *run]
        lines += ["  (void)f;", "  return GC_OK;", "}"]
        return lines

    def row(self) -> list[str]:
        """The function's entry in the table of functions."""
        p, plan = self.prefix, self.plan
        signature = plan.signature
        inputs, outputs, dims = signature.inputs, signature.outputs, signature.dims
        fields = {
            "info": f"{{{_quote(plan.name)}, {len(inputs)}, {len(outputs)}, {len(dims)}, "
            f"{_pointer(f'{p}_inputs', inputs)}, {_pointer(f'{p}_outputs', outputs)}, "
            f"{_pointer(f'{p}_dims', dims)}}}",
            "input_symbols": _pointer(f"{p}_input_symbols", [d for i in inputs for d in i.shape]),
            "input_shapes": _pointer(f"{p}_input_shapes", inputs),
            "output_shapes": _pointer(f"{p}_output_shapes", outputs),
            "output_stages": _pointer(f"{p}_output_stages", outputs),
            "n_dims": str(len(self._dims())),
            "n_shapes": str(self.size),
            "n_scalars": str(len(self.scalars)),
            "n_tensors": str(len(plan.tensors)),
            "n_buffers": str(len(plan.buffers)),
            "n_args": str(len(self.args)),
            "n_caches": str(len({t.index for t in plan.tensors if t.storage is Storage.CACHE})),
            "n_stages": str(len(plan.stages) + 1),
            "n_slots": str(plan.slots),
            "tensors": _pointer(f"{p}_tensors", plan.tensors),
            "buffers": _pointer(f"{p}_buffers", plan.buffers),
            "args": _pointer(f"{p}_args", self.args),
            "n_work": str(len(self.work)),
            "work": _pointer(f"{p}_work", self.work),
            "weights": _pointer(f"{p}_weights", plan.weights),
            "stages": f"{p}_stages",
            "run": f"{p}_run",
        }
        return ["{" + ", ".join(f".{name} = {value}" for name, value in fields.items()) + "}"]

    def _ports(self, kind: str, ports: Sequence[Port]) -> list[str]:
        lines, rows = [], []
        for number, port in enumerate(ports):
            name = f"{self.prefix}_{kind}{number}"
            texts = [_quote(text(dim)) for dim in port.shape]
            sizes = [text(dim) if _is_number(dim) else "-1" for dim in port.shape]
            lines += _table("char *const", f"{name}_dims", texts)
            lines += _table("int64_t", f"{name}_shape", sizes)
            low, high = port.value_range or (0, -1)
            rows.append(
                f"{{{_quote(port.name)}, {_dtype(port.dtype)}, {len(port.shape)}, "
                f"{_pointer(f'{name}_shape', sizes)}, {_pointer(f'{name}_dims', texts)}, "
                f"{low}, {high}}}"
            )
        return lines + _table("gc_port", f"{self.prefix}_{kind}", rows)

    def _shape(self, shape: Sequence[Expr]) -> int:
        """The place of a shape in the frame; equal shapes share one."""
        key = tuple(c_text(dim, self.names) for dim in shape)
        if key not in self.shapes:
            self.shapes[key] = self.size
            self.shape_titles[key] = _brackets(shape)
            self.shape_stages[key] = self._stage(shape)
            self.size += len(key)
        return self.shapes[key]

    def _scalar(self, value: Expr) -> int:
        key = c_text(value, self.names)
        self.scalar_stages[key] = self._stage([value])
        return self.scalars.setdefault(key, len(self.scalars))

    def _tensor_rows(self) -> list[str]:
        plan, rows = self.plan, []
        limits = {
            Storage.INPUT: len(plan.signature.inputs),
            Storage.OUTPUT: len(plan.signature.outputs),
            Storage.WEIGHT: len(plan.weights),
            Storage.ARENA: len(plan.buffers),
            Storage.CACHE: len(plan.signature.inputs),
            Storage.SLOT: plan.slots,
        }
        for number, tensor in enumerate(plan.tensors):
            assert 0 <= tensor.index < limits[tensor.storage], (number, tensor)
            name = tensor.name or f"tensor {number}"
            rows.append(
                f"{{{_quote(name)}, {_STORAGE[tensor.storage]}, {tensor.index}, "
                f"{_dtype(tensor.dtype)}, {len(tensor.shape)}, {self._shape(tensor.shape)}, "
                f"{self._stage(tensor.shape)}}}"
            )
        return rows

    def _tensor_text(self, number: int) -> str:
        tensor = self.plan.tensors[number]
        return f"{tensor.name or f't{number}'} {_brackets(tensor.shape)}"

    def _step(self, number: int, step: Step) -> str:
        """One line of the run function, the step's sense in a comment above it."""
        if isinstance(step, Kernel):
            assert _KERNEL.fullmatch(step.name), f"kernel {step.name!r} is no C identifier"
            first = len(self.args)
            if step.flops is not None:
                self.work.append(f"{{{first}, {self._scalar(step.flops)}}}")
            for arg in step.args:
                if isinstance(arg, Scalar):
                    self.args.append(str(~self._scalar(arg.value)))
                else:
                    assert 0 <= arg < len(self.plan.tensors), step
                    self.args.append(str(arg))
            reads = ", ".join(
                text(arg.value) if isinstance(arg, Scalar) else self._tensor_text(arg)
                for arg in step.args
                if isinstance(arg, Scalar) or arg not in step.writes
            )
            writes = ", ".join(self._tensor_text(arg) for arg in step.writes)
            title = f"{writes} = {step.name}({reads})"
            call = (
                f'gc_step_kernel(f, "{step.name}", __tvm_ffi_{step.name}, '
                f"{first}, {len(step.args)})"
            )
        elif isinstance(step, CheckIndices):
            bounds = [f"f->scalars[{self._scalar(bound)}]" for bound in (step.low, step.high)]
            title = f"{text(step.low)} <= {self._tensor_text(step.tensor)} <= {text(step.high)}"
            call = f"gc_step_check(f, {step.tensor}, {', '.join(bounds)}, {_quote(step.where)})"
        else:
            assert isinstance(step, Copy), step
            source, target = self.plan.tensors[step.source], self.plan.tensors[step.target]
            assert source.dtype == target.dtype, step
            title = f"{self._tensor_text(step.target)} = {self._tensor_text(step.source)}"
            call = f"gc_step_copy(f, {step.source}, {step.target})"
        return f"  /* {number}: {_comment(title)} */\n  if ({call}) return f->error->code;"

    def _bind(self, stage: int) -> list[str]:
        """The function that computes the shapes and scalars of a stage."""
        lines = [f"static int {self.prefix}_bind{stage}(gc_frame *f) {{"]
        of_inputs = self.plan.signature.constraints
        constraints = self.plan.stages[stage - 1].constraints if stage else of_inputs
        known = {dim.name for dim in self._dims() if self.plan.stage_of_dims()[dim.name] <= stage}
        lines += [
            f"  const int64_t {self.names[dim.name]} = f->dims[{i}];"
            for i, dim in enumerate(self._dims())
            if dim.name in known
        ]
        lines += [f"  (void){name};" for dim, name in self.names.items() if dim in known]
        lines.append("  int64_t *s = f->shapes;")
        for constraint in constraints:
            sides = [c_text(side, self.names) for side in (constraint.left, constraint.right)]
            equation = f"{text(constraint.left)} == {text(constraint.right)}"
            call = f"gc_require(f, {', '.join(sides)}, {_quote(equation)}, "
            lines.append(f"  if ({call}{_quote(constraint.reason)})) return f->error->code;")
        for key, start in self.shapes.items():
            if not key or self.shape_stages[key] != stage:
                continue
            lines.append(f"  /* {_comment(self.shape_titles[key])} */")
            values = "; ".join(f"s[{start + i}] = {value}" for i, value in enumerate(key))
            lines.append(f"  {values};")
        for value, number in self.scalars.items():
            if self.scalar_stages[value] == stage:
                lines.append(f"  f->scalars[{number}] = {value};")
        lines += self._unknown_shapes() if stage == 0 else []
        lines += ["  (void)s;", "  return GC_OK;", "}"]
        return lines

    def _unknown_shapes(self) -> list[str]:
        """Shapes of outputs that become known in mid-run, -1 where that is so."""
        lines = []
        for port in self.plan.signature.outputs:
            if self._stage(port.shape) > 0:
                start = self._shape(port.shape)
                values = ["-1" if self._stage([dim]) else c_text(dim, self.names)
                          for dim in port.shape]  # fmt: skip
                lines.append(" ".join(f"  s[{start + i}] = {v};" for i, v in enumerate(values)))
        return lines

    def _stage_rows(self) -> list[str]:
        rows, buffers = [], [buffer.stage for buffer in self.plan.buffers]
        for stage in range(len(self.plan.stages) + 1):
            first = sum(other < stage for other in buffers)
            rows.append(f"{{{self.prefix}_bind{stage}, {first}, {buffers.count(stage)}}}")
        return rows


def _declaration(kernel: str) -> str:
    assert _KERNEL.fullmatch(kernel), f"kernel {kernel!r} is no C identifier"
    return f"int __tvm_ffi_{kernel}(void *, gc_value *, int32_t, gc_value *);"


def _kernel_row(number: int, kernel: DeviceKernel) -> str:
    extents = ", ".join(map(str, kernel.extents))
    return (
        f"{{{_quote(kernel.name)}, code{number}, {len(kernel.code)}, {_quote(kernel.arguments)}, "
        f"{len(kernel.extents)}, {{{extents}}}}}"
    )


def _code(number: int, code: bytes) -> str:
    """A kernel's code as words, which SPIR-V must be aligned to, with a NUL behind it for text."""
    padded = code + b"\0" * (4 - len(code) % 4)
    words = (int.from_bytes(padded[i : i + 4], "little") for i in range(0, len(padded), 4))
    return f"static const uint32_t code{number}[] = {{{', '.join(map(str, words))}}};"


def _decoder(decoder: DecoderInfo, plans: Sequence[FunctionPlan]) -> list[str]:
    """The table of a language model; its caches must be the last inputs, as gc_step passes them."""
    number = [plan.name for plan in plans].index(decoder.function)
    names = [port.name for port in plans[number].signature.inputs]
    caches = [cache.name for cache in decoder.caches]
    assert names[len(names) - len(caches) :] == caches, (names, caches)
    assert decoder.page_size == PAGE, decoder
    return [
        "static const gc_decoder_plan decoder = {",
        f"    .function = {number},",
        f"    .page_size = {decoder.page_size},",
        f"    .ragged = {int(decoder.ragged)},",
        f"    .vocabulary = {decoder.vocabulary},",
        f"    .max_context = {decoder.max_context},",
        "};",
    ]


def _program(
    weights: WeightTable,
    functions: int,
    features: int,
    kernels: int,
    device: str | None,
    decoder: bool,
) -> list[str]:
    digest = ", ".join(f"0x{byte:02x}" for byte in bytes.fromhex(weights.digest))
    back_end = [] if device is None else [f"extern const struct gc_device gc_device_{device};"]
    return [
        *back_end,
        "const gc_program gc_the_program = {",
        f"    .weights_bytes = UINT64_C({weights.size}),",
        f"    .weights_digest = {{{digest}}},",
        f"    .n_weights = {len(weights.entries)},",
        f"    .n_functions = {functions},",
        f"    .n_features = {features},",
        f"    .weights = {_pointer('weights', weights.entries)},",
        "    .functions = functions,",
        f"    .decoder = {'&decoder' if decoder else 'NULL'},",
        f"    .features = {'features' if features else 'NULL'},",
        f"    .device = {'NULL' if device is None else f'&gc_device_{device}'},",
        f"    .kernels = {'kernels' if kernels else 'NULL'},",
        f"    .n_kernels = {kernels},",
        "};",
    ]


def _weight_rows(weights: WeightTable) -> list[str]:
    return [
        f"{{{_quote(entry.name)}, UINT64_C({entry.offset}), UINT64_C({entry.nbytes}), "
        f"UINT64_C({entry.checksum}), {int(entry.dtype in _INDEX_DTYPES)}}}"
        for entry in weights.entries
    ]


def _port_info(port: Port) -> PortInfo:
    shape = tuple(int(text(dim)) if _is_number(dim) else text(dim) for dim in port.shape)
    return PortInfo(port.name, port.dtype, shape, port.value_range)


def _is_number(expr: Expr) -> bool:
    return isinstance(expr, int) or (not variables(expr) and text(expr).isdecimal())


def _table(kind: str, name: str, rows: Iterable[str]) -> list[str]:
    """A static array; nothing when it would be empty, which C does not have."""
    rows = list(rows)
    if not rows:
        return []
    return [f"static const {kind} {name}[] = {{", *(f"    {row}," for row in rows), "};"]


def _numbers(name: str, values: Sequence[int]) -> list[str]:
    return _table("int32_t", name, [", ".join(map(str, values))] if values else [])


def _pointer(name: str, rows: Sequence[object]) -> str:
    return name if rows else "NULL"


def _number(upper: int | None) -> str:
    return "INT64_MAX" if upper is None else f"INT64_C({upper})"


def _dtype(name: str) -> str:
    assert name in DTYPE_BITS, f"no DLPack type for {name}"
    code = _CODES.get(name, 1 if name.startswith("uint") else 2 if name.startswith("float") else 0)
    return f"{{{code}, {DTYPE_BITS[name]}, 1}}"


def _brackets(shape: Sequence[Expr]) -> str:
    return f"[{', '.join(text(dim) for dim in shape)}]"

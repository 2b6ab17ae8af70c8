"""Prints a lowered device kernel as GLSL for Vulkan compute shaders.

Indices are 32-bit (the runtime refuses tensors that they cannot reach); 64-bit integers appear only
where data of that type is computed with. Expressions that need statements (a let, a choice of which
only one side may be read) put them in front of the statement that they belong to.

    if_then_else(c, x[i], 0)  ----->  float t0; if (c) { t0 = x[i]; } else { t0 = 0.0; }
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from tvm import tirx
from tvm.ir import Call, TensorLoad

from graphc.errors import UnsupportedError

_AXES: Final = {
    "blockIdx.x": "int(gl_WorkGroupID.x)",
    "blockIdx.y": "int(gl_WorkGroupID.y)",
    "blockIdx.z": "int(gl_WorkGroupID.z)",
    "threadIdx.x": "int(gl_LocalInvocationID.x)",
    "threadIdx.y": "int(gl_LocalInvocationID.y)",
    "threadIdx.z": "int(gl_LocalInvocationID.z)",
}
# How a dtype is called in registers and in memory, and the extensions that each form asks for.
_TYPES: Final = {
    "float32": ("float", "float", ()),
    "float64": ("double", "double", ()),
    "float16": ("float16_t", "float16_t", ("float16", "16bit_storage")),
    "int8": ("int", "int8_t", ("int8", "8bit_storage")),
    "uint8": ("uint", "uint8_t", ("int8", "8bit_storage")),
    "int16": ("int", "int16_t", ("int16", "16bit_storage")),
    "uint16": ("uint", "uint16_t", ("int16", "16bit_storage")),
    "int32": ("int", "int", ()),
    "uint32": ("uint", "uint", ()),
    "int64": ("int64_t", "int64_t", ("int64",)),
    "uint64": ("uint64_t", "uint64_t", ("int64",)),
    "bool": ("bool", "uint8_t", ("int8", "8bit_storage")),
}
_EXTENSIONS: Final = {
    "float16": "GL_EXT_shader_explicit_arithmetic_types_float16",
    "int8": "GL_EXT_shader_explicit_arithmetic_types_int8",
    "int16": "GL_EXT_shader_explicit_arithmetic_types_int16",
    "int64": "GL_EXT_shader_explicit_arithmetic_types_int64",
    "8bit_storage": "GL_EXT_shader_8bit_storage",
    "16bit_storage": "GL_EXT_shader_16bit_storage",
}
_BINARY: Final[Mapping[Any, str]] = {
    tirx.Add: "+",
    tirx.Sub: "-",
    tirx.Mul: "*",
    tirx.Div: "/",
    tirx.EQ: "==",
    tirx.NE: "!=",
    tirx.LT: "<",
    tirx.LE: "<=",
    tirx.GT: ">",
    tirx.GE: ">=",
    tirx.And: "&&",
    tirx.Or: "||",
    tirx.BitwiseAnd: "&",
    tirx.BitwiseOr: "|",
    tirx.BitwiseXor: "^",
    tirx.LShift: "<<",
    tirx.RShift: ">>",
}
_OPERATORS: Final = {
    "bitwise_and": "&",
    "bitwise_or": "|",
    "bitwise_xor": "^",
    "shift_left": "<<",
    "shift_right": ">>",
}
# TVM's intrinsics and the names that its lowering gives them, to GLSL's.
_FUNCTIONS: Final = {
    "fabs": "abs",
    "rint": "roundEven",
    "nearbyint": "roundEven",
    "round": "round",
    **{name: name for name in ("exp", "exp2", "log", "log2", "sqrt", "pow", "floor", "ceil")},
    **{name: name for name in ("trunc", "sin", "cos", "tan", "asin", "acos", "atan", "sinh")},
    **{name: name for name in ("cosh", "tanh", "asinh", "acosh", "atanh", "isnan", "isinf", "fma")},
    "rsqrt": "inversesqrt",
}


def print_kernel(function: tirx.PrimFunc) -> str:
    """The GLSL source of one kernel whose thread extents are static.

    Buffers are bindings 0, 1, ... of set 0 in the order of the pointer parameters; other
    parameters are push constants of 32 bits in their order. Raises UnsupportedError.
    """
    return _Printer(function).run()


class _Value:
    """Text of an expression and its GLSL type."""

    def __init__(self, text: str, kind: str) -> None:
        self.text, self.kind = text, kind


class _Printer:
    def __init__(self, function: tirx.PrimFunc) -> None:
        self.function = function
        self.lines: list[str] = []
        self.depth = 1
        self.names: dict[Any, _Value] = {}
        self.buffers: dict[Any, tuple[str, str]] = {}  # pointer or buffer -> array, element dtype
        self.shared: list[str] = []
        self.extensions: set[str] = set()
        self.local = [1, 1, 1]
        self.count = 0

    def run(self) -> str:
        bindings: list[str] = []
        constants: list[str] = []
        for number, param in enumerate(self.function.params):
            kind = str(param.ty)
            if kind in ("int32", "int64", "float32"):
                text = "float" if kind == "float32" else "int"
                constants.append(f"{text} a{number};")
                self.names[param] = _Value(f"a{number}", text)
                continue
            dtype = self._element(param)
            memory = self._memory(dtype)
            place = len(bindings)
            bindings.append(
                f"layout(std430, set = 0, binding = {place}) buffer B{place} "
                f"{{ {memory} p{number}[]; }};"
            )
            self.buffers[param] = (f"p{number}", dtype)
        self._statement(self.function.body)
        x, y, z = self.local
        head = ["#version 450"]
        head += [f"#extension {_EXTENSIONS[name]} : require" for name in sorted(self.extensions)]
        head.append(f"layout(local_size_x = {x}, local_size_y = {y}, local_size_z = {z}) in;")
        head += bindings
        if constants:
            head.append(f"layout(push_constant) uniform Constants {{ {' '.join(constants)} }};")
        return "\n".join([*head, *self.shared, "void main() {", *self.lines, "}", ""])

    def _element(self, pointer: Any) -> str:
        """The dtype behind a pointer parameter."""
        return str(pointer.ty.element_type)

    def _memory(self, dtype: str) -> str:
        if dtype not in _TYPES:
            raise UnsupportedError(f"{dtype} values on Vulkan devices are not supported")
        _, memory, extensions = _TYPES[dtype]
        self.extensions.update(extensions)
        return memory

    # Statements

    def _line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def _fresh(self, prefix: str = "t") -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def _block(self, head: str, body: Callable[[], None]) -> None:
        self._line(f"{head} {{")
        self.depth += 1
        body()
        self.depth -= 1
        self._line("}")

    def _statement(self, node: Any) -> None:
        handler = getattr(self, f"_{type(node).__name__.lower()}", None)
        if handler is None:
            raise AssertionError(f"no GLSL for the statement {type(node).__name__}")
        handler(node)

    def _seqstmt(self, node: Any) -> None:
        for part in node.seq:
            self._statement(part)

    def _attrstmt(self, node: Any) -> None:
        if node.attr_key == "thread_extent":
            axis = str(node.node.thread_tag)
            if axis.startswith("threadIdx"):
                self.local["xyz".index(axis[-1])] = int(node.value)
            self.names[node.node.var] = _Value(_AXES[axis], "int")
        self._statement(node.body)

    def _allocbuffer(self, node: Any) -> None:
        buffer = node.buffer
        size = math.prod(int(n) for n in buffer.shape)
        name, dtype = self._fresh("m"), str(buffer.dtype)
        is_shared = str(buffer.scope()).startswith("shared")
        if is_shared:
            self.shared.append(f"shared {self._memory(dtype)} {name}[{size}];")
        else:
            self._line(f"{_TYPES[dtype][0]} {name}[{size}];")
        # Registers hold values as they are computed with; memory may be narrower.
        kind = dtype if is_shared else f"register {dtype}"
        self.buffers[buffer] = (name, kind)

    def _declbuffer(self, node: Any) -> None:
        data = node.data
        if isinstance(data, Call):  # buffer_data(of another buffer)
            data = data.args[0]
        self.buffers[node.buffer] = self.buffers[data]

    def _bind(self, node: Any) -> None:
        value = self._expr(node.value)
        self._define(node.var, value)

    def _define(self, variable: Any, value: _Value) -> None:
        name = self._fresh("v")
        # Lets are steps of polynomials that round on purpose, x + 1.5 * 2^23 - 1.5 * 2^23 among
        # them: a compiler must not simplify them.
        precise = "precise " if value.kind in ("float", "double") else ""
        self._line(f"{precise}{value.kind} {name} = {value.text};")
        self.names[variable] = _Value(name, value.kind)

    def _for(self, node: Any) -> None:
        name = self._fresh("i")
        start, extent = self._index(node.min), self._index(node.extent)
        self.names[node.loop_var] = _Value(name, "int")
        head = f"for (int {name} = {start}; {name} < {start} + {extent}; ++{name})"
        self._block(head, lambda: self._statement(node.body))

    def _while(self, node: Any) -> None:
        def body() -> None:
            condition = self._expr(node.condition).text
            self._line(f"if (!({condition})) break;")
            self._statement(node.body)

        self._block("while (true)", body)

    def _ifthenelse(self, node: Any) -> None:
        condition = self._expr(node.condition).text
        self._block(f"if ({condition})", lambda: self._statement(node.then_case))
        if node.else_case is not None:
            self._block("else", lambda: self._statement(node.else_case))

    def _bufferstore(self, node: Any) -> None:
        array, dtype = self.buffers[node.buffer]
        value = self._expr(node.value)
        index = self._index(node.indices[0])
        if dtype.startswith("register "):
            kind = _TYPES[dtype.removeprefix("register ")][0]
            text = value.text if kind == value.kind else f"{kind}({value.text})"
        elif dtype == "bool":
            text = f"uint8_t({value.text})"
        else:
            memory = self._memory(dtype)
            text = value.text if memory == value.kind else f"{memory}({value.text})"
        self._line(f"{array}[{index}] = {text};")

    def _evaluate(self, node: Any) -> None:
        value = node.value
        if isinstance(value, tirx.IntImm):
            return
        name = _base_name(value)
        if name == "tvm_storage_sync":
            self._line("memoryBarrierShared();")
            self._line("barrier();")
            return
        raise AssertionError(f"no GLSL for the call of {name}")

    # Expressions

    def _index(self, expr: Any) -> str:
        value = self._expr(expr)
        return value.text if value.kind == "int" else f"int({value.text})"

    def _expr(self, expr: Any) -> _Value:
        if isinstance(expr, tirx.IntImm):
            return self._integer(expr)
        if isinstance(expr, tirx.FloatImm):
            return _Value(self._float(float(expr.value), str(expr.ty)), _TYPES[str(expr.ty)][0])
        if isinstance(expr, tirx.Var):
            return self.names[expr]
        if isinstance(expr, TensorLoad):
            return self._load(expr)
        if type(expr) in _BINARY:
            return self._binary(_BINARY[type(expr)], self._expr(expr.a), self._expr(expr.b))
        if isinstance(expr, tirx.Mod):
            return self._remainder(expr)
        if isinstance(expr, tirx.Min | tirx.Max):
            a, b = self._alike(self._expr(expr.a), self._expr(expr.b))
            word = "min" if isinstance(expr, tirx.Min) else "max"
            return _Value(f"{word}({a.text}, {b.text})", a.kind)
        if isinstance(expr, tirx.Not):
            return _Value(f"!({self._expr(expr.a).text})", "bool")
        if isinstance(expr, tirx.BitwiseNot):
            value = self._expr(expr.a)
            return _Value(f"~({value.text})", value.kind)
        if isinstance(expr, tirx.Cast):
            return self._cast(expr)
        if isinstance(expr, tirx.Select):
            return self._choice(expr.condition, expr.true_value, expr.false_value)
        if isinstance(expr, tirx.Let):
            self._define(expr.var, self._expr(expr.value))
            return self._expr(expr.body)
        if isinstance(expr, Call):
            return self._call(expr)
        raise AssertionError(f"no GLSL for the expression {type(expr).__name__}")

    def _integer(self, expr: Any) -> _Value:
        dtype, value = str(expr.ty), int(expr.value)
        if dtype == "bool":
            return _Value("true" if value else "false", "bool")
        if dtype in ("int64", "uint64") and not -(1 << 31) <= value < 1 << 31:
            self.extensions.add("int64")
            suffix = "l" if dtype == "int64" else "ul"
            return _Value(f"({value}{suffix})", _TYPES[dtype][0])
        if dtype.startswith("uint"):
            return _Value(f"{value}u", "uint")
        text = (
            "(-2147483647 - 1)"
            if value == -(1 << 31)
            else f"({value})"
            if value < 0
            else str(value)
        )
        return _Value(text, "int")

    @staticmethod
    def _float(value: float, dtype: str) -> str:
        kind = _TYPES[dtype][0]
        if math.isnan(value):
            return f"{kind}(uintBitsToFloat(0x7fc00000u))"
        if math.isinf(value):
            bits = "0x7f800000u" if value > 0 else "0xff800000u"
            return f"{kind}(uintBitsToFloat({bits}))"
        text = repr(value)
        text = text if any(c in text for c in ".e") else f"{text}.0"
        text = f"{text}lf" if dtype == "float64" else text
        text = f"float16_t({text})" if dtype == "float16" else text
        return f"({text})" if value < 0 else text

    def _load(self, expr: Any) -> _Value:
        array, dtype = self.buffers[expr.source]
        element = f"{array}[{self._index(expr.indices[0])}]"
        if dtype.startswith("register "):
            return _Value(element, _TYPES[dtype.removeprefix("register ")][0])
        kind, memory, _ = _TYPES[dtype]
        self._memory(dtype)
        return _Value(element if kind == memory else f"{kind}({element})", kind)

    def _alike(self, a: _Value, b: _Value) -> tuple[_Value, _Value]:
        """Indices are 32 bits until they meet data of 64."""
        if a.kind == b.kind:
            return a, b
        for kind in ("double", "float", "uint64_t", "int64_t", "uint", "int"):
            if kind in (a.kind, b.kind):
                return tuple(  # type: ignore[return-value]
                    v if v.kind == kind else _Value(f"{kind}({v.text})", kind) for v in (a, b)
                )
        raise AssertionError((a.kind, b.kind))

    def _binary(self, sign: str, a: _Value, b: _Value) -> _Value:
        a, b = self._alike(a, b)
        compares = sign in ("==", "!=", "<", "<=", ">", ">=", "&&", "||")
        return _Value(f"({a.text} {sign} {b.text})", "bool" if compares else a.kind)

    def _remainder(self, expr: Any) -> _Value:
        """a - a / b * b: GLSL leaves % of negative operands undefined."""
        a, b = self._alike(self._expr(expr.a), self._expr(expr.b))
        if a.kind.startswith("u"):
            return _Value(f"({a.text} % {b.text})", a.kind)
        a, b = self._named(a), self._named(b)
        return _Value(f"({a.text} - {a.text} / {b.text} * {b.text})", a.kind)

    def _named(self, value: _Value) -> _Value:
        if value.text.isidentifier() or value.text.isdecimal():
            return value
        name = self._fresh("v")
        self._line(f"{value.kind} {name} = {value.text};")
        return _Value(name, value.kind)

    def _cast(self, expr: Any) -> _Value:
        value, dtype = self._expr(expr.value), str(expr.ty)
        kind = _TYPES[dtype][0]
        if dtype == "int64" and value.kind in ("int", "bool"):
            return value if value.kind == "int" else _Value(f"int({value.text})", "int")
        if dtype in ("int64", "uint64"):
            self.extensions.add("int64")
        if dtype == "float16":
            self.extensions.add("float16")
        text = f"{kind}({value.text})"
        if dtype in ("int8", "int16") and value.kind != "bool":
            shift = 24 if dtype == "int8" else 16
            text = f"(({'int'}({value.text}) << {shift}) >> {shift})"
        if dtype in ("uint8", "uint16") and value.kind != "bool":
            text = f"(uint({value.text}) & {'0xffu' if dtype == 'uint8' else '0xffffu'})"
        return _Value(text, kind)

    def _choice(self, condition: Any, yes: Any, no: Any) -> _Value:
        """Either side is only evaluated when it is wanted: it may read out of bounds otherwise."""
        test = self._expr(condition).text
        name, place = self._fresh(), len(self.lines)
        kinds = []
        self._line(f"if ({test}) {{")
        self.depth += 1
        first = self._expr(yes)
        self._line(f"{name} = @{name}({first.text});")
        self.depth -= 1
        self._line("} else {")
        self.depth += 1
        second = self._expr(no)
        self._line(f"{name} = @{name}({second.text});")
        self.depth -= 1
        self._line("}")
        kinds = [value.kind for value in self._alike(first, second)]
        kind = kinds[0]
        for at in range(place, len(self.lines)):
            self.lines[at] = self.lines[at].replace(f"@{name}(", f"{kind}(")
        self.lines.insert(place, "  " * self.depth + f"{kind} {name};")
        return _Value(name, kind)

    def _call(self, expr: Any) -> _Value:
        name = _base_name(expr)
        if name == "if_then_else":
            return self._choice(*expr.args)
        if name in _OPERATORS:
            return self._binary(_OPERATORS[name], *(self._expr(arg) for arg in expr.args))
        if name == "reinterpret":
            return self._reinterpret(expr)
        arguments = list(expr.args)
        if name in ("call_pure_extern", "call_extern"):
            name, arguments = str(arguments[0].value), arguments[1:]
        function = _FUNCTIONS.get(name)
        if function is None:
            raise UnsupportedError(f"{name} on Vulkan devices is not supported")
        values = [self._expr(argument) for argument in arguments]
        kind = "bool" if function.startswith("is") else values[0].kind
        return _Value(f"{function}({', '.join(v.text for v in values)})", kind)

    def _reinterpret(self, expr: Any) -> _Value:
        value, dtype = self._expr(expr.args[0]), str(expr.ty)
        words = {
            ("float", "int32"): ("floatBitsToInt", "int"),
            ("float", "uint32"): ("floatBitsToUint", "uint"),
            ("int", "float32"): ("intBitsToFloat", "float"),
            ("uint", "float32"): ("uintBitsToFloat", "float"),
            ("int", "uint32"): ("uint", "uint"),
            ("uint", "int32"): ("int", "int"),
        }
        if (value.kind, dtype) not in words:
            raise UnsupportedError(f"the bits of {value.kind} as {dtype} on Vulkan devices")
        word, kind = words[value.kind, dtype]
        return _Value(f"{word}({value.text})", kind)


def _base_name(call: Any) -> str:
    """An operator's name without the dialect that it belongs to."""
    return str(getattr(call.op, "name", "")).rpartition(".")[2]

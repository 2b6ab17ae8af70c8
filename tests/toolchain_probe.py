"""One Schedule.tensorize and one default TuneContext; run as a script by test_toolchain.py."""

import inspect
import sys

import tvm
from tvm.s_tir import Schedule, TensorIntrin
from tvm.s_tir import meta_schedule as ms
from tvm.script import tirx as T


@T.prim_func(s_tir=True)
def describe(
    A: T.Buffer((4,), "float32", offset_factor=1),
    B: T.Buffer((4,), "float32", offset_factor=1),
) -> None:
    with T.sblock("root"):
        T.reads(A[0:4])
        T.writes(B[0:4])
        for i in range(4):
            with T.sblock("twice"):
                vi = T.axis.remap("S", [i])
                B[vi] = A[vi] * T.float32(2)


@T.prim_func(s_tir=True)
def implement(
    A: T.Buffer((4,), "float32", offset_factor=1),
    B: T.Buffer((4,), "float32", offset_factor=1),
) -> None:
    with T.sblock("root"):
        T.reads(A[0:4])
        T.writes(B[0:4])
        for i in T.vectorized(4):
            B[i] = A[i] * T.float32(2)


@T.prim_func(s_tir=True)
def double(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")) -> None:
    for i in range(16):
        with T.sblock("twice"):
            vi = T.axis.spatial(16, i)
            B[vi] = A[vi] * T.float32(2)


def light_stack(context: int = 1) -> list[inspect.FrameInfo]:
    """inspect.stack() without reading sources, which costs TVM's own intrinsics 25 s."""
    frames, frame = [], sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        frames.append(
            inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None)
        )
        frame = frame.f_back
    return frames


def main() -> None:
    inspect.stack = light_stack
    TensorIntrin.register("graphc.test.twice", describe, implement)
    schedule = Schedule(double)
    (loop,) = schedule.get_loops(schedule.get_sblock("twice"))
    _, inner = schedule.split(loop, [None, 4])
    schedule.tensorize(inner, "graphc.test.twice")
    target = tvm.target.Target({"kind": "llvm", "num-cores": 1})
    context = ms.TuneContext(
        schedule.mod, target=target, space_generator="post-order-apply", num_threads=1
    )
    print("ok", context.task_name)


if __name__ == "__main__":
    main()

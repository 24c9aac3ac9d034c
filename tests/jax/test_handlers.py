# SPDX-License-Identifier: Apache-2.0
"""The FFI handlers themselves: errors, XLA's thread pool, what a compiled program consists of."""

import contextlib
import os
import pathlib
import re
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_battery import cases, index

import segmentops
from segmentops.jax import ffi_targets
from segmentops.jax.segment_ops import (
    segmented_dot,
    segmented_matvec,
    segmented_mul,
    segmented_rms_norm,
    segmented_sum,
)

X = jnp.ones(4, "float32")
IDX = jnp.array([0, 0, 1, 2], jnp.int32)
SIZES = np.array([0, 16, 1])  # n: dimension 0 of the first buffer; m: of the third; k: dimension 1 of the first


def call(x, idx=IDX, out=jax.ShapeDtypeStruct((3,), "float32"), **attributes):  # noqa: B008
    ffi_targets()
    return jax.ffi.ffi_call("segmentops_segmented_sum_f32", out)(x, idx, **attributes)


def test_a_misused_handler_returns_an_error():
    assert call(X, sizes=SIZES).tolist() == [2, 1, 1]
    for wrong, message in [
        (lambda: call(X.astype("float64"), sizes=SIZES), "another type"),
        (lambda: call(X, IDX.astype("float32"), sizes=SIZES), "another type"),
        (lambda: call(X, out=jax.ShapeDtypeStruct((3,), "int32"), sizes=SIZES), "another type"),
        (lambda: call(X), "one attribute"),
        (lambda: call(X, sizes=SIZES[1:]), "sizes does not fit the handler"),
        (lambda: call(X, sizes=SIZES.astype("int32")), "sizes does not fit the handler"),
        (lambda: call(X, sizes=np.array([0, 24, 1])), "sizes does not fit the buffers"),
        (lambda: call(X, sizes=np.array([-8, 16, 1])), "sizes does not fit the buffers"),
        (lambda: call(X, sizes=np.array([0, 16, 2])), "sizes does not fit the buffers"),
        (lambda: call(X[0], sizes=SIZES), "sizes does not fit the buffers"),
        (lambda: call(X, out=[jax.ShapeDtypeStruct((3,), "float32")] * 2, sizes=SIZES), "more operands"),
    ]:
        with pytest.raises(jax.errors.JaxRuntimeError, match=f"segmentops: .*{message}"):
            jax.block_until_ready(wrong())


@cases(("float32",), widths=1)
def test_a_compiled_program_calls_the_engine_and_no_python(case):
    idx, m = index((3, 0, 2)), 3
    arrays = case.inputs(len(idx), m)
    gradient = jax.jit(jax.grad(lambda *a: (case(*a, idx, m) ** 2).sum(), tuple(range(len(arrays)))))
    text = gradient.lower(*arrays).compile().as_text()
    targets = re.findall(r'custom_call_target="(\w+)"', text)
    assert targets and all(t.startswith("segmentops_segmented_") for t in targets)
    assert "callback" not in text and "scatter" not in text


def test_second_order_is_fused():
    """One operation for the gradient of mul, dot, matvec; one for that of the gradient."""
    v = jnp.ones((4, 3))
    operands = {segmented_mul: (v, jnp.ones(3)), segmented_matvec: (v, jnp.ones((3, 3, 3))), segmented_dot: (v, v)}
    for op, (first, second) in operands.items():
        function = lambda x, y, op=op: (op(x, y, IDX, 3) ** 3).sum()  # noqa: E731
        squares = lambda x, y: sum((g**2).sum() for g in jax.grad(function, (0, 1))(x, y))  # noqa: E731, B023
        names = re.findall(r"segmented_\w+", str(jax.make_jaxpr(jax.grad(squares, (0, 1)))(first, second)))
        assert names.count(op.__name__ + "_double_backward") == 1
        assert op.__name__ + "_backward" in names


def test_concurrent_calls_share_the_pool():
    """Long calls at the same time: the one that finds the pool taken works alone, and gives the same bits."""
    idx = index(np.random.default_rng(0).integers(0, 40_000, 20))
    x = jnp.asarray(np.random.default_rng(1).normal(size=len(idx)), "float32")
    programs = [
        jax.jit(lambda x: segmented_sum(x, idx, 20)),
        jax.jit(jax.grad(lambda x: segmented_rms_norm(x, idx, 20).sum())),
        jax.jit(lambda x: [segmented_dot(x * k, x, idx, 20) for k in range(1, 9)]),
    ]
    expected = [jax.tree.leaves(p(x)) for p in programs]
    wrong = []

    def work(k):
        for i in range(20):
            for got, right in zip(jax.tree.leaves(programs[(i + k) % 3](x)), expected[(i + k) % 3], strict=True):
                if np.asarray(got).tobytes() != np.asarray(right).tobytes():
                    wrong.append((k, i))

    workers = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    [w.start() for w in workers]
    [w.join(timeout=1200) for w in workers]
    assert not wrong and not any(w.is_alive() for w in workers)


def busy_ticks():
    """Processor time of each thread of this process."""
    found = {}
    for task in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            found[task.name] = int((task / "stat").read_text().rsplit(")", 1)[1].split()[11])
    return found


@pytest.mark.skipif(sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="Linux, two cores")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_long_calls_run_on_several_threads(dtype):
    n = 2_000_000
    idx = index([n // 200] * 200)
    run = jax.jit(lambda x: segmented_sum(x, idx, 200))
    x = jnp.ones(n, dtype)
    run(x).block_until_ready()
    before = busy_ticks()
    for _ in range(200):  # the first is enough, unless others keep the cores busy
        for _ in range(100):
            run(x).block_until_ready()
        used = {task: ticks - before.get(task, 0) for task, ticks in busy_ticks().items()}
        if sorted(used.values())[-2] >= 2:
            return
    raise AssertionError(f"ticks of the threads: {used}")


@pytest.mark.skipif(sys.platform != "linux", reason="taskset")
def test_a_pool_of_one_thread_does_not_deadlock():
    code = """
import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import warp; warp.config.log_level = 30
import jax, jax.numpy as jnp
from segmentops.jax.segment_ops import segmented_sum
idx = jnp.repeat(jnp.arange(100, dtype=jnp.int32), 10_000)
f = jax.jit(lambda x: jax.lax.scan(lambda c, _: (c + segmented_sum(c, idx, 100)[0], None), x, None, length=50)[0])
print(jax.block_until_ready(f(jnp.ones(1_000_000))).shape)
"""
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(segmentops.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1200, env=environment)
    assert done.stdout.strip() == "(1000000,)", done.stderr


def test_no_memory_for_scratch():
    """An error of the program; the next run works."""
    code = """
import ctypes
import warp; warp.config.log_level = 30
import jax, jax.numpy as jnp
from segmentops.jax.segment_ops import segmented_sum
from segmentops.native import _engine
heap, short = ctypes.CDLL(None).malloc, True
heap.restype, heap.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(lambda size: None if short else heap(size))
functions = _engine.memory_functions
_engine.memory_functions = lambda *names: [
    ctypes.cast(allocate, ctypes.c_void_p).value if name == "malloc" else functions(name)[0] for name in names
]
f = jax.jit(lambda x: segmented_sum(x, jnp.zeros(300, int), 1).sum())
for short in (True, False):
    try:
        print(f(jnp.ones((300, 640))))
    except jax.errors.JaxRuntimeError as error:
        print(error)
"""
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(segmentops.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment)
    error = "RESOURCE_EXHAUSTED: segmentops: no memory for scratch"
    assert done.stdout.splitlines() == [error, "192000.0"], done.stderr

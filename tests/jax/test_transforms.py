# SPDX-License-Identifier: Apache-2.0
"""Every op under every transform, against compositions of jax.ops in float64.

`python tests/jax/test_transforms.py` writes the table of both to docs/transforms_jax.md, from a run.
"""

import os
import sys
import threading

if __name__ == "__main__":  # the conftest of this directory, which pytest would have read
    sys.path[:0] = [os.path.join(os.path.dirname(__file__), *up) for up in ((), ("..",), ("..", "..", "src"))]
    import conftest  # noqa: F401

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec
from jax_battery import Case, assert_close, index
from oracles import OPS

LENGTHS = (3, 0, 2, 1)
M = len(LENGTHS)
IDX = index(LENGTHS)
N = len(IDX)


def scalar(f):
    """A scalar function of the arrays, with weights that depend on the place."""

    def of(*a):
        out = jnp.sin(f(*a, IDX))
        return (out * jnp.arange(1.0, out.size + 1).reshape(out.shape)).sum()

    return of


def all_args(a):
    return tuple(range(len(a)))


def moved(a):
    return tuple(jnp.cos(3 * x + 1) for x in a)


def scan(f, a):
    def body(carry, factor):
        first = carry[0] * factor
        out = f(first, *carry[1:], IDX)
        return (first + out.sum() * 0.01, *carry[1:]), out

    return jax.lax.scan(body, a, jnp.arange(1.0, 4))


def while_loop(f, a):
    def body(state):
        i, x = state
        return i + 1, x * 0.5 + f(x, *a[1:], IDX).sum() * 0.01

    return jax.lax.while_loop(lambda s: s[0] < 3, body, (0, a[0]))


def cond(f, a):
    return jax.grad(lambda *a: jax.lax.cond(a[0].sum() > -1e9, scalar(f), lambda *a: a[0].sum(), *a))(*a)


def vmap_idx(f, a):
    """Other segments in each sample, padding in some; arrays shared or not."""
    stacked = jnp.stack([IDX, IDX * 0, jnp.minimum(IDX + 1, M)])
    batch = jnp.stack([a[0], 2 * a[0], 3 * a[0]])

    def one(x, idx):
        out = f(x, *a[1:], idx)
        return out if f.reduces else jnp.where((idx < M).reshape(-1, *(1,) * (out.ndim - 1)), out, 0)

    return jax.vmap(one)(batch, stacked)


def vmap_each(f, a):
    """Over each subset of the arrays."""
    outs = []
    for k in range(1, 2 ** len(a)):
        axes = tuple(0 if k >> i & 1 else None for i in range(len(a)))
        batch = [jnp.stack([x, 2 * x]) if ax == 0 else x for x, ax in zip(a, axes, strict=True)]
        outs.append(jax.vmap(lambda *b: f(*b, IDX), axes)(*batch))
        outs.append(jax.vmap(jax.grad(scalar(f), all_args(a)), axes)(*batch))
    return outs


def vmap_nested(f, a):
    twice = [jnp.stack([jnp.stack([x, x + 1]), jnp.stack([2 * x, 3 * x])], axis=-1) for x in a]
    return jax.vmap(jax.vmap(lambda *b: f(*b, IDX)), in_axes=-1, out_axes=1)(*twice)


def shard_map(f, a):
    """Elements over eight devices, their partial segments added by psum; types are checked."""
    elements, reduces = f.elements, f.reduces
    mesh = Mesh(np.array(jax.devices("cpu")[:8]), ("i",))
    tiled = [jnp.concatenate([x * (k + 1) for k in range(8)]) if e else x for x, e in zip(a, elements, strict=True)]
    idx = jnp.concatenate([IDX] * 8)
    specs = (*(PartitionSpec("i") if e else PartitionSpec() for e in elements), PartitionSpec("i"))

    def local(*b):
        def step(carry, _):  # a carry goes through the op: varying axes must propagate
            out = f(*carry, b[-1])
            return (*(c + 0 * out.sum() for c in carry),), out

        start = tuple(
            x if e else jax.lax.pcast(x, "i", to="varying") for x, e in zip(b[:-1], elements, strict=True)
        )
        _, outs = jax.lax.scan(step, start, None, length=2)
        return jax.lax.psum(outs[1], "i") if reduces else outs[1]

    sharded = jax.shard_map(
        local, mesh=mesh, in_specs=specs, out_specs=PartitionSpec() if reduces else PartitionSpec("i"), check_vma=True
    )
    value = jax.jit(sharded)(*tiled, idx)
    total = lambda *b: jnp.sin(sharded(*b, idx)).sum()  # noqa: E731
    return value, jax.jit(jax.grad(total, tuple(range(len(tiled)))))(*tiled)


def threads(f, a):
    run, found = jax.jit(jax.grad(scalar(f), all_args(a))), [None] * 8

    def one(k):
        for _ in range(5):
            found[k] = run(*a)

    workers = [threading.Thread(target=one, args=(k,)) for k in range(8)]
    [w.start() for w in workers]
    [w.join() for w in workers]
    return found


def donated(f, a):
    """The second result may take the memory of the first array, which the op reads."""
    return jax.jit(lambda *a: (f(*a, IDX), 2 * a[0]), donate_argnums=0)(a[0] + 0, *a[1:])


def ahead_of_time(f, a):
    function = jax.jit(jax.grad(scalar(f), all_args(a)))
    return function.lower(*[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in a]).compile()(*a)


def without_jit(f, a):
    padded = jnp.append(IDX[:-1], M).astype(IDX.dtype)  # padding is legal in both
    with jax.disable_jit():
        return jax.grad(scalar(f), all_args(a))(*a), f.padded(jax.jit(lambda *a: f(*a, padded))(*a))


def linearize(f, a):
    out, tangent = jax.linearize(lambda *a: f(*a, IDX), *a)
    return out, tangent(*moved(a))


def vjp(f, a):
    out, pull = jax.vjp(lambda *a: f(*a, IDX), *a)
    return pull(jnp.cos(out + 1))


def transposed(f, a):
    """The transpose of the linearised op."""
    _, tangent = jax.linearize(lambda *a: f(*a, IDX), *a)
    return jax.linear_transpose(tangent, *a)(jnp.cos(f(*a, IDX)))


def third(f, a):
    inner = lambda x: scalar(f)(x, *a[1:])  # noqa: E731
    d = lambda g: lambda x: jnp.vdot(jax.grad(g)(x), moved(a)[0])  # noqa: E731
    return jax.grad(d(d(inner)))(a[0])


TRANSFORMS = {
    "jit": lambda f, a: jax.jit(lambda *a: f(*a, IDX))(*a),
    "grad": lambda f, a: jax.grad(scalar(f), all_args(a))(*a),
    "value_and_grad": lambda f, a: jax.jit(jax.value_and_grad(scalar(f), all_args(a)))(*a),
    "jvp": lambda f, a: jax.jvp(lambda *a: f(*a, IDX), a, moved(a)),
    "vjp": vjp,
    "linearize": linearize,
    "linear_transpose": transposed,
    "hessian": lambda f, a: jax.jit(jax.hessian(scalar(f), all_args(a)))(*a),
    "jacfwd(jacrev)": lambda f, a: jax.jit(jax.jacfwd(jax.jacrev(scalar(f))))(*a),
    "jacrev(jacfwd)": lambda f, a: jax.jit(jax.jacrev(jax.jacfwd(scalar(f))))(*a),
    "third order": lambda f, a: jax.jit(lambda *a: third(f, a))(*a),
    "checkpoint": lambda f, a: jax.jit(jax.grad(jax.checkpoint(scalar(f)), all_args(a)))(*a),
    "vmap (arrays)": vmap_each,
    "vmap (idx)": vmap_idx,
    "vmap (nested)": vmap_nested,
    "scan": lambda f, a: jax.jit(jax.grad(lambda *a: jnp.sin(scan(f, a)[1]).sum(), all_args(a)))(*a),
    "while_loop": lambda f, a: jax.jit(lambda *a: while_loop(f, a))(*a),
    "cond": cond,
    "eval_shape": lambda f, a: jax.eval_shape(lambda *a: f(*a, IDX), *a).shape,
    "donated buffers": donated,
    "disable_jit": without_jit,
    "shard_map, psum": shard_map,
    "lower().compile()": ahead_of_time,
    "threads": threads,
}


class Bound:
    """An op, or its composition, with num_segments given."""

    def __init__(self, case, function):
        self.function, self.op = function, case.op
        self.elements = [d.kind == "element" for d in case.op.args]
        self.reduces = case.op.reduces

    def __call__(self, *args):
        return self.function(*args, M)

    def padded(self, out):
        """The last element is padding: 0 with us, something else in the compositions."""
        return out if self.reduces else out.at[-1].set(0.0)


def run(case, name):
    transform = TRANSFORMS[name]
    arrays = tuple(case.inputs(N, M))
    expected = transform(Bound(case, case.composed), arrays)
    got = transform(Bound(case, case), arrays)
    if name == "eval_shape":
        assert got == expected
    else:
        assert_close(got, expected, 1e-9)


def every_case():
    return [Case(op, op.widths[3] if len(op.widths) > 3 else (2, 3), "float64") for op in OPS]


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("case", every_case(), ids=str)
def test_transform(case, name):
    run(case, name)


def write_table(path):
    """Runs everything and writes what came of it."""
    cases = every_case()
    lines = [
        "# JAX: operations and transforms",
        "",
        "Written by `python tests/jax/test_transforms.py`, which runs each pair against a composition of `jax.ops` in",
        "float64 (tolerance 1e-9). In `tests/jax`, `test_processes.py` has `jax.export` and the compilation cache,",
        "`test_devices.py` sharded arrays, and `test_nesting.py` transforms of transforms.",
        "",
        "| transform | " + " | ".join(case.op.short for case in cases) + " |",
        "| --- |" + " --- |" * len(cases),
    ]
    failed = 0
    for name in TRANSFORMS:
        row = []
        for case in cases:
            try:
                run(case, name)
                row.append("yes")
            except Exception as error:
                row.append(f"no: {type(error).__name__}")
                failed += 1
        lines.append(f"| {name} | " + " | ".join(row) + " |")
    with open(path, "w") as file:
        file.write("\n".join(lines) + "\n")
    return failed


if __name__ == "__main__":
    sys.exit(write_table(os.path.join(os.path.dirname(__file__), "..", "..", "docs", "transforms_jax.md")))

# SPDX-License-Identifier: Apache-2.0
"""The calculus against itself: what is derived must be what the fused operations claim to compute."""

import numpy as np
import pytest
from oracles import positions

from segmentops.ops import calculus
from segmentops.ops.calculus import PROGRAMS
from segmentops.ops.table import OPERATIONS, PRIMITIVES

N, M, K, J = 7, 4, 3, 2
IDX = np.array([0, 0, 0, 1, 1, 3, 3])
SIZES = {"n": N, "m": M, "k": K, "j": J}


class Primitives:
    """The primitives from their definitions, on NumPy arrays."""

    @staticmethod
    def sum(x):
        out = np.zeros((M, *x.shape[1:]))
        np.add.at(out, IDX, x)
        return out

    @staticmethod
    def broadcast(y):
        return y[IDX]

    @staticmethod
    def mean(x):
        count = np.maximum(np.bincount(IDX, minlength=M), 1)
        return Primitives.sum(x) / count[:, None]

    @staticmethod
    def spread(y):
        count = np.maximum(np.bincount(IDX, minlength=M), 1)
        return (y / count[:, None])[IDX]

    @staticmethod
    def dot(x, y):
        return Primitives.sum((x * y).sum(1))

    @staticmethod
    def mul(x, s):
        return x * s[IDX, None]

    @staticmethod
    def matvec(v, a):
        return np.einsum("nk,nkj->nj", v, a[IDX])

    @staticmethod
    def matvec_t(w, a):
        return np.einsum("nj,nkj->nk", w, a[IDX])

    @staticmethod
    def outer(v, w):
        return Primitives.sum(v[:, :, None] * w[:, None, :])

    @staticmethod
    def pick(x, at):
        return np.where(at >= 0, np.take_along_axis(x, np.maximum(at, 0), 0), 0)

    @staticmethod
    def place(y, at):
        out = np.zeros((N, *y.shape[1:]))
        s, c = np.nonzero(at >= 0)
        out[at[s, c], c] = y[s, c]
        return out


def arrays(name, seed=0):
    rng = np.random.default_rng(seed)
    shapes = {o: [SIZES[letter] for letter in (o.lead, *o.trail)] for o in OPERATIONS[name].operands}
    return {o.name: positions(IDX, M, s[1:]) if o.dtype else rng.standard_normal(s) for o, s in shapes.items()}


def moving(name):
    op = OPERATIONS[name]
    return [op.operands[i].name for i in op.differentiable]


def run(terms, values):
    return sum(getattr(Primitives, t.primitive)(*(values[o] for o in t.operands)) for t in terms)


@pytest.mark.parametrize("name", PRIMITIVES)
def test_adjoints_are_adjoint(name):
    """<f(.., dx, ..), g> = <dx, adjoint(g)> for every operand."""
    values = arrays(name)
    names = list(values)
    term = calculus.Term(name, tuple(names))
    g = np.random.default_rng(1).standard_normal(run([term], values).shape)
    for position, operand in enumerate(moving(name)):
        moved = arrays(name, seed=2)[operand]
        left = (run([term], {**values, operand: moved}) * g).sum()
        back = run([calculus.adjoint(term, position, "g")], {**values, "g": g})
        assert back.shape == moved.shape
        assert np.isclose(left, (moved * back).sum(), rtol=1e-12)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_match_their_signatures(name):
    op, program = OPERATIONS[name], PROGRAMS[name]
    assert [o.name for o in op.operands] == list(program.inputs)
    assert [r.name for r in op.results] == list(program.outputs)
    values = arrays(name)
    shapes = op.result_shapes([values[o.name].shape for o in op.operands], N, M)
    assert shapes == [run(terms, values).shape for terms in program.outputs.values()]


@pytest.mark.parametrize("name", PROGRAMS)
def test_transpose_is_the_gradient(name):
    """Central differences of the program along each input, against the transposed program."""
    program, values = PROGRAMS[name], arrays(name)
    gradients = calculus.transpose(program)
    rng = np.random.default_rng(3)
    outs = {o: run(t, values) for o, t in program.outputs.items()}
    cotangents = [rng.standard_normal(v.shape) for v in outs.values()]
    named = {**values, **dict(zip(gradients.inputs, cotangents, strict=False))}
    for operand in moving(name):
        step = rng.standard_normal(values[operand].shape)

        def along(h, operand=operand, step=step):
            moved = {**values, operand: values[operand] + h * step}
            return sum((run(t, moved) * c).sum() for t, c in zip(program.outputs.values(), cotangents, strict=True))

        h = 1e-4
        numerical = (along(h) - along(-h)) / (2 * h)
        terms = gradients.outputs["g" + operand]
        assert np.isclose(numerical, (run(terms, named) * step).sum(), rtol=1e-7)


@pytest.mark.parametrize("name", PROGRAMS)
def test_tangent_is_the_directional_derivative(name):
    program, values = PROGRAMS[name], arrays(name)
    moves = {"d" + o: v for o, v in arrays(name, seed=5).items() if o in moving(name)}
    for out, terms in program.outputs.items():
        h = 1e-4
        plus = run(terms, values | {o: values[o] + h * moves["d" + o] for o in moving(name)})
        minus = run(terms, values | {o: values[o] - h * moves["d" + o] for o in moving(name)})
        tangent = run(calculus.tangent(program, out, program.inputs), {**values, **moves})
        assert np.allclose((plus - minus) / (2 * h), tangent, rtol=1e-6, atol=1e-8)


def test_evaluate_leaves_out_missing_operands_and_pairs_the_rest():
    calls = []

    def apply(name, *operands):
        calls.append((name, operands))
        return 1

    terms = PROGRAMS["mul_double_backward"].outputs["gg"]
    values = {"ggx": 1, "ggs": 2, "x": 3, "s": 4, "g": 5}
    calculus.evaluate(terms, values, apply, lambda a, b: a + b)
    assert calls == [("mul_add", (1, 4, 3, 2))]
    calls.clear()
    calculus.evaluate(terms, {**values, "ggx": None}, apply, lambda a, b: a + b)
    assert calls == [("mul", (3, 2))]
    assert calculus.evaluate(terms, {**values, "ggx": None, "ggs": None}, apply, lambda a, b: a + b) is None


def test_fused_names():
    assert calculus.backward_name("mul") == "mul_backward"
    assert calculus.backward_name("mul_backward") == "mul_double_backward"
    assert calculus.backward_name("mul_double_backward") is None
    assert calculus.backward_name("sum") is None

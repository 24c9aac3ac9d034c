# SPDX-License-Identifier: Apache-2.0
"""Bits on CUDA: the CPU engine's, the same in every run, and those of a segment the same in any batch.

    PYTHONPATH=src python scripts/gpu_bits.py write     # on a machine with the engine: writes scripts/engine_bits.json
    PYTHONPATH=src python scripts/gpu_bits.py check     # on a GPU: compares with it; exit status 1 if anything differs
    PYTHONPATH=src python scripts/gpu_bits.py compile   # on a GPU: all kernels into Warp's cache, on all cores
    PYTHONPATH=src python scripts/gpu_bits.py small     # on a GPU: a few launches, for compute-sanitizer
    PYTHONPATH=src python scripts/gpu_bits.py rehearse  # `check` with Warp's kernels on the CPU

The file has a digest of each result. Data come from integers and powers of two, which are the same on every machine.
"""

import argparse
import hashlib
import itertools
import json
import os
import pathlib
import sys

import numpy as np
import torch
import warp as wp

wp.config.log_level = 30

from segmentops.kernels import launch  # noqa: E402
from segmentops.kernels._registry import FAMILIES, INDICES, SCALARS, THREADS  # noqa: E402
from segmentops.ops.table import OPERATIONS  # noqa: E402
from segmentops.torch import _cuda, _kernels, set_index_check  # noqa: E402
from segmentops.torch import segment_ops as ops  # noqa: E402

FILE = pathlib.Path(__file__).with_name("engine_bits.json")

# Segment lengths at which an implementation changes its ways; the last two have one giant among singletons.
LENGTHS = {
    "short": [1, 0, 2, 7, 8, 9, 0, 3] * 20,
    "blocks": [63, 64, 65, 127, 128, 129, 511, 512, 513, 0, 1],
    "supers": [5, 4095, 4096, 4097, 20_000, 0, 3],
    "giant": [1] * 300 + [50_000] + [1] * 300,
    "longer": [3, 300_001, 2],
}
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
EXTENTS = [((), ()), ((3,), (3,)), ((5,), (2,))]  # what k and j stand for; a width that no kernel is made for


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Numbers of many magnitudes, made exactly; of half precision, up to 32."""
    half = dtype.itemsize == 2
    mantissa = rng.integers(-(2**23), 2**23, shape).astype(np.float64)
    return torch.from_numpy(np.ldexp(mantissa, rng.integers(-40, 1, shape) - 18 * half)).to(dtype)


def operands(name, n, m, extent, dtype, seed=0):
    """By operand; None for by-products of a forward operation."""
    rng = np.random.default_rng(seed)
    dims = {"n": (n,), "m": (m,), "k": extent[0], "j": extent[1]}
    shapes = {o.name: tuple(d for t in (o.lead, *o.trail) for d in dims[t]) for o in OPERATIONS[name].operands}
    by_products = {o.name for o in OPERATIONS[name].operands if o.by_product}
    return {key: None if key in by_products else numbers(rng, shape, dtype) for key, shape in shapes.items()}


def run(name, arrays, idx, m, engine):
    """Results of an operation, by the engine or by Warp's kernels."""

    def apply(name, *tensors):
        return _kernels.KERNELS[name](*tensors, idx, m) if engine else _cuda.kernel(name)(*tensors, idx, m)

    for operand in OPERATIONS[name].operands:
        if arrays[operand.name] is None:  # made by the operation that has it as a result
            forward = next(op.name for op in OPERATIONS.values() if operand in op.results)
            x = arrays.get("x")
            if x is None:
                y = arrays["y"]
                x = numbers(np.random.default_rng(1), (len(idx), *y.shape[1:]), y.dtype).to(y.device)
            arrays = arrays | {operand.name: apply(forward, x)[1]}
    outs = apply(name, *arrays.values())
    return outs if isinstance(outs, tuple) else (outs,)


def digest(outs) -> str:
    found = hashlib.sha256()
    for out in outs:
        out = torch.where(out.isnan(), torch.full_like(out, torch.nan), out) if out.is_floating_point() else out
        found.update(out.cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def cases():
    for name, op in OPERATIONS.items():
        for k, extent in enumerate(EXTENTS):
            if op.matrices and not extent[0]:
                continue
            for label, lengths in LENGTHS.items():
                if label == "longer" and (k != 1 or op.matrices):
                    continue
                for dtype in DTYPES if k == 1 else DTYPES[:2]:
                    yield name, extent, label, lengths, dtype


def index(lengths, dtype=torch.int32):
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).to(dtype)


def digests(device, engine):
    found = {}
    for name, extent, label, lengths, dtype in cases():
        idx, m = index(lengths).to(device), len(lengths)
        arrays = operands(name, len(idx), m, extent, dtype)
        arrays = {key: a if a is None else a.to(device) for key, a in arrays.items()}
        width = "x".join(map(str, extent[0] + extent[1])) if OPERATIONS[name].matrices else str(extent[0])
        key = f"{name} {width} {label} {str(dtype)[6:]}"
        found[key] = digest(run(name, arrays, idx, m, engine))
        if label == "short" and not engine:  # the other width of idx
            if digest(run(name, arrays, idx.long(), m, engine)) != found[key]:
                found[key] = "int64 differs"
    return found


def agreement(device):
    """Cases whose bits are not the engine's."""
    known = json.loads(FILE.read_text())
    found = digests(device, engine=False)
    return [key for key in known if found.get(key) != known[key]], len(known)


def repeatability(device, repeats):
    """Operations that ever give other bits in another run."""
    differ = set()
    lengths = LENGTHS["giant"] + LENGTHS["short"] + LENGTHS["supers"]
    idx, m = index(lengths).to(device), len(lengths)
    for name in OPERATIONS:
        arrays = operands(name, len(idx), m, ((3,), (3,)), torch.float32)
        arrays = {key: a if a is None else a.to(device) for key, a in arrays.items()}
        first = run(name, arrays, idx, m, False)
        for _ in range(repeats):
            again = run(name, arrays, idx, m, False)
            if not all(torch.equal(a, b) or digest([a]) == digest([b]) for a, b in zip(first, again, strict=True)):
                differ.add(name)
    return sorted(differ), len(OPERATIONS)


def invariance(device):
    """Operations and lengths for which a segment's bits depend on what shares its batch."""
    differ = []
    count = 0
    for length in (1, 7, 8, 9, 64, 200, 513, 4096, 5000, 70_000):
        for dtype in (torch.float32, torch.float64):
            rng = np.random.default_rng(length)
            x, y, w = (numbers(rng, (length, 3), dtype).to(device) for _ in range(3))
            before = numbers(rng, (777 + length % 13, 3), dtype).to(device)
            alone = torch.zeros(length, dtype=torch.int32, device=device)
            after = torch.full((9,), 1001, device=device)
            batch = torch.cat([torch.arange(len(before), device=device) // 5, alone + 1000, after]).int()
            first = len(before)

            def grow(t, before=before):
                return torch.cat([before, t, before[:9]])

            for op in ("sum", "mean", "dot", "rms_norm", "max_norm"):
                function = getattr(ops, f"segmented_{op}")

                def orders(x, y, w, idx, m, s, function=function, op=op):
                    """The value of segment s, and gradients to the second order of its elements."""
                    x = x.clone().requires_grad_()
                    out = function(x, y, idx, m) if op == "dot" else function(x, idx, m)
                    (g,) = torch.autograd.grad(out.sum(), x, create_graph=True)
                    h = torch.autograd.grad((g * w).sum(), x)[0] if g.requires_grad else g
                    return out[s].detach(), g.detach(), h.detach()

                one = orders(x, y, w, alone, 1, 0)
                value, g, h = orders(grow(x), grow(y), grow(w), batch, 1002, 1000)
                many = (value, g[first : first + length], h[first : first + length])
                count += 1
                if digest(one) != digest(many):
                    differ.append(f"{op} {length} {str(dtype)[6:]}")
    return differ, count


def small(device):
    """Every operation once, ragged sizes: what compute-sanitizer can follow in a minute."""
    lengths = [1, 0, 9, 70, 600, 3]
    for dtype in (torch.float32, torch.float64):
        idx, m = index(lengths).to(device), len(lengths)
        odd = torch.cat([idx[:1] - 1, idx, idx[-1:] + 5])  # out of range at both ends
        for name in OPERATIONS:
            for i in (idx, odd.long()):
                arrays = operands(name, len(i), m, ((3,), (3,)), dtype)
                run(name, {k: a if a is None else a.to(device) for k, a in arrays.items()}, i, m, False)
    if device == "cuda":
        torch.cuda.synchronize()
    print("small run done")


def compile_all(device, workers):
    """Every kernel that the tests and the checks launch."""
    modules = []
    for family, (names, kernels) in FAMILIES.items():
        for name, scalar, index_type in itertools.product(names, SCALARS, INDICES):
            if not (family == "segment" and index_type == "i64" or family == "count" and scalar != "f32"):
                modules.append(next(iter(kernels(name, scalar, index_type).values())).module)
    wp.force_load(device, modules, block_dim=THREADS if device != "cpu" else 1, max_workers=workers)
    print(f"{len(modules)} modules compiled")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["write", "check", "compile", "small", "rehearse"])
    what = parser.parse_args().what
    if what == "write":
        found = digests("cpu", engine=True)
        FILE.write_text(json.dumps(found, indent=0) + "\n")
        print(f"{len(found)} digests in {FILE}")
        return 0
    device = "cpu" if what == "rehearse" else "cuda"
    if what == "small":
        small(device)
        return 0
    if what == "compile":
        wp.init()
        compile_all("cuda:0", os.cpu_count() or 1)
        return 0
    bad = 0
    with set_index_check("cached"):
        for title, (differ, count) in (
            ("bits of the CPU engine", agreement(device)),
            ("repeatability", repeatability(device, 2 if what == "rehearse" else 20)),
            ("batch invariance", invariance(device)),
        ):
            print(f"{title}: {count - len(differ)} of {count} the same" + "".join(f"\n  differs: {d}" for d in differ))
            bad += len(differ)
    return int(bad > 0)


if __name__ == "__main__":
    assert launch
    sys.exit(main())

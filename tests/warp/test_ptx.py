# SPDX-License-Identifier: Apache-2.0
"""Every kernel family compiles for CUDA, and its PTX is what the design says. No GPU is needed.

The quick suite takes each module of the table in float32 and float64, on sm_80 and sm_90; with
NVALCHEMIOPS_FULL_TESTS=1 every module on sm_75, 80, 90, 100 and 120, and every type.
"""

import os
import re

import pytest
import warp as wp

from segmentops.kernels import _registry, launch
from segmentops.kernels._registry import FAMILIES

assert launch  # importing it registers every family

FULL = bool(os.environ.get("NVALCHEMIOPS_FULL_TESTS"))
REDUCTIONS = {"serial", "cooperative", "combine"}


def jobs():
    for family, (names, _) in FAMILIES.items():
        for k, name in enumerate(names):
            yield family, name, "f32", "i32", 80 if k % 2 else 90
            yield family, name, "f64", "i32", 90 if k % 2 else 80
            if FULL:
                for arch in (75, 100, 120):
                    yield family, name, "f32", "i32", arch
                for scalar in _registry.SCALARS:
                    yield family, name, scalar, "i64", 75 if scalar == "bf16" else 120
        yield family, names[0], "f16", "i64", 80
        yield family, names[0], "bf16", "i64", 90


JOBS = list(jobs())


def compile_ptx(kernels, arch, folder):
    """PTX by kernel."""
    module = next(iter(kernels.values())).module
    wp.compile_aot_module(module, arch=arch, module_dir=folder, use_ptx=True)
    (path,) = folder.glob("*.ptx")
    entries = re.split(r"\.visible \.entry ", path.read_text())[1:]
    found = {}
    for text in entries:
        symbol = text[: text.index("(")]
        (name,) = [key for key in kernels if symbol.startswith(f"{key}_")]
        found[name] = text
    return found


def complaints(family, text):
    """What is wrong with the PTX of a kernel."""
    found = []
    if re.search(r"\b(atom|red)\.[\w.]*f(16|32|64)", text):
        found.append("float atomics")
    if re.search(r"\b(atom|red)\.", text):
        found.append("atomics")
    if ".local" in text:
        found.append("local memory")
    if re.search(r"\bfma\.", text):
        found.append("contraction")
    if family in REDUCTIONS and re.search(r"\b(add|sub|mul)\.(rn\.)?f32", text):
        found.append("float32 arithmetic")
    return found


@pytest.mark.parametrize("family, name, scalar, index, arch", JOBS)
def test_ptx(family, name, scalar, index, arch, tmp_path):
    kernels = FAMILIES[family][1](name, scalar, index)
    compiled = compile_ptx(kernels, arch, tmp_path)
    assert set(compiled) == set(kernels)
    for key, text in compiled.items():
        assert not complaints(family, text), f"{family} {name} {key}: {complaints(family, text)}"
        if family == "cooperative":
            assert "bar.sync" in text  # the thread block works together
            assert re.search(r"ld\.shared", text)


def test_ptx_covers_every_family():
    """A family of the package that is in no job, or a file of kernels that registers none, fails here."""
    assert {job[0] for job in JOBS} == set(FAMILIES)
    assert {(job[0], job[1]) for job in JOBS} == {(f, name) for f, (names, _) in FAMILIES.items() for name in names}
    for family in FAMILIES:
        assert len({job[4] for job in JOBS if job[0] == family}) >= 2
    folder = os.path.dirname(_registry.__file__)
    declared = set()
    for file in sorted(os.listdir(folder)):
        if file.endswith(".py"):
            text = open(os.path.join(folder, file)).read()
            assert "@wp.kernel" not in text, f"{file}: kernels are declared in families"
            declared |= set(re.findall(r"^@family\([^\n]*\)\ndef (\w+)\(", text, flags=re.M))
    assert declared == set(FAMILIES)


def test_ptx_checks_see_what_they_should(tmp_path):
    """The checks fail on a kernel that does everything wrong."""
    Long = wp.types.vector(length=64, dtype=wp.float32)

    def wrong(x: wp.array(dtype=wp.float32), k: wp.array(dtype=wp.int32), out: wp.array(dtype=wp.float32)):
        i = wp.tid()
        v = Long()
        for j in range(k[0]):
            v[k[j]] = x[i] * x[j] + v[k[i]]
        wp.atomic_add(out, 0, v[k[i]])

    module = wp.get_module("segmentops.tests.wrong")
    kernels = {"wrong": wp.Kernel(wrong, key="wrong", module=module, options={"enable_backward": False})}
    found = complaints("cooperative", compile_ptx(kernels, 80, tmp_path)["wrong"])
    assert {"float atomics", "atomics", "local memory", "contraction"} <= set(found)

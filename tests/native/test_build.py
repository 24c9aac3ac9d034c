# SPDX-License-Identifier: Apache-2.0
"""Building: the table of names, what happens without Warp's build options, and that a broken rule is noticed."""

import time

import numpy as np
import pytest
import warp as wp
from native.harness import MAXIMA, OPS, same_bits

from nvalchemiops import native
from nvalchemiops.native import _build, _engine
from nvalchemiops.native._signatures import INTEGERS, TYPED, UNTYPED, exports


def test_every_function_is_tested():
    typed = {name for table in TYPED.values() for name in table}
    assert typed == set(OPS) | set(MAXIMA)


def test_arguments_are_those_that_the_tests_pass():
    for table in TYPED.values():
        for name, arguments in table.items():
            if name in OPS:
                assert [a for a in arguments.split() if a not in INTEGERS] == OPS[name].order.split()


def test_every_header_is_a_dependency_and_says_why_it_is_so():
    headers = sorted(_build.INCLUDE.rglob("*.h"))
    assert len(headers) > 10
    for header in headers:
        text = header.read_text()
        assert text.startswith("// ") and "#pragma once" in text
        assert not any(word in text for word in ("asm", "std::", "#include <"))


def test_functions_of_a_table_are_attributes_after_the_first_use():
    engine = native.load()
    assert engine is native.load()
    assert callable(engine.check)
    assert {"sum_f32", "sum_f64"} <= set(vars(engine))
    with pytest.raises(AttributeError, match="no_such"):
        engine.no_such  # noqa: B018
    assert not set(UNTYPED["core"]) - set(vars(engine))


def test_without_the_build_options_the_error_says_so(monkeypatch):
    monkeypatch.delattr(wp, "ModuleBuildOptions")
    with pytest.raises(native.NativeBuildError, match="ModuleBuildOptions"):
        _engine.Engine().build("core")


def test_a_failing_build_is_reported(monkeypatch):
    monkeypatch.setattr(wp, "launch", lambda *a, **k: (_ for _ in ()).throw(RuntimeError("no compiler")))
    with pytest.raises(native.NativeBuildError, match="no compiler"):
        _engine.Engine().build("core")


def test_a_build_that_takes_long_says_what_it_is_doing(capfd):
    with _engine._notice("compiling", 0.01):
        time.sleep(0.2)
    with _engine._notice("nothing to say", 10.0):
        pass
    assert capfd.readouterr().err == "compiling\n"


def test_building_leaves_warps_settings_alone():
    before = {key: value for key, value in vars(wp.config).items() if not key.startswith("__")}
    native.load().warmup()
    assert before == {key: value for key, value in vars(wp.config).items() if not key.startswith("__")}


def test_a_rule_that_counts_blocks_from_elsewhere_is_noticed():
    """SEG_BREAK_RULE lets the first block end where one of the data does: bits then depend on where a segment lies."""
    broken = _engine.functions("core", {"SEG_BREAK_RULE": "1"})["sum_f64"]
    g = np.random.default_rng(0)
    x = g.standard_normal(200) * np.exp2(g.integers(-20, 20, 200))

    def sum_at(f, shift):
        y = np.concatenate([np.ones(shift), x])
        idx = np.repeat(np.arange(2, dtype=np.int32), [shift, 200])
        out = np.zeros(2)
        f(y.ctypes.data, idx.ctypes.data, out.ctypes.data, len(y), 2, 1, 0)
        return out[1:]

    shifts = range(1, 30)
    assert all(same_bits(sum_at(native.load().sum_f64, s), sum_at(native.load().sum_f64, 0)) for s in shifts)
    assert not all(same_bits(sum_at(broken, s), sum_at(broken, 0)) for s in shifts)
    assert len(exports("core")) > 10

# SPDX-License-Identifier: Apache-2.0
"""Building: the table of names, what happens without Warp's build options, and that a broken rule is noticed."""

import ctypes
import pathlib
import sysconfig
import time

import numpy as np
import pytest
import warp as wp
from native.harness import MAXIMA, OPS, same_bits

from segmentops import _building, native
from segmentops.native import _build, _builtin, _engine
from segmentops.ops.abi import INTEGERS, MODULES, arguments, exports
from segmentops.ops.table import OPERATIONS


def test_every_function_is_tested():
    assert set(OPERATIONS) == set(OPS) | set(MAXIMA)


def test_arguments_are_those_that_the_tests_pass():
    for name in OPERATIONS:
        if name in OPS:
            assert [a for a in arguments(name) if a not in INTEGERS] == OPS[name].order.split()


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
    assert not set(MODULES["core"]) - set(vars(engine))


def test_without_the_build_options_the_error_says_so(monkeypatch):
    monkeypatch.delattr(wp, "ModuleBuildOptions")
    with pytest.raises(native.NativeBuildError, match="ModuleBuildOptions"):
        _engine.Engine().build("core")


def test_a_failing_build_is_reported(monkeypatch):
    monkeypatch.setattr(_build, "_built", {})
    monkeypatch.setattr(wp, "launch", lambda *a, **k: (_ for _ in ()).throw(RuntimeError("no compiler")))
    with pytest.raises(native.NativeBuildError, match="no compiler"):
        _engine.Engine().build("core")


def test_who_waits_is_told_what_for_in_one_line(capfd, tmp_path, monkeypatch):
    """Once in a process, however many parts are compiled; that it is once in all only where something is kept."""
    monkeypatch.setattr(_building, "_said", set())
    monkeypatch.setattr(wp.config, "kernel_cache_dir", str(tmp_path))
    for _ in range(3):
        with _building.notice("the CPU code", seconds=0.01):
            time.sleep(0.1)
    monkeypatch.setattr(wp.config, "kernel_cache_dir", str(tmp_path / "nothing"))
    with _building.notice("the GPU code", seconds=0.01):
        time.sleep(0.1)
    with _building.notice("nothing to say", seconds=10.0):
        pass
    cpu, gpu = capfd.readouterr().err.splitlines()
    assert cpu == "segmentops: compiling the CPU code, about 10 s, once"
    assert gpu == "segmentops: compiling the GPU code, about 10 s"


def test_warp_is_quiet_while_it_builds_and_as_before_afterwards(monkeypatch):
    for before in (wp.LOG_DEBUG, wp.LOG_INFO, wp.LOG_ERROR):
        monkeypatch.setattr(wp.config, "log_level", before)
        with pytest.raises(KeyError), _building.quietly(), _building.quietly():
            assert wp.config.log_level == max(before, wp.LOG_WARNING)
            raise KeyError
        assert wp.config.log_level == before


def changed(structure, **changes):
    """The structure after an edit on its side alone."""
    fields = [(changes.get(name, name), *rest) for name, *rest in structure._fields_ if changes.get(name, name)]
    return type(structure.__name__, (ctypes.Structure,), {"_fields_": fields})


def test_structures_are_what_the_native_code_takes_them_for(monkeypatch):
    """An edit on one side alone (a field renamed, gone, in another place) is an error when the code is loaded."""
    at = _engine.addresses("core")["layout"]
    structures = {"Interpreter": _builtin.Interpreter, "Target": _builtin.Target}
    _engine.require_layout(at, *structures.values())
    for wrong, words in (
        (changed(_builtin.Target, size=None), "Target, Target.size"),
        (changed(_builtin.Target, size="length"), "Target.length, Target.size"),
        (changed(_builtin.Target, arguments="size", size="arguments"), "Target.arguments, Target.size"),
        (changed(_builtin.Interpreter, find="keep", keep="find"), "Interpreter.find, Interpreter.keep"),
    ):
        with pytest.raises(native.NativeBuildError, match=f"disagree about where these are: {words}$"):
            _engine.require_layout(at, *(structures | {wrong.__name__: wrong}).values())
    monkeypatch.setattr(_builtin, "Target", changed(_builtin.Target, size=None))
    with pytest.raises(native.NativeBuildError, match="Target.size"):
        _engine.Engine().build("core")


@pytest.mark.parametrize("free_threaded", [0, 1])
def test_no_built_ins_on_a_free_threaded_python(monkeypatch, free_threaded):
    get = sysconfig.get_config_var
    monkeypatch.setattr(sysconfig, "get_config_var", lambda v: free_threaded if v == "Py_GIL_DISABLED" else get(v))
    again = {"__name__": "again", "__package__": _builtin.__package__}
    exec(pathlib.Path(_builtin.__file__).read_text(), again)
    assert again["AVAILABLE"] == (not free_threaded)


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

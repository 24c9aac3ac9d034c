# SPDX-License-Identifier: Apache-2.0
"""First calls where something is missing or in the way: Warp's kernel cache, the compiler, libgomp, torch.

Every program runs in a process and a cache of its own, and compiles only functions that compile in a second.
"""

import shutil

import pytest
from native.process import finish, python, start

# `product` calls a function of the table "second" (or "half_second"), and says whether the result is right.
PROGRAM = """
    import warnings
    import numpy as np
    from segmentops import native
    from segmentops.ops import table
    for name in [n for n, op in table.OPERATIONS.items() if op.module == "second" and n != "matvec_t"]:
        del table.OPERATIONS[name]
    g, idx, mat = np.arange(1.0, 6.0), np.array([0, 0, 1, 1, 1]), np.array([3.0, 7.0])
    def product(suffix="f64", dtype=np.float64):
        x, a, out = g.astype(dtype), mat.astype(dtype), np.zeros(5, dtype)
        f = getattr(native.load(), "matvec_t_" + suffix)
        f(*(v.ctypes.data for v in (x, a, idx, out)), 5, 2, 1, 1, 1 | 8 << 8)
        return (out == x * a[idx]).all()
    caught = warnings.catch_warnings(record=True)
    said = caught.__enter__()
    warnings.simplefilter("always")
"""
REPORT = """
    print(product(), *[w.message for w in said if "segmentops" in str(w.message)], sep="|")
"""


def read_only(folder):
    for path in [folder, *folder.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o222)


def writable(folder):
    for path in [folder, *folder.rglob("*")]:
        path.chmod(path.stat().st_mode | 0o200)


# A user without a home folder, under which Warp keeps its cache.
NO_HOME = """
    import os, pwd
    os.chdir({folder!r})
    def getpwuid(uid):
        raise KeyError(uid)
    pwd.getpwuid = getpwuid
"""
# What is written to stderr is kept, and nobody waits a second for it.
SAID_AT_ONCE = """
    import io, sys
    from segmentops import _building
    _building.notice.__wrapped__.__defaults__ = ("about 10 s", 0.0)
    sys.stderr = io.StringIO()
"""


@pytest.mark.parametrize("kind", ["read-only", "home is no folder", "no home", "an empty XDG_CACHE_HOME"])
def test_a_cache_that_cannot_be_written(tmp_path, kind):
    """The engine is compiled all the same, in a folder that is gone afterwards; one warning says what to do."""
    cache, temporary = tmp_path / "cache", tmp_path / "temporary"
    cache.mkdir()
    temporary.mkdir()
    read_only(cache)
    places = {
        "read-only": {"WARP_CACHE_PATH": cache},
        "home is no folder": {"WARP_CACHE_PATH": None, "XDG_CACHE_HOME": None, "HOME": "/dev/null"},
        "no home": {"WARP_CACHE_PATH": None, "XDG_CACHE_HOME": None, "HOME": None},
        "an empty XDG_CACHE_HOME": {"WARP_CACHE_PATH": None, "XDG_CACHE_HOME": "", "HOME": None},
    }
    here = tmp_path / "here"
    here.mkdir()
    second_table = "    assert product('f16', np.float16)" if kind == "read-only" else ""
    prepare = NO_HOME.format(folder=str(here)) + SAID_AT_ONCE
    end = "    print(sys.stderr.getvalue(), end='')\n"
    line, *notices = python(prepare + PROGRAM + second_table + REPORT + end, TMPDIR=temporary, **places[kind])
    right, *warned = line.split("|")
    what = "segmentops: compiling the CPU code for segment operations"
    assert notices == [f"{what} in half precision, about 10 s"] * bool(second_table) + [f"{what}, about 10 s"]
    assert not list(here.iterdir())  # no folder `~`
    assert right == "True" and len(warned) == 1 and "WARP_CACHE_PATH" in warned[0]
    assert not list(temporary.glob("segmentops*")) and not list(cache.iterdir())


def test_a_read_only_cache_that_has_the_code(tmp_path):
    """An image, say: nothing is compiled, and nobody warned."""
    assert python(PROGRAM + REPORT, WARP_CACHE_PATH=tmp_path) == ["True"]
    before = sorted(tmp_path.rglob("*"))
    assert any(path.suffix == ".o" for path in before)
    read_only(tmp_path)
    try:
        assert python(PROGRAM + REPORT, WARP_CACHE_PATH=tmp_path) == ["True"]
    finally:
        writable(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_cache_that_is_deleted_while_the_process_runs(tmp_path):
    """What is loaded goes on working; what is not yet, is compiled into a new one."""
    cache = tmp_path / "cache"
    program = (
        PROGRAM
        + f"""
    import shutil
    print(product())
    shutil.rmtree({str(cache)!r})
    print(product(), product("f16", np.float16))
    """
    )
    assert python(program + REPORT, WARP_CACHE_PATH=cache) == ["True", "True True", "True"]
    assert list(cache.rglob("*half_second*.o"))


def test_home_unset():
    """A user with an entry in the password file has a home all the same."""
    assert python(PROGRAM + REPORT, HOME=None, XDG_CACHE_HOME=None) == ["True"]


def test_warps_own_launchers_without_a_home(tmp_path):
    """Importing them starts Warp: that leaves nothing behind, either."""
    program = NO_HOME.format(folder=str(tmp_path)) + """
    import segmentops.warp
    import warp as wp
    print(os.listdir(), os.path.isdir(wp.config.kernel_cache_dir))
    """
    assert python(program, HOME=None, XDG_CACHE_HOME=None, WARP_CACHE_PATH=None) == ["[] True"]


def test_two_processes_with_many_threads_call_first_at_once(tmp_path):
    """Each compiles once, and one of the two keeps its result."""
    program = (
        PROGRAM
        + """
    import threading
    from segmentops.native import _build
    compile, compiled, right = _build.build, [], []
    def build(*table):
        compiled.append(table)
        return compile(*table)
    _build.build = build
    workers = [threading.Thread(target=lambda: right.append(product())) for _ in range(8)]
    [w.start() for w in workers]
    [w.join() for w in workers]
    print(len(right), all(right), len(compiled))
    """
        + REPORT
    )
    processes = [start(program, WARP_CACHE_PATH=tmp_path) for _ in range(2)]
    assert [finish(process) for process in processes] == [["8 True 1", "True"]] * 2
    assert len(list(tmp_path.rglob("*.o"))) == 1


def test_a_compiler_that_fails(tmp_path):
    """One warning says why, though each table fails; then Warp's kernels give the right results."""
    from segmentops.native._build import INCLUDE

    shutil.copytree(INCLUDE, tmp_path / "include")
    with open(tmp_path / "include" / "segment" / "vector.h", "a") as header:
        header.write("this is no C++\n")
    program = f"""
    import pathlib, warnings
    import numpy as np
    import warp as wp
    from segmentops import warp as segment_ops
    from segmentops.native import _build
    _build.INCLUDE = pathlib.Path({str(tmp_path / "include")!r})
    def array(x, dtype=wp.float64):
        return wp.array(x, dtype=dtype, device="cpu")
    idx = array([0, 0, 1, 1, 1], wp.int32)
    v, matrices = np.arange(15.0).reshape(5, 3), np.arange(18.0).reshape(2, 3, 3)
    total, product = array(np.zeros(2)), array(np.zeros((5, 3)), wp.vec3d)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        segment_ops.segmented_sum(array(v[:, 0]), idx, total)                       # table core
        segment_ops.segmented_matvec(array(v, wp.vec3d), array(matrices, wp.mat33d), idx, product)   # table second
    assert (total.numpy() == [3, 27]).all(), total
    assert (product.numpy() == np.einsum("nkj,nk->nj", matrices[idx.numpy()], v)).all(), product
    print(*[w.message for w in said], sep="|")
    """
    (warned,) = python(program)
    assert warned.count("|") == 0 and "could not be built: CPU kernel build failed" in warned


def test_without_libgomp():
    """One thread does all shares, with the bits that many give."""
    (line,) = python("""
    import ctypes
    import numpy as np
    load = ctypes.CDLL
    class Without(load):
        def __init__(self, name, *rest, **options):
            if "libgomp" in str(name):
                raise OSError(f"{name}: cannot open shared object file")
            load.__init__(self, name, *rest, **options)
    from segmentops import native
    from segmentops.native import _threads
    with_it = _threads.pool_addresses()
    ctypes.CDLL = Without
    import threading
    x = np.random.default_rng(0).standard_normal((100_000, 3))
    idx = np.repeat(np.arange(4, dtype=np.int32), 25_000)
    def add(threads):
        out = np.zeros((4, 3))
        native.load().sum_f64(x.ctypes.data, idx.ctypes.data, out.ctypes.data, 100_000, 4, 3, threads << 8)
        return out
    one, many = add(1), add(native.threads(10**7) + 6)
    close = np.allclose(one, x.reshape(4, -1, 3).sum(1))
    print(_threads.pool_addresses(), close, one.tobytes() == many.tobytes(), native.threads(10**7) > 0)
    """)
    assert line == "None True True True"


def test_without_torch():
    """Where torch is not installed, importing its binding fails as any such import does; all else works."""
    (line,) = python("""
    import sys
    sys.modules["torch"] = None
    import numpy as np
    import warp as wp
    import segmentops
    from segmentops import native
    from segmentops import warp as segment_ops
    segmentops.warmup()
    out = wp.zeros(2, dtype=wp.float32, device="cpu")
    idx = wp.array(np.repeat([0, 1], 50_000), dtype=wp.int32, device="cpu")
    segment_ops.segmented_sum(wp.ones(100_000, dtype=wp.float32, device="cpu"), idx, out)
    try:
        import segmentops.torch.segment_ops
    except ImportError as error:
        print(out.numpy(), error)
    """)
    assert line.startswith("[50000. 50000.] ") and "not installed" in line

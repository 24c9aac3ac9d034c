# SPDX-License-Identifier: Apache-2.0
"""Clocks, medians of alternating calls, and graphs against eager launches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import warp as wp

Job = Callable[[], object]
Clock = Callable[[Job, int], float]  # seconds a call, of so many calls in a row

SLICE = 2e-4  # seconds that one turn lasts at least, where a call is shorter
TURNS = 5  # at least
HOPELESS = 3.0  # a rival this many times slower than the fastest is not measured further


def wall(run: Job, loops: int) -> float:
    """For calls that are done when they return."""
    start = time.perf_counter()
    for _ in range(loops):
        run()
    return (time.perf_counter() - start) / loops


def events(run: Job, loops: int) -> float:
    """On CUDA: from the first call's start to the last one's end on torch's current stream."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(loops):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3 / loops


def clock(device: str) -> Clock:
    return events if device == "cuda" else wall


def hopeful(jobs: Mapping[str, Job], clock: Clock) -> dict[str, Job]:
    """Those that may turn out fastest, by the best of three calls after a first one."""
    best = {}
    for name, run in jobs.items():
        run()
        best[name] = min(clock(run, 1) for _ in range(3))
    limit = HOPELESS * min(best.values(), default=0.0)
    return {name: run for name, run in jobs.items() if best[name] <= limit}


def medians(jobs: Mapping[str, Job], seconds: float, clock: Clock) -> dict[str, float]:
    """Median time of each job in ms; they take turns, so that a busy machine slows them alike."""
    loops = {}
    for name, run in jobs.items():
        run()
        loops[name] = max(1, min(1000, int(SLICE / max(clock(run, 1), 1e-9))))
    times: dict[str, list[float]] = {name: [] for name in jobs}
    end = time.perf_counter() + seconds
    turns = 0
    while turns < TURNS or time.perf_counter() < end and turns < 400:
        for name, run in jobs.items():
            times[name].append(clock(run, loops[name]))
        turns += 1
    return {name: statistics.median(found) * 1e3 for name, found in times.items()}


def _bench_cuda_graph(launch: Job, device: str, seconds: float = 0.3) -> tuple[float, float]:
    """Median times in ms of a chain of launches, eager and as the replay of a graph, which take turns.

    Parameters
    ----------
    launch : callable
        Launches any number of Warp kernels or launchers on fixed arrays; captured once, so no read on the host and no
        decision on a value may be in it.
    device : str
        A Warp device. On the CPU, Warp records and replays the same launches.
    seconds : float
        How long to measure.
    """
    launch()  # compiles; a capture may not
    wp.synchronize_device(device)
    with wp.ScopedCapture(device=device) as capture:
        launch()
    found = medians(
        {"eager": launch, "replay": lambda: wp.capture_launch(capture.graph)},
        seconds,
        clock("cuda" if wp.get_device(device).is_cuda else "cpu"),
    )
    return found["eager"], found["replay"]

# SPDX-License-Identifier: Apache-2.0
"""Seconds and peak memory of a piece of work in this process, for the *_specforge.py benchmarks."""

import json
import statistics
import time
from pathlib import Path


def read_status(key):
    """A figure of /proc/self/status in bytes: VmRSS is now, VmHWM the peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"expected {key} in /proc/self/status, got none")


def measure(work, runs):
    """Runs `work` and returns its last result, the median seconds and the peak bytes above now."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = read_status("VmRSS")
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - start)
    figures = {
        "seconds": statistics.median(seconds),
        "seconds_of_runs": seconds,
        "rss_before_bytes": before,
        "peak_rss_bytes": read_status("VmHWM"),
    }
    return result, figures


def print_figures(figures):
    print(json.dumps(figures))

# SPDX-License-Identifier: Apache-2.0
"""Whether memory was asked for in large pages."""

import pathlib

import pytest

needs_linux = pytest.mark.skipif(
    not pathlib.Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="needs Linux with transparent huge pages"
)
LARGE = 32 << 20  # bytes


def flags(address):
    """What the kernel notes of the mapping that an address is in."""
    inside = False
    with open("/proc/self/smaps") as maps:
        for line in maps:
            first = line.split()[0]
            if not first.endswith(":"):
                begin, end = (int(number, 16) for number in first.split("-"))
                inside = begin <= address < end
            elif inside and first == "VmFlags:":
                return line.split()[1:]
    raise LookupError(hex(address))


def prefers_large(address):
    return "hg" in flags(address)

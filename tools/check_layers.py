#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the order of folders: a folder includes only itself and folders to its left."""
import pathlib
import re
import sys

ORDER = "base ops formats data model memory eval pipeline train app".split()
root = pathlib.Path(__file__).resolve().parent.parent / "draftsmith"
wrong = []
for path in sorted(root.rglob("*")):
    if path.suffix not in (".h", ".cpp", ".cu", ".cuh"):
        continue
    folder = path.relative_to(root).parts[0]
    for number, line in enumerate(path.read_text().splitlines(), 1):
        found = re.match(r'\s*#include\s+"draftsmith/(\w+)/', line)
        if found and ORDER.index(found[1]) > ORDER.index(folder):
            wrong.append(f"{path.relative_to(root.parent)}:{number}: {folder} includes {found[1]}")
print("\n".join(wrong) or f"order holds: {' < '.join(ORDER)}")
sys.exit(bool(wrong))

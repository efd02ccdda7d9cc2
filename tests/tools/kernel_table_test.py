# SPDX-License-Identifier: Apache-2.0
"""docs/performance.md shows what tools/kernel_table.py makes, and kernels hardly spill.

Usage: kernel_table_test.py [--compile]      which also compiles the kernels; 77 without nvcc 13.0
"""
import re
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import kernel_table  # noqa: E402
import scale_table  # noqa: E402

COMPILER = "release 13.0, V13.0.88"  # of tools/requirements-cuda.txt

PTXAS = """ptxas info    : Compiling entry function '_Z1a' for 'sm_90'
ptxas info    : Function properties for _Z1a
    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 16 bytes cumulative stack size
ptxas info    : Compile time = 10.0 ms
ptxas info    : Compiling entry function '_Z1b' for 'sm_90'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers
"""


def shown_table():
    before, found, rest = kernel_table.DOCUMENT.read_text().partition(
        scale_table.BEGIN.format(kernel_table.TABLE))
    assert found, before
    return rest.partition(scale_table.END)[0].strip() + "\n"


class KernelTable(unittest.TestCase):
    def test_reads_registers_and_spills_of_every_kernel(self):
        self.assertEqual(kernel_table.parse_ptxas(PTXAS), {"_Z1a": (255, 20), "_Z1b": (32, 0)})

    def test_finds_a_kernel_by_its_name_in_the_source(self):
        space = "draftsmith::ops::cuda::"
        names = [f"void {space}run_kernel<{space}Rows<{space}BF16, 8, {flag}> >({space}Rows<{space}"
                 f"BF16, 8, {flag}>)" for flag in ("(bool)0", "true")]
        self.assertEqual(kernel_table.find_kernel(names, "Rows<BF16, 8, false>"), names[0])
        self.assertEqual(kernel_table.find_kernel(names, "Rows<BF16, 8, true>"), names[1])
        with self.assertRaises(kernel_table.ToolError):
            kernel_table.find_kernel(names, "Rows<BF16, 1, true>")

    def test_counts_the_blocks_that_a_multiprocessor_holds(self):
        machine = kernel_table.MACHINES["90"]
        for threads, registers, kib, blocks, limit in (
                (256, 128, 8, 2, "registers"), (256, 129, 8, 1, "registers"),
                (128, 168, 64, 3, "registers"), (128, 32, 64, 3, "shared memory"),
                (128, 32, 96, 2, "shared memory"), (512, 32, 0, 4, "warps"),
                (32, 16, 0, 32, "blocks")):
            self.assertEqual(machine.resident_blocks(threads, registers, 1024 * kib), blocks, limit)

    def test_the_document_has_every_kernel_and_none_spills_more_than_some_values(self):
        rows = [line.split("|")[1:-1] for line in shown_table().splitlines()[2:]]
        kernels = sum(kernel_table.KERNELS.values(), [])
        self.assertEqual([row[0].strip().strip("`") for row in rows], kernels)
        self.assertLessEqual(max(int(row[-1]) for row in rows), 32)


class Compiled(unittest.TestCase):
    def test_is_what_the_document_shows(self):
        self.assertEqual(kernel_table.compile_table(kernel_table.find_nvcc()), shown_table(),
                         "Try tools/kernel_table.py --update, and read the sentences again.")


def has_compiler():
    try:
        told = subprocess.run([kernel_table.find_nvcc(), "--version"], capture_output=True,
                              text=True, check=False).stdout
    except OSError:
        return False
    return re.search(re.escape(COMPILER), told) is not None


if __name__ == "__main__":
    if "--compile" in sys.argv:
        if not has_compiler():
            print(f"needs nvcc, {COMPILER}")
            sys.exit(77)
        unittest.main(argv=sys.argv[:1] + ["Compiled"])
    unittest.main(argv=sys.argv[:1] + ["KernelTable"])

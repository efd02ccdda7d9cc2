#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the kernels with most work take of a GPU: registers, shared memory, blocks side by side.

Usage:
    tools/kernel_table.py              compiles and prints the table of docs/performance.md
    tools/kernel_table.py --update     writes it there

nvcc compiles the kernels for each architecture, and ptxas says how many registers a thread has and
what it had to spill; threads and shared memory are the kernels' own numbers. Blocks of a
multiprocessor follow from these and from what it has. No GPU is needed, and nothing is measured.
"""
import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from scale_table import update
from tool_output import BAD_ARGUMENT, BAD_FILE, ToolError, exit_status

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs/performance.md"
TABLE = "kernels"

# {file: kernels}; those of bfloat16, in the order of the table.
KERNELS = {
    "block_attention": [
        *(f"BlockAttentionKernel<{E}>" for E in (64, 128, 256)),
        *(f"QueryGradientKernel<{E}>" for E in (64, 128, 256)),
        "KeyGradientKernel<64, true, true>", "KeyGradientKernel<128, true, true>",
        "KeyGradientKernel<256, true, false>", "KeyGradientKernel<256, false, true>"],
    "lm_head_loss": ["TeacherRowsKernel<BF16, 8>", "HeadRowsKernel<BF16, 8, true>",
                     "HeadRowsKernel<BF16, 8, false>"],
    "delta_rule": ["DeltaChunkKernel<64>", "DeltaChunkKernel<128>", "DeltaWalkKernel<BF16, 64>",
                   "DeltaWalkKernel<BF16, 128>"],
}
HEADERS = ("block_attention_gradient", "lm_head_loss", "delta_chunks", "delta_walk")


class Machine:
    """A multiprocessor (CUDA C++ Programming Guide, technical specifications by capability)."""
    REGISTERS = 65_536
    RESERVED_BYTES = 1024  # of shared memory, for each block

    def __init__(self, most_warps, most_blocks, shared_kib):
        self.most_warps, self.most_blocks = most_warps, most_blocks
        self.shared_bytes = 1024 * shared_kib

    def resident_blocks(self, threads, registers, shared_bytes):
        warps = threads // 32
        registers_of_warp = -(-registers * 32 // 256) * 256  # given out by 256
        # Warps are spread over four schedulers, each with a quarter of the registers.
        by_registers = self.REGISTERS // 4 // registers_of_warp * 4 // warps
        by_shared = self.shared_bytes // (shared_bytes + self.RESERVED_BYTES)
        return min(by_registers, by_shared, self.most_warps // warps, self.most_blocks)


MACHINES = {"80": Machine(64, 32, 164), "90": Machine(64, 32, 228), "100": Machine(64, 32, 228),
            "120": Machine(48, 24, 100)}


def run(command):
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ToolError(BAD_ARGUMENT, f"{command[0]}: expected a program, got '{error.strerror}'. "
                        "Try --nvcc PATH.") from error
    if result.returncode != 0:
        raise ToolError(BAD_FILE, f"{command[0]}: expected it to compile, got:\n{result.stderr}")
    return result.stdout + result.stderr


def parse_ptxas(text):
    """{mangled name: (registers, bytes spilled)}, stores and loads together."""
    found = {}
    for part in text.split("Compiling entry function '")[1:]:
        spilled = sum(map(int, re.findall(r"(\d+) bytes spill", part)))
        found[part.split("'")[0]] = int(re.search(r"Used (\d+) registers", part)[1]), spilled
    return found


def find_kernel(names, kernel):
    """The one of these demangled names that runs the kernel."""
    plain = {re.sub(r"draftsmith::ops::cuda::|\(\w+\)| ", "", name): name for name in names}
    sought = kernel.replace(" ", "").replace("true", "1").replace("false", "0")
    for name, whole in plain.items():
        if f"run_kernel<{sought}>" in name.replace("true", "1").replace("false", "0"):
            return whole
    raise ToolError(BAD_FILE, f"{kernel}: expected it among what was compiled, got none. "
                    "Try its name in tools/kernel_table.py.")


def read_registers(nvcc, file, architecture, folder):
    """{kernel: (registers, bytes spilled)} of one file."""
    text = run([nvcc, "-std=c++20", "-O3", f"-I{ROOT}", f"-arch=sm_{architecture}", "-cubin",
                "-Xptxas", "-v", str(ROOT / f"draftsmith/ops/cuda/{file}.cu"),
                "-o", f"{folder}/{file}-{architecture}.cubin"])
    found = parse_ptxas(text)
    names = dict(zip(run(["c++filt", *found]).splitlines(), found.values()))
    return {kernel: names[find_kernel(names, kernel)] for kernel in KERNELS[file]}


def read_sizes(folder):
    """{kernel: (threads, bytes of shared memory)} of a block."""
    kernels = [kernel for of_file in KERNELS.values() for kernel in of_file]
    source, program = Path(folder, "sizes.cpp"), Path(folder, "sizes")
    source.write_text("\n".join([
        "#include <cstdio>",
        *(f'#include "draftsmith/ops/cuda/{name}.cuh"' for name in HEADERS),
        "using namespace draftsmith::ops::cuda;",
        "template <class Kernel> void print() {",
        '  std::printf("%d %ld\\n", Kernel::kThreads, long(Kernel{}.shared_bytes()));',
        "}",
        "int main() {", *(f"  print<{kernel}>();" for kernel in kernels), "}"]) + "\n")
    run(["g++", "-std=c++20", f"-I{ROOT}", str(source), "-o", str(program)])
    lines = run([str(program)]).splitlines()
    return {kernel: tuple(map(int, line.split())) for kernel, line in zip(kernels, lines)}


def make_table(sizes, registers):
    """`registers` is {(architecture, kernel): (registers, bytes spilled)}."""
    lines = ["| kernel | threads | shared KiB | " +
             " | ".join(f"sm_{name}" for name in MACHINES) + " | spilled |",
             "|---|---|---|" + "---|" * (len(MACHINES) + 1)]
    for kernel, (threads, shared) in sizes.items():
        cells = []
        for name, machine in MACHINES.items():
            used = registers[name, kernel][0]
            blocks = machine.resident_blocks(threads, used, shared)
            cells.append(f"{used}, {blocks} x {threads // 32}")
        spilled = max(registers[name, kernel][1] for name in MACHINES)
        lines.append(f"| `{kernel}` | {threads} | {shared / 1024:.4g} | " + " | ".join(cells) +
                     f" | {spilled} |")
    return "\n".join(lines) + "\n"


def compile_table(nvcc):
    with tempfile.TemporaryDirectory(prefix="kernel-table-") as folder, \
            concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = {(name, file): pool.submit(read_registers, nvcc, file, name, folder)
                for file in KERNELS for name in MACHINES}
        registers = {(name, kernel): used for (name, _), job in jobs.items()
                     for kernel, used in job.result().items()}
        return make_table(read_sizes(folder), registers)


def write(options):
    table = compile_table(options.nvcc)
    if options.update:
        DOCUMENT.write_text(update(DOCUMENT.read_text(), {TABLE: table}, DOCUMENT))
    else:
        print(table, end="")


def find_nvcc():
    found = sorted(ROOT.glob(".venv-cuda/lib/python3*/site-packages/nvidia/cu13/bin/nvcc"))
    return str(found[0]) if found else shutil.which("nvcc") or "nvcc"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true",
                        help="write the table into docs/performance.md")
    parser.add_argument("--nvcc", default=find_nvcc(), metavar="FILE",
                        help="the compiler (that of .venv-cuda, else the one on the path)")
    return exit_status(write, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""tools/device_check run, with shell scripts as the programs and folders as torch's wheels, and
what building those programs asks for."""
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
TOOL = PROJECT / "tools" / "device_check"
CUDA = Path("/usr/local/cuda")


class DeviceCheckRun(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name).resolve()
        self.packages = self.folder / "packages"
        self.torch = self.packages / "torch"
        (self.torch / "lib").mkdir(parents=True)
        (self.torch / "__init__.py").touch()
        (self.folder / "tools").mkdir()
        shutil.copy(TOOL, self.folder / "tools")
        (self.folder / "build/device/lib").mkdir(parents=True)
        self.write_program("device_checks", 'echo "$LD_LIBRARY_PATH"')
        self.write_program("bench_device", 'echo "$@"')

    def write_program(self, name, body):
        path = self.folder / "build/device" / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def run_tool(self, *arguments, **variables):
        environment = {key: value for key, value in os.environ.items()
                       if key not in ("LD_LIBRARY_PATH", "OUT")}
        return subprocess.run(
            [self.folder / "tools/device_check", "run", *arguments], capture_output=True, text=True,
            timeout=60, env=environment | {"PYTHONPATH": str(self.packages)} | variables)

    def read_result(self, name):
        return (self.folder / "build/device/results" / name).read_text().strip()

    def list_library_folders(self, **variables):
        self.assertEqual(self.run_tool(**variables).returncode, 0)
        return [os.path.normpath(path) for path in self.read_result("checks.txt").split(":")]

    def test_finds_the_cuda_libraries_in_the_wheel_beside_torch(self):
        own = [str(self.folder / "build/device/lib"), str(self.torch / "lib")]
        self.assertEqual(self.list_library_folders(), own)
        wheel = self.packages / "nvidia/cu13/lib"
        wheel.mkdir(parents=True)
        self.assertEqual(self.list_library_folders(), own + [str(wheel)])
        self.assertEqual(self.list_library_folders(LD_LIBRARY_PATH="/more"),
                         own + [str(wheel), "/more"])

    def test_runs_the_benchmarks_after_a_failed_check_and_returns_its_code(self):
        self.write_program("device_checks", "exit 1")
        result = self.run_tool("--quick")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("bench.jsonl --quick", self.read_result("bench.txt"))


@unittest.skipUnless((CUDA / "bin/nvcc").exists() and (CUDA / "include/nccl.h").exists()
                     and shutil.which("cmake") and shutil.which("ninja")
                     and (PROJECT / ".venv").exists(), "needs nvcc, nccl.h, cmake, ninja and .venv")
class DeviceCheckBuild(unittest.TestCase):
    def test_asks_for_neither_arrow_nor_googletest_nor_benchmark(self):
        with tempfile.TemporaryDirectory() as folder:
            absent = [f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in ("GTest", "benchmark")]
            for command in (
                    ["cmake", "-S", PROJECT, "-B", folder, "-G", "Ninja", "-DDS_WITH_ARROW=OFF",
                     "-DDS_CUDA=ON", f"-DDS_CUDA_ROOT={CUDA}", *absent],
                    ["ninja", "-C", folder, "-n", "device_checks", "bench_device"]):
                result = subprocess.run(command, capture_output=True, text=True, timeout=300)
                self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            self.assertNotIn("libarrow", (Path(folder) / "build.ninja").read_text())


if __name__ == "__main__":
    unittest.main()

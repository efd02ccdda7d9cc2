# SPDX-License-Identifier: Apache-2.0
"""The program and the shared libraries it needs, in one folder, to run where neither is installed.

Usage: python3 tools/deploy_build.py PROGRAM OUT

makes OUT/build/bin, OUT/build/lib (for LD_LIBRARY_PATH) and OUT/build/keep_running.
"""
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tool_output import BAD_ARGUMENT, BAD_FILE, ToolError

TOOLS = Path(__file__).resolve().parent
# Libraries that belong to the machine: those of the C library and of its GPU's driver.
OF_THE_HOST = ("ld-linux", "libc.so", "libm.so", "libdl.so", "libpthread.so", "librt.so",
               "libresolv.so", "libutil.so", "libcuda.so", "libnvidia-")


def find_libraries(program):
    """Shared libraries to send along, {name: path}."""
    result = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False)
    libraries = {}
    for line in result.stdout.splitlines() if result.returncode == 0 else []:
        name, arrow, rest = line.strip().partition(" => ")
        if not arrow or name.startswith(OF_THE_HOST):
            continue
        if rest.startswith("not found"):
            raise ToolError(BAD_FILE, f"{name}: expected this library of the program, got none "
                            f"({program}). Try building again.")
        path = Path(rest.rsplit(" (", 1)[0])
        libraries[name] = path
        # NVIDIA's libraries open others of their folder by name, which ldd does not see.
        if "nvidia" in path.parts:
            libraries.update({other.name: other for other in path.parent.glob("*.so*")})
    return libraries


def gather(program, folder):
    """What goes to a host, as links in `folder`."""
    if not os.access(program, os.X_OK):
        raise ToolError(BAD_FILE, f"--program: expected a built program, got none ({program}). "
                        "Try cmake --build --preset release.")
    for name in ("bin", "lib"):
        (folder / "build" / name).mkdir(parents=True)
    (folder / "build/bin/draftsmith").symlink_to(program.resolve())
    (folder / "build/keep_running").symlink_to(TOOLS / "keep_running")
    for name, path in find_libraries(program).items():
        (folder / "build/lib" / name).symlink_to(path.resolve())


def main(arguments):
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return BAD_ARGUMENT
    program, out = map(Path, arguments)
    links = out.with_name(out.name + ".partial")
    try:
        gather(program, links)
        shutil.copytree(links, out)
    except ToolError as error:
        print(error, file=sys.stderr)
        return error.status
    finally:
        shutil.rmtree(links, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

# SPDX-License-Identifier: Apache-2.0
"""tools/deploy with the real program, on a host that has none of the build's libraries.

Usage: deploy_program_test.py PROGRAM VENV
"""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import ssh_host
import tiny_run

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = 77
PATIENCE = 600

SETTINGS = """
[target]
dtype = "float32"
[drafter]
dtype = "float32"
num_layers = 2
block_size = 4
target_layer_ids = [0, 2]
mask_token_id = 205
[data]
path = "{data}"
max_sequences_per_batch = 8
[train]
log_every = 1
epochs = 20000
"""

# The folder of the wheels looks empty on this host, as on one where nothing was installed.
HIDE = """#!/bin/sh
exec unshare -m --propagation private sh -c 'mount -t tmpfs none "{venv}" && exec "$@"' sh "$@"
"""


def deploy(host, *arguments, status=0):
    result = subprocess.run(
        [sys.executable, ROOT / "tools/deploy", "one", "--ssh", host.ssh, "--via", "hide",
         *map(str, arguments)],
        capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL, check=False)
    assert result.returncode == status, result.stdout + result.stderr
    return result.stdout + result.stderr


def main(program, venv):
    if ssh_host.MISSING or os.getuid() != 0:
        print(f"skipped: needs root and {ssh_host.MISSING or 'nothing else'}")
        return SKIPPED
    with tempfile.TemporaryDirectory(prefix="deploy-test-") as folder:
        base, home = Path(folder) / "ssh", Path(folder) / "home"
        base.mkdir()
        host = ssh_host.SshHost(base)
        try:
            host.use_home(home)
            host.install("hide", HIDE.format(venv=venv))
            settings = Path(folder) / "run.toml"
            settings.write_text(SETTINGS.format(data=tiny_run.generate(program, Path(folder))))
            said = deploy(host, "--config", settings, "--program", program, "--stage",
                          tiny_run.TARGET, "--memory-disk", Path(folder) / "memory")
            assert "one: running: step " in said and ", ETA " in said, said
            there = home / "draftsmith"
            pid = (there / "state/pid").read_text().strip()
            maps = Path("/proc", pid, "maps").read_text()
            assert f"{there}/build/lib/libtorch_cpu.so" in maps, maps
            assert str(venv) not in maps, maps
            assert "one: running: step " in deploy(host, "--status")
            said = deploy(host, "--stop")
            assert "one: stopped: stopped after step " in said, said
            stopped_at = int(said.split("stopped after step ")[1].split()[0])
            assert stopped_at > 0
            # Goes on where it was, with the settings that the run has.
            said = deploy(host, "--resume", "--program", program)
            assert f"at step {stopped_at}" in said, said
            assert "one: stopped: stopped after step " in deploy(host, "--stop")
            # An error of the program itself is the last word, and its code is ours.
            said = deploy(host, "--config", settings, "--program", program, "--fresh", "--",
                          "--target.path=/no/such/folder", status=3)
            assert "one: failed with exit status 3: file: expected a readable file" in said, said
        finally:
            host.close()
    print("the program ran with the libraries that were sent along")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), Path(sys.argv[2])))

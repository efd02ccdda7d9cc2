# SPDX-License-Identifier: Apache-2.0
"""A run's memory stays flat: trains for some minutes with frequent checkpoints and evaluations, and
compares the resident memory of five equal stretches after the first minutes: five, or a third of all.

Usage: soak_check.py PATH_OF_DRAFTSMITH [--minutes N] [--target DIR --data DIR] [SETTINGS]

Without --target it trains on the tiny target of the fixtures. A stretch counts with its median: a
checkpoint that is being written is a copy of the state in memory.
"""

import argparse
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tiny_run import FIXTURES, generate

MOST_GROWTH = 1.02
SAMPLE_SECONDS = 1.0
STRETCHES = 5
MOST_WARM_UP = 300  # seconds
MIB = 2**20


def resident_bytes(pid):
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


def main(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--target", type=Path, default=FIXTURES / "targets/qwen3-tiny")
    parser.add_argument("--data", type=Path)
    options, settings = parser.parse_known_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        data = options.data or generate(options.program, Path(folder))
        command = [options.program, "train", f"--target.path={options.target}",
                   f"--data.path={data}", f"--train.out={out}", "--train.max_steps=100000000",
                   "--train.schedule=constant", "--train.save_every=50", "--train.eval_every=70",
                   "--data.held_out=0.1"]
        if not options.data:
            command += ["--drafter.num_layers=2", "--drafter.block_size=4",
                        "--drafter.target_layer_ids=0,2", "--drafter.mask_token_id=205"]
        with subprocess.Popen(command + settings, stderr=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, text=True) as run:
            samples = []
            end = time.monotonic() + 60 * options.minutes
            while time.monotonic() < end and run.poll() is None:
                time.sleep(SAMPLE_SECONDS)
                samples.append(resident_bytes(run.pid))
            run.send_signal(signal.SIGINT)
            said, _ = run.communicate(timeout=300)
        assert run.returncode == 0, run.returncode
        samples = samples[int(min(len(samples) / 3, MOST_WARM_UP / SAMPLE_SECONDS)):]
        length = len(samples) // STRETCHES
        stretches = [samples[i * length:(i + 1) * length] for i in range(STRETCHES)]
        medians = [statistics.median(stretch) for stretch in stretches]
        seconds = [SAMPLE_SECONDS * i for i in range(STRETCHES * length)]
        slope = statistics.linear_regression(seconds, sum(stretches, [])).slope
        print(f"{said.strip()}: {options.minutes:g} minutes, medians of resident memory "
              f"{', '.join(f'{median / MIB:.1f}' for median in medians)} MiB "
              f"({100 * (max(medians) / min(medians) - 1):.2f} % apart), "
              f"{3600 * slope / MIB:+.1f} MiB an hour, least {min(map(min, stretches)) / MIB:.1f}, "
              f"most {max(map(max, stretches)) / MIB:.1f} MiB")
        assert max(medians) <= MOST_GROWTH * min(medians), medians


if __name__ == "__main__":
    main(sys.argv[1:])

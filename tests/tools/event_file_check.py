# SPDX-License-Identifier: Apache-2.0
"""What a run writes for TensorBoard is read back by the tensorboard package: all scalars, every
step once and in order, also after a process was killed and the run resumed.

Usage: event_file_check.py PATH_OF_DRAFTSMITH
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tiny_run import run_program, train


def main(program):
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        train(program, run, "--train.max_steps=6", "--train.save_every=4",
              "--train.schedule=constant", "--train.warmup=0", "--data.held_out=0.2",
              "--train.eval_every=2")
        # A process that died after step 6 and before its checkpoint, in the middle of a record.
        (first,) = run.glob("events.out.tfevents.*")
        first.write_bytes(first.read_bytes() + b"\x18\x00\x00\x00\x00")
        shutil.rmtree(run / "checkpoints/step-6")
        run_program(program, "train", "--resume", f"--train.out={run}", "--train.max_steps=9")
        assert len(list(run.glob("events.out.tfevents.*"))) == 2

        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == list(range(1, 10))
        events = EventAccumulator(str(run), size_guidance={"scalars": 0})
        events.Reload()
        tags = set(events.Tags()["scalars"])
        for tag in ("train/loss", "train/expected_acceptance", "train/accuracy_by_slot/3",
                    "train/lr", "train/tokens_per_s", "time/step_ms", "eval/loss",
                    "eval/expected_acceptance"):
            assert tag in tags, (tag, tags)
        for tag, key in (("train/loss", "loss"), ("eval/loss", "eval_loss")):
            scalars = events.Scalars(tag)
            wanted = [line for line in lines if key in line]
            assert [s.step for s in scalars] == [line["step"] for line in wanted], tag
            for scalar, line in zip(scalars, wanted):
                assert abs(scalar.value - line[key]) <= 1e-6 * abs(line[key]), (tag, scalar)
            times = [s.wall_time for s in scalars]
            assert times == sorted(times) and times[0] > 1e9, times
    print("all scalars are read back, every step once")


if __name__ == "__main__":
    main(sys.argv[1])

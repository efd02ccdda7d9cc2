# SPDX-License-Identifier: Apache-2.0
"""tools/wandb_follow sends every line once, whatever restarts: read back from the files that the
wandb package writes offline.

Usage: follow_check.py PATH_OF_WANDB_FOLLOW
"""

import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from wandb.proto import wandb_internal_pb2

FILE_HEADER_BYTES = 7
BLOCK_BYTES = 32768  # records are cut at these bounds, as in LevelDB's log
RECORD_HEADER = struct.Struct("<IHB")  # checksum, length, kind
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def write_lines(run, steps):
    """metrics.jsonl as the trainer leaves it, the last line cut short as by a kill."""
    lines = [json.dumps({"step": s, "loss": 10 / s, "accuracy_by_slot": [s / 100, s / 200]})
             for s in steps]
    (run / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 99, "lo')


def start_follower(tool, run, *more):
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true",
                   "WANDB_DIR": str(run)}
    return subprocess.Popen([sys.executable, tool, str(run), *more], env=environment,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_follower(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


def follow(tool, run):
    return wait_for_follower(start_follower(tool, run, "--once"))


def check_end(tool, run):
    """The export of before a resume is no end: the follower waits for the new one."""
    (run / "export").mkdir()
    time.sleep(0.05)  # more than a tick of the clock of files
    (run / "settings.toml").touch()
    write_lines(run, [2, 4, 6, 8, 10, 12])
    process = start_follower(tool, run)
    deadline = time.monotonic() + 120
    while json.loads((run / ".wandb_follow.json").read_text())["step"] < 12:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)
    time.sleep(3)
    assert process.poll() is None, "it ended with the run still going on"
    write_lines(run, [2, 4, 6, 8, 10, 12, 14])
    (run / "export").touch()
    assert "2 lines sent, up to step 14" in wait_for_follower(process)


def read_records(path):
    """The protobuf records of a .wandb file."""
    data = path.read_bytes()
    assert data[:4] == b":W&B", data[:8]
    at, record = FILE_HEADER_BYTES, b""
    while at + RECORD_HEADER.size <= len(data):
        if BLOCK_BYTES - at % BLOCK_BYTES < RECORD_HEADER.size:
            at += BLOCK_BYTES - at % BLOCK_BYTES
            continue
        _, length, kind = RECORD_HEADER.unpack_from(data, at)
        at += RECORD_HEADER.size
        record = (b"" if kind in (WHOLE, FIRST) else record) + data[at:at + length]
        at += length
        if kind in (WHOLE, LAST):
            yield wandb_internal_pb2.Record.FromString(record)


def read_back(run):
    """(run ids, names, [(step, figures)]) of all offline files, oldest first."""
    ids, rows, names = set(), [], set()
    for path in sorted(run.glob("wandb/offline-run-*/*.wandb"), key=os.path.getmtime):
        for record in read_records(path):
            if record.HasField("run"):
                ids.add(record.run.run_id)
                names.add(record.run.display_name)
            if record.HasField("history"):
                figures = {"/".join(item.nested_key) or item.key: json.loads(item.value_json)
                           for item in record.history.item}
                rows.append((record.history.step.num, figures))
    return ids, names, rows


def main(tool):
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        run.mkdir()
        (run / "settings.toml").write_text('[train]\nname = "exp-g10"\nlr = 0.5\n')
        write_lines(run, [2, 4, 6])
        assert "3 lines sent, up to step 6" in follow(tool, run)
        # The training crashed, went on from step 4 and now is at 10; the follower starts again.
        write_lines(run, [2, 4, 6, 8, 10])
        assert "2 lines sent, up to step 10" in follow(tool, run)
        assert "0 lines sent" in follow(tool, run)
        ids, names, rows = read_back(run)
        assert len(ids) == 1, ids
        assert names == {"exp-g10"}, names
        assert [step for step, _ in rows] == [2, 4, 6, 8, 10], rows
        for step, figures in rows:
            assert figures["loss"] == 10 / step, figures
            assert figures["accuracy_by_slot/2"] == step / 200, figures
        check_end(tool, run)
        missing = subprocess.run([sys.executable, tool, str(run / "none"), "--once"],
                                 capture_output=True, text=True)
        assert missing.returncode == 3 and "settings" in missing.stderr, missing.stderr
    print("every line was sent once")


if __name__ == "__main__":
    main(sys.argv[1])

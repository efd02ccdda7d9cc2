# SPDX-License-Identifier: Apache-2.0
"""tools/launch_local with small shell commands as the job, and once with the program itself."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import tiny_run

TOOL = Path(__file__).resolve().parents[2] / "tools" / "launch_local"
PATIENCE = 60  # seconds after which a test has failed; none waits that long


def launch(*arguments, **more):
    return subprocess.run([sys.executable, TOOL, *map(str, arguments)], capture_output=True,
                          text=True, timeout=PATIENCE, **more)


class LaunchLocal(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def start(self, *arguments):
        process = subprocess.Popen([sys.executable, TOOL, *map(str, arguments)], text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def wait_for_files(self, *names):
        deadline = time.monotonic() + PATIENCE
        while not all((self.folder / name).exists() for name in names):
            self.assertLess(time.monotonic(), deadline, f"never came: {names}")
            time.sleep(0.02)

    def test_gives_every_process_its_rank_and_all_the_same_meeting_point(self):
        result = launch(3, "sh", "-c", 'echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE '
                        '$MASTER_ADDR $MASTER_PORT"')
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = sorted(line.split() for line in result.stdout.splitlines())
        self.assertEqual([line[:5] for line in lines],
                         [[f"[{rank}]", str(rank), str(rank), "3", "3"] for rank in range(3)])
        self.assertEqual({tuple(line[5:]) for line in lines},
                         {("127.0.0.1", lines[0][6])})
        self.assertGreater(int(lines[0][6]), 0)

    def test_passes_arguments_on_as_they_are(self):
        result = launch("--port", 4711, 1, "--", "sh", "-c", 'printf "%s|" "$@" "$MASTER_PORT"',
                        "name", "a b", "$HOME", "--grace", "")
        self.assertEqual(result.stdout, "[0] a b|$HOME|--grace||4711|\n")

    def test_marks_whole_lines_by_rank_also_the_last_one_without_an_end(self):
        result = launch(2, "sh", "-c", 'echo "out $RANK"; echo "error $RANK" >&2; printf end')
        self.assertEqual(sorted(result.stdout.splitlines()), sorted(
            f"[{rank}] {text}" for rank in range(2)
            for text in (f"out {rank}", f"error {rank}", "end")))

    def test_returns_the_code_of_the_first_failure_and_ends_the_others(self):
        result = launch(3, "sh", "-c", f'cd {self.folder}; if [ "$RANK" = 1 ]; then '
                        'while [ ! -e up0 ] || [ ! -e up2 ]; do sleep 0.02; done; exit 3; fi; '
                        'trap "exit 7" TERM; : >up$RANK; while :; do sleep 0.05; done')
        self.assertEqual(result.returncode, 3, result.stdout)
        self.assertIn("rank 1 ended with 3", result.stderr)

    def test_kills_what_does_not_end_after_a_failure(self):
        result = launch("--grace", 0.2, 2, "sh", "-c", f'cd {self.folder}; if [ "$RANK" = 1 ]; '
                        'then while [ ! -e up0 ]; do sleep 0.02; done; exit 5; fi; '
                        'trap "" TERM; : >up0; while :; do sleep 0.05; done')
        self.assertEqual(result.returncode, 5)
        self.assertIn("ranks [0] are still there", result.stderr)

    def test_tells_death_by_a_signal_as_a_shell_does(self):
        self.assertEqual(launch(1, "sh", "-c", "kill -KILL $$").returncode, 128 + signal.SIGKILL)

    def test_forwards_interrupt_and_termination_to_every_process_once(self):
        for number, name in ((signal.SIGINT, "INT"), (signal.SIGTERM, "TERM")):
            process = self.start(
                2, sys.executable, "-c",
                "import os, signal, sys, time\n"
                "seen = []\n"
                f"signal.signal(signal.SIG{name}, lambda *_: seen.append(1))\n"
                f"open('{self.folder}/{name}' + os.environ['RANK'], 'w').close()\n"
                "while not seen: time.sleep(0.02)\n"
                "time.sleep(0.2)\n"
                "print('got', len(seen))")
            self.wait_for_files(f"{name}0", f"{name}1")
            process.send_signal(number)
            out, error = process.communicate(timeout=PATIENCE)
            self.assertEqual(process.returncode, 0, error)
            self.assertEqual(sorted(out.splitlines()), ["[0] got 1", "[1] got 1"])

    def test_shares_the_cores_unless_told_otherwise(self):
        command = ("sh", "-c", "echo $OMP_NUM_THREADS")
        without = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
        cores = len(os.sched_getaffinity(0))
        self.assertEqual(launch(1, *command, env=without).stdout, f"[0] {cores}\n")
        self.assertEqual(launch(1, *command, env=without | {"OMP_NUM_THREADS": "9"}).stdout,
                         "[0] 9\n")

    @unittest.skipUnless("DS_PROGRAM" in os.environ, "DS_PROGRAM names no draftsmith program")
    def test_trains_with_a_drafter_in_each_process(self):
        result = launch(2, os.environ["DS_PROGRAM"],
                        *tiny_run.list_train_arguments(os.environ["DS_PROGRAM"], self.folder / "run"),
                        "--train.max_steps=3", env=os.environ | {"GOMP_SPINCOUNT": "0"})
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        lines = (self.folder / "run/metrics.jsonl").read_text().splitlines()
        self.assertEqual([json.loads(line)["step"] for line in lines], [1, 2, 3])
        for rank in range(2):
            self.assertIn(f"[{rank}] ", result.stdout)
            self.assertIn(f"drafters {rank} to {rank} of 2 train here", result.stdout)
        self.assertTrue((self.folder / "run/export/model.safetensors").exists())

    def test_says_what_is_wrong_with_its_arguments(self):
        for arguments, words in (
                ((0, "true"), "N: expected a whole number of at least 1, got 0"),
                ((2,), "COMMAND: expected a program to start, got none"),
                ((2, "/no/such/program"), "expected a program, got 'No such file or directory'")):
            result = launch(*arguments)
            self.assertEqual(result.returncode, 2)
            self.assertIn(words, result.stderr)
            self.assertIn("Try ", result.stderr)


if __name__ == "__main__":
    unittest.main()

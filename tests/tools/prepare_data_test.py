# SPDX-License-Identifier: Apache-2.0
"""tools/prepare_data as a whole: the dataset it writes, what it drops, how it goes on."""
import contextlib
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock
from pathlib import Path

import pyarrow

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("DS_PROGRAM", "")
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "tools")]

import chat_models  # noqa: E402
import prepare_data  # noqa: E402
from chat_format import ChatFormat  # noqa: E402


def chat(question, answer):
    return {"messages": [{"role": "user", "content": question},
                         {"role": "assistant", "content": answer}]}


class PrepareData(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        self.addCleanup(self.temporary.cleanup)
        self.model = chat_models.write_model(self.folder / "model", chat_models.CHATML)
        self.out = self.folder / "data"

    def run_tool(self, lines, *more, tool="prepare_data.py"):
        source = self.folder / "chats.jsonl"
        text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
        if not source.exists() or source.read_text() != text:
            source.write_text(text)
        return subprocess.run(
            [sys.executable, str(ROOT / "tools" / tool), "--model", str(self.model),
             "--input", str(source), "--workers", "2", *more],
            capture_output=True, text=True, check=False)

    def read_rows(self):
        rows = []
        for entry in json.loads((self.out / "state.json").read_text())["_data_files"]:
            with pyarrow.memory_map(str(self.out / entry["filename"])) as file:
                rows += pyarrow.ipc.open_stream(file).read_all().to_pylist()
        return rows

    def test_writes_every_chat_in_order_with_its_mask(self):
        # More than one part, done in any order by two processes.
        lines = [chat(f"question {i}", f"answer {i}") for i in range(2100)]
        result = self.run_tool(lines, "--out", str(self.out))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("2100 rows read = 2100 kept + 0 dropped", result.stdout)
        rows = self.read_rows()
        self.assertEqual(len(rows), 2100)
        format_ = ChatFormat(self.model)
        for i in (0, 1999, 2000, 2099):
            ids, mask, _ = format_.encode(lines[i]["messages"])
            self.assertEqual(rows[i], {"input_ids": ids, "loss_mask": mask})
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()),
                         ["chats.jsonl", "data", "model"])

    def test_counts_what_it_drops_by_reason(self):
        long = chat("q" * 300, "never reached")
        lines = [
            chat("a", "b"), "{broken\n", {"messages": []}, "\n", chat("c", "<|im_end|>"), long,
            {"input_ids": [1, 2, 3], "loss_mask": [0, 1, 1]},
            {"input_ids": [1, 2, 3], "loss_mask": [0, 1]},
            {"input_ids": [1, 2, 3], "loss_mask": [1, 0, 1]},
            {"input_ids": [1, "2", 3], "loss_mask": [0, 1, 1]},
            {"input_ids": [1, 2**31, 3], "loss_mask": [0, 1, 1]},
            {"input_ids": [1, 2, 3], "loss_mask": [0, 1, None]},
            {"input_ids": [1, 2, 3], "loss_mask": [False, True, True]},
            "[" * 100000 + "\n", chat("half a \ud83d", "character")]
        result = self.run_tool(lines, "--out", str(self.out), "--max-length", "100")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("14 rows read = 3 kept + 11 dropped", result.stdout)
        counts = json.loads((self.out / "prepare_data.json").read_text())
        self.assertEqual(counts["dropped"], {
            "no valid JSON": 2, "no messages": 1, "a message holds a special token": 1,
            "nothing to train after the cut": 1, "input_ids without a loss_mask of their length": 1,
            "nothing to train": 1, "input_ids that are no token ids": 2,
            "a loss_mask that is not of 0 and 1": 1, "text that is no Unicode": 1})
        taken = {"input_ids": [1, 2, 3], "loss_mask": [0, 1, 1]}
        self.assertEqual(self.read_rows()[1:], [taken, taken])

    def test_does_not_teach_the_end_of_an_answer_that_was_cut(self):
        result = self.run_tool(
            [chat("a", "bcd"), chat("a", "bcd") | {"is_cut": True}], "--out", str(self.out))
        self.assertEqual(result.returncode, 0, result.stderr)
        whole, cut = self.read_rows()
        self.assertEqual(cut["input_ids"], whole["input_ids"])
        self.assertEqual((sum(whole["loss_mask"]), sum(cut["loss_mask"])), (4, 3))
        shown = self.run_tool([chat("a", "bcd") | {"is_cut": True}], "--show", "1")
        self.assertIn("assistant\n[[bcd]]<|im_end|>\n", shown.stdout)

    def test_goes_on_where_it_stopped(self):
        lines = [chat(f"question {i}", f"answer {i}") for i in range(2100)]
        first = self.run_tool(lines, "--out", str(self.out))
        self.assertEqual(first.returncode, 0, first.stderr)
        wanted = self.read_rows()
        # As if it had been killed in the second part: one is done, one is half there.
        staging = self.folder / ".data.partial"
        self.out.rename(staging)
        for i, path in enumerate(sorted(staging.glob("data-*.arrow"))):
            path.rename(staging / f"part-{i:05d}.arrow")
        done = {"read": 2000, "kept": 2000, "cut": 0, "tokens": 5, "supervised": 3, "bytes": 100,
                "dropped": {}}
        (staging / "part-00000.json").write_text(json.dumps(done))
        half = staging / "part-00001.arrow"
        half.write_bytes(half.read_bytes()[:500])
        for name in ("state.json", "dataset_info.json", "prepare_data.json"):
            (staging / name).unlink()
        options = prepare_data.parse_arguments([
            "--model", str(self.model), "--input", str(self.folder / "chats.jsonl"),
            "--out", str(self.out)])
        (staging / "job.json").write_text(json.dumps(prepare_data.describe_job(options)))
        written = (staging / "part-00000.arrow").stat().st_mtime_ns
        second = self.run_tool(lines, "--out", str(self.out))
        self.assertEqual(second.returncode, 0, second.stderr)
        self.assertIn("going on after 2000 rows", second.stderr)
        self.assertEqual(self.read_rows(), wanted)
        first_shard = self.out / "data-00000-of-00002.arrow"
        self.assertEqual(first_shard.stat().st_mtime_ns, written)
        # Parts of other settings are not used.
        staging.mkdir()
        (staging / "job.json").write_text("{}")
        (staging / "part-00000.json").write_text(json.dumps(done))
        third = self.run_tool(lines, "--out", str(self.out), "--force", "--max-length", "500")
        self.assertEqual(third.returncode, 0, third.stderr)
        self.assertNotIn("going on", third.stderr)

    def test_loses_no_row_when_it_is_killed_while_it_names_its_parts(self):
        source = self.folder / "chats.jsonl"
        source.write_text("".join(json.dumps(chat(f"q {i}", f"a {i}")) + "\n" for i in range(2100)))
        options = prepare_data.parse_arguments([
            "--model", str(self.model), "--input", str(source), "--out", str(self.out)])
        replace, named = os.replace, []

        def die_at_the_second(path, name):
            if str(name).endswith(".arrow"):
                named.append(name)
                if len(named) == 2:
                    raise InterruptedError
            replace(path, name)

        with unittest.mock.patch("os.replace", die_at_the_second):
            self.assertRaises(InterruptedError, prepare_data.run, options)
        self.assertFalse(self.out.exists())
        with contextlib.redirect_stdout(io.StringIO()):
            prepare_data.run(options)
        self.assertEqual(len(self.read_rows()), 2100)

    def test_ends_when_a_worker_is_killed_and_goes_on(self):
        # Long chats keep a worker at work until one is killed.
        lines = [chat(f"q {i}", f"a {i}") for i in range(2000)]
        lines += [chat("long", "word " * 100000)] * 8
        source = self.folder / "chats.jsonl"
        source.write_text("".join(json.dumps(line) + "\n" for line in lines))
        command = [sys.executable, str(ROOT / "tools/prepare_data.py"), "--model", str(self.model),
                   "--input", str(source), "--workers", "2", "--out", str(self.out)]
        tool = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while not (self.folder / ".data.partial/part-00000.json").exists():
            self.assertIsNone(tool.poll())
            time.sleep(0.01)
        children = Path(f"/proc/{tool.pid}/task/{tool.pid}/children").read_text().split()
        os.kill(int(children[-1]), signal.SIGKILL)
        _, said = tool.communicate(timeout=120)
        self.assertEqual(tool.returncode, 3, said)
        self.assertRegex(said, r"--workers: expected .*, got .*\. Try .*\.\n$")
        again = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn("going on after 2000 rows", again.stderr)
        self.assertEqual(len(self.read_rows()), 2008)

    def test_the_commands_run_from_any_folder(self):
        for name in ("prepare_data", "regenerate"):
            result = subprocess.run([str(ROOT / "tools" / name), "--help"], cwd=self.folder,
                                    capture_output=True, text=True, check=False)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn(f"usage: tools/{name}", result.stdout)

    def test_shows_the_mask_without_writing(self):
        result = self.run_tool([chat("Why?", "Because"), {}], "--show", "2")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
                      "[[Because<|im_end|>]]\n", result.stdout)
        self.assertIn("dropped: no messages", result.stdout)
        self.assertFalse(self.out.exists())

    def test_shows_the_mask_in_colour_on_a_terminal(self):
        source = self.folder / "chats.jsonl"
        source.write_text(json.dumps(chat("Why?", "Because")))
        terminal, its_end = pty.openpty()
        environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
        subprocess.run(
            [sys.executable, str(ROOT / "tools" / "prepare_data.py"), "--model", str(self.model),
             "--input", str(source), "--show", "1"], stdout=its_end, env=environment, check=True)
        os.close(its_end)
        shown = os.read(terminal, 4096).decode()
        os.close(terminal)
        self.assertIn("assistant\r\n\x1b[30;42mBecause<|im_end|>\x1b[0m", shown)

    def test_refuses_with_one_line(self):
        good = [chat("a", "b")]
        for count in (["--workers", "0"], ["--max-length", "-1"]):
            result = self.run_tool(good, "--out", "x", *count)
            self.assertEqual(result.returncode, 2)
            self.assertIn(f"argument {count[0]}: expected a whole number of at least", result.stderr)
        for arguments, status in (
            (["--out", str(self.model)], 2), ([], 2), (["--model", "none", "--out", "x"], 2)):
            result = self.run_tool(good, *arguments)
            self.assertEqual(result.returncode, status, result.stderr)
            self.assertRegex(result.stderr, r"^\S.*: expected .*, got .*\. Try .*\.\n$")
        result = self.run_tool([{}], "--out", str(self.out))
        self.assertEqual(result.returncode, 3)
        self.assertFalse(self.out.exists())
        self.assertTrue(re.search("1 rows read = 0 kept", result.stdout))

    def test_the_program_reads_what_it_writes(self):
        if not PROGRAM:
            self.skipTest("no program given")
        result = self.run_tool([chat(f"q {i}", f"a {i}") for i in range(7)], "--out", str(self.out))
        self.assertEqual(result.returncode, 0, result.stderr)
        looked = subprocess.run([PROGRAM, "data", f"--data.path={self.out}", "--json"],
                                capture_output=True, text=True, check=False)
        self.assertEqual(looked.returncode, 0, looked.stderr)
        found = json.loads(looked.stdout)[0]
        counts = json.loads((self.out / "prepare_data.json").read_text())
        self.assertEqual(found["sequences"], 7)
        self.assertEqual(found["supervised_tokens"], counts["supervised"])
        self.assertEqual(found["tokens"], counts["tokens"])


if __name__ == "__main__":
    unittest.main()

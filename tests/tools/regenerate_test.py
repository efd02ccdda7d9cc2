# SPDX-License-Identifier: Apache-2.0
"""tools/regenerate against a small server of its own."""
import json
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Answering(BaseHTTPRequestHandler):
    """Echoes the last question; what goes wrong is up to the server's `trouble`."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            server.requests.append((self.path, dict(self.headers), request))
            server.open += 1
            server.most_open = max(server.most_open, server.open)
        try:
            question = request["messages"][-1]["content"]
            with server.lock:
                tries = server.tries[question] = server.tries.get(question, 0) + 1
            time.sleep(server.delay)
            status, body = server.trouble(question, tries)
            if status:
                return self.reply(status, body)
            choice = {"finish_reason": "length" if question.startswith("long") else "stop",
                      "message": {"role": "assistant", "content": f"echo {question}"}}
            answer = {"choices": [choice]}
            if server.gives_ids:
                answer["prompt_token_ids"] = [1, 2, 3]
                choice["token_ids"] = [7, 8]
            return self.reply(200, answer)
        finally:
            with server.lock:
                server.open -= 1


class Regenerate(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = Path(self.temporary.name)
        self.out = self.folder / "answers.jsonl"
        server = self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        server.lock, server.requests, server.tries = threading.Lock(), [], {}
        server.open = server.most_open = 0
        server.delay, server.gives_ids = 0.0, False
        server.trouble = lambda question, tries: (0, None)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)

    def run_tool(self, rows, *more):
        source = self.folder / "chats.jsonl"
        source.write_text("".join(
            row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
        return subprocess.run(
            [sys.executable, str(ROOT / "tools" / "regenerate.py"), "--served-model", "m",
             "--server", f"http://127.0.0.1:{self.server.server_port}/v1", "--input", str(source),
             "--out", str(self.out), "--pause", "0.01", *more],
            capture_output=True, text=True, check=False)

    def read(self):
        lines = [json.loads(line) for line in self.out.read_text().splitlines()]
        return {line["index"]: line for line in lines}

    @staticmethod
    def chat(*turns):
        return {"messages": [{"role": "user" if i % 2 == 0 else "assistant", "content": turn}
                             for i, turn in enumerate(turns)]}

    def test_writes_every_answer_anew_turn_by_turn(self):
        result = self.run_tool(
            [self.chat("a", "old"), self.chat("b", "old", "c", "old"),
             {"conversations": [{"from": "human", "value": "d"}, {"from": "gpt", "value": "x"}]}])
        self.assertEqual(result.returncode, 0, result.stderr)
        answers = self.read()
        self.assertEqual(answers[0]["messages"], self.chat("a", "echo a")["messages"])
        self.assertEqual(answers[1]["messages"], self.chat("b", "echo b", "c", "echo c")["messages"])
        self.assertEqual(answers[2]["messages"], self.chat("d", "echo d")["messages"])
        self.assertNotIn("input_ids", answers[0])
        path, _, request = max(self.server.requests, key=lambda item: len(item[2]["messages"]))
        self.assertEqual(path, "/v1/chat/completions")
        # The new answer is the history of the next turn.
        self.assertEqual(request["messages"], self.chat("b", "echo b", "c")["messages"])
        self.assertEqual((request["model"], request["temperature"]), ("m", 0.0))

    def test_keeps_the_ids_that_the_server_gives(self):
        self.server.gives_ids = True
        self.run_tool([self.chat("a", "old"), self.chat("b", "old", "c", "old")])
        answers = self.read()
        self.assertEqual(answers[0]["input_ids"], [1, 2, 3, 7, 8])
        self.assertEqual(answers[0]["loss_mask"], [0, 0, 0, 1, 1])
        self.assertNotIn("input_ids", answers[1])  # ids of a later turn do not cover the first

    def test_says_which_answers_were_cut_and_asks_no_further(self):
        self.run_tool([self.chat("a", "old"), self.chat("long", "old", "c", "old"),
                       self.chat("b", "old", "long too", "old")])
        answers = self.read()
        self.assertNotIn("is_cut", answers[0])
        self.assertEqual(answers[1]["messages"], self.chat("long", "echo long")["messages"])
        self.assertTrue(answers[1]["is_cut"] and answers[2]["is_cut"])

    def test_asks_many_at_once(self):
        self.server.delay = 0.05
        rows = [self.chat(f"q{i}", "old") for i in range(40)]
        begin = time.monotonic()
        self.assertEqual(self.run_tool(rows, "--concurrency", "20").returncode, 0)
        self.assertLess(time.monotonic() - begin, 1.9)  # 2 s one after the other
        self.assertGreater(self.server.most_open, 5)
        self.assertLessEqual(self.server.most_open, 20)
        self.assertEqual(sorted(self.read()), list(range(40)))

    def test_tries_again_and_lists_what_fails(self):
        def trouble(question, tries):
            if question == "flaky" and tries < 3:
                return 503, {"error": "busy"}
            if question == "broken" and tries < 2:
                return 200, b"{\"choices\": []}"
            return (400, {"error": "too long"}) if question == "bad" else (0, None)

        self.server.trouble = trouble
        rows = [self.chat("flaky", "x"), self.chat("bad", "x"), "{no json\n", self.chat("broken", "x"),
                self.chat("only a question")]
        result = self.run_tool(rows)
        self.assertEqual(result.returncode, 1)
        self.assertEqual(sorted(self.read()), [0, 3])
        self.assertEqual(self.server.tries, {"flaky": 3, "bad": 1, "broken": 2})
        listed = [json.loads(line) for line in
                  self.out.with_name("answers.jsonl.failures.jsonl").read_text().splitlines()]
        reasons = {line["index"]: line["reason"] for line in listed}
        self.assertEqual(sorted(reasons), [1, 2, 4])
        self.assertIn("too long", reasons[1])
        self.assertEqual(reasons[2], "no valid JSON")
        # The next run asks for those alone; without failures the list is gone.
        self.server.trouble = lambda question, tries: (0, None)
        rows[2], rows[4] = self.chat("mended", "x"), self.chat("mended too", "x")
        self.server.tries.clear()
        self.assertEqual(self.run_tool(rows).returncode, 0)
        self.assertEqual(sorted(self.server.tries), ["bad", "mended", "mended too"])
        self.assertEqual(sorted(self.read()), [0, 1, 2, 3, 4])
        self.assertFalse(self.out.with_name("answers.jsonl.failures.jsonl").exists())

    def test_goes_on_after_a_line_that_was_cut_short(self):
        rows = [self.chat(f"q{i}", "old") for i in range(5)]
        self.run_tool(rows)
        lines = self.out.read_text().splitlines(keepends=True)
        self.out.write_text("".join(lines[:3]) + lines[3][:20])
        self.server.tries.clear()
        self.assertEqual(self.run_tool(rows).returncode, 0)
        self.assertEqual(len(self.server.tries), 2)
        self.assertEqual(sorted(self.read()), [0, 1, 2, 3, 4])
        self.assertEqual(len(self.out.read_text().splitlines()), 5)

    def test_removes_no_answer_behind_a_line_that_is_none(self):
        rows = [self.chat(f"q{i}", "old") for i in range(5)]
        self.run_tool(rows)
        lines = self.out.read_text().splitlines(keepends=True)
        damaged = lines[0] + "{}\n" + "".join(lines[1:])
        self.out.write_text(damaged)
        result = self.run_tool(rows)
        self.assertEqual(result.returncode, 3)
        self.assertRegex(result.stderr, r"^--out: expected .*, got .*line 2\)\. Try .*\.\n$")
        self.assertEqual(self.out.read_text(), damaged)

    def test_refuses_with_one_line(self):
        result = self.run_tool([], "--server", "somewhere")
        self.assertEqual(result.returncode, 2)
        self.assertRegex(result.stderr, r"^--server: expected .*, got .*\. Try .*\.\n$")


if __name__ == "__main__":
    unittest.main()

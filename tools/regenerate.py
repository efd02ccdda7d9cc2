# SPDX-License-Identifier: Apache-2.0
"""Let a server of the target write the answers of a chat dataset anew.

Usage:
    tools/regenerate --server URL --served-model NAME --input chats.jsonl --out answers.jsonl

A drafter learns best from what the target itself says. Every answer of every chat is replaced
by the server's, turn by turn, the new answers being the history of the later turns. URL is that
of an OpenAI-compatible server (SGLang, vLLM), for example http://HOST:PORT; /v1/chat/completions
is asked, many chats at once.

The output has one line a chat: {"index": line of the input, "messages": [...], ...}, and for
chats of one answer also the token ids, where the server gives them (vLLM: return_token_ids):
"input_ids" and "loss_mask". A chat whose last answer was cut at --max-tokens says "is_cut": true,
so that no end is learned there. tools/prepare_data reads all of this. Lines come in the order in
which chats are done.

An interrupted run goes on: lines that are there are not asked again. A request that fails is
tried again with growing pauses; chats that fail to the end are listed with the reason in
OUT.failures.jsonl and asked again by the next run.

Exit status: 0 done, 1 some chats failed, 2 bad arguments, 3 bad files.
"""
import argparse
import concurrent.futures
import http.client
import json
import sys
import threading
import time
import urllib.parse
from pathlib import Path

from chat_format import ROLES, parse_if_json, text_of
from tool_output import BAD_ARGUMENT, BAD_FILE, ToolError, exit_status, whole_number

RETRIED = {408, 409, 425, 429, 500, 502, 503, 504}
SOME_FAILED = 1


class Refused(Exception):
    """The server will not answer this chat, however often it is asked."""


class Server:
    """Connections to one server, one for each thread."""

    def __init__(self, options):
        url = urllib.parse.urlsplit(options.server)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ToolError(
                BAD_ARGUMENT, f"--server: expected http://HOST:PORT, got '{options.server}'. "
                "Try --help."
            )
        self.url, self.options = url, options
        self.path = url.path.rstrip("/").removesuffix("/v1") + "/v1/chat/completions"
        self.local = threading.local()

    def _connect(self):
        kind = http.client.HTTPSConnection if self.url.scheme == "https" else http.client.HTTPConnection
        return kind(self.url.hostname, self.url.port, timeout=self.options.timeout)

    def _post(self, body):
        if getattr(self.local, "connection", None) is None:
            self.local.connection = self._connect()
        headers = {"Content-Type": "application/json"}
        if self.options.api_key:
            headers["Authorization"] = f"Bearer {self.options.api_key}"
        try:
            self.local.connection.request("POST", self.path, json.dumps(body), headers)
            response = self.local.connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            self.local.connection.close()
            self.local.connection = None
            raise

    def ask(self, messages, tools):
        """The first choice of the answer; tries again until the retries are used up."""
        body = {
            "model": self.options.served_model, "messages": messages,
            "temperature": self.options.temperature, "max_tokens": self.options.max_tokens,
            "return_token_ids": True,
        }
        if tools:
            body["tools"] = tools
        reason = ""
        for attempt in range(self.options.retries + 1):
            if attempt:
                time.sleep(min(60, self.options.pause * 2 ** (attempt - 1)))
            try:
                status, data = self._post(body)
            except (OSError, http.client.HTTPException) as error:
                reason = f"{type(error).__name__}: {error}"
                continue
            if status == 200:
                try:
                    answer = json.loads(data)
                    choice = answer["choices"][0]
                    if not isinstance(choice["message"], dict):
                        raise TypeError("message")
                    return answer, choice
                except (ValueError, LookupError, TypeError) as error:
                    reason = f"an answer that is none: {error}"
                    continue
            reason = f"status {status}: {data[:200].decode('utf-8', 'replace')}"
            if status not in RETRIED:
                break
        raise Refused(reason)


def token_ids(answer, choice):
    """(ids of the prompt, ids of the answer) if the server gave them, else None."""
    prompt = answer.get("prompt_token_ids", choice.get("prompt_token_ids"))
    ids = choice.get("token_ids", choice.get("output_token_ids"))
    if not isinstance(prompt, list) or not isinstance(ids, list):
        return None
    return (prompt, ids) if all(isinstance(i, int) for i in prompt + ids) else None


def rewrite(row, server):
    """The chat with answers of the server in place of its own."""
    turns = row.get("messages", row.get("conversations"))
    if not isinstance(turns, list):
        raise Refused("no messages")
    tools = parse_if_json(row.get("tools"))
    messages, answers, ids, is_cut = [], 0, None, False
    for turn in turns:
        role = ROLES.get(turn.get("role", turn.get("from"))) if isinstance(turn, dict) else None
        if role is None:
            raise Refused("an unknown role")
        if role != "assistant":
            kept = {key: turn[key] for key in ("name", "tool_call_id") if key in turn}
            text = text_of(turn.get("content", turn.get("value")))
            messages.append({"role": role, "content": text} | kept)
            continue
        answer, choice = server.ask(messages, tools)
        said = choice["message"]
        message = {"role": "assistant", "content": said.get("content") or ""}
        for key in ("reasoning_content", "reasoning", "tool_calls"):
            if said.get(key):
                message[key] = said[key]
        messages.append(message)
        answers += 1
        ids = token_ids(answer, choice)
        is_cut = choice.get("finish_reason") == "length"
        if said.get("tool_calls") or is_cut:
            break  # what follows in the chat answers another call, or a whole answer
    if answers == 0:
        raise Refused("no answer to write")
    result = {"messages": messages}
    if is_cut:
        result["is_cut"] = True
    if tools:
        result["tools"] = tools
    if ids and answers == 1:
        prompt, output = ids
        result["input_ids"] = prompt + output
        result["loss_mask"] = [0] * len(prompt) + [1] * len(output)
    return result


def read_done(out):
    """Lines of the input that are answered; a last line cut short by a crash is removed."""
    done, good = set(), 0
    if not out.exists():
        return done
    with open(out, "r+b") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                done.add(json.loads(line)["index"])
            except (ValueError, LookupError, TypeError) as error:
                raise ToolError(
                    BAD_FILE, f"--out: expected answers of an earlier run, got another line "
                    f"({out}, line {number}). Try removing that line, or another file."
                ) from error
            good += len(line)
        file.truncate(good)
    return done


def read_rows(source, done):
    with open(source, encoding="utf-8", errors="replace") as file:
        for index, line in enumerate(file):
            if line.strip() and index not in done:
                yield index, line


def answer_line(index, line, server):
    """(index, result or None, reason)"""
    try:
        row = json.loads(line)
        if not isinstance(row, dict):
            raise Refused("not a JSON object")
        return index, rewrite(row, server), ""
    except ValueError:
        return index, None, "no valid JSON"
    except Exception as error:  # noqa: BLE001 - one chat must not end the run of a million
        return index, None, str(error) or type(error).__name__


def run(options):
    if not options.input.is_file():
        raise ToolError(
            BAD_ARGUMENT, f"--input: expected a file of JSON lines, got none ({options.input}). "
            "Try another path."
        )
    server = Server(options)
    done = read_done(options.out)
    if done:
        print(f"going on after {len(done)} chats", file=sys.stderr)
    failures = options.out.with_name(options.out.name + ".failures.jsonl")
    rows = read_rows(options.input, done)
    begin = shown = time.monotonic()
    written = failed = 0
    with (
        concurrent.futures.ThreadPoolExecutor(options.concurrency) as pool,
        open(options.out, "a", encoding="utf-8") as out,
        open(failures, "w", encoding="utf-8") as refused,
    ):
        waiting = set()
        while True:
            # No more chats in memory than are asked at once, and as many ready to follow.
            for index, line in rows:
                waiting.add(pool.submit(answer_line, index, line, server))
                if len(waiting) >= 2 * options.concurrency:
                    break
            if not waiting:
                break
            finished, waiting = concurrent.futures.wait(
                waiting, return_when=concurrent.futures.FIRST_COMPLETED
            )
            for index, result, reason in (future.result() for future in finished):
                if result is None:
                    failed += 1
                    refused.write(json.dumps({"index": index, "reason": reason}) + "\n")
                    refused.flush()
                else:
                    written += 1
                    out.write(json.dumps({"index": index} | result, ensure_ascii=False) + "\n")
                    out.flush()
            now = time.monotonic()
            if now - shown > 5:
                shown = now
                rate = (written + failed) / (now - begin)
                print(f"{written} chats, {failed} failed, {rate:.1f} chats/s", file=sys.stderr)
    print(f"{len(done) + written} chats in {options.out}, {failed} failed")
    if failed:
        raise ToolError(
            SOME_FAILED, f"server: expected an answer to every chat, got none to {failed} "
            f"({failures}). Try the same command again."
        )
    failures.unlink()
    if not done and not written:
        raise ToolError(
            BAD_FILE, f"--input: expected a chat, got none ({options.input}). Try another file."
        )


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(
        prog="tools/regenerate", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--server", required=True, metavar="URL", help="of the server")
    parser.add_argument("--served-model", required=True, help="the name it knows the target by")
    parser.add_argument("--input", type=Path, required=True, help="chats, one JSON object a line")
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    parser.add_argument(
        "--concurrency", type=whole_number(1), default=64, help="requests at once (64)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 (the default) = greedy")
    parser.add_argument(
        "--max-tokens", type=whole_number(1), default=4096, help="of an answer (4096)")
    parser.add_argument(
        "--retries", type=whole_number(0), default=5, help="of a failed request (5)")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds before the first retry")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for an answer (600)")
    parser.add_argument("--api-key", default="", help="sent as a bearer token")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(exit_status(run, parse_arguments()))

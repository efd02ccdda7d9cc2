# SPDX-License-Identifier: Apache-2.0
"""Turn chats into a training dataset with a loss mask.

Usage:
    tools/prepare_data --model target --input chats.jsonl --out data/chats
    tools/prepare_data --model target --input chats.jsonl --show 2

Every line of the input is one chat: {"messages": [{"role": "user", "content": ...}, ...]}, or
ShareGPT's {"conversations": [{"from": "human", "value": ...}, ...]}; with `tools`, `tool_calls`
and `reasoning_content` where there are any. The model's own chat template renders it. The mask
covers exactly the tokens that the assistant writes, the one that ends its turn included (but for
a last answer that "is_cut": true says was cut short, as tools/regenerate does: its writer did not
end it). A line with `input_ids` and `loss_mask`, as tools/regenerate writes where the server gives
ids, is taken as it is.

A chat longer than --max-length is cut; what was cut is not supervised. Rows that cannot be used
are counted by reason: rows read = kept + dropped. Parts are written as they are done, so an
interrupted run goes on where it stopped. The folder appears only once it is complete.

Exit status: 0 done (or already there), 2 bad arguments, 3 bad files.
"""
import argparse
import collections
import concurrent.futures
import concurrent.futures.process
import json
import os
import shutil
import sys
import time
from pathlib import Path

import pyarrow

from chat_format import ChatFormat, RowError, read_conversation
from tool_output import BAD_ARGUMENT, BAD_FILE, ToolError, exit_status, whole_number

ROWS_PER_PART = 2000
MOST_ID = 2**31 - 1
SCHEMA = pyarrow.schema(
    [("input_ids", pyarrow.list_(pyarrow.int32())), ("loss_mask", pyarrow.list_(pyarrow.int8()))]
)
chat_format = None  # of a worker process


def encode_line(line, max_length):
    """(ids, mask, whether it was cut) of one line; RowError says why there is none."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RowError("no valid JSON") from error
    if isinstance(row, dict) and "input_ids" in row:
        ids, mask = row["input_ids"], row.get("loss_mask")
        if not isinstance(mask, list) or not isinstance(ids, list) or len(ids) != len(mask):
            raise RowError("input_ids without a loss_mask of their length")
        if not all(type(i) is int and 0 <= i <= MOST_ID for i in ids):
            raise RowError("input_ids that are no token ids")
        if not all(type(m) in (int, bool) and m in (0, 1) for m in mask):
            raise RowError("a loss_mask that is not of 0 and 1")
        mask = [int(m) for m in mask]
        was_cut = 0 < max_length < len(ids)
        limit = max_length or len(ids)
        ids, mask = ids[:limit], mask[:limit]
    else:
        messages, tools = read_conversation(row, chat_format)
        is_cut = row.get("is_cut") is True
        ids, mask, was_cut = chat_format.encode(messages, tools, max_length, is_cut)
    # A draft block needs two supervised tokens in a row.
    if not any(left and right for left, right in zip(mask, mask[1:])):
        raise RowError("nothing to train after the cut" if was_cut else "nothing to train")
    return ids, mask, was_cut


def start_worker(model, max_length):
    global chat_format
    chat_format = ChatFormat(Path(model))
    chat_format.max_length = max_length


def make_part(job):
    """Encodes some lines into PATH.arrow, then the counts into PATH.json, which says it is done."""
    path, source, begin, end = job
    lines = read_lines(source, begin, end)
    counts = collections.Counter(read=len(lines))
    dropped = collections.Counter()
    columns = ([], [])
    for line in lines:
        try:
            ids, mask, was_cut = encode_line(line, chat_format.max_length)
        except RowError as reason:
            dropped[str(reason)] += 1
            continue
        columns[0].append(ids)
        columns[1].append(mask)
        counts.update(kept=1, cut=int(was_cut), tokens=len(ids), supervised=sum(mask))
    batch = pyarrow.record_batch([pyarrow.array(c, f.type) for c, f in zip(columns, SCHEMA)], SCHEMA)
    with pyarrow.OSFile(str(path.with_suffix(".arrow")), "wb") as file:
        with pyarrow.ipc.new_stream(file, SCHEMA) as writer:
            for row in range(0, batch.num_rows, 1000):
                writer.write_batch(batch.slice(row, 1000))
    counts = {**counts, "bytes": end - begin, "dropped": dict(dropped)}
    aside = path.with_suffix(".tmp")
    aside.write_text(json.dumps(counts))
    os.replace(aside, path.with_suffix(".json"))
    return counts


def make_parts(jobs, options):
    """The counts of each part, as they are done by the worker processes."""
    pool = concurrent.futures.ProcessPoolExecutor(
        options.workers, initializer=start_worker,
        initargs=(str(options.model), options.max_length))
    try:
        for part in concurrent.futures.as_completed([pool.submit(make_part, job) for job in jobs]):
            yield part.result()
    except concurrent.futures.process.BrokenProcessPool as error:
        raise ToolError(
            BAD_FILE, f"--workers: expected {options.workers} at work to the end, got one that was "
            f"killed ({options.input}). Try fewer if memory ran out; the same command goes on."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def read_jobs(source, folder):
    """(path of a part, source, first byte, byte after the last) for every 2,000 lines."""
    number = begin = end = count = 0
    with open(source, "rb") as file:
        for line in file:
            end += len(line)
            count += 1
            if count == ROWS_PER_PART:
                yield folder / f"part-{number:05d}", source, begin, end
                number, begin, count = number + 1, end, 0
    if end > begin:
        yield folder / f"part-{number:05d}", source, begin, end


def read_lines(source, begin, end):
    with open(source, "rb") as file:
        file.seek(begin)
        lines = file.read(end - begin).decode("utf-8", errors="replace").split("\n")
    return [line for line in lines if line.strip()]


def describe_job(options):
    """What must be the same for parts of an earlier run to be used."""
    files = [options.input] + [
        options.model / name
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
        if (options.model / name).exists()
    ]
    return {
        "max_length": options.max_length,
        "files": [[str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns] for f in files],
    }


def open_staging(options):
    """The folder of parts; parts of another job are removed."""
    staging = options.out.parent / f".{options.out.name}.partial"
    stamp = staging / "job.json"
    job = json.dumps(describe_job(options))
    if staging.exists() and not (stamp.exists() and stamp.read_text() == job):
        shutil.rmtree(staging)
    staging.mkdir(parents=True, exist_ok=True)
    stamp.write_text(job)
    return staging


def add_counts(total, part):
    for key, value in part.items():
        if key == "dropped":
            for reason, count in value.items():
                total["dropped"][reason] = total["dropped"].get(reason, 0) + count
        else:
            total[key] += value


def publish(staging, out, total):
    """Names the parts as `datasets` does and lets the folder appear."""
    # Parts that have their names already are no parts any more: a run that is interrupted from here
    # on begins anew.
    (staging / "job.json").unlink()
    shards = []
    for path in sorted(staging.glob("part-*.arrow")):
        if json.loads(path.with_suffix(".json").read_text()).get("kept", 0):
            shards.append(path)
        else:
            path.unlink()
    names = [f"data-{i:05d}-of-{len(shards):05d}.arrow" for i in range(len(shards))]
    for path, name in zip(shards, names):
        os.replace(path, staging / name)
    for path in staging.glob("part-*"):
        path.unlink()
    features = {
        name: {"feature": {"dtype": dtype, "_type": "Value"}, "_type": "List"}
        for name, dtype in (("input_ids", "int32"), ("loss_mask", "int8"))
    }
    state = {
        "_data_files": [{"filename": name} for name in names], "_fingerprint": "prepare_data",
        "_format_columns": None, "_format_kwargs": {}, "_format_type": None,
        "_output_all_columns": False, "_split": None,
    }
    info = {"citation": "", "description": "", "features": features, "homepage": "", "license": ""}
    for name, value in (
        ("state.json", state), ("dataset_info.json", info), ("prepare_data.json", total)
    ):
        (staging / name).write_text(json.dumps(value, indent=2))
    for path in staging.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    os.replace(staging, out)


def report(total):
    dropped = sum(total["dropped"].values())
    print(f"{total['read']} rows read = {total['kept']} kept + {dropped} dropped")
    for reason, count in sorted(total["dropped"].items(), key=lambda item: -item[1]):
        print(f"  {count} dropped: {reason}")
    share = 100 * total["supervised"] / max(1, total["tokens"])
    print(f"{total['tokens']} tokens, {share:.1f} % supervised, {total['cut']} rows cut")


def show(options):
    """The first chats as text, what the assistant wrote in colour (or brackets)."""
    global chat_format
    chat_format = ChatFormat(options.model)
    has_colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    marks = ("\x1b[30;42m", "\x1b[0m") if has_colour else ("[[", "]]")
    for _, source, first, end in read_jobs(options.input, Path()):
        for number, line in enumerate(read_lines(source, first, end)[: options.show]):
            print(f"--- row {number}")
            try:
                ids, mask, _ = encode_line(line, options.max_length)
            except RowError as reason:
                print(f"dropped: {reason}")
                continue
            begin = 0
            for i in range(1, len(ids) + 1):
                if i < len(ids) and mask[i] == mask[begin]:
                    continue
                text = chat_format.tokenizer.decode(ids[begin:i], skip_special_tokens=False)
                print(marks[0] + text + marks[1] if mask[begin] else text, end="")
                begin = i
            print()
        return


def run(options):
    if not options.input.is_file():
        raise ToolError(
            BAD_ARGUMENT, f"--input: expected a file of JSON lines, got none ({options.input}). "
            "Try another path."
        )
    if options.show:
        return show(options)
    if options.out is None:
        raise ToolError(BAD_ARGUMENT, "--out: expected a folder, got none. Try --out data/chats.")
    if (options.out / "state.json").exists() and not options.force:
        print(f"{options.out} is there already", file=sys.stderr)
        return None
    if options.out.exists():
        if not options.force or not (options.out / "prepare_data.json").exists():
            raise ToolError(
                BAD_ARGUMENT, f"--out: expected a new folder, got one that is in use ({options.out}). "
                "Try another folder."
            )
        shutil.rmtree(options.out)
    ChatFormat(options.model)  # errors of the model come before any work
    staging = open_staging(options)
    total = {"read": 0, "kept": 0, "cut": 0, "tokens": 0, "supervised": 0, "bytes": 0}
    total["dropped"] = {}
    jobs = []
    for job in read_jobs(options.input, staging):
        done = job[0].with_suffix(".json")
        if done.exists():
            add_counts(total, json.loads(done.read_text()))
        else:
            jobs.append(job)
    begin = shown = time.monotonic()
    size, before = options.input.stat().st_size, total["bytes"]
    if before:
        print(f"going on after {total['read']} rows", file=sys.stderr)
    for counts in make_parts(jobs, options):
        add_counts(total, counts)
        now = time.monotonic()
        if now - shown < 5:
            continue
        shown = now
        rate = (total["bytes"] - before) / (now - begin)
        print(
            f"{total['read']} rows, {rate / 1e6:.1f} MB/s, "
            f"{(size - total['bytes']) / rate:.0f} s to go", file=sys.stderr,
        )
    del total["bytes"]
    if total["kept"] == 0:
        report(total)
        raise ToolError(
            BAD_FILE, f"--input: expected a chat that can be trained on, got none ({options.input}). "
            "Try --show 1."
        )
    publish(staging, options.out, total)
    report(total)
    return None


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(
        prog="tools/prepare_data", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, required=True, help="the target's folder")
    parser.add_argument("--input", type=Path, required=True, help="chats, one JSON object a line")
    parser.add_argument("--out", type=Path, help="the dataset's folder")
    parser.add_argument(
        "--max-length", type=whole_number(0), default=8192, help="tokens (8192); 0 = no limit")
    parser.add_argument(
        "--workers", type=whole_number(1), default=os.cpu_count(), help="processes")
    parser.add_argument(
        "--show", type=whole_number(0), default=0, metavar="N", help="print N chats, no more")
    parser.add_argument("--force", action="store_true", help="make an earlier result again")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(exit_status(run, parse_arguments()))

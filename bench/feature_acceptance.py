#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The acceptance length after the demo's training from hidden states in each format of
`draftsmith extract`. Needs what tools/demo left: its model, answers and held-out prompts.

    feature_acceptance.py build/release/bin/draftsmith build/demo OUT [--steps 900] [--prompts 600]

Writes one folder of states and one run per format into OUT; what is there already is kept.
"""

import argparse
import json
import subprocess
from pathlib import Path

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("program")
parser.add_argument("demo", type=Path)
parser.add_argument("out", type=Path)
parser.add_argument("--steps", type=int, default=900)
parser.add_argument("--prompts", type=int, default=600, help="the number that tools/demo was given")
args = parser.parse_args()


def draftsmith(command, *flags, stdout=None):
    subprocess.run(
        [args.program, command, "--config=tools/demo.toml", f"--target.path={args.demo}/model",
         *flags], check=True, stdout=stdout)


def evaluate(run, report):
    with open(report.with_suffix(".partial"), "w") as file:
        draftsmith(
            "eval", f"--drafter.init={run}", "--target.dtype=float32", "--drafter.dtype=bfloat16",
            f"--eval.prompts={args.demo}/prompts-{args.prompts}/held_out.jsonl",
            "--eval.max_new_tokens=96", "--json", stdout=file)
    report.with_suffix(".partial").rename(report)


def is_complete(states):
    """A stopped extract leaves a folder that the next one goes on with."""
    header = states / "features.json"
    return header.is_file() and json.loads(header.read_text())["num_shards"] > 0


args.out.mkdir(parents=True, exist_ok=True)
print(f"{'format':<8} {'MiB':>8} {'acceptance':>11}   95 % interval")
for form in ("bf16", "fp8", "int8"):
    states, run, report = (args.out / f"{kind}-{form}" for kind in ("states", "run", "eval"))
    if not is_complete(states):
        draftsmith("extract", f"--data.path={args.demo}/answers-{args.prompts}",
                   f"--extract.format={form}", f"--extract.out={states}")
    if not (run / "export").is_dir():
        draftsmith("train", f"--data.path={states}", f"--train.out={run}",
                   f"--train.max_steps={args.steps}", *(["--resume"] if run.is_dir() else []))
    if not report.is_file():
        evaluate(run, report)
    found = json.loads(report.read_text())
    size = sum(file.stat().st_size for file in states.rglob("*") if file.is_file()) / 2**20
    low, high = found["acceptance_length_95"]
    print(f"{form:<8} {size:>8.0f} {found['acceptance_length']:>11.3f}   [{low:.3f}, {high:.3f}]",
          flush=True)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prefill and greedy generation of a model folder by transformers on the CPU, for comparison with
bench_target. Runs in an environment of its own: pip install torch==2.11.0 transformers==5.23.0.

    target_transformers.py DIR 1x2048 4x512   prefill
    target_transformers.py DIR --generate 48  new tokens/s of that many prompts at once
"""

import argparse
import statistics
import time

import torch
from transformers import AutoModelForCausalLM

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder")
parser.add_argument("shapes", nargs="*")
parser.add_argument("--generate", type=int, default=0)
parser.add_argument("--tokens", type=int, default=64)
parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt")
parser.add_argument("--repeats", type=int, default=5)
parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
args = parser.parse_args()

torch.manual_seed(0)
model = AutoModelForCausalLM.from_pretrained(args.folder, dtype=getattr(torch, args.dtype)).eval()
print(f"threads {torch.get_num_threads()}, attention {model.config._attn_implementation}")
with torch.inference_mode():
    for shape in args.shapes:
        rows, tokens = map(int, shape.split("x"))
        ids = (torch.arange(rows * tokens) % 1000).view(rows, tokens)
        seconds = []
        for _ in range(args.repeats + 1):
            start = time.perf_counter()
            model.model(ids, use_cache=False)
            seconds.append(time.perf_counter() - start)
        print(f"{shape}: {1e3 * statistics.median(seconds[1:]):.1f} ms")
    if args.generate:
        ids = torch.randint(5, 1000, (args.generate, args.prompt))
        seconds = []
        for _ in range(3):
            start = time.perf_counter()
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, eos_token_id=None,
                max_new_tokens=args.tokens, min_new_tokens=args.tokens)
            seconds.append(time.perf_counter() - start)
        new = (out.shape[1] - args.prompt) * args.generate
        taken = statistics.median(seconds)
        print(f"generate {args.generate} x {args.tokens}: {taken:.2f} s, "
              f"{new / taken:.1f} new tokens/s")

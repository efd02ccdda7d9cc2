#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints what `draftsmith eval --json` found before and after training, side by side, and what its
sweep found after training.

usage: demo_table.py BEFORE.json AFTER.json SWEEP.json
"""
import json
import sys


def load(path):
    with open(path) as file:
        return json.load(file)


def bar(share, width=30):
    return "#" * round(share * width)


def main():
    before, after = load(sys.argv[1]), load(sys.argv[2])
    rows = [("", "before", "after")]

    def interval(report):
        low, high = report["acceptance_length_95"]
        return f"[{low:.3f}, {high:.3f}]"

    rows.append(("acceptance length, pooled", *(f"{r['acceptance_length']:.3f}" for r in (before, after))))
    rows.append(("  95 % bootstrap interval", interval(before), interval(after)))
    rows.append(("mean per response", *(f"{r['mean_per_response']:.3f}" for r in (before, after))))
    for slot, shares in enumerate(zip(before["by_slot"], after["by_slot"]), 1):
        rows.append((f"accepted up to slot {slot}", *(f"{100 * share:.1f} %" for share in shares)))
    for name in ("plain", "speculative"):
        rows.append((f"tokens/s, {name}", *(f"{r[name + '_tokens_per_s']:.1f}" for r in (before, after))))
    rows.append(("output equals plain greedy", *("yes" if r["is_identical"] else "NO" for r in (before, after))))
    print(f"{after['responses']} held-out prompts, {after['tokens']} new tokens after training, float32 target\n")
    for name, left, right in rows:
        print(f"{name:<28} {left:>18} {right:>18}")
    print("\ntokens per round after training")
    total = sum(after["histogram"])
    for length, count in enumerate(after["histogram"]):
        if length:
            print(f"{length:>3} {100 * count / total:>5.1f} % {bar(count / total)}")
    print_sweep(load(sys.argv[3]))


def print_sweep(sweep):
    print(f"\nchain and trees on {sweep['responses']} of the prompts; {sweep['fastest']} is the fastest")
    print(f"{'':<12} {'acceptance':>10} {'tokens/s':>9} {'against plain':>14} {'equal':>6}")
    for method in sweep["sweep"]:
        name = method["method"]
        if name == "tree":
            name += f" of {method['tree_budget']}"
        print(f"{name:<12} {method['acceptance_length']:>10.3f} "
              f"{method['speculative_tokens_per_s']:>9.1f} {method['speedup']:>14.2f} "
              f"{'yes' if method['is_identical'] else 'NO':>6}")


if __name__ == "__main__":
    main()

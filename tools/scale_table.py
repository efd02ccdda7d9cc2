#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of docs/scale.md: what the reference case costs, and which link fills up first.

Usage:
    tools/scale_table.py                      the tables, as docs/scale.md shows them
    tools/scale_table.py --update             writes them into docs/scale.md
    tools/scale_table.py --peak 400 --targets 6 --drafters 2      your own GPU and split

Nothing is measured here. Shapes are those of configs/qwen3.6-27b; parameters and products of the
drafter are what `draftsmith plan` counts (a test compares); ratios over the time of the matrix
products are those of docs/performance.md; rates of GPUs, links and disks are arguments.
"""
import argparse
import sys
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parent.parent / "docs/scale.md"
# A table stands between these two lines.
BEGIN, END = "<!-- table {} -->\n", "<!-- end -->\n"

# configs/qwen3.6-27b/target/config.json
D, V, LAYERS, MLP = 5120, 248_320, 64, 17_408
FULL_LAYERS, HEADS, KV_HEADS, HEAD_DIM = 16, 24, 4, 256
LINEAR_LAYERS, LINEAR_K_HEADS, LINEAR_V_HEADS, LINEAR_DIM, CONV = 48, 16, 48, 128, 4
# configs/qwen3.6-27b/run.toml
T, N, K = 49_152, 1024, 32
DRAFT_LAYERS, CAPTURED, DRAFT_HEADS, DRAFT_KV_HEADS, DRAFT_HEAD_DIM = 5, 5, 32, 8, 128
WINDOW, MAX_LENGTH = 2048, 8192

FIRST_TRAINER = 17_500  # tokens/s of the first public trainer on 8 GPUs, 5 + 3
DATASET_TOKENS = 902_087 * 1_990  # of docs/performance.md, "Data at full size"
CHUNK = 64  # tokens of a chunk of the delta rule
# Measured time over the time of the matrix products alone; docs/performance.md.
RATIO_TARGET, RATIO_HEAD, RATIO_DRAFTER = 1.65, 1.06, 1.5
# Dense bf16 peak, TFLOP/s, of three kinds of GPU with some 95 GB or more; datasheets.
GPUS = (("148 (H20 class)", 148), ("500 (96 GB PCIe class)", 500), ("989 (H100/H200 SXM class)", 989))


def target_parameters():
    """Matrices that every token passes, without embedding and head."""
    mlp = 3 * D * MLP
    queries = HEADS * HEAD_DIM
    full = D * (2 * queries + 2 * KV_HEADS * HEAD_DIM) + queries * D  # queries with their gate
    keys, values = LINEAR_K_HEADS * LINEAR_DIM, LINEAR_V_HEADS * LINEAR_DIM
    linear = D * (2 * keys + 2 * values + 2 * LINEAR_V_HEADS) + values * D
    return LAYERS * mlp + FULL_LAYERS * full + LINEAR_LAYERS * linear


def drafter_parameters():
    queries, keys = DRAFT_HEADS * DRAFT_HEAD_DIM, DRAFT_KV_HEADS * DRAFT_HEAD_DIM
    norms = DRAFT_LAYERS * (2 * D + 2 * DRAFT_HEAD_DIM) + 2 * D
    return DRAFT_LAYERS * D * (2 * queries + 2 * keys + 3 * MLP) + CAPTURED * D * D + norms


class Case:
    """FLOP of a batch and bytes that move; `mean` is the mean number of earlier tokens."""

    def __init__(self, mean=MAX_LENGTH / 2):
        R = N * K
        queries, keys = DRAFT_HEADS * DRAFT_HEAD_DIM, DRAFT_KV_HEADS * DRAFT_HEAD_DIM
        self.target_products = 2.0 * T * target_parameters()
        self.target_attention = 4.0 * T * FULL_LAYERS * HEADS * HEAD_DIM * mean
        self.target_delta = T * LINEAR_LAYERS * LINEAR_V_HEADS * (
            6.0 * LINEAR_DIM**2 + 4 * CHUNK * 2 * LINEAR_DIM)
        rows = 2.0 * R * DRAFT_LAYERS * D * (2 * queries + 2 * keys + 3 * MLP)
        context = 2.0 * T * (DRAFT_LAYERS * D * 2 * keys + CAPTURED * D * D)
        self.forward = rows + context
        self.drafter_attention = 4.0 * R * queries * (
            (DRAFT_LAYERS - 1) * min(WINDOW, mean) + mean + DRAFT_LAYERS * K)
        self.head = 2.0 * D * V * N * (K - 1)
        self.planner = 3 * self.forward + 3 * self.head

    @property
    def target(self):
        return self.target_products + self.target_attention + self.target_delta

    def target_rate(self, rate):
        """tokens/s of one GPU that runs products at `rate` FLOP/s."""
        return T / (self.target * RATIO_TARGET / rate)

    def drafter_seconds(self, rate):
        trained = 3 * self.forward + 3.5 * self.drafter_attention
        return (3 * self.head * RATIO_HEAD + trained * RATIO_DRAFTER) / rate


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]) + "\n"


def work_table(case):
    def row(name, formula, flop):
        return name, formula, f"{flop / 1e12:,.0f}", f"{flop / T / 1e9:.2f}"
    return table(("part of a batch", "how", "TFLOP", "GFLOP a token"), (
        row("target, products", f"2 x {T:,} tokens x {target_parameters() / 1e9:.2f} billion "
            "parameters in layers", case.target_products),
        row("target, attention of 16 layers", "4 x 24 heads x 256 x mean context",
            case.target_attention),
        row("target, delta rule of 48 layers", "48 heads x (6 x 128 x 128 + 4 x 64 x 256)",
            case.target_delta),
        row("drafter, forward products", "rows: 2 x 32,768 x 5 layers; context: fc, keys, values",
            case.forward),
        row("drafter, backward products", "2 x forward", 2 * case.forward),
        row("drafter, attention", "forward and 2.5 x for backward; 4 windows and 1 full",
            3.5 * case.drafter_attention),
        row("head", f"student, teacher, back: 3 x 2 x {N * (K - 1):,} rows x 5,120 x 248,320",
            3 * case.head),
        row("**sum**", "", case.target + 3 * case.forward + 3.5 * case.drafter_attention
            + 3 * case.head)))


def rate_table(case, options, gpus):
    rows = []
    for name, peak in gpus:
        rate = peak * 1e12 * options.products
        target, seconds = case.target_rate(rate), case.drafter_seconds(rate)
        drafter = T / seconds
        speed = min(options.targets * target, options.drafters * drafter)
        count = options.targets + options.drafters
        best = max(range(1, count), key=lambda t: min(t * target, (count - t) * drafter))
        best_speed = min(best * target, (count - best) * drafter)
        rows.append((name, f"{target:,.0f}", f"{drafter:,.0f}", f"{seconds:.2f} s", f"{speed:,.0f}",
                     f"{speed / FIRST_TRAINER:.2f} x", f"{best} + {count - best}: {best_speed:,.0f}"))
    return table(("peak, TFLOP/s", "a target GPU, tokens/s", "a drafter GPU, tokens/s",
                  "a drafter's batch", f"{options.targets} + {options.drafters}, tokens/s",
                  f"against {FIRST_TRAINER:,}", "best split"), rows)


def bytes_table(P):
    state = (CAPTURED + 1) * D * 2
    return table(("what moves", "how", "bytes"), (
        ("hidden states of a token", "(5 layers + last state) x 5,120 x 2", f"{state:,}"),
        ("hidden states of a batch", f"x {T:,}", f"{state * T / 1e9:.2f} GB"),
        ("at 17,500 tokens/s", "", f"{state * FIRST_TRAINER / 1e9:.2f} GB/s"),
        ("gradients, float32", f"4 x {P:,}", f"{4 * P / 1e9:.2f} GB"),
        ("all-reduce, each rank sends", "2 (n - 1) / n of it, n large", f"{8 * P / 1e9:.2f} GB"),
        ("the same in bfloat16", "half", f"{4 * P / 1e9:.2f} GB"),
        ("a checkpoint", "weights 2 + masters 4 + moments 8 bytes", f"{14 * P / 1e9:.1f} GB"),
        ("tokens and mask of a batch", "8 + 1 bytes a token", f"{9 * T / 1e6:.2f} MB"),
        ("hidden states of the whole dataset", f"{DATASET_TOKENS / 1e9:.2f} billion tokens, bf16",
         f"{state * DATASET_TOKENS / 1e12:.0f} TB")))


def link_table(case, options, P):
    """A machine of 8 drafter GPUs and one of 8 target GPUs, in the fastest class."""
    rate = GPUS[-1][1] * 1e12 * options.products
    seconds, target = case.drafter_seconds(rate), case.target_rate(rate)
    state = (CAPTURED + 1) * D * 2
    batch, reduce = state * T / 1e9, 8 * P / 1e9  # GB
    nic, nvlink, pcie, disk = options.nic / 8, options.nvlink, options.pcie, options.disk

    def row(name, link, capacity, load):
        return name, f"{link}, {capacity:g} GB/s", f"{load:.2f} GB/s", f"{load / capacity:.1%}"
    return table(("traffic", "link, one way", "load", "share of it"), (
        row("one machine, states to one drafter GPU", "NVLink", nvlink, batch / seconds),
        row("the same without peers, through the host", "PCIe", pcie, batch / seconds),
        row("gradients, 8 drafters of one machine", "NVLink", nvlink, reduce * 7 / 8 / seconds),
        row("the same without NVLink", "PCIe", pcie, reduce * 7 / 8 / seconds),
        row("states out of a machine of 8 targets", "one NIC", nic, 8 * target * state / 1e9),
        row("states into a machine of 8 drafters", "one NIC", nic, 8 * batch / seconds),
        row("gradients between machines of 8 drafters", "one NIC", nic, reduce / seconds),
        row("both into that machine", "one NIC", nic, (8 * batch + reduce) / seconds),
        row("stored states of one drafter, bf16", "one disk", disk, batch / seconds),
        row("stored states of one drafter, fp8", "one disk", disk, batch / 2 / seconds),
        row("tokens for 1,000 target GPUs", "one disk", disk, 1000 * target * 9 / 1e9)))


def size_table(case, options):
    rate = GPUS[-1][1] * 1e12 * options.products
    seconds, target = case.drafter_seconds(rate), case.target_rate(rate)
    rows = []
    for drafters in (1, 3, 8, 32, 128, 512):
        speed = drafters * T / seconds
        steps = DATASET_TOKENS / (T * drafters)
        rows.append((drafters, f"{speed / target:,.0f}", f"{speed / 1e6:.2f} million",
                     f"{T * drafters / 1e6:.2f} million", f"{steps:,.0f}",
                     f"{steps * seconds / 3600:.2f} h"))
    return table(("drafter GPUs", "target GPUs to feed them", "tokens/s", "tokens a step",
                  "steps an epoch", "an epoch"), rows)


def all_tables(options, gpus=GPUS):
    """{name: table}"""
    case, P = Case(), drafter_parameters()
    return {"work": work_table(case), "rates": rate_table(case, options, gpus),
            "bytes": bytes_table(P), "links": link_table(case, options, P),
            "sizes": size_table(case, options)}


def update(text, tables, document=DOCUMENT):
    """The document with these tables in place of its own."""
    for name, table_text in tables.items():
        before, found, rest = text.partition(BEGIN.format(name))
        _, ended, after = rest.partition(END)
        if not found or not ended:
            raise SystemExit(f"{document.name}: expected a table '{name}', got none ({document}). "
                             f"Try adding the lines {BEGIN.format(name).strip()} and {END.strip()}.")
        text = before + found + "\n" + table_text + "\n" + ended + after
    return text


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="write the tables into docs/scale.md")
    parser.add_argument("--peak", type=float, help="dense bf16 TFLOP/s of a GPU of your own")
    parser.add_argument("--products", type=float, default=0.7,
                        help="share of the peak that large matrix products reach (0.7)")
    parser.add_argument("--targets", type=int, default=5, help="GPUs of the target (5)")
    parser.add_argument("--drafters", type=int, default=3, help="GPUs of the drafter (3)")
    parser.add_argument("--nvlink", type=float, default=450, help="GB/s one way (450)")
    parser.add_argument("--pcie", type=float, default=55, help="GB/s one way (55)")
    parser.add_argument("--nic", type=float, default=400, help="Gb/s (400)")
    parser.add_argument("--disk", type=float, default=7, help="GB/s of reading (7)")
    return parser.parse_args(arguments)


def main():
    options = parse_arguments()
    tables = all_tables(options, (("yours", options.peak),) if options.peak else GPUS)
    if not options.update:
        print("\n".join(tables.values()), end="")
        return 0
    DOCUMENT.write_text(update(DOCUMENT.read_text(), tables))
    return 0


if __name__ == "__main__":
    sys.exit(main())

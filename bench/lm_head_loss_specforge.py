# SPDX-License-Identifier: Apache-2.0
"""SpecForge's head on the CPU: cross-entropy of draft states under a frozen lm_head, with its
chunked objective (logits of --chunk_blocks blocks at a time, recomputed in backward), forward and
backward to the states. The same work as bench/lm_head_loss without a teacher. Prints one JSON
object. Runs where torch and specforge 0.2.0 are installed:

    python bench/lm_head_loss_specforge.py --rows 2048 --hidden 5120 --vocabulary 248320
"""

import argparse

import torch
from specforge.algorithms.common.dflash_family_model import OnlineDFlashModel
from specforge.core.chunking import checkpointed_chunk_reduce

from specforge_timing import measure, print_figures


def make_inputs(args):
    generator = torch.Generator().manual_seed(args.seed)
    blocks = args.rows // args.block_size
    hidden = torch.randn(1, blocks, args.block_size, args.hidden, generator=generator)
    head = torch.nn.Linear(args.hidden, args.vocabulary, bias=False, dtype=torch.bfloat16)
    head.weight.requires_grad_(False)
    for rows in head.weight.split(4096):  # in pieces: no float32 copy of the whole head
        rows.copy_(torch.randn(rows.shape, generator=generator) * 0.02)
    labels = torch.randint(args.vocabulary, (1, blocks, args.block_size), generator=generator)
    return hidden.bfloat16().requires_grad_(), head, labels


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--hidden", type=int, default=5120)
    parser.add_argument("--vocabulary", type=int, default=248320)
    parser.add_argument("--block_size", type=int, default=16)
    parser.add_argument("--chunk_blocks", type=int, default=128, help="SpecForge's default is 128")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.rows % args.block_size:
        parser.error(f"--rows: expected a multiple of {args.block_size}, got {args.rows}")
    torch.set_num_threads(args.threads)

    hidden, head, labels = make_inputs(args)
    weights = torch.ones(labels.shape)
    # Only the objective of the model is used, so it needs no drafter.
    model = OnlineDFlashModel(
        None, head, None, mask_token_id=0, block_size=args.block_size, attention_backend="sdpa",
        loss_decay_gamma=None, objective_chunk_blocks=args.chunk_blocks)

    def run():
        hidden.grad = None
        loss_sum, weight_sum, _, _ = checkpointed_chunk_reduce(
            model._dflash_objective_chunk_terms, hidden, labels, weights,
            chunk_size=model.objective_chunk_blocks, dim=1)
        loss = loss_sum / weight_sum
        loss.backward()
        return loss.item()

    loss, figures = measure(run, args.runs)
    print_figures({"bench": "lm_head_loss", "program": "specforge", **vars(args), "loss": loss,
                   **figures})


if __name__ == "__main__":
    main()

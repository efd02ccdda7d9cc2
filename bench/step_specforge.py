# SPDX-License-Identifier: Apache-2.0
"""SpecForge's training step on the CPU: forward and backward of one batch, cross-entropy with
position decay, given anchors. The same work as bench/step, on the same inputs. Runs where torch and
specforge 0.2.0 are installed:

    python bench/step_specforge.py --make DIR
    python bench/step_specforge.py --model DIR --batch DIR/batch-1024.safetensors --output OUT
    python bench/step_specforge.py --model DIR --batch DIR/batch-1024.safetensors --dtype float32 \\
        --compare OURS.safetensors OUT

The last one says how far losses and gradients of other runs are from SpecForge's own in float32,
where rounding hides no difference in the mathematics.

DIR gets config.json and model.safetensors (the drafter's tensors, `embed_tokens.weight` and
`lm_head.weight`), and a file for each batch: `input_ids` [1, S] int64, `loss_mask` [1, S] uint8,
`target_hidden` [1, S, F] bfloat16, `anchors` [1, N] int64. OUT gets `loss` [1] and `grad.NAME`
for every tensor of the drafter, float32. Prints one JSON object.
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from specforge.algorithms.common.dflash_family_model import OnlineDFlashModel
from specforge.modeling.draft.dflash import DFlashDraftModel

from specforge_timing import measure, print_figures

BATCHES = {1024: 128, 4096: 256}  # tokens: anchors
CONFIG = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "dtype": "bfloat16",
    "block_size": 16,
    "num_target_layers": 28,
    "dflash_config": {
        "block_size": 16, "mask_token_id": 151669, "target_layer_ids": [1, 7, 13, 19, 25]},
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 5,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "layer_types": ["full_attention"] * 5,
    "sliding_window": None,
    "use_sliding_window": False,
    "rope_theta": 1000000.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.02,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}


def make_inputs(folder):
    """Random weights and batches of the shapes above, the same on every machine."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    D, V = CONFIG["hidden_size"], CONFIG["vocab_size"]

    def normal(*shape, std=0.02):
        return (torch.randn(*shape, generator=generator) * std).bfloat16()

    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    drafter = DFlashDraftModel(DFlashDraftModel.config_class.from_pretrained(folder))
    tensors = {
        name: normal(*weight.shape) if weight.dim() == 2 else torch.ones_like(weight).bfloat16()
        for name, weight in drafter.state_dict().items()}
    tensors["embed_tokens.weight"] = normal(V, D)
    tensors["lm_head.weight"] = normal(V, D)
    save_file(tensors, folder / "model.safetensors")
    features = len(CONFIG["dflash_config"]["target_layer_ids"]) * D
    for tokens, anchors in BATCHES.items():
        prompt = tokens // 16
        mask = torch.ones(1, tokens, dtype=torch.uint8)
        mask[:, :prompt] = 0
        drawn = torch.randperm(tokens - 1 - prompt, generator=generator)[:anchors] + prompt
        save_file(
            {"input_ids": torch.randint(150000, (1, tokens), generator=generator),
             "loss_mask": mask,
             "target_hidden": normal(1, tokens, features, std=1),
             "anchors": drawn.sort().values[None]},
            folder / f"batch-{tokens}.safetensors")


def load_model(args, dtype):
    tensors = {
        name: tensor.to(dtype)
        for name, tensor in load_file(args.model / "model.safetensors").items()}
    embed = torch.nn.Embedding.from_pretrained(tensors.pop("embed_tokens.weight"), freeze=True)
    head = torch.nn.Linear(1, 1, bias=False)
    head.weight = torch.nn.Parameter(tensors.pop("lm_head.weight"), requires_grad=False)
    config = DFlashDraftModel.config_class.from_pretrained(args.model)
    config._attn_implementation = args.attention
    drafter = DFlashDraftModel(config).to(dtype)
    drafter.load_state_dict(tensors)
    return OnlineDFlashModel(
        drafter.train(), head, embed, mask_token_id=drafter.mask_token_id,
        block_size=drafter.block_size, attention_backend=args.attention,
        loss_decay_gamma=args.gamma, objective_chunk_blocks=args.chunk_blocks)


def compare(gradients, loss, other):
    """How far a file that this script or bench_step wrote is from a loss and gradients."""
    found = load_file(other)
    product = own = others = 0.0
    for name, gradient in gradients.items():
        a, b = gradient.double().flatten(), found[name].double().flatten()
        product += (a @ b).item()
        own += (a @ a).item()
        others += (b @ b).item()
    return {"file": other.name,
            "gradient_cosine": product / (own * others) ** 0.5,
            "gradient_norm_ratio": (others / own) ** 0.5,
            "loss": found["loss"].item(),
            "loss_difference": abs(found["loss"].item() / loss - 1)}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--make", type=Path, help="write random inputs to this folder and stop")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--batch", type=Path)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--compare", type=Path, nargs="+", default=[], help="outputs of other runs")
    parser.add_argument("--gamma", type=float, default=7.0, help="of the position decay")
    parser.add_argument("--chunk_blocks", type=int, default=128, help="SpecForge's default is 128")
    parser.add_argument("--attention", default="sdpa", help="SpecForge's attention_backend")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.make:
        make_inputs(args.make)
        return
    if not (args.model and args.batch):
        parser.error("expected --model and --batch, or --make")

    dtype = getattr(torch, args.dtype)
    model = load_model(args, dtype)
    batch = load_file(args.batch)
    anchors = batch["anchors"]
    keep = torch.ones_like(anchors, dtype=torch.bool)
    model._sample_anchor_positions = lambda *_: (anchors, keep)
    mask = batch["loss_mask"].float()
    features = batch["target_hidden"].to(dtype)

    def run():
        model.draft_model.zero_grad(set_to_none=True)
        loss, _, _ = model(batch["input_ids"], features, mask)
        loss.backward()
        return loss.item()

    loss, figures = measure(run, args.runs)
    gradients = {
        f"grad.{name}": weight.grad.float()
        for name, weight in model.draft_model.named_parameters()}
    if args.output:
        save_file({"loss": torch.tensor([loss]), **gradients}, args.output)
    print_figures({"bench": "step", "program": "specforge", "tokens": mask.shape[1],
                   "anchors": anchors.shape[1], "attention": args.attention,
                   "threads": args.threads, "dtype": args.dtype, "loss": loss, **figures,
                   "against": [compare(gradients, loss, other) for other in args.compare]})


if __name__ == "__main__":
    main()

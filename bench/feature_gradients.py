#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the narrow formats of `draftsmith extract` cost in the gradient: a fresh drafter's gradients
from fp8 and int8 states against those from bf16 states, on the real text of tests/fixtures/smollm2.
Needs torch and safetensors of its own.

    feature_gradients.py build/release/bin/draftsmith build/demo/model
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

PROGRAM, TARGET = sys.argv[1:3]
LAYERS = [1, 10, 18, 27]  # captured
ROWS, BLOCK = 4, 8


def pack(states, largest):
    """States [.., parts, D] through a format whose largest magnitude is `largest`, back in bf16."""
    peak = states.float().abs().amax(-1, keepdim=True)
    scale = torch.where(peak > 0, peak, 1.0) / largest
    scaled = states.float() / scale
    stored = scaled.to(torch.float8_e4m3fn) if largest == 448 else scaled.round().to(torch.int8)
    return (stored.float() * scale).to(torch.bfloat16)


def write_drafter(folder, config):
    """Two random layers in the published layout."""
    torch.manual_seed(0)
    hidden, heads, pairs = (config[k] for k in (
        "hidden_size", "num_attention_heads", "num_key_value_heads"))
    head = hidden // heads
    drafter = {
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "block_size": BLOCK,
        "dflash_config": {"mask_token_id": 0, "target_layer_ids": LAYERS},
        "num_target_layers": config["num_hidden_layers"], "head_dim": head,
        "num_hidden_layers": 2, "layer_types": ["full_attention"] * 2, "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "attention_bias": False,
        **{k: config[k] for k in ("hidden_size", "intermediate_size", "num_attention_heads",
                                  "num_key_value_heads", "vocab_size")}}
    (folder / "config.json").write_text(json.dumps(drafter))
    inner = config["intermediate_size"]
    shapes = {"fc": (hidden, len(LAYERS) * hidden)}
    norms = {"norm": hidden, "hidden_norm": hidden}
    for i in range(2):
        at = f"layers.{i}."
        norms |= {at + "input_layernorm": hidden, at + "post_attention_layernorm": hidden,
                  at + "self_attn.q_norm": head, at + "self_attn.k_norm": head}
        shapes |= {at + "self_attn.q_proj": (heads * head, hidden),
                   at + "self_attn.k_proj": (pairs * head, hidden),
                   at + "self_attn.v_proj": (pairs * head, hidden),
                   at + "self_attn.o_proj": (hidden, heads * head),
                   at + "mlp.gate_proj": (inner, hidden), at + "mlp.up_proj": (inner, hidden),
                   at + "mlp.down_proj": (hidden, inner)}
    weights = {f"{k}.weight": 0.02 * torch.randn(v) for k, v in shapes.items()}
    weights |= {f"{k}.weight": torch.ones(v) for k, v in norms.items()}
    save_file(weights, folder / "model.safetensors")


def probe(folder, stage, tensors, *flags):
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "in.safetensors")
    subprocess.run(
        [PROGRAM, "probe", stage, "--input", folder / "in.safetensors", "--output",
         folder / "out.safetensors", "--target", TARGET, *flags], check=True)
    return load_file(folder / "out.safetensors")


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    config = json.loads((Path(TARGET) / "config.json").read_text())
    write_drafter(folder, config)
    ids = load_file("tests/fixtures/smollm2/expected.safetensors")["input_ids"][:ROWS]
    states = probe(folder, "target", {"input_ids": ids}, "--dtype", "bfloat16")
    parts = torch.stack([states["hidden_states"][i] for i in LAYERS] + [states["final"]], dim=-2)
    anchors = torch.arange(8, 120, 8).repeat(ROWS, 1)
    gradients = {}
    for form, largest in (("bf16", None), ("fp8", 448), ("int8", 127)):
        stored = parts if largest is None else pack(parts, largest)
        out = probe(
            folder, "drafter",
            {"input_ids": ids, "loss_mask": torch.ones_like(ids).byte(), "anchors": anchors,
             "keep": torch.ones_like(anchors).byte(),
             "target_hidden": stored[..., :-1, :].flatten(-2).float(),
             "teacher_hidden": stored[..., -1, :].float()},
            "--drafter", folder, "--grad")
        gradients[form] = {k: v.double() for k, v in out.items() if k.startswith("grad.")}
    for form in ("fp8", "int8"):
        whole = [torch.cat([g.flatten() for g in gradients[f].values()]) for f in ("bf16", form)]
        worst = min(
            (torch.cosine_similarity(g.flatten(), gradients[form][k].flatten(), 0).item(), k)
            for k, g in gradients["bf16"].items())
        print(f"{form}: cosine {torch.cosine_similarity(*whole, 0).item():.6f} of all gradients, "
              f"least {worst[0]:.6f} ({worst[1]})")

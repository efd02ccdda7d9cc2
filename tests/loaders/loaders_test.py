# SPDX-License-Identifier: Apache-2.0
"""Other projects' loaders read what `draftsmith export` writes, and compute what draftsmith does.

    loaders_test.py --program build/release/bin/draftsmith --fixtures tests/fixtures

Runs on the CPU in an environment with the wheels of tools/requirements-loaders.txt. The drafters
are tiny: one of the fixtures, and one that is trained here for some seconds, with a sliding layer,
so that rounds of several tokens are accepted.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from safetensors.torch import load_file, save_file

FLOAT32_ROUNDING = 1e-5  # of float32 sums in another order, as a share of the L2 norm
NEW_TOKENS = 40

options = argparse.Namespace()


def run(*arguments):
    """Runs the program, which must succeed."""
    result = subprocess.run(
        [options.program, *map(str, arguments)], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise AssertionError(f"draftsmith {arguments[0]}: exit {result.returncode}: {result.stderr}")
    return result


def probe(folder, stage, tensors, *arguments):
    """The output tensors of `draftsmith probe`."""
    save_file(tensors, folder / "input.safetensors")
    run("probe", stage, "--input", folder / "input.safetensors", "--output",
        folder / "output.safetensors", *arguments)
    return load_file(folder / "output.safetensors")


def relative_difference(left, right):
    return ((left.double() - right.double()).norm() / right.double().norm()).item()


def random_ids(count, length, vocabulary, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(vocabulary, (length + i,), generator=generator) for i in range(count)]


class TinyModels:
    """A target, drafters for it, and what draftsmith says about them. Made once."""

    def __init__(self, folder):
        self.folder = folder
        self.target = options.fixtures / "targets/qwen3-tiny"
        self.prompts = random_ids(48, 3, 200, 0)
        self.trained = self.train()
        self.full = options.fixtures / "drafter/full"

    def train(self):
        prompts = self.folder / "prompts.jsonl"
        lines = [json.dumps({"input_ids": ids.tolist()}) for ids in self.prompts]
        prompts.write_text("\n".join(lines) + "\n")
        target = [f"--target.path={self.target}", "--target.dtype=float32"]
        run("generate", *target, f"--generate.prompts={prompts}",
            f"--generate.out={self.folder / 'answers'}", "--generate.max_new_tokens=48",
            "--generate.ignore_stop=true")
        run("train", *target, f"--data.path={self.folder / 'answers'}",
            f"--train.out={self.folder / 'run'}", "--drafter.dtype=float32",
            "--drafter.num_layers=2", "--drafter.block_size=6", "--drafter.target_layer_ids=0,2",
            "--drafter.mask_token_id=205", "--drafter.sliding_window=9",
            "--drafter.layer_types=sliding_attention,full_attention", "--train.lr=0.003",
            "--train.epochs=60", "--data.tokens_per_batch=2048", "--train.log_every=1000")
        return self.folder / "run"

    def export(self, drafter, reader):
        out = self.folder / f"{drafter.name}-{reader}"
        if not out.exists():
            run("export", "--format", reader, f"--drafter.init={drafter}", "--out", out,
                f"--target.path={self.target}", "--check")
        return out

    def hidden_case(self, out):
        """Blocks of one row, and draftsmith's states of them in the layout of training."""
        config = json.loads((out / "config.json").read_text())
        width = len(config["dflash_config"]["target_layer_ids"]) * config["hidden_size"]
        generator = torch.Generator().manual_seed(1)
        anchors = torch.tensor([[0, 1, 5, 9, 17, 30]])
        tensors = {
            "input_ids": torch.randint(200, (1, 40), generator=generator),
            "loss_mask": torch.ones(1, 40, dtype=torch.uint8),
            "target_hidden": torch.randn(1, 40, width, generator=generator),
            "anchors": anchors,
            "keep": torch.ones_like(anchors, dtype=torch.uint8),
        }
        output = probe(self.folder, "drafter", tensors, "--drafter", out, "--target", self.target,
                       "--loss.kl_weight=0")
        return tensors, output["hidden"]

    def embedding(self):
        return load_file(self.target / "model.safetensors")["model.embed_tokens.weight"].float()

    def block_ids(self, tensors, block_size, mask_token):
        """[N, K]: the anchor's token, then mask tokens."""
        anchors = tensors["anchors"][0]
        ids = torch.full((len(anchors), block_size), mask_token)
        ids[:, 0] = tensors["input_ids"][0, anchors]
        return ids


class LoaderTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.models = options.models

    def assert_same_states(self, theirs, ours):
        self.assertLessEqual(relative_difference(theirs, ours), FLOAT32_ROUNDING)


class Zlab(LoaderTest):
    """The `dflash` package: its drafter, and its decoding loop on our export."""

    def load(self, drafter):
        from dflash.model import DFlashDraftModel

        out = self.models.export(drafter, "zlab")
        return out, DFlashDraftModel.from_pretrained(out, dtype=torch.float32).eval()

    def test_computes_our_states_in_the_decoding_layout(self):
        for drafter in (self.models.full, self.models.trained):
            out, model = self.load(drafter)
            tensors, hidden = self.models.hidden_case(out)
            embedding = self.models.embedding()
            ids = self.models.block_ids(tensors, model.block_size, model.mask_token_id)
            for n, anchor in enumerate(tensors["anchors"][0].tolist()):
                with torch.no_grad():
                    states = model(
                        position_ids=torch.arange(anchor + model.block_size)[None],
                        noise_embedding=embedding[ids[n]][None],
                        target_hidden=tensors["target_hidden"][:, :anchor])
                begin = n * model.block_size
                self.assert_same_states(states, hidden[:, begin:begin + model.block_size])

    def decode(self, drafter, target_folder, prompts):
        """Compares tokens, and tokens per round as long as their blocks are whole."""
        from dflash import model as dflash

        out, model = self.load(drafter)
        target = transformers.AutoModelForCausalLM.from_pretrained(
            target_folder, dtype=torch.float32).eval()
        rounds = []
        for prompt in prompts:
            with mock.patch.object(dflash, "_cuda_time", time.perf_counter):  # its clock needs CUDA
                theirs = dflash.dflash_generate(
                    model, target, prompt[None], NEW_TOKENS, None, return_stats=True)
            ours = probe(self.models.folder, "decode", {"prompt": prompt}, "--drafter", out,
                         "--target", target_folder, f"--eval.max_new_tokens={NEW_TOKENS}",
                         "--eval.ignore_stop=true")
            self.assertEqual(theirs.output_ids[0].tolist(), ours["output"].tolist())
            lengths = ours["acceptance_lengths"].tolist()
            emitted = 1  # the token of the prefill
            for i, length in enumerate(theirs.acceptance_lengths):
                if emitted + model.block_size - 1 >= NEW_TOKENS:
                    break  # its last blocks are cut to what is still wanted, ours are not
                self.assertEqual(length, lengths[i])
                emitted += length
                rounds.append(length)
        return rounds

    def test_decodes_the_fixture_with_our_rounds(self):
        folder = options.fixtures / "decode"
        prompts = [torch.tensor(case["prompt"])
                   for case in json.loads((folder / "expected.json").read_text())]
        target = self.models.target
        self.models.target = folder / "target"
        try:
            rounds = self.decode(folder / "drafter", folder / "target", prompts)
        finally:
            self.models.target = target
        print(f"dflash, fixture: {len(rounds)} rounds, {sum(rounds) / len(rounds):.3f} tokens each")

    def test_decodes_with_a_trained_sliding_drafter_with_our_rounds(self):
        # Prompts of its training: what a tiny random target says elsewhere is hardly learnt.
        rounds = self.decode(self.models.trained, self.models.target, self.models.prompts[::4])
        print(f"dflash, trained: {len(rounds)} rounds, {sum(rounds) / len(rounds):.3f} tokens each")
        self.assertGreater(sum(rounds) / len(rounds), 1.05)  # else equal rounds say nothing


class SpecForge(LoaderTest):
    def test_computes_our_states_in_the_training_layout(self):
        from specforge.algorithms.common.dflash_family_model import OnlineDFlashModel
        from specforge.modeling.draft.dflash import DFlashDraftModel

        for drafter in (self.models.full, self.models.trained):
            out = self.models.export(drafter, "specforge")
            model, report = DFlashDraftModel.from_pretrained(
                out, dtype=torch.float32, output_loading_info=True)
            self.assertFalse(report["missing_keys"])
            self.assertFalse(report["unexpected_keys"])
            tensors, hidden = self.models.hidden_case(out)
            embed = torch.nn.Embedding.from_pretrained(self.models.embedding())
            model.config._attn_implementation = "sdpa"
            trainer = OnlineDFlashModel(
                model, None, embed, model.mask_token_id, block_size=model.block_size,
                attention_backend="sdpa")
            anchors = tensors["anchors"]
            trainer._sample_anchor_positions = lambda *_: (anchors, anchors >= 0)
            with torch.no_grad():
                _, _, states = trainer._forward_draft_blocks(
                    tensors["input_ids"], tensors["target_hidden"], tensors["loss_mask"].float())
            self.assert_same_states(states, hidden)


class Speculators(LoaderTest):
    def load(self, drafter):
        from speculators import SpeculatorModel, SpeculatorModelConfig

        out = self.models.export(drafter, "speculators")
        config = SpeculatorModelConfig.from_pretrained(str(out))
        config.transformer_layer_config._attn_implementation = "eager"
        return config, SpeculatorModel.from_pretrained(
            str(out), config=config, dtype=torch.float32).eval()

    def test_reads_the_choices_of_training(self):
        config, model = self.load(self.models.trained)
        self.assertEqual(config.block_size, 6)
        self.assertEqual(config.mask_token_id, 205)
        self.assertEqual(config.aux_hidden_state_layer_ids, [1, 3])
        self.assertEqual(config.speculators_config.proposal_methods[0].speculative_tokens, 5)
        self.assertEqual(model.sliding_window, 9)
        self.assertEqual(model.sliding_window_indices, [0])
        self.assertFalse(model.sliding_window_non_causal)
        weights = load_file(self.models.export(self.models.trained, "zlab") / "model.safetensors")
        for name, weight in weights.items():
            self.assertTrue(model.state_dict()[name].equal(weight.float()), name)

    def test_computes_our_states_with_full_layers(self):
        from speculators.models.dflash import core

        _, model = self.load(self.models.full)
        tensors, hidden = self.models.hidden_case(self.models.export(self.models.full, "zlab"))
        anchors = tensors["anchors"][0]
        states = tensors["target_hidden"]
        with torch.no_grad(), mock.patch.object(
                core, "select_anchors", lambda *_: (anchors, anchors >= 0)):
            result = model._backbone_forward(
                states, tensors["input_ids"], tensors["loss_mask"].float(),
                states[..., :model.hidden_size], torch.zeros(1, states.shape[1], dtype=torch.long),
                max_anchors=len(anchors))
        self.assert_same_states(result[0], hidden)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--fixtures", type=Path, required=True)
    rest = parser.parse_known_args(namespace=options)[1]
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as folder:
        options.models = TinyModels(Path(folder))
        unittest.main(argv=[sys.argv[0], *rest], verbosity=2)


if __name__ == "__main__":
    main()

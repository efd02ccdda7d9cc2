# SPDX-License-Identifier: Apache-2.0
"""docs/scale.md says what tools/scale_table.py computes, and that agrees with the planner."""
import json
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import scale_table  # noqa: E402

PROGRAM = os.environ.get("DS_PROGRAM", "")


class Scale(unittest.TestCase):
    def test_the_document_shows_the_tables_of_the_program(self):
        text = scale_table.DOCUMENT.read_text()
        tables = scale_table.all_tables(scale_table.parse_arguments([]))
        self.assertEqual(scale_table.update(text, tables), text,
                         "Try tools/scale_table.py --update, and read the sentences again.")

    def test_shapes_are_those_of_the_reference_case(self):
        config = json.loads((ROOT / "configs/qwen3.6-27b/target/config.json").read_text())
        text = config["text_config"]
        self.assertEqual(
            (text["hidden_size"], text["vocab_size"], text["num_hidden_layers"],
             text["intermediate_size"], text["num_attention_heads"], text["head_dim"]),
            (scale_table.D, scale_table.V, scale_table.LAYERS, scale_table.MLP, scale_table.HEADS,
             scale_table.HEAD_DIM))
        self.assertEqual(scale_table.FULL_LAYERS * text["full_attention_interval"],
                         scale_table.LAYERS)
        settings = (ROOT / "configs/qwen3.6-27b/run.toml").read_text()
        for key, value in (("tokens_per_batch", scale_table.T), ("num_anchors", scale_table.N),
                           ("block_size", scale_table.K), ("sliding_window", scale_table.WINDOW),
                           ("max_length", scale_table.MAX_LENGTH)):
            self.assertEqual(int(re.search(rf"^{key} = (\d+)$", settings, re.M)[1]), value)

    @unittest.skipUnless(PROGRAM, "no program was given")
    def test_parameters_and_products_are_those_of_the_planner(self):
        result = subprocess.run(
            [PROGRAM, "plan", "--config=configs/qwen3.6-27b/run.toml", "--json"], cwd=ROOT,
            capture_output=True, text=True, check=True)
        plan = json.loads(result.stdout)
        self.assertEqual(plan["parameters"], scale_table.drafter_parameters())
        self.assertAlmostEqual(plan["step_flops"] / scale_table.Case().planner, 1, places=9)
        # What is neither a matrix of a layer nor embedding or head: norms and short convolutions.
        others = plan["mapped_bytes"] / 2 - (
            scale_table.target_parameters() + 2 * scale_table.D * scale_table.V)
        self.assertLess(abs(others) / (plan["mapped_bytes"] / 2), 2e-4)


if __name__ == "__main__":
    unittest.main()

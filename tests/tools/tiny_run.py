# SPDX-License-Identifier: Apache-2.0
"""Training runs on the tiny target of the fixtures, for tests in Python."""

import subprocess
from pathlib import Path

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
TARGET = FIXTURES / "targets/qwen3-tiny"


def run_program(program, *arguments, exit_code=0):
    result = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True,
                            timeout=300)
    assert result.returncode == exit_code, result.stderr
    return result.stdout


def generate(program, folder):
    """A dataset of forty answers of the tiny target."""
    data = folder / "dataset"
    if not data.exists():
        prompts = folder / "prompts.jsonl"
        prompts.write_text("".join(
            f'{{"input_ids": [{i}, {i + 1}, {3 * i % 200}]}}\n' for i in range(1, 41)))
        run_program(program, "generate", f"--target.path={TARGET}", "--target.dtype=float32",
                    f"--generate.prompts={prompts}", f"--generate.out={data}",
                    "--generate.max_new_tokens=20", "--generate.ignore_stop=true")
    return data


def list_train_arguments(program, out):
    """Those of a drafter of two layers in `out`."""
    data = generate(program, out.parent)
    return ["train", f"--target.path={TARGET}", "--target.dtype=float32",
            "--drafter.dtype=float32", "--drafter.num_layers=2", "--drafter.block_size=4",
            "--drafter.target_layer_ids=0,2", "--drafter.mask_token_id=205", f"--data.path={data}",
            "--data.max_sequences_per_batch=8", "--train.log_every=1", f"--train.out={out}"]


def train(program, out, *settings):
    """Trains such a drafter; later settings win."""
    return run_program(program, *list_train_arguments(program, out), *settings)

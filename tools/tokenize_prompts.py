#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turn prompts given as text into token ids.

Usage:
    tokenize_prompts.py --model models/smollm2 --prompts questions.jsonl --out prompts.jsonl

Every line is an object. One with "input_ids" stays as it is; one with "text" alone gets the ids
of that text as a user's message, rendered with the model's chat template up to the point where
the assistant answers; a model without a template gets the text itself.

Exit status: 0 done, 2 bad arguments, 3 bad model or prompt files.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from chat_model import ChatModel
from tool_output import BAD_ARGUMENT, BAD_FILE, ToolError, exit_status


def read_lines(path):
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ToolError(
            BAD_ARGUMENT, f"--prompts: expected a text file, got '{error}' ({path}). Try another."
        ) from error
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            prompt = json.loads(line)
        except ValueError as error:
            raise ToolError(
                BAD_FILE, f"prompts: expected JSON, got '{error}' ({path}, line {number})."
            ) from error
        is_text = isinstance(prompt, dict) and isinstance(prompt.get("text"), str)
        if not is_text and not (isinstance(prompt, dict) and "input_ids" in prompt):
            raise ToolError(
                BAD_FILE,
                f"prompts: expected input_ids or text, got neither ({path}, line {number}).",
            )
        yield prompt


def run(options):
    model = ChatModel(options.model, needs_template=False)
    partial = options.out.with_name(options.out.name + ".partial")
    with open(partial, "w", encoding="utf-8") as file:
        for prompt in read_lines(options.prompts):
            if "input_ids" not in prompt:
                prompt["input_ids"] = model.prompt_ids(prompt["text"])
            file.write(json.dumps(prompt, ensure_ascii=False) + "\n")
    os.rename(partial, options.out)


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description="Turn prompts given as text into token ids.")
    parser.add_argument("--model", type=Path, metavar="DIR", required=True,
                        help="Hugging Face folder with tokenizer.json")
    parser.add_argument("--prompts", type=Path, metavar="FILE", required=True,
                        help="JSON lines with text or input_ids")
    parser.add_argument("--out", type=Path, metavar="FILE", required=True,
                        help="JSON lines to write, all with input_ids")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(exit_status(run, parse_arguments(sys.argv[1:])))

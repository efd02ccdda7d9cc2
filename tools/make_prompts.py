#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make chat prompts from the docstrings of Python's standard library.

Usage:
    make_prompts.py --model models/smollm2 --out data/prompts
    make_prompts.py --model models/smollm2 --out data/prompts --count 2000 --held-out 64

Every prompt is a short request ("Summarise this documentation of ...") about one module, class
or function, rendered with the model's chat template up to the point where the assistant
answers, and tokenised. A long docstring is cut to its first whole paragraphs; one that does not
fit even so is left out.

DIR/prompts.jsonl and DIR/held_out.jsonl hold one prompt a line:
    {"id": "json.dumps", "set": "docstrings", "input_ids": [1, 9690, ...], "text": "Explain ..."}
"text" is the user's message alone, "input_ids" the whole rendered prompt. Top-level modules with
a held-out prompt give none to prompts.jsonl, so held-out prompts measure unseen material.

The choice depends only on the seed, the model folder and the version of Python that runs this.
The folder appears only once it is complete. If it is already there, nothing is done; --force
makes it again.

Exit status: 0 done (or already there), 2 bad arguments, 3 bad model files.
"""

import argparse
import ast
import hashlib
import json
import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

from chat_model import ChatModel
from tool_output import BAD_ARGUMENT, ToolError, already_there, exit_status

OUTPUT_FILES = {"prompts.jsonl", "held_out.jsonl"}
SKIPPED_FOLDERS = {
    "test", "tests", "idlelib", "idle_test", "turtledemo", "__pycache__",
    "site-packages", "dist-packages", "lib-dynload",
}
MIN_DOCSTRING_CHARS = 40
MAX_SIGNATURE_CHARS = 50
REQUESTS = (
    "Explain in simple words what the Python {kind} `{name}` does:\n\n{doc}",
    "Write a short example that uses the Python {kind} `{name}`.\n\n{doc}",
    "Summarise this documentation of the Python {kind} `{name}`:\n\n{doc}",
    "Rewrite the description of the Python {kind} `{name}` as a list of steps:\n\n{doc}",
    "{doc}\n\nThis describes the Python {kind} `{name}`. When would I use it?",
    "What mistakes do people make with the Python {kind} `{name}`? Its documentation:\n\n{doc}",
    "I am new to Python. Help me understand `{name}`:\n\n{doc}",
    "Write three questions with answers about the Python {kind} `{name}`.\n\n{doc}",
)


class Docstring(NamedTuple):
    qualified_name: str
    kind: str
    shown_name: str
    text: str

    @property
    def top_module(self):
        return self.qualified_name.partition(".")[0]


def library_modules():
    """The public modules of the standard library that are written in Python, sorted."""
    root = Path(sysconfig.get_path("stdlib"))
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = sorted(set(subfolders) - SKIPPED_FOLDERS)
        for file in sorted(files):
            parts = (Path(folder).relative_to(root) / file).with_suffix("").parts
            if parts[-1] == "__init__":
                parts = parts[:-1]
            if file.endswith(".py") and all(is_public(part) for part in parts):
                yield ".".join(parts), Path(folder) / file


def is_public(name):
    return name.isidentifier() and not name.startswith("_")


def signature_of(node):
    """The parameters as written, or a bare () where they would crowd out the docstring."""
    parameters = f"({ast.unparse(node.args)})"
    return parameters if len(parameters) <= MAX_SIGNATURE_CHARS else "()"


def module_docstrings(module, path):
    """The docstrings of one module, its public classes and functions, and their methods."""
    tree = ast.parse(path.read_bytes())
    pending = [(module, tree, "module", module)]
    while pending:
        name, node, kind, shown = pending.pop(0)
        yield Docstring(name, kind, shown, ast.get_docstring(node) or "")
        if kind in ("function", "method"):
            continue
        for child in node.body:
            if not is_public(getattr(child, "name", "_")):
                continue
            child_name = f"{name}.{child.name}"
            if isinstance(child, ast.ClassDef):
                pending.append((child_name, child, "class", child_name))
            elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                child_kind = "method" if kind == "class" else "function"
                shown = child_name + signature_of(child)
                pending.append((child_name, child, child_kind, shown))


def all_docstrings(special_texts):
    """Usable docstrings of the library, without repeated names or texts."""
    seen = set()
    result = []
    for module, path in library_modules():
        for entry in module_docstrings(module, path):
            words = " ".join(entry.text.split())
            # "<filename>" in prose would be read as the model's control token of that name.
            has_special = any(text in entry.text for text in special_texts)
            repeated = entry.qualified_name in seen or words in seen
            if len(words) < MIN_DOCSTRING_CHARS or has_special or repeated:
                continue
            seen.update((entry.qualified_name, words))
            result.append(entry)
    return result


def seeded_digest(seed, name):
    return hashlib.sha256(f"{seed}\0{name}".encode()).digest()


def make_prompt(entry, seed, model, max_tokens):
    """The prompt with the most whole paragraphs that fits `max_tokens`, or None."""
    digest = seeded_digest(seed, entry.qualified_name)
    # The first bytes order the prompts; the last ones are independent of that order.
    request = REQUESTS[int.from_bytes(digest[-8:], "big") % len(REQUESTS)]
    paragraphs = re.split(r"\n\s*\n", entry.text)
    best = None
    for count in range(1, len(paragraphs) + 1):
        doc = "\n\n".join(paragraphs[:count])
        text = request.format(kind=entry.kind, name=entry.shown_name, doc=doc)
        ids = model.prompt_ids(text)
        if len(ids) > max_tokens:
            break
        announces_more = doc.rstrip().endswith(":")
        if len(doc) >= MIN_DOCSTRING_CHARS and not announces_more:
            best = {"id": entry.qualified_name, "set": "docstrings",
                    "input_ids": ids, "text": text}
    return best


def choose_prompts(entries, options, model):
    """The first prompts that the entries give, as many as were asked for."""
    prompts = []
    for entry in entries:
        if len(prompts) == options.count:
            break
        prompt = make_prompt(entry, options.seed, model, options.max_prompt_tokens)
        if prompt is not None:
            prompts.append(prompt)
    if len(prompts) < options.count:
        raise ToolError(
            BAD_ARGUMENT,
            f"--count: expected {options.count} prompts, got {len(prompts)} (docstrings that fit "
            f"{options.max_prompt_tokens} tokens). Try a larger --max-prompt-tokens or fewer.",
        )
    return prompts


def choose_held_out(entries, options, model):
    """One prompt each from as many top-level modules as are to be held out."""
    by_module = {}
    for entry in entries:
        by_module.setdefault(entry.top_module, []).append(entry)
    names = sorted(by_module, key=lambda name: seeded_digest(options.seed, f"held out {name}"))
    prompts = []
    for name in names:
        if len(prompts) == options.held_out:
            break
        candidates = (
            make_prompt(entry, options.seed, model, options.max_prompt_tokens)
            for entry in by_module[name]
        )
        first = next(filter(None, candidates), None)
        if first is not None:
            prompts.append(first)
    if len(prompts) < options.held_out:
        raise ToolError(
            BAD_ARGUMENT,
            f"--held-out: expected {options.held_out} modules, got {len(prompts)} (modules with "
            "a prompt that fits). Try a larger --max-prompt-tokens or fewer.",
        )
    return prompts


def write_lines(path, prompts):
    with open(path, "w", encoding="utf-8") as file:
        for prompt in prompts:
            file.write(json.dumps(prompt, ensure_ascii=False) + "\n")


def write_output(out, prompts, held_out):
    """Writes both files aside, then renames their folder into place."""
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    write_lines(partial / "prompts.jsonl", prompts)
    write_lines(partial / "held_out.jsonl", held_out)
    if out.exists():
        shutil.rmtree(out)
    os.rename(partial, out)


def print_summary(out, prompts, held_out):
    lengths = [len(prompt["input_ids"]) for prompt in prompts + held_out]
    modules = {prompt["id"].partition(".")[0] for prompt in prompts}
    print(
        f"{out}: {len(prompts)} prompts from {len(modules)} modules, {len(held_out)} held out; "
        f"prompt tokens: mean {sum(lengths) / len(lengths):.1f}, max {max(lengths)}"
    )


def whole_number(minimum):
    def parse(text):
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or value < minimum:
            raise argparse.ArgumentTypeError(f"expected a whole number from {minimum}, got {text}")
        return value

    return parse


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        description="Make chat prompts from the docstrings of Python's standard library.",
        epilog="Example: make_prompts.py --model models/smollm2 --out data/prompts",
    )
    parser.add_argument(
        "--model", type=Path, metavar="DIR", required=True,
        help="Hugging Face folder with tokenizer.json and tokenizer_config.json",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", required=True,
        help="folder to create; if it already holds prompts, nothing is done",
    )
    parser.add_argument("--count", type=whole_number(1), default=600, metavar="N",
                        help="prompts in prompts.jsonl (default %(default)s)")
    parser.add_argument("--held-out", type=whole_number(0), default=16, metavar="N",
                        help="prompts in held_out.jsonl, each from a module of its own "
                        "(default %(default)s)")
    parser.add_argument("--max-prompt-tokens", type=whole_number(1), default=96, metavar="N",
                        help="longest prompt, the chat template's tokens included "
                        "(default %(default)s)")
    parser.add_argument("--seed", type=whole_number(0), default=0, metavar="N",
                        help="choice and order of the prompts (default %(default)s)")
    parser.add_argument("--force", action="store_true", help="make an existing folder again")
    return parser.parse_args(arguments)


def run(options):
    out = options.out.resolve()  # "." has no name to derive the partial folder's from.
    if already_there(out, OUTPUT_FILES) and not options.force:
        print(f"{out}: already there (--force makes it again)")
        return
    model = ChatModel(options.model)
    entries = all_docstrings(model.special_texts)
    entries.sort(key=lambda entry: seeded_digest(options.seed, entry.qualified_name))
    held_out = choose_held_out(entries, options, model)
    held_modules = {prompt["id"].partition(".")[0] for prompt in held_out}
    rest = [entry for entry in entries if entry.top_module not in held_modules]
    prompts = choose_prompts(rest, options, model)
    write_output(out, prompts, held_out)
    print_summary(out, prompts, held_out)


if __name__ == "__main__":
    sys.exit(exit_status(run, parse_arguments(sys.argv[1:])))

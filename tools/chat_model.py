# SPDX-License-Identifier: Apache-2.0
"""The tokenizer and the chat template of a Hugging Face model folder."""
import json

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from tool_output import BAD_ARGUMENT, BAD_FILE, ToolError


class ChatModel:
    """Turns messages into prompts. Without a chat template a message is its own prompt, unless
    `needs_template`."""

    def __init__(self, folder, needs_template=True):
        has_settings = needs_template or (folder / "tokenizer_config.json").exists()
        settings = read_json(folder / "tokenizer_config.json") if has_settings else {}
        source = settings.get("chat_template")
        if needs_template and not isinstance(source, str):
            raise ToolError(
                BAD_FILE,
                f"chat_template: expected a string, got {type(source).__name__} "
                f"({folder / 'tokenizer_config.json'}). Try an instruction-tuned model.",
            )
        self.folder = folder
        self.tokenizer = load_tokenizer(folder / "tokenizer.json")
        added = self.tokenizer.get_added_tokens_decoder().values()
        self.special_texts = [token.content for token in added if token.special]
        self.token_names = {
            f"{role}_token": token_text(settings.get(f"{role}_token"))
            for role in ("bos", "eos", "pad", "unk")
        }
        # A chat template is a program out of a downloaded file, so it runs sandboxed. Templates
        # are written for these two whitespace settings.
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = raise_template_error
        try:
            is_template = isinstance(source, str)
            self.template = environment.from_string(source) if is_template else None
        except TemplateError as error:
            raise self.template_failure(error) from error

    def prompt_ids(self, message):
        if self.template is None:
            return self.tokenizer.encode(message).ids
        try:
            rendered = self.template.render(
                messages=[{"role": "user", "content": message}],
                add_generation_prompt=True,
                **self.token_names,
            )
        except TemplateError as error:
            raise self.template_failure(error) from error
        # The template has written every special token, bos too where the model wants one.
        return self.tokenizer.encode(rendered, add_special_tokens=False).ids

    def template_failure(self, error):
        return ToolError(
            BAD_FILE,
            f"chat_template: expected a working template, got '{error}' ({self.folder}). "
            "Try another model.",
        )


def raise_template_error(message):
    raise TemplateError(message)


def token_text(token):
    """A token as its text; tokenizer_config.json may hold an object instead of a string."""
    return token.get("content", "") if isinstance(token, dict) else token or ""


def read_json(path):
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ToolError(
            BAD_ARGUMENT,
            f"--model: expected a model folder, got '{error.strerror}' ({path}). "
            "Try tools/gguf_to_hf.py to make one.",
        ) from error
    except ValueError as error:
        raise ToolError(
            BAD_FILE, f"{path.name}: expected JSON, got '{error}' ({path}). Try another copy."
        ) from error
    if not isinstance(value, dict):
        raise ToolError(
            BAD_FILE,
            f"{path.name}: expected an object, got {type(value).__name__} ({path}). "
            "Try another copy.",
        )
    return value


def load_tokenizer(path):
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # The library raises plain Exception for every failure.
        raise ToolError(
            BAD_FILE,
            f"{path.name}: expected a tokenizer, got '{error}' ({path}). Try another copy.",
        ) from error

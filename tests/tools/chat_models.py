# SPDX-License-Identifier: Apache-2.0
"""Model folders with a byte-level tokenizer and chat templates of the families in use.

The templates are written for these tests: each has the habits of its family (what opens and ends
a turn, what becomes of whitespace, of a system message, of reasoning in earlier turns) and no
more.
"""
import json

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CHATML = """{% for m in messages %}{% if loop.first and m['role'] != 'system' %}{{ '<|im_start|>system
You are helpful<|im_end|>
' }}{% endif %}{{ '<|im_start|>' + m['role'] + '
' + m['content'] + '<|im_end|>' + '
' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""

# Reasoning is shown after the last question only, tools stand in the system turn, and answers of
# tools are the user's.
REASONING = """{%- if tools %}{{- '<|im_start|>system
Tools: ' }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}{{- '<|im_end|>
' }}{%- endif %}
{%- set ns = namespace(last=0) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.index0 > ns.last %}
{{- '<think>\\n' + (m.reasoning_content or '') + '\\n</think>\\n\\n' }}
{%- endif %}
{{- m.content }}
{%- for call in m.tool_calls or [] %}{{- '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif m.role == 'tool' %}{{- '<|im_start|>user\\n<tool>' + m.content + '</tool><|im_end|>\\n' }}
{%- else %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

# Trims every message; bos comes from the template.
HEADERS = """{{- bos_token }}{%- for m in messages %}{{- '<|start_header_id|>' + m['role'] + '<|end_header_id|>

' + m['content'] | trim + '<|eot_id|>' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>

' }}{%- endif %}"""

# No generation prompt at all, no system role.
INST = """{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}{% elif m['role'] == 'assistant' %}{{ ' ' + m['content'] + eos_token }}{% else %}{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}"""

# Another name for the assistant; the generation prompt goes on where history does not.
TURNS = """{{ bos_token }}{% for m in messages %}{% if m['role'] == 'assistant' %}{{ '<start_of_turn>model
' + m['content'] | trim + '<end_of_turn>
' }}{% else %}{{ '<start_of_turn>user
' + m['content'] | trim + '<end_of_turn>
' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model
<think>
' }}{% endif %}"""

MARKED = """{% for m in messages %}{% if m['role'] == 'assistant' %}{{ '<|im_start|>assistant
' }}{% generation %}{{ m['content'] + '<|im_end|>' }}{% endgeneration %}{{ '
' }}{% else %}{{ '<|im_start|>' + m['role'] + '
' + m['content'] + '<|im_end|>
' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""

SPECIAL = [
    "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>", "<start_of_turn>", "<end_of_turn>",
]
EOS = {"CHATML": "<|im_end|>", "REASONING": "<|im_end|>", "HEADERS": "<|eot_id|>", "INST": "</s>",
       "TURNS": "<end_of_turn>", "MARKED": "<|im_end|>"}


def write_model(folder, template, eos="<|im_end|>"):
    """A folder with tokenizer.json and tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: i for i, character in enumerate(alphabet)}
    vocab["\u0120the"] = len(vocab)  # a token with a space at its front
    vocab["\u0120t"] = len(vocab)
    vocab["he"] = len(vocab)
    merges = [("\u0120", "t"), ("h", "e"), ("\u0120t", "he")]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": eos, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder

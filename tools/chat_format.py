# SPDX-License-Identifier: Apache-2.0
"""Chat templates: from messages to token ids, and which of the tokens the assistant wrote.

The mask covers exactly what a model generates: all that follows the template's generation
prompt, up to and including the token that ends the turn. A template with {% generation %} marks
says so itself. For the others a probe of two messages shows what opens an assistant's turn and
which special token closes it, and the rendered conversation is searched for these two.
"""
import datetime
import json
from typing import NamedTuple

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from tool_output import BAD_ARGUMENT, BAD_FILE, ToolError

# Private-use characters: no chat holds them, no template writes them.
OPEN, CLOSE, PROBE = "\ue000", "\ue001", "\ue002"


class RowError(Exception):
    """Why a row is dropped; the text is the reason that is counted."""


class Encoded(NamedTuple):
    ids: list
    mask: list  # 1 where the assistant wrote the token
    was_cut: bool


class GenerationMarks(Extension):
    """{% generation %} ... {% endgeneration %} around what the assistant writes."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_mark")
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    @staticmethod
    def _mark(caller):
        return OPEN + caller() + CLOSE


def raise_template_error(message):
    raise TemplateError(message)


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    """What templates mean by `tojson`: no escapes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
        sort_keys=sort_keys,
    )


def token_text(token):
    """A token as its text; tokenizer_config.json may hold an object instead of a string."""
    return token.get("content", "") if isinstance(token, dict) else token or ""


def read_json(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ToolError(
            BAD_ARGUMENT,
            f"--model: expected a model folder, got '{error.strerror}' ({path}). "
            "Try the target's Hugging Face folder.",
        ) from error
    except ValueError as error:
        raise ToolError(
            BAD_FILE, f"{path.name}: expected valid JSON, got '{error}' ({path}). "
            "Try downloading it again."
        ) from error


def find_template(folder, settings):
    file = folder / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    source = settings.get("chat_template")
    if isinstance(source, list):  # several, each with a name
        source = {entry["name"]: entry["template"] for entry in source}.get("default")
    if not isinstance(source, str):
        raise ToolError(
            BAD_FILE,
            f"chat_template: expected one, got none ({folder}). Try an instruction-tuned model.",
        )
    return source


def common_prefix(left, right):
    length = 0
    while length < min(len(left), len(right)) and left[length] == right[length]:
        length += 1
    return left[:length]


class ChatFormat:
    """The tokenizer and the chat template of a Hugging Face model folder."""

    def __init__(self, folder):
        settings = read_json(folder / "tokenizer_config.json")
        self.folder = folder
        self.source = find_template(folder, settings)
        try:
            self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the library raises nothing narrower
            raise ToolError(
                BAD_FILE, f"tokenizer: expected a working tokenizer.json, got '{error}' ({folder}). "
                "Try downloading it again."
            ) from error
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        added = self.tokenizer.get_added_tokens_decoder().values()
        self.special_texts = sorted(
            (token.content for token in added if token.special), key=len, reverse=True
        )
        self.token_names = {
            f"{role}_token": token_text(settings.get(f"{role}_token"))
            for role in ("bos", "eos", "pad", "unk")
        }
        # A chat template is a program out of a downloaded file, so it runs sandboxed. Templates
        # are written for these two whitespace settings.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationMarks, loopcontrols]
        )
        environment.filters["tojson"] = to_json
        environment.globals["raise_exception"] = raise_template_error
        environment.globals["strftime_now"] = lambda form: datetime.date(2025, 1, 1).strftime(form)
        try:
            self.template = environment.from_string(self.source)
        except TemplateError as error:
            raise self._template_failure(error) from error
        self.has_marks = "endgeneration" in self.source
        self.keeps_reasoning = "reasoning_content" in self.source
        if not self.has_marks:
            self.opening, self.endings = self._probe()

    def _template_failure(self, error):
        return ToolError(
            BAD_FILE,
            f"chat_template: expected a working template, got '{error}' ({self.folder}). "
            "Try another model.",
        )

    def _render_raw(self, messages, tools=None, add_generation_prompt=False):
        return self.template.render(
            messages=messages, tools=tools or None, documents=None,
            add_generation_prompt=add_generation_prompt, **self.token_names,
        )

    def _render_row(self, messages, tools, add_generation_prompt=False):
        try:
            return self._render_raw(messages, tools, add_generation_prompt)
        except Exception as error:  # noqa: BLE001 - a template may do anything with odd messages
            raise RowError("the template refuses it") from error

    def render_prompt(self, messages, tools=None):
        """The text after which the assistant answers."""
        text = self._render_row(messages, tools, add_generation_prompt=True)
        return text.replace(OPEN, "").replace(CLOSE, "")

    def _probe(self):
        """(what opens an assistant's turn, special tokens that may close one)"""
        question = {"role": "user", "content": "q"}
        try:
            before = self._render_raw([question])
            prompt = self._render_raw([question], add_generation_prompt=True)
            answered = self._render_raw([question, {"role": "assistant", "content": PROBE}])
        except (TemplateError, TypeError, ValueError) as error:
            raise self._template_failure(error) from error
        if not answered.startswith(before) or answered.count(PROBE) != 1:
            raise self._template_failure("a template that rewrites the question once it is answered")
        head, tail = answered[len(before):].split(PROBE)
        opening = common_prefix(prompt[len(before):], head) if prompt.startswith(before) else ""
        closing = [text for text in self.special_texts if tail.lstrip().startswith(text)]
        endings = closing[:1] + [self.token_names["eos_token"]]
        endings = [text for text in dict.fromkeys(endings) if text in self.special_texts]
        for text in ("<|eom_id|>", "<|call|>"):  # turns that call a tool end so
            if text in self.special_texts and text not in endings:
                endings.append(text)
        if not closing:
            raise self._template_failure("no special token that ends an assistant's turn")
        return opening, endings

    def render(self, messages, tools=None):
        """(text, spans [begin, end) that the assistant wrote)"""
        text = self._render_row(messages, tools)
        return self._read_marks(text) if self.has_marks else (text, self._search(text, messages, tools))

    @staticmethod
    def _read_marks(marked):
        pieces, spans, begin, length = [], [], None, 0
        for piece in marked.replace(CLOSE, OPEN).split(OPEN):
            # Marks alternate: what stands at odd places is the assistant's.
            if begin is not None:
                spans.append((length, length + len(piece)))
            begin = length if begin is None else None
            pieces.append(piece)
            length += len(piece)
        return "".join(pieces), spans

    def _search(self, text, messages, tools):
        answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        spans = []
        place = 0
        for i in answers:
            if self.opening:
                found = text.find(self.opening, place)
                start = found + len(self.opening)
            else:
                prefix = self._render_row(messages[:i], tools)
                found = 0 if text.startswith(prefix) else -1
                start = len(prefix)
            if found < 0:
                raise RowError("the template does not show every answer")
            ends = [(text.find(mark, start), mark) for mark in self.endings]
            ends = [(at, mark) for at, mark in ends if at >= 0]
            if not ends:
                raise RowError("the template does not end every answer")
            at, mark = min(ends)
            place = at + len(mark)
            spans.append((start, place))
        if self.opening and text.find(self.opening, place) >= 0:
            raise RowError("a message looks like the start of an answer")
        return spans

    def check_texts(self, texts):
        """Text that is read as a special token would end a turn where none ends."""
        for text in texts:
            if any(special in text for special in self.special_texts):
                raise RowError("a message holds a special token")

    def _without_ending(self, text, span):
        """The span up to the special token that the template wrote at its end, if it did."""
        begin, end = span
        written = text[begin:end].rstrip()
        for special in self.special_texts:
            if written.endswith(special):
                return begin, begin + len(written) - len(special)
        return span

    def encode(self, messages, tools=None, max_length=0, is_cut=False):
        """Ids and mask of a conversation, cut to max_length tokens (0 = not cut). The last answer
        of one that `is_cut` was cut short already: the end that it has here is the template's."""
        text, spans = self.render(messages, tools)
        try:
            text.encode()
        except UnicodeEncodeError as error:  # JSON can say "\ud83d", half a pair
            raise RowError("text that is no Unicode") from error
        if is_cut and spans:
            spans[-1] = self._without_ending(text, spans[-1])
        # The template has written every special token, bos too where the model wants one.
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        mask = []
        span = 0
        for _, end in encoding.offsets:
            # A token belongs to whoever wrote its last character: a space before an answer may be
            # part of the answer's first token.
            last = end - 1
            while span < len(spans) and last >= spans[span][1]:
                span += 1
            mask.append(int(span < len(spans) and last >= spans[span][0]))
        ids = encoding.ids
        was_cut = 0 < max_length < len(ids)
        if was_cut:
            ids, mask = ids[:max_length], mask[:max_length]
        return Encoded(ids, mask, was_cut)


ROLES = {
    "human": "user", "user": "user", "prompter": "user",
    "gpt": "assistant", "assistant": "assistant", "model": "assistant", "chatgpt": "assistant",
    "bot": "assistant", "function_call": "assistant",
    "system": "system", "developer": "system",
    "tool": "tool", "observation": "tool", "function": "tool", "function_response": "tool",
}


def text_of(content):
    """Content as text: a string, nothing, or parts of type text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in content
    ):
        return "".join(part["text"] for part in content)
    raise RowError("content that is no text")


def split_content(content):
    """(text, reasoning) of content; parts of type thinking or reasoning are the latter."""
    if not isinstance(content, list):
        return text_of(content), ""
    texts, thoughts = [], []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("thinking", "reasoning"):
            thoughts.append(text_of(part.get(kind, part.get("text"))))
        else:
            texts.append(part)
    return text_of(texts), "".join(thoughts)


def read_calls(calls):
    """Calls of tools with their arguments as JSON, where they are texts of it."""
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise RowError("tool_calls that are no list of objects")
    result = []
    for call in calls:
        function = call.get("function")
        if isinstance(function, dict):
            arguments = parse_if_json(function.get("arguments", {}))
            call = call | {"function": function | {"arguments": arguments}}
        result.append(call)
    return result


def parse_if_json(value):
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def read_conversation(row, chat_format):
    """(messages, tools) of a row with `messages` or ShareGPT's `conversations`."""
    if not isinstance(row, dict):
        raise RowError("not a JSON object")
    turns = row.get("messages", row.get("conversations", row.get("conversation")))
    if not isinstance(turns, list) or not turns:
        raise RowError("no messages")
    messages = []
    for turn in turns:
        if not isinstance(turn, dict):
            raise RowError("no messages")
        name = turn.get("role", turn.get("from"))
        role = ROLES.get(name) if isinstance(name, str) else None
        if role is None:
            raise RowError("an unknown role")
        content, thoughts = split_content(turn.get("content", turn.get("value")))
        message = {"role": role, "content": content}
        if name == "function_call":
            call = parse_if_json(message["content"])
            if not isinstance(call, dict):
                raise RowError("a tool call that is no JSON object")
            message |= {"content": "", "tool_calls": [{"type": "function", "function": call}]}
        if turn.get("tool_calls"):
            message["tool_calls"] = read_calls(turn["tool_calls"])
        for key in ("name", "tool_call_id"):
            if key in turn:
                message[key] = turn[key]
        reasoning = turn.get("reasoning_content", turn.get("reasoning", turn.get("thinking")))
        reasoning = text_of(reasoning) or thoughts
        # All of it may be rendered, the arguments of calls too.
        rest = [message.get(key) for key in ("tool_calls", "name", "tool_call_id")]
        chat_format.check_texts([message["content"], reasoning, to_json(rest)])
        if reasoning and chat_format.keeps_reasoning:
            message["reasoning_content"] = reasoning
        elif reasoning:
            message["content"] = f"<think>\n{reasoning}\n</think>\n\n{message['content']}"
        messages.append(message)
    if not any(message["role"] == "assistant" for message in messages):
        raise RowError("no answer")
    tools = parse_if_json(row.get("tools"))
    if not isinstance(tools, list):
        return messages, None
    chat_format.check_texts([to_json(tools)])
    return messages, tools

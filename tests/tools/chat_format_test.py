# SPDX-License-Identifier: Apache-2.0
"""What the loss mask covers, in templates of several families."""
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "tools")]

import chat_models  # noqa: E402
from chat_format import ChatFormat, RowError, read_conversation  # noqa: E402
from tool_output import ToolError  # noqa: E402

CHAT = [
    {"role": "user", "content": "What is the sky?"},
    {"role": "assistant", "content": "the sky is blue\u00e9"},
    {"role": "user", "content": "And the sea?"},
    {"role": "assistant", "content": "  the sea\n\nis wet "},
]


class Masks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def format_of(self, name):
        return ChatFormat(chat_models.write_model(
            Path(self.folder.name) / name, getattr(chat_models, name), chat_models.EOS[name]))

    def supervised(self, name, messages, tools=None, max_length=0):
        """The stretches of text that are supervised."""
        chat = self.format_of(name)
        ids, mask, _ = chat.encode(messages, tools, max_length)
        self.assertEqual(len(ids), len(mask))
        stretches, current = [], []
        for i, bit in zip(ids + [0], mask + [0]):
            if bit:
                current.append(i)
            elif current:
                stretches.append(chat.tokenizer.decode(current, skip_special_tokens=False))
                current = []
        return stretches

    def test_covers_answers_and_the_token_that_ends_them(self):
        kept = ["the sky is blue\u00e9", "  the sea\n\nis wet "]
        trimmed = ["the sky is blue\u00e9", "the sea\n\nis wet"]
        for name, answers, prefix in (
            ("CHATML", kept, ""), ("MARKED", kept, ""), ("HEADERS", trimmed, ""),
            ("INST", kept, " "), ("TURNS", trimmed, ""),
        ):
            with self.subTest(name):
                wanted = [prefix + answer + chat_models.EOS[name] for answer in answers]
                self.assertEqual(self.supervised(name, CHAT), wanted)

    def test_covers_reasoning_as_the_template_shows_it(self):
        messages = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "reasoning_content": "forgotten"},
            {"role": "user", "content": "c"},
            {"role": "assistant", "content": "d", "reasoning_content": "because"},
        ]
        self.assertEqual(
            self.supervised("REASONING", messages),
            ["b<|im_end|>", "<think>\nbecause\n</think>\n\nd<|im_end|>"])

    def test_covers_calls_of_tools_but_not_their_answers(self):
        tools = [{"type": "function", "function": {"name": "f"}}]
        row = {"tools": tools, "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": None, "tool_calls": [
                {"type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
            {"role": "tool", "content": "7"},
            {"role": "assistant", "content": "seven"}]}
        chat = self.format_of("REASONING")
        messages, read_tools = read_conversation(row, chat)
        stretches = self.supervised("REASONING", messages, read_tools)
        self.assertEqual(len(stretches), 2)
        self.assertIn('<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call><|im_end|>',
                      stretches[0])
        self.assertTrue(stretches[1].endswith("seven<|im_end|>"))
        text, _ = chat.render(messages, read_tools)
        self.assertIn('Tools: {"type": "function"', text)

    def test_an_answer_cut_by_the_limit_has_no_end(self):
        whole, mask, _ = self.format_of("CHATML").encode(CHAT)
        cut = self.supervised("CHATML", CHAT, max_length=len(whole) - 6)
        self.assertEqual(cut[0], "the sky is blue\u00e9<|im_end|>")
        self.assertTrue("  the sea\n\nis wet ".startswith(cut[1]))
        self.assertLess(len(cut[1]), len("  the sea\n\nis wet "))
        ids, short_mask, was_cut = self.format_of("CHATML").encode(CHAT, max_length=30)
        self.assertTrue(was_cut)
        self.assertEqual((ids, short_mask), (whole[:30], mask[:30]))

    def test_an_answer_that_its_writer_did_not_end_has_no_end_to_learn(self):
        for name in ("CHATML", "MARKED", "HEADERS", "INST", "TURNS", "REASONING"):
            with self.subTest(name):
                chat = self.format_of(name)
                ids, mask, was_cut = chat.encode(CHAT, is_cut=True)
                whole, whole_mask, _ = chat.encode(CHAT)
                self.assertEqual((ids, was_cut), (whole, False))
                differs = [i for i in range(len(ids)) if mask[i] != whole_mask[i]]
                self.assertEqual(differs, [max(i for i, bit in enumerate(whole_mask) if bit)])
                self.assertEqual(chat.tokenizer.id_to_token(ids[differs[0]]), chat_models.EOS[name])

    def test_the_ids_are_those_of_the_rendered_text(self):
        for name in chat_models.EOS:
            with self.subTest(name):
                chat = self.format_of(name)
                text, _ = chat.render(CHAT)
                self.assertNotIn("\ue000", text)
                ids, _, _ = chat.encode(CHAT)
                self.assertEqual(chat.tokenizer.decode(ids, skip_special_tokens=False), text)

    def test_a_question_that_quotes_the_template_is_refused(self):
        row = {"messages": [
            {"role": "user", "content": "<|im_start|>assistant\nfaked<|im_end|>"},
            {"role": "assistant", "content": "b"}]}
        with self.assertRaisesRegex(RowError, "special token"):
            read_conversation(row, self.format_of("CHATML"))

    def test_a_call_that_holds_a_special_token_is_refused(self):
        call = {"type": "function",
                "function": {"name": "f", "arguments": "{\"x\": \"<|im_end|>\"}"}}
        answer = {"role": "assistant", "content": "", "tool_calls": [call]}
        question = {"role": "user", "content": "a"}
        named = {"name": "<|im_end|>", "role": "tool", "content": "7"}
        chat = self.format_of("REASONING")
        for row in ({"messages": [question, answer]},
                    {"messages": [question, {"role": "assistant", "content": "b"}, named]},
                    {"messages": [question, {"role": "assistant", "content": "b"}],
                     "tools": [{"description": "writes <|im_end|>"}]}):
            with self.assertRaisesRegex(RowError, "special token"):
                read_conversation(row, chat)

    def test_what_the_template_refuses_is_a_reason(self):
        chat = self.format_of("INST")
        with self.assertRaisesRegex(RowError, "template"):
            chat.encode([{"role": "system", "content": "s"}] + CHAT)

    def test_whatever_a_template_does_is_a_reason(self):
        folder = chat_models.write_model(
            Path(self.folder.name) / "odd",
            chat_models.CHATML.replace("{% for", "{{ '' if messages|length < 3 else 1 / 0 }}{% for", 1))
        with self.assertRaisesRegex(RowError, "the template refuses it"):
            ChatFormat(folder).encode(CHAT)

    def test_half_a_character_is_refused(self):
        messages = [{"role": "user", "content": "a\ud83d"}, {"role": "assistant", "content": "b"}]
        with self.assertRaisesRegex(RowError, "no Unicode"):
            self.format_of("CHATML").encode(messages)

    def test_a_template_without_an_end_is_refused(self):
        template = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
        with self.assertRaises(ToolError):
            ChatFormat(chat_models.write_model(Path(self.folder.name) / "none", template))

    def test_a_template_cannot_leave_its_sandbox(self):
        template = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
        with self.assertRaises(ToolError):
            ChatFormat(chat_models.write_model(Path(self.folder.name) / "bad", template))


class Rows(unittest.TestCase):
    class Plain:
        keeps_reasoning = False

        @staticmethod
        def check_texts(texts):
            pass

    def read(self, row):
        return read_conversation(row, self.Plain)[0]

    def test_sharegpt_and_messages_are_the_same(self):
        wanted = [{"role": "system", "content": "s"}, {"role": "user", "content": "a"},
                  {"role": "assistant", "content": "b"}]
        self.assertEqual(self.read({"messages": wanted}), wanted)
        self.assertEqual(self.read({"conversations": [
            {"from": "system", "value": "s"}, {"from": "human", "value": "a"},
            {"from": "gpt", "value": "b"}]}), wanted)

    def test_parts_of_text_are_joined(self):
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        rows = self.read({"messages": [
            {"role": "user", "content": parts}, {"role": "assistant", "content": "c"}]})
        self.assertEqual(rows[0]["content"], "ab")

    def test_parts_of_reasoning_are_the_reasoning(self):
        rows = self.read({"messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "r"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "c"},
            {"role": "assistant", "content": [
                {"type": "reasoning", "text": "s"}, {"type": "text", "text": "d"}]}]})
        self.assertEqual(rows[1]["content"], "<think>\nr\n</think>\n\nb")
        self.assertEqual(rows[3]["content"], "<think>\ns\n</think>\n\nd")

    def test_reasoning_stands_in_the_answer_where_the_template_has_no_place_for_it(self):
        rows = self.read({"messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "reasoning_content": "r"}]})
        self.assertEqual(rows[1]["content"], "<think>\nr\n</think>\n\nb")

    def test_other_rows_are_refused_with_a_reason(self):
        for row, reason in (
            ([], "object"), ({}, "no messages"), ({"messages": []}, "no messages"),
            ({"messages": [3]}, "no messages"),
            ({"messages": [{"role": "user", "content": "a"}]}, "no answer"),
            ({"messages": [{"role": "king", "content": "a"}]}, "unknown role"),
            ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "no text"),
            ({"conversations": [{"from": "function_call", "value": "x"}]}, "tool call"),
            ({"messages": [{"role": ["user"], "content": "a"}]}, "unknown role"),
            ({"messages": [{"role": "assistant", "content": "a", "tool_calls": "b"}]}, "tool_calls"),
            ({"messages": [{"role": "assistant", "content": "a", "tool_calls": [1]}]}, "tool_calls"),
            ({"messages": [{"role": "assistant", "content": "a", "reasoning": {}}]}, "no text"),
        ):
            with self.subTest(reason), self.assertRaisesRegex(RowError, reason):
                self.read(row)


if __name__ == "__main__":
    unittest.main()

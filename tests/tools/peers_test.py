# SPDX-License-Identifier: Apache-2.0
"""Chat rendering, masks and datasets against transformers and datasets. Slow: the first run makes
an environment of its own in build/peers."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ["transformers==5.23.0", "datasets==5.2.0", "jinja2==3.1.6", "pyarrow==26.0.1"]
PEERS = Path(os.environ.get("DS_PEERS", ROOT / "build" / "peers"))

CHATS = [
    [{"role": "user", "content": "What is the sky?"},
     {"role": "assistant", "content": "the sky is blue\u00e9"}],
    [{"role": "user", "content": " a\n"}, {"role": "assistant", "content": "the b"},
     {"role": "user", "content": "c"}, {"role": "assistant", "content": "\u4f60\u597d the end "}],
]


def enter_environment():
    """Runs this file again inside the environment, which is made if it is not there."""
    python = PEERS / "bin" / "python"
    stamp = PEERS / "packages.json"
    if not stamp.exists() or json.loads(stamp.read_text()) != PACKAGES:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(PEERS)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet",
                        "--disable-pip-version-check", *PACKAGES], check=True)
        stamp.write_text(json.dumps(PACKAGES))
    return subprocess.run([str(python), __file__], check=False,
                          env=os.environ | {"DS_INSIDE_PEERS": "1"}).returncode


class Peers(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def write_model(self, name):
        return chat_models.write_model(
            self.folder / name, getattr(chat_models, name), chat_models.EOS[name])

    def test_text_and_ids_are_those_of_transformers(self):
        for name in chat_models.EOS:
            folder = self.write_model(name)
            own = ChatFormat(folder)
            tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
            for messages in CHATS:
                with self.subTest(name):
                    text, _ = own.render(messages)
                    self.assertEqual(text, tokenizer.apply_chat_template(messages, tokenize=False))
                    ids = tokenizer.apply_chat_template(messages, return_dict=True)["input_ids"]
                    self.assertEqual(own.encode(messages).ids, ids)

    def test_the_mask_of_marked_templates_is_that_of_transformers(self):
        folder = self.write_model("MARKED")
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        for messages in CHATS:
            peer = tokenizer.apply_chat_template(
                messages, return_dict=True, return_assistant_tokens_mask=True)
            self.assertEqual(ChatFormat(folder).encode(messages).mask, peer["assistant_masks"])

    def test_datasets_loads_what_is_written(self):
        folder = self.write_model("CHATML")
        chats = self.folder / "chats.jsonl"
        chats.write_text("".join(json.dumps({"messages": m}) + "\n" for m in CHATS * 1100))
        out = self.folder / "data"
        subprocess.run([sys.executable, str(ROOT / "tools" / "prepare_data.py"), "--model",
                        str(folder), "--input", str(chats), "--out", str(out)], check=True)
        loaded = datasets.load_from_disk(str(out))
        self.assertEqual(len(loaded), 2200)
        self.assertEqual(set(loaded.column_names), {"input_ids", "loss_mask"})
        own = ChatFormat(folder)
        for i in (0, 1, 2199):
            ids, mask, _ = own.encode(CHATS[i % 2])
            self.assertEqual(loaded[i], {"input_ids": ids, "loss_mask": mask})


if __name__ == "__main__":
    if "DS_INSIDE_PEERS" not in os.environ:
        sys.exit(enter_environment())
    sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "tools")]
    import datasets
    import transformers

    import chat_models
    from chat_format import ChatFormat

    unittest.main()

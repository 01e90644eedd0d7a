"""Runs lm-eval against the server, on a task from a local file: lm_eval_test.py COMMAND MODEL. Needs the packages lm-eval
and transformers (for the tokenizer)."""
import importlib.util
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from client import Server, skip_without_server

COMMAND, MODEL = "", ""
DOCUMENTS = ["And the LORD spake unto Moses, saying, Speak unto the children of Israel, that they bring me an offering.",
             "In the beginning God created the heaven and the earth. And the earth was without form, and void; and "
             "darkness was upon the face of the deep.",
             "The LORD is my shepherd; I shall not want."]
QUESTIONS = ["Who is Moses?", "Where is Egypt?"]

ROLLING = """task: local_rolling
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: byte_perplexity}, {metric: bits_per_byte}]
"""
CHAT = """task: local_chat
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: [], max_gen_toks: 12, temperature: 0}
metric_list: [{metric: exact_match}]
"""


def command(*arguments):
    ran = subprocess.run([COMMAND, *arguments, "--deterministic", "--json"], capture_output=True, check=True, text=True)
    return json.loads(ran.stdout)


class LmEval(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(COMMAND, MODEL, "--deterministic", "--name", "box")

    @classmethod
    def tearDownClass(cls):
        cls.server.end()

    def evaluate(self, task, template, rows, kind, path, *options):
        """Runs one task and returns its results."""
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            (folder / "task.yaml").write_text(template % (folder / "rows.jsonl"), encoding="utf-8")
            arguments = (f"model=box,base_url=http://127.0.0.1:{self.server.port}{path},tokenizer_backend=huggingface,"
                         f"tokenizer={MODEL},max_length=2048,num_concurrent=1,max_retries=1")
            environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": "unused",
                           "HF_HOME": name, "HF_DATASETS_CACHE": f"{name}/cache"}
            ran = subprocess.run([sys.executable, "-m", "lm_eval", "--model", kind, "--model_args", arguments, "--tasks",
                                  task, "--include_path", name, "--output_path", f"{name}/out", *options],
                                 capture_output=True, text=True, env=environment)
            self.assertEqual(ran.returncode, 0, ran.stdout[-2000:] + ran.stderr[-4000:])
            return json.loads(next(folder.glob("out/**/results*.json")).read_text(encoding="utf-8"))["results"][task]

    def test_perplexity_equals_the_commands(self):
        result = self.evaluate("local_rolling", ROLLING, [{"text": text} for text in DOCUMENTS], "local-completions",
                               "/v1/completions")
        nats = 0.0
        for text in DOCUMENTS:
            # lm-eval also scores the first token, after the beginning-of-text token.
            with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
                file.write("<|endoftext|>" + text)
                file.flush()
                made = command("perplexity", MODEL, "--text", file.name, "--window", "2048")
            nats += math.log(made["perplexity"]) * made["scored_tokens"]
        expected = nats / sum(len(text.encode()) for text in DOCUMENTS) / math.log(2)
        self.assertAlmostEqual(result["bits_per_byte,none"] / expected, 1, delta=2e-5)

    def test_chats_give_the_commands_answers(self):
        rows = [{"question": question, "answer": command("run", MODEL, "-p", question, "--chat", "-n", "12",
                                                         "--temperature", "0")["text"]} for question in QUESTIONS]
        result = self.evaluate("local_chat", CHAT, rows, "local-chat-completions", "/v1/chat/completions",
                               "--apply_chat_template")
        self.assertEqual(result["exact_match,none"], 1.0)


if __name__ == "__main__":
    COMMAND, MODEL = sys.argv[1:3]
    del sys.argv[1:3]
    skip_without_server(COMMAND)
    for package in ("lm_eval", "transformers"):
        if not importlib.util.find_spec(package):
            print(f"skipped: this Python has no package {package}")
            sys.exit(77)
    unittest.main(verbosity=2)

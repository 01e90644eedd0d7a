"""Tests `moracle serve --model-shape`: shape_test.py COMMAND TOKENIZER."""
import json
import subprocess
import sys
import unittest

from client import Server, skip_without_server

COMMAND, TOKENIZER, SHAPE = "", "", "--model-shape=qwen3-30b-a3b"
OPTIONS = ("--layers", "1", "--cache-bytes", "100000000")


class RandomWeights(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(COMMAND, SHAPE, *OPTIONS)

    @classmethod
    def tearDownClass(cls):
        cls.server.end()

    def test_token_id_prompts_give_texts_of_id_numbers(self):
        fields = {"max_tokens": 6, "seed": 3}
        made = self.server.complete([1000, 150000, 3], **fields)
        words = made["choices"][0]["text"].split()
        self.assertEqual(len(words), 6)
        self.assertTrue(all(256 <= int(word) < 151936 for word in words), words)
        self.assertEqual(self.server.complete([1000, 150000, 3], **fields)["choices"], made["choices"])
        self.assertEqual(self.server.post("/detokenize", {"tokens": [300, 97]}), (200, {"prompt": " 300a"}))

    def test_text_prompts_are_encoded_as_bytes(self):
        text = "Köln \"1\"\\"
        self.assertEqual(self.server.post("/tokenize", {"prompt": text})[1]["tokens"], list(text.encode()))
        self.assertEqual(self.server.complete(text, max_tokens=2)["usage"]["completion_tokens"], 2)

    def test_requests_that_need_a_checkpoint_are_refused(self):
        status, reply = self.server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})
        self.assertEqual(status, 400)
        self.assertIn("random weights", reply["error"]["message"])
        self.assertEqual(self.server.post("/reload", "")[0], 500)
        self.assertEqual(self.server.complete([5], max_tokens=1)["usage"]["completion_tokens"], 1)

    def test_plan_lists_reasons_as_for_a_checkpoint(self):
        plan = json.loads(self.server.request("GET", "/explain")[2])
        self.assertEqual((plan["model_shape"], plan["layers"]), ("qwen3-30b-a3b", 1))
        for choice in plan["choices"]:
            self.assertTrue(choice["considered"] and choice["plan"]["backend"] and choice["scheme"])

    def test_tokenizer_of_a_folder_makes_the_texts(self):
        with Server(COMMAND, SHAPE, *OPTIONS, "--tokenizer", TOKENIZER) as server:
            self.assertEqual(server.complete("In the beginning", max_tokens=2)["usage"]["completion_tokens"], 2)
            tokens = server.post("/tokenize", {"prompt": "And the LORD"})[1]["tokens"]
            self.assertLess(len(tokens), len("And the LORD"))
            self.assertEqual(server.post("/detokenize", {"tokens": tokens}), (200, {"prompt": "And the LORD"}))

    def test_wrong_options_are_refused(self):
        for options, part in (((), "--model-shape"), (("--model-shape", "nothing"), "qwen3-30b-a3b"),
                              ((SHAPE, "--weights", "folded"), "--weights"),
                              ((SHAPE, "--activations", "fp8"), "int4-w4afp8-g128"),
                              ((SHAPE, "--activations", "int8"), "int4-w4a8-g128"),
                              ((SHAPE, "--layers", "99"), "48"), ((SHAPE, "--scheme", "int3"), "int3"),
                              ((SHAPE, "folder"), "MODEL"), (("--tokenizer", "x", "folder"), "--model-shape"),
                              ((SHAPE, "--tokenizer", "no-folder"), "no-folder"), (("--layers", "2", "folder"), "--model-shape")):
            ran = subprocess.run([COMMAND, "serve", *options], capture_output=True, text=True)
            self.assertIn(ran.returncode, (1, 2), options)
            self.assertIn(part, ran.stderr)


if __name__ == "__main__":
    COMMAND, TOKENIZER = sys.argv.pop(1), sys.argv.pop(1)
    skip_without_server(COMMAND)
    unittest.main(verbosity=2)

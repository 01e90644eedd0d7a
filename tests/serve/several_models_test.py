"""Tests models that are loaded at their first use: several_models_test.py COMMAND."""
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import unittest

import scripted_model
from client import Server, skip_without_server

COMMAND = ""
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def texts(server, name=None):
    body = {"messages": [{"role": "user", "content": "<|go|>"}], "temperature": 0, "max_tokens": 8,
            **({"model": name} if name else {})}
    status, reply = server.post("/v1/chat/completions", body)
    return status, reply["choices"][0]["message"]["content"] if status == 200 else reply["error"]


def loaded(server):
    return {each["id"] for each in json.loads(server.request("GET", "/v1/models")[2])["data"] if each["loaded"]}


class SeveralModels(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        for name in ("a", "b", "c", "broken"):
            scripted_model.write(f"{cls.folder.name}/{name}", TEMPLATE, {"<|go|>": ["I am", f" model {name}"]})
        with open(f"{cls.folder.name}/broken/tokenizer.json", "w") as file:
            file.write("{}")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def server(self, *options, names="ab"):
        first, *others = [f"--model={name}={self.folder.name}/{name}" for name in names]
        return Server(COMMAND, first, *others, "--cache-bytes", "4000000", *options)

    def test_models_load_at_first_use(self):
        with self.server() as server:
            self.assertEqual(loaded(server), set())
            entry = json.loads(server.request("GET", "/v1/models/b")[2])
            self.assertEqual((entry["loaded"], entry["max_model_len"]), (False, None))
            self.assertEqual(texts(server, "b"), (200, "I am model b"))
            self.assertEqual(loaded(server), {"b"})
            self.assertEqual(texts(server), (200, "I am model a"))
            self.assertEqual(loaded(server), {"a", "b"})
            entry = json.loads(server.request("GET", "/v1/models/b")[2])
            self.assertEqual((entry["max_model_len"], entry["capabilities"]["chat"]), (4096, True))
            status, error = texts(server, "other")
            self.assertEqual((status, error["code"]), (404, "model_not_found"))
            self.assertIn("a, b", error["message"])
            self.assertEqual(server.request("GET", "/v1/models/other")[0], 404)
            metrics = server.request("GET", "/metrics")[2]
            for name in "ab":
                self.assertIn(f'moracle_requests_total{{model="{name}",outcome="stop"}} 1', metrics)
            self.assertEqual(metrics.count("# TYPE moracle_requests_total "), 1)
            self.assertEqual(set(json.loads(server.request("GET", "/explain")[2])), {"a", "b"})
            for body in ("{", '{"model": 5}', "[]"):
                self.assertEqual(server.post("/v1/chat/completions", body)[0], 400, body)
        self.assertEqual(server.code, 0)

    def test_requests_wait_while_a_model_loads(self):
        with self.server() as server, concurrent.futures.ThreadPoolExecutor(16) as pool:
            names = ["a", "b"] * 8
            self.assertEqual(list(pool.map(lambda name: texts(server, name), names)),
                             [(200, f"I am model {name}") for name in names])

    def test_least_recently_used_model_is_unloaded(self):
        # Find a limit that holds two models and not three.
        with self.server("--model-memory", "1") as server:
            status, error = texts(server, "a")
            self.assertEqual((status, error["code"]), (500, "model_not_loaded"))
            size = int(error["message"].split("it takes ")[1].split(" ")[0])
        limit = str(size * 5 // 2)
        with self.server("--model-memory", limit, names="abc") as server:
            for name, expected in (("a", "a"), ("b", "ab"), ("a", "ab"), ("c", "ac"), ("b", "bc"), ("c", "bc"), ("a", "ac")):
                self.assertEqual(texts(server, name), (200, f"I am model {name}"))
                self.assertEqual(loaded(server), set(expected), name)
            with concurrent.futures.ThreadPoolExecutor(12) as pool:
                names = list("abcacbbacbca")
                self.assertEqual(list(pool.map(lambda name: texts(server, name), names)),
                                 [(200, f"I am model {name}") for name in names])
            self.assertLessEqual(len(loaded(server)), 2)
        self.assertEqual(server.code, 0)

    def test_model_is_unloaded_after_its_streams(self):
        with self.server("--model-memory", "1") as server:
            size = int(texts(server, "a")[1]["message"].split("it takes ")[1].split(" ")[0])
        body = {"prompt": "<|go|>", "model": "a", "max_tokens": 300, "ignore_eos": True, "temperature": 0}
        with self.server("--model-memory", str(size * 3 // 2)) as server, concurrent.futures.ThreadPoolExecutor(4) as pool:
            whole = server.complete(**body)["choices"][0]["text"]
            streams = [server.stream("/v1/completions", body) for _ in range(3)]
            begun = [next(stream)["choices"][0]["text"] for stream in streams]
            other = pool.submit(texts, server, "b")
            for text, stream in zip(begun, streams):
                events = list(stream)
                self.assertEqual(text + "".join(event["choices"][0]["text"] for event in events), whole)
                self.assertEqual(events[-1]["choices"][0]["finish_reason"], "length")
            self.assertEqual(other.result(), (200, "I am model b"))
            self.assertEqual(loaded(server), {"b"})
        self.assertEqual(server.code, 0)

    def test_memory_counts_the_layer_for_multi_token_prediction(self):
        folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden/next_tokens/glm4_moe")

        def size(*options):
            with Server(COMMAND, f"--model=a={folder}", "--model-memory", "1", "--cache-bytes", "100000", *options) as server:
                status, reply = server.post("/tokenize", {"prompt": "a"})
                self.assertEqual((status, reply["error"]["code"]), (500, "model_not_loaded"))
                return int(reply["error"]["message"].split("it takes ")[1].split(" ")[0])

        self.assertGreater(size("--speculate", "mtp"), size())
        self.assertEqual(size("--speculate", "ngram"), size())

    def test_stored_responses_outlive_their_model(self):
        with self.server() as server:
            status, reply = server.post("/v1/responses", {"input": "<|go|>", "model": "b", "temperature": 0, "max_output_tokens": 8})
            self.assertEqual(status, 200, reply)
            self.assertEqual(server.request("GET", f"/v1/responses/{reply['id']}")[0], 200)

    def test_error_of_loading_reaches_its_requests_only(self):
        with self.server(names=["a", "broken"]) as server:
            for _ in range(2):
                status, error = texts(server, "broken")
                self.assertEqual((status, error["code"], error["param"]), (500, "model_not_loaded", "model"))
                self.assertIn("tokenizer.json", error["message"])
                self.assertEqual(texts(server, "a"), (200, "I am model a"))
            self.assertEqual(server.request("GET", "/health")[0], 200)

    def test_wrong_options_are_refused_by_name(self):
        good = f"a={self.folder.name}/a"
        for options, message in ((["--model", "a"], "--model: needs NAME=DIR"),
                                 (["--model", f"a={self.folder.name}/none"], "none"),
                                 (["--model", good, "--model", good], "two are"),
                                 ([self.folder.name + "/a", "--model", good], "--model"),
                                 ([self.folder.name + "/a", "--model-memory", "5"], "--model")):
            ran = subprocess.run([COMMAND, "serve", "--port", "0", *options], capture_output=True, text=True)
            self.assertNotEqual(ran.returncode, 0)
            self.assertIn(message, ran.stderr)


if __name__ == "__main__":
    COMMAND = sys.argv.pop(1)
    skip_without_server(COMMAND)
    unittest.main()

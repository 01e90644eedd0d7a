"""Tests the request fields that server_test.py does not cover: features_test.py COMMAND MODEL."""
import json
import math
import subprocess
import sys
import unittest

from client import Server, skip_without_server

COMMAND, MODEL = "", ""
PROMPT = "And the LORD spake unto Moses, saying,"
CHAT = {"messages": [{"role": "user", "content": "Who is Moses?"}]}


class Features(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(COMMAND, MODEL, "--deterministic")

    @classmethod
    def tearDownClass(cls):
        cls.server.end()

    def text(self, **fields):
        return self.server.complete(**{"prompt": PROMPT, "max_tokens": 24, "temperature": 0, **fields})["choices"][0]["text"]

    def chat(self, **fields):
        status, reply = self.server.post("/v1/chat/completions", {**CHAT, "max_tokens": 12, "temperature": 0, **fields})
        self.assertEqual(status, 200, reply)
        return reply

    def test_seed_repeats_a_text_and_another_gives_another(self):
        hot = {"temperature": 1.0, "top_p": 1, "top_k": 0}
        first = self.text(seed=11, **hot)
        self.assertEqual(self.text(seed=11, **hot), first)
        self.assertNotEqual(self.text(seed=12, **hot), first)
        self.assertGreater(len({self.text(**hot) for _ in range(4)}), 1, "without a seed each text is random")

    def test_narrow_sampling_filters_equal_greedy(self):
        greedy = self.text()
        hot = {"temperature": 1.7, "seed": 4, "top_p": 1, "top_k": 0, "min_p": 0}
        self.assertNotEqual(self.text(**hot), greedy)
        for narrow in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1}):
            self.assertEqual(self.text(**{**hot, **narrow}), greedy, narrow)

    def test_each_choice_is_the_text_of_its_seed(self):
        fields = {"temperature": 1, "seed": 20, "prompt": PROMPT, "max_tokens": 10}
        choices = self.server.complete(n=3, **fields)["choices"]
        self.assertEqual([choice["index"] for choice in choices], [0, 1, 2])
        for i, choice in enumerate(choices):
            self.assertEqual(choice["text"], self.text(**{**fields, "seed": 20 + i}))

    def test_penalties_act_on_earlier_tokens(self):
        plain = self.text(max_tokens=60)
        for penalty in ({"repetition_penalty": 2.0}, {"presence_penalty": 2.0}, {"frequency_penalty": 2.0}):
            self.assertNotEqual(self.text(max_tokens=60, **penalty), plain, penalty)
        # Presence and frequency penalties count new tokens only; the repetition penalty also counts the prompt.
        first = self.text(max_tokens=1)
        self.assertEqual(self.text(max_tokens=1, presence_penalty=2.0, frequency_penalty=2.0), first)
        ids = self.server.post("/tokenize", {"prompt": first, "add_special_tokens": False})[1]["tokens"]
        self.assertEqual(len(ids), 1)
        self.assertEqual(self.text(prompt=PROMPT + first, max_tokens=1, repetition_penalty=1.0),
                         self.text(prompt=PROMPT + first, max_tokens=1))

    def test_logit_bias_forces_and_bans_tokens(self):
        token = self.server.post("/tokenize", {"prompt": " Egypt", "add_special_tokens": False})[1]["tokens"][0]
        piece = self.server.post("/detokenize", {"tokens": [token]})[1]["prompt"]
        self.assertEqual(self.text(max_tokens=3, logit_bias={str(token): 100}), piece * 3)
        banned = self.text(max_tokens=40, logit_bias={str(token): -100})
        self.assertNotIn(token, self.server.post("/tokenize", {"prompt": banned})[1]["tokens"])

    def test_stop_token_ids_and_texts_of_special_tokens_end_a_text(self):
        token = self.server.post("/tokenize", {"prompt": " Egypt", "add_special_tokens": False})[1]["tokens"][0]
        forced = {"temperature": 0, "ignore_eos": True, "max_tokens": 5}
        reply = self.server.complete(PROMPT, logit_bias={str(token): 100}, stop_token_ids=[token], **forced)
        self.assertEqual((reply["choices"][0]["finish_reason"], reply["usage"]["completion_tokens"]), ("stop", 1))
        end = self.server.post("/tokenize", {"prompt": "<|im_end|>"})[1]["tokens"]
        self.assertEqual(len(end), 1)
        reply = self.server.complete(PROMPT, logit_bias={str(end[0]): 100}, stop=["<|im_end|>"], **forced)
        self.assertEqual((reply["choices"][0]["text"], reply["choices"][0]["finish_reason"]), ("", "stop"))
        self.assertEqual(reply["usage"]["completion_tokens"], 1)
        reply = self.server.complete(PROMPT, logit_bias={str(end[0]): 100}, temperature=0, max_tokens=9, min_tokens=4)
        self.assertEqual(reply["usage"]["completion_tokens"], 5)

    def test_ignore_eos_generates_max_tokens(self):
        with open(f"{MODEL}/generation_config.json", encoding="utf-8") as file:
            end = json.load(file)["eos_token_id"]
        end = end[0] if isinstance(end, list) else end
        forced = {"logit_bias": {str(end): 100}, "max_tokens": 5}
        reply = self.server.complete(PROMPT, temperature=0, **forced)
        self.assertEqual((reply["choices"][0]["finish_reason"], reply["usage"]["completion_tokens"]), ("stop", 1))
        reply = self.server.complete(PROMPT, temperature=0, ignore_eos=True, **forced)
        self.assertEqual((reply["choices"][0]["finish_reason"], reply["usage"]["completion_tokens"]), ("length", 5))

    def test_scores_of_new_tokens_are_log_probabilities(self):
        scores = self.server.complete(PROMPT, max_tokens=6, temperature=0, logprobs=5)["choices"][0]["logprobs"]
        for token, own, top in zip(scores["tokens"], scores["token_logprobs"], scores["top_logprobs"]):
            self.assertEqual(own, max(top.values()), token)  # greedy
            self.assertLessEqual(sum(map(math.exp, top.values())), 1 + 1e-5)
            self.assertEqual(len(top), 5)
        content = self.chat(logprobs=True, top_logprobs=3)["choices"][0]
        entries = content["logprobs"]["content"]
        self.assertEqual("".join(entry["token"] for entry in entries), content["message"]["content"])
        for entry in entries:
            self.assertEqual(len(entry["top_logprobs"]), 3)
            self.assertEqual(entry["top_logprobs"][0]["token"], entry["token"])
            self.assertEqual(bytes(entry["bytes"]).decode(), entry["token"])
        streamed = [entry for event in self.server.stream("/v1/chat/completions", {
            **CHAT, "max_tokens": 12, "temperature": 0, "logprobs": True, "top_logprobs": 3})
            for entry in (event["choices"][0]["logprobs"] or {"content": []})["content"]]
        self.assertEqual(streamed, entries)

    def test_prompt_scores_equal_scores_of_the_generated_text(self):
        fields = {"prompt": PROMPT, "temperature": 0, "logprobs": 1, "echo": True}
        long = self.server.complete(max_tokens=5, **fields)["choices"][0]
        again = self.server.complete(**{**fields, "prompt": long["text"], "max_tokens": 0})["choices"][0]
        self.assertEqual(again["text"], long["text"])
        self.assertEqual(again["logprobs"]["tokens"], long["logprobs"]["tokens"])
        for one, other in zip(long["logprobs"]["token_logprobs"][1:], again["logprobs"]["token_logprobs"][1:]):
            self.assertAlmostEqual(one, other, delta=1e-4)
        pieces = [event["choices"][0] for event in self.server.stream("/v1/completions", {**fields, "max_tokens": 5})]
        self.assertEqual("".join(piece["text"] for piece in pieces), long["text"])

    def test_alternatives_with_equal_texts_have_distinct_keys(self):
        reply = self.server.complete("é😀中" * 3, max_tokens=0, logprobs=20, echo=True, temperature=0)
        scores = reply["choices"][0]["logprobs"]
        self.assertTrue(any(token.startswith("bytes:\\x") for token in scores["tokens"]), scores["tokens"])
        for token, own, top in zip(scores["tokens"][1:], scores["token_logprobs"][1:], scores["top_logprobs"][1:]):
            self.assertIn(len(top), (20, 21))  # 21: the prompt's token is not in the top 20
            self.assertEqual(top[token], own)
            self.assertNotIn("�", "".join(top))

    def test_salt_separates_cached_prompts(self):
        prompt = {"prompt": PROMPT + " And the salt of the earth." * 60, "max_tokens": 1, "temperature": 0}

        def cached(**salt):
            return self.server.complete(**prompt, **salt)["usage"]["prompt_tokens_details"]["cached_tokens"]

        self.assertEqual(cached(cache_salt="tenant a"), 0)
        self.assertEqual(cached(cache_salt="tenant b"), 0)
        self.assertEqual(cached(), 0)
        self.assertGreater(cached(cache_salt="tenant a"), 0)
        self.assertGreater(cached(), 0)
        for salt in ("", 5, "x" * 257):
            status, reply = self.server.post("/v1/completions", {**prompt, "cache_salt": salt})
            self.assertEqual((status, reply["error"]["param"]), (400, "cache_salt"))

    def test_chats_take_both_names_of_max_tokens(self):
        self.assertEqual(self.chat(max_tokens=3)["usage"]["completion_tokens"], 3)
        self.assertEqual(self.chat(max_tokens=9, max_completion_tokens=4)["usage"]["completion_tokens"], 4)

    def test_system_messages_and_parts_reach_the_template(self):
        def ids(messages):
            return self.server.post("/tokenize", {"messages": messages})[1]["tokens"]

        parts = [{"role": "user", "content": [{"type": "text", "text": "Who is Moses?"}]}]
        self.assertEqual(ids(parts), ids(CHAT["messages"]))
        system = [{"role": "system", "content": "Answer in verses."}, *CHAT["messages"]]
        text = self.server.post("/detokenize", {"tokens": ids(system)})[1]["prompt"]
        self.assertLess(text.index("Answer in verses."), text.index("Who is Moses?"))

    def test_fields_that_would_change_the_answer_are_refused_by_name(self):
        for field, value in (("suffix", "x"), ("best_of", 3), ("stop_token_ids", [-5]), ("min_tokens", -3),
                             ("enable_thinking", False), ("prompt_logprobs", 1), ("n", 0), ("n", 65),
                             ("max_tokens", 0), ("logprobs", 21), ("stop", [""]), ("stop", ["x"] * 17), ("top_p", 0),
                             ("min_p", 2), ("top_k", -2), ("presence_penalty", 3), ("logit_bias", {"x": 1}),
                             ("logit_bias", {"999999": 1}), ("seed", 0.5), ("response_format", {"type": "other"})):
            status, reply = self.server.post("/v1/completions", {"prompt": PROMPT, field: value})
            self.assertEqual(status, 400, field)
            self.assertIn(field, reply["error"]["param"], reply)
            self.assertTrue(reply["error"]["message"])

    def test_fields_that_forbid_every_token_are_the_clients_fault(self):
        with open(f"{MODEL}/config.json") as file:
            size = json.load(file)["vocab_size"]
        cases = [({"suppress_tokens": list(range(min(size, 4096))), "logit_bias": {str(i): -100 for i in range(4096, size)}},
                  "suppress_tokens")] if size <= 4096 else []
        if json.loads(self.server.request("GET", "/v1/models")[2])["data"][0]["capabilities"]["structured_outputs"]:
            cases += [({"structured_outputs": {"choice": ["yes"]}, "min_tokens": 20}, "min_tokens"),
                      ({"guided_choice": ["a"], "bad_words": ["a"]}, "bad_words"),
                      ({"guided_grammar": 'root ::= root "a"'}, "guided_grammar: needs a token that the grammar allows"),
                      ({"guided_grammar": 'root ::= "a"', "bad_words": ["a"]}, "guided_grammar"),
                      ({"structured_outputs": {"grammar": 'root ::= root "a"'}}, "structured_outputs.grammar: needs"),
                      ({"guided_choice": ["qzqzqz"], "no_repeat_ngram_size": 1}, "no_repeat_ngram_size")]
        self.assertTrue(cases)
        failed = self.server.metric('moracle_requests_total{outcome="failed"}')
        for fields, name in cases:
            body = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0, **fields}
            status, reply = self.server.post("/v1/completions", body)
            self.assertEqual((status, reply["error"]["code"], reply["error"]["type"]), (400, "no_token_allowed", "invalid_request_error"), reply)
            self.assertIn(name, reply["error"]["message"])
            with self.server.connect() as connection:
                connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}))
                reply = connection.getresponse()
                text = reply.read().decode()
                self.assertIn("no_token_allowed", text)
                if reply.status != 200:
                    self.assertEqual(reply.status, 400)
        self.assertEqual(self.server.metric('moracle_requests_total{outcome="failed"}'), failed)
        self.assertEqual(self.server.metric('moracle_requests_total{outcome="forbidden"}'), 2 * len(cases))

    def test_dry_and_xtc_equal_those_of_run(self):
        for fields, options in (({"dry_multiplier": 3, "dry_base": 2, "dry_allowed_length": 1, "dry_sequence_breakers": ["."]},
                                 ["--dry-multiplier", "3", "--dry-base", "2", "--dry-allowed-length", "1", "--dry-sequence-breaker", "."]),
                                ({"dry_multiplier": 1.5, "dry_penalty_last_n": 20}, ["--dry-multiplier", "1.5", "--dry-penalty-last-n", "20"]),
                                ({"temperature": 1, "xtc_probability": 0.5, "xtc_threshold": 0.05, "seed": 3},
                                 ["--temperature", "1", "--xtc-probability", "0.5", "--xtc-threshold", "0.05", "--seed", "3"])):
            ran = subprocess.run([COMMAND, "run", MODEL, "-p", PROMPT, "-n", "40", "--json", "--threads", "2", "--deterministic",
                                  *(["--temperature", "0"] if "temperature" not in fields else []), *options],
                                 capture_output=True, text=True, check=True)
            reply = self.server.complete(PROMPT, max_tokens=40, **{"temperature": 0, **fields})
            plain = self.server.complete(PROMPT, max_tokens=40, temperature=fields.get("temperature", 0), seed=3)
            self.assertEqual(reply["choices"][0]["text"], json.loads(ran.stdout)["text"])
            self.assertNotEqual(reply["choices"][0]["text"], plain["choices"][0]["text"])

    def test_paths_of_other_servers_are_refused_with_the_reason(self):
        for path in ("/v1/embeddings", "/v1/rerank", "/rerank", "/score", "/v1/audio/transcriptions", "/v1/audio/speech",
                     "/v1/images/generations", "/v1/moderations", "/v1/files", "/v1/batches", "/v1/messages/batches"):
            status, reply = self.server.post(path, {"input": "a"})
            self.assertEqual(status, 400)
            self.assertIn("this server", reply["error"]["message"])
            self.assertIn(path, reply["error"]["message"])
        self.assertEqual(self.server.post("/v1/embedding", {})[0], 404)
        self.assertEqual(self.server.post("/v1/messages/count_tokens", {"model": 5, **CHAT})[0], 400)

    def test_models_name_what_they_can_do(self):
        entry = json.loads(self.server.request("GET", "/v1/models")[2])["data"][0]
        self.assertGreater(entry["max_model_len"], 0)
        can = entry["capabilities"]
        self.assertEqual((can["chat"], can["adapters"], entry["loaded"]), (True, False, True))
        self.assertEqual(set(can), {"chat", "tools", "tool_choice", "reasoning", "structured_outputs", "adapters"})

    def test_plan_names_every_backend_with_a_verdict(self):
        plan = json.loads(self.server.request("GET", "/explain")[2])
        for choice in plan["choices"]:
            rows = {row["backend"]: row for row in choice["considered"]}
            self.assertIn(choice["plan"]["backend"], rows)
            self.assertTrue({"cpu-amx", "cpu-avx512", "cpu-avx2", "cpu", "reference", "cuda-sm90"} <= rows.keys())
            for row in rows.values():
                self.assertEqual(row["accepted"], not row["reasons"], row)
                self.assertTrue(all(reason["need"] and reason["have"] for reason in row["reasons"]))


if __name__ == "__main__":
    COMMAND, MODEL = sys.argv[1:3]
    del sys.argv[1:3]
    skip_without_server(COMMAND)
    unittest.main(verbosity=2)

"""Sends invalid requests one by one, and checks each reply: hostile_test.py COMMAND MODEL."""
import concurrent.futures
import json
import sys
import unittest

from client import Server, skip_without_server

COMMAND, MODEL = "", ""
TEXT = {"prompt": "And the", "max_tokens": 2}
CHAT = {"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 2}
BODY = json.dumps(TEXT).encode()
WRONG_FIELDS = {
    "temperature": [-1, 1e300, "1", True], "top_p": [0, 1.5, -1, 1e-300], "top_k": [-2, 1e99, 2**31, 0.5, "5"],
    "min_p": [2, -1], "n": [0, -1, 65, 1.5, "2"], "max_tokens": [0, -1, 2**31, 2**63, 1.5, "3"],
    "seed": [2**63, 2**64, 1.5, "a"], "logprobs": [-1, 21, True, "1"],
    "stop": ["", [""], ["a"] * 17, [1], {"a": 1}, "x" * 1025],
    "logit_bias": [{"-1": 1}, {"99999999": 1}, {"a": 1}, {"1": 1000}, {"1": "x"}, [], {" 1": 1}, {"1.0": 1}],
    "stream": ["true", 1], "stream_options": [1, "a", {"include_usage": "x"}], "echo": [1], "ignore_eos": ["x"],
    "presence_penalty": [3, -3], "frequency_penalty": [2.5], "repetition_penalty": [0, -1, 1e9], "model": [5, ["a"]],
    "prompt": ["", [], [[]], [""], {"a": 1}, None, 5, [1, "a"], ["a", 1], [99999999], [-1], [1.5], [["a"]], [True]],
    "best_of": [0, 2], "suffix": ["a"], "skip_special_tokens": [False], "reasoning_effort": ["extreme", 5],
    "typical_p": [0, 2, "1"], "no_repeat_ngram_size": [-1, 0.5], "min_tokens": [-1, "2"], "bad_words": ["", [5], ["a"] * 257],
    "suppress_tokens": [5, [-1], [99999999], [1] * 4097], "stop_token_ids": [[2**31], ["a"]], "begin_suppress_tokens": [{}],
    "enable_thinking": [False, True], "thinking": [{"type": "disabled"}], "verbosity": ["low"],
    "dry_multiplier": [-1, 101, "1"], "dry_base": [0.5, "2"], "dry_allowed_length": [0, 1.5], "dry_penalty_last_n": [-2, "5"],
    "dry_sequence_breakers": [5, [""], ["a"] * 17, [5]], "xtc_probability": [-1, 1.5], "xtc_threshold": [2, "a"],
    "structured_outputs": [5, "a", {"regex": 5}, {"choice": []}, {"choice": "a"}, {"grammar": ""}, {"structural_tag": "{}"},
                           {"regex": "a", "choice": ["a"]}, {"json": 5}],
    "guided_regex": ["(", "a(?=b)", 5], "guided_choice": [5, [], [""], [5]], "guided_grammar": [5, "a", "x" * 20000],
    "guided_json": [5, "a", {"type": 5}], "include_stop_str_in_output": [True], "response_format": ["a", {"type": "x"}, {}, 5],
}
WRONG_IN_CHATS = {
    "messages": [[], None, "a", [1], [{}], {"0": {}}, [{"role": 5, "content": "a"}], [{"role": "user", "content": 5}],
                 [{"role": "user", "content": [1]}], [{"role": "tool", "tool_call_id": 5, "content": [5]}],
                 [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
                 *([{"role": "assistant", "tool_calls": calls}] for calls in (
                     "x", [1], [{"function": {"name": 5, "arguments": "{}"}}],
                     [{"function": {"name": "f", "arguments": "{"}}],
                     [{"function": {"name": "f", "arguments": "[" * 100000}}]))],
    "tool_choice": ["some", {"type": "function"}, {"type": "custom"}, 5], "logprobs": [1, "x"],
    "top_logprobs": [5, -1, 21], "max_completion_tokens": [0, -1], "chat_template_kwargs": [5, {"messages": []}],
    "parallel_tool_calls": [5, "x"], "functions": [[{"name": "f"}]],
}
WRONG_JSON = [b"", b"{", b"[]", b"5", b"[" * 100000, b'{"a":' * 100000, b'{"prompt":"\xff\xfe"}', b'{"prompt":"\xc0\xaf"}',
              b'{"prompt":"\xed\xa0\x80"}', b'{"prompt":"\\ud800"}', b'{"prompt":"a"} x', b'{"prompt":"a","seed":NaN}',
              b'{"prompt":"a","temperature":Infinity}', b'{"prompt":"a","temperature":1e999}', b'{"prompt":"a\x00"}',
              b'{"prompt":"a"/**/}', b'{"prompt":"a","max_tokens":' + b"1" * 400 + b"}", b" " * 100000]
GOOD_JSON = [b'{"prompt":"a","prompt":"b","max_tokens":1}', b'{"prompt":"\\ud83d\\ude00","max_tokens":1}',
             b'{"prompt":"\\u0000","max_tokens":1}', b'{"prompt":"a","max_tokens":1,"temperature":-0.0}',
             b'{"prompt":"a","max_tokens":1,"temperature":0.' + b"1" * 100000 + b"}"]


def nested(levels, of):
    schema = {"type": "string"}
    for _ in range(levels):
        schema = of(schema)
    return schema


def rules(count, rule, end='"a"'):
    return "".join(f"r{i} ::= {rule.format(f'r{i + 1}')}\n" for i in range(count)) + f"r{count} ::= {end}"


# EBNF, patterns and schemas that are deep, large, endless or ambiguous.
GRAMMARS = ["root ::= " + "(" * 7000 + '"a"' + ")" * 7000, "root ::= r0\n" + rules(600, "{0}"), "root ::= r0\n" + rules(600, "{0}?"),
            "root ::= r0\n" + rules(60, "{0} {0}"), "root ::= r0\n" + rules(60, "{0} | {0}"), 'root ::= root "a" | "b"',
            'root ::= root root | "a"', 'root ::= (("")*)*', "root ::= root", "root ::= a\na ::= b\nb ::= a",
            'root ::= "a"{1000000}', 'root ::= ((("x"{1,30}){1,30}){1,30}){1,30}', 'root ::= "a"{-1,-2}', "root ::= [z-a]", 'root ::= "a',
            'root ::= "a"{99999999999999999999}', "root ::= nothing", "root ::= " + " | ".join(f'"{i}"' for i in range(1500))]
PATTERNS = ["(" * 2000 + "a" + ")" * 2000, "((a{1,100}){1,100}){1,100}", "(a*)*" * 100, "(x+x+)+y", "[" + "a-z" * 1000 + "]{100}"]
SCHEMAS = [{"$ref": "#"}, {"anyOf": [{"$ref": "#"}, {"type": "string"}]}, {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"},
           "b": {"$ref": "#/$defs/a"}}}, {"$defs": {**{f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(300)},
           "a300": {"type": "string"}}, "$ref": "#/$defs/a0"}, nested(60, lambda s: {"type": "array", "items": s}),
           nested(200, lambda s: {"type": "array", "items": s}), {"enum": list(range(100000))}, {"enum": ["x" * 200 + str(i) for i in range(1000)]},
           {"type": "array", "items": {"type": "string"}, "minItems": 10**9}, {"type": "string", "maxLength": 10**12},
           {"type": "string", "pattern": "(a{1,128}){1,128}"}, {"type": "integer", "multipleOf": 1e308}, {"type": "number", "minimum": -1e308}]


def head(*lines, path="/v1/completions", method="POST", length=len(BODY), hosts=("localhost",)):
    fields = [f"{method} {path} HTTP/1.1", *(f"Host: {host}" for host in hosts), "Connection: close", *lines]
    if length is not None:
        fields.append(f"Content-Length: {length}")
    return "\r\n".join([*fields, "", ""]).encode()


class Hostile(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(COMMAND, MODEL, "--allow-origin", "https://friend.example")

    @classmethod
    def tearDownClass(cls):
        cls.server.end()

    def refused_by_name(self, path, good, wrong):
        for field, values in wrong.items():
            for value in values:
                with self.subTest(f"{field}={value!r}"[:80]):
                    status, reply = self.server.post(path, {**good, field: value})
                    self.assertEqual(status, 400, reply)
                    named = reply["error"]["param"].split(".")[0].split("[")[0]
                    self.assertEqual(named, "logprobs" if field == "top_logprobs" and value == 5 else field)

    def test_wrong_fields_of_completions_are_refused_by_name(self):
        self.refused_by_name("/v1/completions", TEXT, WRONG_FIELDS)

    def test_wrong_fields_of_chats_are_refused_by_name(self):
        self.refused_by_name("/v1/chat/completions", CHAT, WRONG_IN_CHATS)

    def test_hostile_grammars_end_and_leave_others_running(self):
        status, reply = self.server.post("/v1/completions", {**TEXT, "structured_outputs": {"choice": ["a"]}})
        if status != 200:
            self.skipTest(reply["error"]["message"])  # a build without the engine
        sources = [("structured_outputs", {kind: text}) for kind, texts in
                   (("grammar", GRAMMARS), ("regex", PATTERNS), ("json", SCHEMAS)) for text in texts]
        results = {}
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            paths = {"/v1/completions": TEXT, "/v1/responses": {"input": "Who?", "max_output_tokens": 2}}
            for i, (field, value) in enumerate(sources):
                path = list(paths)[i % 2]
                limit = {"max_tokens" if i % 2 == 0 else "max_output_tokens": 40}
                hostile = pool.submit(self.server.post, path, {**paths[path], **limit, field: value})
                self.assertEqual(self.server.complete("And", max_tokens=1)["usage"]["completion_tokens"], 1)
                with self.subTest(str(value)[:80]):
                    status, reply = hostile.result(timeout=300)
                    self.assertIn(status, (200, 400), reply)
                    results[status] = results.get(status, 0) + 1
        self.assertGreater(results[200], 5, results)
        self.assertGreater(results[400], 5, results)
        for schema in SCHEMAS:
            body = {"messages": [{"role": "user", "content": "a"}], "tools": [{"name": "f", "input_schema": schema}]}
            status, reply = self.server.post("/v1/messages/count_tokens", body)
            self.assertIn(status, (200, 400), reply)

    def test_ids_of_stored_responses_name_only_them(self):
        status, reply = self.server.post("/v1/responses", {"input": "Who?", "max_output_tokens": 1})
        self.assertEqual(status, 200, reply)
        good = reply["id"]
        wrong = ["", "resp_", good[:-1], good + "0", good.upper(), good + "%00", "..%2f" + good, good + "%2finput_items%2f", "resp_*", "%",
                 "x" * 8000, good + "/" + good, good.replace("resp_", "msg_"), "input_items", good + "/input_items/x"]
        for path in wrong:
            for method in ("GET", "DELETE"):
                with self.subTest(method, path=path[:40]):
                    self.assertIn(self.server.request(method, f"/v1/responses/{path}")[0], (404, 405))
        for value in (5, [good], "", "x" * 100000, good + "\u0000", good + " ", {"id": good}):
            status, reply = self.server.post("/v1/responses", {"input": "a", "previous_response_id": value, "max_output_tokens": 1})
            self.assertEqual((status, reply["error"]["param"]), (400, "previous_response_id"), value)
        self.assertEqual(self.server.request("GET", f"/v1/responses/{good}")[0], 200)
        self.assertEqual(self.server.request("DELETE", f"/v1/responses/{good}")[0], 200)
        for method in ("GET", "DELETE"):
            self.assertEqual(self.server.request(method, f"/v1/responses/{good}")[0], 404)

    def test_only_valid_json_is_accepted(self):
        for path in ("/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"):
            for body in WRONG_JSON:
                with self.subTest(path, body=body[:40]):
                    status, reply = self.server.post(path, body)
                    self.assertEqual((status, reply["error"]["type"]), (400, "invalid_request_error"))
        status, reply = self.server.post("/v1/completions", b'{"prompt": x}')
        self.assertIn("byte 12", reply["error"]["message"])
        self.assertIsNone(reply["error"]["param"])
        for body in GOOD_JSON:
            with self.subTest(body[:40]):
                self.assertEqual(self.server.post("/v1/completions", body)[0], 200)

    def test_objects_with_many_members_are_limited(self):
        many = {f"k{i}": 0 for i in range(4097)}
        for path, body in (("/v1/completions", {**TEXT, **many}), ("/tokenize", {**CHAT, **many}), ("/detokenize", many),
                           ("/v1/chat/completions", {**CHAT, "chat_template_kwargs": many}),
                           ("/v1/completions", {**TEXT, "response_format": {"json_schema": {"schema": many}}})):
            status, reply = self.server.post(path, body)
            self.assertEqual((status, "4096 members" in reply["error"]["message"]), (400, True), reply)
        del many["k0"]
        status, reply = self.server.post("/tokenize", {**CHAT, "x": many})
        self.assertEqual(status, 200, reply)
        arguments = json.dumps({f"k{i}": 0 for i in range(4097)})
        calls = [{"type": "function", "function": {"name": "f", "arguments": arguments}}]
        status, reply = self.server.post("/tokenize", {"messages": [{"role": "assistant", "tool_calls": calls}]})
        self.assertEqual(status, 400, reply)

    def test_host_header_must_name_the_server(self):
        for host in ("localhost", "LOCALHOST:1", "127.0.0.1:8000", "[::1]", "[::1]:8000", "friend.example"):
            reply = self.server.raw(head(method="GET", path="/health", length=None, hosts=[host]))
            self.assertEqual(int(reply.split(b" ", 2)[1]), 200, host)
        for host in ("evil.example", "evil.example:8000", "localhost.evil.example", "192.0.2.1"):
            for method, path, origin in (("POST", "/reload", f"http://{host}"), ("GET", "/v1/models", None), ("GET", "/health", None)):
                lines = [f"Origin: {origin}"] if origin else []
                for message in (head(*lines, method=method, path=path, length=0, hosts=[host]),
                                head(*lines, method=method, path=f"http://{host}{path}", length=0)):
                    reply = self.server.raw(message)
                    self.assertEqual(int(reply.split(b" ", 2)[1]), 403, message)
                    self.assertIn(b"host_not_allowed", reply)

    def test_every_reply_has_the_allowed_origin(self):
        chunk = head("Transfer-Encoding: chunked", length=None) + b"1;" + b"a" * 20000
        stream = json.dumps({**TEXT, "stream": True}).encode()
        friend, evil = "Origin: https://friend.example", "Origin: https://evil.example"
        for status, message in (
                (200, head(friend, method="GET", path="/health", length=None)), (200, head(friend) + BODY),
                (200, head(friend, length=len(stream)) + stream), (403, head(evil) + BODY), (400, head(friend, length=1) + b"x"),
                (404, head(friend, path="/x", length=None)), (413, head(friend, length=9_000_000)), (431, chunk),
                (400, b"nonsense\r\n\r\n"), (204, head(friend, "Access-Control-Request-Method: POST", method="OPTIONS"))):
            with self.subTest(message[:60]):
                reply = self.server.raw(message).decode()
                self.assertEqual(int(reply.split(" ", 2)[1]), status, reply)
                self.assertIn("\r\nAccess-Control-Allow-Origin: https://friend.example\r\n", reply)
                self.assertIn("\r\nVary: Origin\r\n", reply)
        self.assertIn("\r\nAccess-Control-Allow-Headers: *, Authorization\r\n", reply)

    def test_malformed_http_messages_get_their_status(self):
        chunked = head("Transfer-Encoding: chunked", length=None)
        cut = b"a\r\n" + BODY[:10] + b"\r\n" + b"%x;name=1\r\n" % (len(BODY) - 10) + BODY[10:] + b"\r\n0\r\nTrailer: x\r\n\r\n"
        expected = {
            200: [head() + BODY, chunked + cut, head("X: a\r\n b") + BODY, head(method="HEAD", path="/", length=None),
                  head("Content-Encoding: identity") + BODY,
                  head(method="GET", path="/health?x=1", length=None),
                  head(method="GET", path="http://localhost/health?x=1", length=None), head(path="HTTP://[::1]:80/v1/completions") + BODY,
                  head(method="GET", path="http://localhost:80", length=None), b"GET /health HTTP/1.0\r\n\r\n"],
            400: [chunked + b"zz\r\n" + BODY, head("Transfer-Encoding: chunked") + cut, head(length=-5) + BODY,
                  head(f"Content-Length: {len(BODY) - 1}") + BODY, head("X : a") + BODY, head(length=10**20) + BODY,
                  b"GET /health HTTP/3.7\r\n\r\n", b"GET /health\r\n\r\n", b"GET /health HTTP/1.1\nHost: a\n\n",
                  head(hosts=[]) + BODY, head(hosts=["localhost", "localhost"]) + BODY,
                  head(hosts=[], path="http://localhost/v1/completions") + BODY,
                  b"POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                  b"GET /he\x00alth HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 200],
            404: [head(method="GET", path=path, length=None)
                  for path in ("/%68ealth", "/../../etc/passwd", "/health/", "http://localhost/healthy", "/v1/models/none")],
            405: [head(method=method, length=None) for method in ("GET", "HEAD", "PUT", "DELETE", "TRACE")],
            413: [head(length=9_000_000), chunked + b"ffffffffffffffff\r\n", chunked + b"900000\r\n" + BODY,
                  head("Expect: 100-continue", length=9_000_000)],
            415: [head("Content-Encoding: gzip") + BODY],
            501: [head(f"Transfer-Encoding: {name}", length=None) + cut
                  for name in ("gzip, chunked", "gzip", "chunked, gzip", "identity", "chunked;q=1")],
            431: [chunked + b"5;" + b"a" * 20000, chunked + b"1;%s\r\na\r\n" % (b"a" * 100) * 200,
                  chunked + b"0\r\nX: " + b"a" * 20000, chunked + b"0\r\n" + b"X: a\r\n" * 4000,
                  head("X: " + "a" * 20000), head(*(f"X{i}: a" for i in range(3000))), head(path="/" + "a" * 20000)],
        }
        for status, messages in expected.items():
            for message in messages:
                with self.subTest(message[:60]):
                    # A server that rejects early may close with bytes unread.
                    reply = self.server.raw(message)
                    self.assertEqual(int(reply.split(b" ", 2)[1]), status, reply)
        reply = self.server.raw(head("Expect: 100-continue") + BODY)
        self.assertTrue(reply.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n"), reply)

    def test_requests_in_a_row_are_answered_in_order(self):
        one = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\n\r\n{\"prompt\": \"%c\"}"
        reply = self.server.raw(b"".join(one % letter for letter in b"abc") + head(method="GET", path="/health", length=None))
        expected = [self.server.post("/tokenize", {"prompt": letter})[1]["tokens"] for letter in "abc"]
        bodies = [json.loads(part.split(b"\r\n\r\n", 1)[1]) for part in reply.split(b"HTTP/1.1 200 OK")[1:]]
        self.assertEqual([body["tokens"] for body in bodies[:3]], expected)
        self.assertEqual(bodies[3], {"live": True, "ready": True})

    def test_model_path_returns_the_served_model(self):
        listed = json.loads(self.server.request("GET", "/v1/models")[2])["data"][0]
        for name in (listed["id"], listed["id"].replace("-", "%2D")):
            status, _, text = self.server.request("GET", f"/v1/models/{name}")
            self.assertEqual((status, json.loads(text)), (200, listed))
        for name in ("", "%", "%zz", "a%2Fb", listed["id"] + "x"):
            status, _, text = self.server.request("GET", f"/v1/models/{name}")
            self.assertEqual((status, json.loads(text)["error"]["code"]), (404, "model_not_found"), name)


if __name__ == "__main__":
    COMMAND, MODEL = sys.argv[1:3]
    del sys.argv[1:3]
    skip_without_server(COMMAND)
    unittest.main(verbosity=2)

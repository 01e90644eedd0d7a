"""End-to-end tests of `moracle serve`: server_test.py COMMAND MODEL [unittest's arguments]."""
import array
import concurrent.futures
import http.client
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from client import Server, skip_without_server, wait_until

COMMAND, MODEL = "", ""
PROMPT = "And the LORD spake unto Moses, saying,"


def text_of_run(prompt, *options):
    """The text of `moracle run`."""
    ran = subprocess.run([COMMAND, "run", MODEL, "-p", prompt, "--deterministic", "--threads", "2", "--json", *options],
                         capture_output=True, check=True, text=True)
    return json.loads(ran.stdout)["text"]


class Texts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(COMMAND, MODEL, "--deterministic")

    @classmethod
    def tearDownClass(cls):
        cls.server.end()

    def test_text_equals_run_alone_and_batched(self):
        options = ("--seed", "7", "-n", "40", "--temperature", "0.9", "--top-p", "0.95")
        expected = text_of_run(PROMPT, *options)
        fields = {"seed": 7, "max_tokens": 40, "temperature": 0.9, "top_p": 0.95}
        self.assertEqual(self.server.complete(PROMPT, **fields)["choices"][0]["text"], expected)

        def one(i):
            if i % 4 == 0:
                return self.server.complete(PROMPT, **fields)["choices"][0]["text"]
            self.server.complete(PROMPT + " word" * i, max_tokens=10 + i, seed=i, temperature=1)
            return expected

        with concurrent.futures.ThreadPoolExecutor(32) as threads:
            self.assertEqual(set(threads.map(one, range(64))), {expected})

    def test_greedy_text_equals_run(self):
        made = self.server.complete(PROMPT, max_tokens=30, temperature=0)
        self.assertEqual(made["choices"][0]["text"], text_of_run(PROMPT, "-n", "30", "--temperature", "0"))
        self.assertEqual(made["usage"]["completion_tokens"], 30)

    def test_chat_equals_run(self):
        body = {"messages": [{"role": "user", "content": "Who is Moses?"}], "seed": 2, "max_tokens": 24,
                "temperature": 0.7}
        status, reply = self.server.post("/v1/chat/completions", body)
        self.assertEqual(status, 200)
        expected = text_of_run("Who is Moses?", "--chat", "--seed", "2", "-n", "24", "--temperature", "0.7")
        self.assertEqual(reply["choices"][0]["message"], {"role": "assistant", "content": expected})
        pieces = list(self.server.stream("/v1/chat/completions", body))
        self.assertEqual(pieces[0]["choices"][0]["delta"]["role"], "assistant")
        self.assertEqual("".join(p["choices"][0]["delta"].get("content", "") for p in pieces), expected)

    def test_stream_has_the_same_text_and_usage(self):
        fields = {"prompt": PROMPT, "seed": 1, "max_tokens": 20, "temperature": 0.8, "n": 2}
        whole = self.server.complete(**fields)
        texts, usage = ["", ""], None
        for event in self.server.stream("/v1/completions", {**fields, "stream_options": {"include_usage": True}}):
            for choice in event["choices"]:
                texts[choice["index"]] += choice["text"]
            usage = event["usage"]
        self.assertEqual(texts, [choice["text"] for choice in whole["choices"]])
        self.assertNotEqual(texts[0], texts[1])
        self.assertEqual(usage["completion_tokens"], 40)
        self.assertEqual(usage["prompt_tokens"], whole["usage"]["prompt_tokens"])

    def test_stop_strings_end_the_text(self):
        text = self.server.complete(PROMPT, max_tokens=40, temperature=0)["choices"][0]["text"]
        stop = text[20:25]
        for stream in (False, True):
            fields = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0, "stop": [stop, "never"]}
            if stream:
                events = list(self.server.stream("/v1/completions", fields))
                cut, reason = "".join(e["choices"][0]["text"] for e in events), events[-1]["choices"][0]["finish_reason"]
            else:
                choice = self.server.complete(**fields)["choices"][0]
                cut, reason = choice["text"], choice["finish_reason"]
            self.assertEqual(cut, text[:text.index(stop)])
            self.assertEqual(reason, "stop")

    def test_echo_scores_the_prompt(self):
        reply = self.server.complete(PROMPT, max_tokens=1, temperature=0, echo=True, logprobs=2)
        scores = reply["choices"][0]["logprobs"]
        self.assertEqual("".join(scores["tokens"]), reply["choices"][0]["text"])
        self.assertEqual(len(scores["tokens"]), reply["usage"]["prompt_tokens"] + 1)
        self.assertIsNone(scores["token_logprobs"][0])
        self.assertTrue(all(value < 0 for value in scores["token_logprobs"][1:]))
        self.assertEqual(scores["top_logprobs"][-1][scores["tokens"][-1]], max(scores["top_logprobs"][-1].values()))
        for token, offset in zip(scores["tokens"], scores["text_offset"]):
            self.assertTrue(reply["choices"][0]["text"][offset:].startswith(token))

    def test_bias_and_penalties_change_the_text(self):
        plain = self.server.complete(PROMPT, max_tokens=30, temperature=0)["choices"][0]["text"]
        ids = self.server.post("/tokenize", {"prompt": plain, "add_special_tokens": False})[1]["tokens"]
        banned = self.server.complete(PROMPT, max_tokens=1, temperature=0, logit_bias={str(ids[0]): -100})
        self.assertFalse(plain.startswith(banned["choices"][0]["text"]))
        for field in ("frequency_penalty", "presence_penalty"):
            other = self.server.complete(PROMPT, max_tokens=30, temperature=0, **{field: 2})["choices"][0]["text"]
            self.assertNotEqual(other, plain)

    def test_prompts_of_ids_and_several_prompts(self):
        ids = self.server.post("/tokenize", {"prompt": PROMPT})[1]["tokens"]
        fields = {"max_tokens": 8, "temperature": 0}
        reply = self.server.complete([PROMPT, "In the beginning"], **fields)
        self.assertEqual([choice["index"] for choice in reply["choices"]], [0, 1])
        self.assertEqual(self.server.complete(ids, **fields)["choices"][0]["text"], reply["choices"][0]["text"])
        self.assertEqual(self.server.complete([ids], **fields)["choices"][0]["text"], reply["choices"][0]["text"])
        self.assertEqual(self.server.post("/detokenize", {"tokens": ids}), (200, {"prompt": PROMPT}))

    def test_prefix_cache_reuses_long_prompts(self):
        prompt = PROMPT + " And it came to pass." * 100
        first = self.server.complete(prompt, max_tokens=4, temperature=0)
        again = self.server.complete(prompt, max_tokens=4, temperature=0)
        self.assertEqual(first["choices"][0]["text"], again["choices"][0]["text"])
        self.assertGreater(again["usage"]["prompt_tokens_details"]["cached_tokens"], 0)

    def test_reload_keeps_serving(self):
        expected = self.server.complete(PROMPT, max_tokens=8, temperature=0)["choices"][0]["text"]
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            texts = [threads.submit(self.server.complete, PROMPT, max_tokens=8, temperature=0) for _ in range(8)]
            self.assertEqual(self.server.post("/reload", ""), (200, {"reloaded": True}))
            self.assertEqual({t.result()["choices"][0]["text"] for t in texts}, {expected})

    def test_response_format_constrains_the_text(self):
        schema = {"type": "object", "properties": {"z": {"type": "integer"}, "a": {"enum": ["red", "blue"]}},
                  "required": ["z", "a"]}
        form = {"type": "json_schema", "json_schema": {"name": "colour", "schema": schema}}
        status, reply = self.server.post("/v1/completions", {"prompt": PROMPT, "response_format": form, "max_tokens": 1})
        if status == 400 and "MORACLE_XGRAMMAR" in reply["error"]["message"]:
            self.skipTest(reply["error"]["message"])
        self.assertEqual(status, 200, reply)

        def one(seed):
            body = {"messages": [{"role": "user", "content": "A colour?"}], "response_format": form, "seed": seed,
                    "max_tokens": 600}
            choice = self.server.post("/v1/chat/completions", body)[1]["choices"][0]
            if choice["finish_reason"] == "length":
                return 0
            made = json.loads(choice["message"]["content"])
            self.assertEqual((list(made), type(made["z"])), (["z", "a"], int))
            self.assertIn(made["a"], ("red", "blue"))
            return 1

        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            others = [threads.submit(self.server.complete, PROMPT, max_tokens=40, temperature=0) for _ in range(3)]
            self.assertGreater(sum(threads.map(one, range(12))), 6)
            self.assertEqual({other.result()["choices"][0]["text"] for other in others},
                             {text_of_run(PROMPT, "-n", "40", "--temperature", "0")})
        for fields in ({"response_format": {"type": "grammar"}}, {"response_format": form, "ignore_eos": True},
                       {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 5}}}}):
            status, reply = self.server.post("/v1/completions", {"prompt": PROMPT, **fields})
            self.assertEqual(status, 400)
            self.assertTrue(reply["error"]["param"])
        large = [{"type": "object", "properties": {f"{i}p{k}": {"type": "string"} for k in range(500)},
                  "required": [f"{i}p{k}" for k in range(500)]} for i in range(8)]
        refused = {"schema.not": {"not": {"type": "string"}}, "schema": {"$ref": "#"},
                   "schema.$ref": {"$ref": "http://a/b"}, "schema.anyOf[0].uniqueItems":
                   {"anyOf": [{"type": "array", "uniqueItems": True}]}}
        too_large = [{"properties": {f"p{k}": {} for k in range(4000)}}, {"enum": [f"value {k}" for k in range(20000)]},
                     {"type": "object", "x" * 20: {str(k): k for k in range(80000)}}]

        def status_of(schema):
            fields = {"type": "json_schema", "json_schema": {"schema": schema}}
            return self.server.post("/v1/completions", {"prompt": PROMPT, "response_format": fields, "max_tokens": 1})

        for place, schema in refused.items():
            status, reply = status_of(schema)
            self.assertEqual((status, reply["error"]["param"]), (400, "response_format.json_schema." + place))
        with concurrent.futures.ThreadPoolExecutor(11) as threads:
            compiled = [threads.submit(status_of, schema) for schema in large]
            tried = [threads.submit(status_of, schema) for schema in too_large]
            start = time.monotonic()
            while not all(each.done() for each in compiled + tried):
                one = time.monotonic()
                self.assertEqual(self.server.request("GET", "/health")[0], 200)
                self.assertLess(time.monotonic() - one, 5, "while schemas are compiled")  # below 0.1 s on an idle machine
                time.sleep(0.01)
            self.assertLess(time.monotonic() - start, 60)  # two in parallel, 0.2 s each
            self.assertEqual({each.result()[0] for each in compiled}, {200})
            for each in tried:
                self.assertEqual((each.result()[0], "at most" in each.result()[1]["error"]["message"]), (400, True))

    def test_metrics_have_seconds_of_each_part(self):
        def seconds():
            lines = self.server.request("GET", "/metrics")[2].splitlines()
            parts = [re.fullmatch(r'moracle_part_seconds_total{part="([^"]+)",backend="(cpu[^"]*)"} (.*)', line)
                     for line in lines if line.startswith("moracle_part_seconds_total")]
            return {part[1]: float(part[3]) for part in parts}

        self.server.complete(PROMPT, max_tokens=4)
        before, steps = seconds(), self.server.metric("moracle_step_seconds_sum")
        for part in ("experts", "router", "attention", "attention linears", "norms", "embedding", "output", "sampling"):
            self.assertGreater(before[part], 0)
        self.assertEqual(self.server.post("/reload", "")[0], 200)
        self.server.complete(PROMPT, max_tokens=40, seed=2, temperature=1)
        spent = {part: after - before.get(part, 0) for part, after in seconds().items()}
        steps = self.server.metric("moracle_step_seconds_sum") - steps
        self.assertGreater(sum(spent.values()), 0.5 * steps)
        # Only these two also count between steps, where a busy machine may deschedule the server.
        between = spent.pop("scheduling") + spent.pop("answers")
        self.assertGreater(between, 0)
        self.assertLess(sum(spent.values()), 1.01 * steps)

    def test_models_health_explain_and_page(self):
        models = json.loads(self.server.request("GET", "/v1/models")[2])
        self.assertEqual(models["data"][0]["max_model_len"], 2048)
        self.assertEqual(self.server.request("GET", "/health")[0], 200)
        plan = json.loads(self.server.request("GET", "/explain")[2])
        self.assertTrue(all(choice["considered"] for choice in plan["choices"]))
        page = self.server.request("GET", "/")
        self.assertIn("text/html", page[1]["Content-Type"])
        self.assertNotIn("http://", page[2].replace("http://www.w3.org", ""))
        with self.server.connect() as connection:
            connection.request("HEAD", "/health")
            self.assertEqual(connection.getresponse().read(), b"")


class Refusals(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        key = tempfile.NamedTemporaryFile("w", suffix=".key")
        key.write("secret-key\n")
        key.flush()
        cls.server = Server(COMMAND, MODEL, "--api-key-file", key.name, "--max-body", "65536", "--max-sequences", "1",
                            "--max-waiting", "1", "--max-connections", "64")
        key.close()

    @classmethod
    def tearDownClass(cls):
        cls.server.end()

    KEY = {"Authorization": "Bearer secret-key"}

    def refused(self, status, code, *request):
        got, _, text = self.server.request(*request)
        error = json.loads(text)["error"]
        self.assertEqual((got, error["code"]), (status, code), text)
        self.assertTrue(error["message"] and error["type"])

    def test_requests_need_the_api_key(self):
        body = {"prompt": "And", "max_tokens": 1}
        self.refused(401, "invalid_api_key", "POST", "/v1/completions", body)
        self.refused(401, "invalid_api_key", "POST", "/v1/completions", body, {"Authorization": "Bearer secret-kez"})
        self.refused(401, "invalid_api_key", "GET", "/metrics")
        self.assertEqual(self.server.post("/v1/completions", body, self.KEY)[0], 200)
        self.assertEqual(self.server.request("GET", "/health")[0], 200)

    def test_foreign_origins_are_refused(self):
        self.refused(403, "origin_not_allowed", "POST", "/v1/completions", {"prompt": "And"},
                     {**self.KEY, "Origin": "http://elsewhere.example"})
        own = {**self.KEY, "Origin": f"http://127.0.0.1:{self.server.port}"}
        self.assertEqual(self.server.post("/v1/completions", {"prompt": "And", "max_tokens": 1}, own)[0], 200)

    def test_invalid_requests_are_refused(self):
        self.refused(404, "unknown_url", "GET", "/../etc/passwd")
        for method in ("GET", "OPTIONS"):
            self.refused(405, "method_not_allowed", method, "/v1/completions")
        self.refused(404, "model_not_found", "POST", "/v1/completions", {"model": "gpt", "prompt": "a"}, self.KEY)
        for body in ("", "{", "[]", b"\xff\xfe", "{\"prompt\": \"\\ud800\"}", "[" * 5000, {"prompt": 3}, {},
                     {"prompt": "a", "temperature": -1}, {"prompt": []}):
            self.refused(400, None, "POST", "/v1/completions", body, self.KEY)

    def test_oversized_and_malformed_messages_are_refused(self):
        self.assertIn(b" 413 ", self.server.raw(
            b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n").splitlines()[0])
        self.assertIn(b" 431 ", self.server.raw(
            b"GET /health HTTP/1.1\r\nA: " + b"a" * 40000 + b"\r\n\r\n").splitlines()[0])
        for data in (b"nonsense\r\n\r\n", b"GET /health\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"):
            self.assertIn(b" 400 ", self.server.raw(data).splitlines()[0])

    def test_random_bytes_leave_the_server_alive(self):
        draw = random.Random(5)
        good = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret-key\r\nConnection: close\r\n"
                b"Content-Length: 45\r\n\r\n" + b'{"prompt": "And the", "max_tokens": 2, "n":1}')
        for _ in range(300):
            data = bytearray(good)
            for _ in range(draw.randrange(1, 6)):
                data[draw.randrange(len(data))] = draw.randrange(256)
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=20) as connection:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass
        self.assertEqual(self.server.request("GET", "/health")[0], 200)

    def test_full_queue_gives_429(self):
        body = {"prompt": "And", "max_tokens": 400, "temperature": 1, "ignore_eos": True, "seed": 1}
        with concurrent.futures.ThreadPoolExecutor(12) as threads:
            replies = list(threads.map(
                lambda _: self.server.request("POST", "/v1/completions", body, self.KEY), range(12)))
        statuses = [status for status, _, _ in replies]
        self.assertEqual(set(statuses), {200, 429})
        self.assertGreaterEqual(statuses.count(200), 2)
        self.assertTrue(all(headers["Retry-After"] for status, headers, _ in replies if status == 429))

    def test_connections_are_bounded(self):
        idle = []
        try:
            for _ in range(64):
                idle.append(socket.create_connection(("127.0.0.1", self.server.port), timeout=20))
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=20) as one_more:
                self.assertIn(b" 503 ", one_more.recv(4096))
        finally:
            for connection in idle:
                connection.close()

        def is_healthy():
            try:
                return self.server.request("GET", "/health")[0] == 200
            except (http.client.HTTPException, OSError):
                return False

        self.assertTrue(wait_until(is_healthy), "connections that are closed still count")


class Leaving(unittest.TestCase):
    def test_disconnect_cancels_the_generation(self):
        with Server(COMMAND, MODEL) as server:
            body = {"prompt": PROMPT, "max_tokens": 2000, "ignore_eos": True, "n": 2}
            for left, stream in ((2, True), (4, False)):
                request = json.dumps({**body, "stream": stream})
                with socket.create_connection(("127.0.0.1", server.port)) as connection:
                    connection.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(request)}\r\n"
                                       f"\r\n{request}".encode())
                    if stream:
                        connection.recv(100)
                    # Before the request starts, the metrics show an idle server.
                    server.wait_for("moracle_requests_running", lambda running: running > 0)
                server.wait_for('moracle_requests_total{outcome="cancelled"}', lambda cancelled: cancelled == left)
                server.wait_for("moracle_requests_running", lambda running: running == 0)
                server.wait_for("moracle_cache_pages_in_use", lambda pages: pages == 0)
            self.assertEqual(server.complete(PROMPT, max_tokens=4, ignore_eos=True)["usage"]["completion_tokens"], 4)

    def test_slow_clients_do_not_delay_others(self):
        with Server(COMMAND, MODEL) as server:
            slow, before = [], server.open_files()
            for i in range(50):
                connection = socket.create_connection(("127.0.0.1", server.port))
                connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n"[:20 + i])
                slow.append(connection)
            self.assertTrue(wait_until(lambda: server.open_files() >= before + 50))
            self.assertEqual(server.complete(PROMPT, max_tokens=4)["usage"]["completion_tokens"], 4)
            for connection in slow:
                connection.close()
            self.assertTrue(wait_until(lambda: server.open_files() <= before))

    def test_keep_alive_answers_many_requests(self):
        with Server(COMMAND, MODEL) as server, server.connect() as connection:
            for _ in range(20):
                connection.request("POST", "/tokenize", json.dumps({"prompt": "And"}))
                self.assertEqual(connection.getresponse().read()[:9], b'{"count":')
            connection.request("POST", "/v1/completions",
                               json.dumps({"prompt": "And", "max_tokens": 3, "stream": True}))
            self.assertTrue(connection.getresponse().read().endswith(b"data: [DONE]\n\n"))
            connection.request("GET", "/health")
            self.assertEqual(connection.getresponse().status, 200)
        # HTTP/1.0 has no chunks: closing the connection ends the stream.
        with Server(COMMAND, MODEL) as server:
            body = b'{"prompt": "And", "max_tokens": 3, "stream": true}'
            reply = server.raw(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            self.assertNotIn(b"chunked", reply)
            self.assertTrue(reply.endswith(b"data: [DONE]\n\n"))


def write_adapter(folder, seed):
    """A LoRA adapter for the experts of layer 0, in PEFT's format, with random weights."""
    os.makedirs(folder)
    draw, header, data = random.Random(seed), {}, bytearray()
    for expert in range(16):
        for part, rows, columns in (("gate_proj", 128, 256), ("down_proj", 256, 128)):
            for half, shape in (("A", (2, columns)), ("B", (rows, 2))):
                values = array.array("f", (draw.gauss(0, 0.3) for _ in range(shape[0] * shape[1])))
                begin = len(data)
                data += values.tobytes()
                header[f"base_model.model.model.layers.0.mlp.experts.{expert}.{part}.lora_{half}.weight"] = {
                    "dtype": "F32", "shape": list(shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    with open(f"{folder}/adapter_model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)
    with open(f"{folder}/adapter_config.json", "w") as file:
        json.dump({"peft_type": "LORA", "r": 2, "lora_alpha": 4}, file)


class LoraAdapters(unittest.TestCase):
    def test_adapters_load_and_unload_during_other_requests(self):
        with tempfile.TemporaryDirectory() as folder:
            for i, name in enumerate(("one", "two", "three")):
                write_adapter(f"{folder}/{name}", i)
            os.symlink("/", f"{folder}/root")
            options = ("-n", "20", "--temperature", "0")
            expected = {name: text_of_run(PROMPT, *options, "--lora", f"{folder}/{name}")
                        for name in ("one", "two", "three")}
            expected[None] = text_of_run(PROMPT, *options)
            self.assertEqual(len(set(expected.values())), 4)
            with Server(COMMAND, MODEL, "--deterministic", "--lora", f"one={folder}/one",
                        "--adapter-folder", folder) as server:
                def check(names):
                    def one(name):
                        fields = {"model": name} if name else {}
                        made = server.complete(PROMPT, max_tokens=20, temperature=0, **fields)
                        self.assertEqual(made["choices"][0]["text"], expected[name], name)

                    with concurrent.futures.ThreadPoolExecutor(8) as threads:
                        list(threads.map(one, names * 3))

                def change(what, status, **body):
                    self.assertEqual(server.post(f"/v1/{what}_lora_adapter", body)[0], status, body)

                check(["one", None])
                with concurrent.futures.ThreadPoolExecutor(4) as threads:
                    running = threads.submit(check, ["one", None])
                    change("load", 200, lora_name="two", lora_path="two")
                    running.result()
                check(["one", None, "two"])
                change("unload", 200, lora_name="one")
                self.assertEqual(server.post("/v1/completions", {"prompt": "a", "model": "one"})[0], 404)
                change("load", 200, lora_name="three", lora_path="three")
                check([None, "two", "three"])
                change("unload", 400, lora_name="one")
                change("load", 400, lora_name="three", lora_path="three")
                for path in ("/etc", "..", ".", "", "root/etc", "two/../..", f"{folder}/../x", "missing", "a\0b"):
                    change("load", 400, lora_name="new", lora_path=path)
                models = json.loads(server.request("GET", "/v1/models")[2])["data"]
                self.assertEqual([model["id"] for model in models][1:], ["three", "two"])
                check([None, "two", "three"])


    def test_unloading_refuses_waiting_requests(self):
        with tempfile.TemporaryDirectory() as folder:
            write_adapter(f"{folder}/one", 0)
            with Server(COMMAND, MODEL, "--lora", f"one={folder}/one", "--max-sequences", "1") as server:
                long = {"prompt": PROMPT, "model": "one", "max_tokens": 1500, "ignore_eos": True}
                with concurrent.futures.ThreadPoolExecutor(2) as threads:
                    running = threads.submit(server.post, "/v1/completions", long)
                    server.wait_for("moracle_generated_tokens_total", lambda count: count > 0)
                    waits = threads.submit(server.post, "/v1/completions", {**long, "max_tokens": 1})
                    server.wait_for("moracle_requests_waiting", lambda count: count > 0)
                    self.assertEqual(server.post("/v1/unload_lora_adapter", {"lora_name": "one"})[0], 200)
                    status, reply = waits.result()
                    self.assertFalse(running.done(), "unloading waits for no text")
                    self.assertEqual((status, reply["error"]["code"]), (404, "model_not_found"), reply)
                    status, reply = running.result()
                    self.assertEqual((status, reply["usage"]["completion_tokens"]), (200, 1500))
                self.assertEqual(server.metric('moracle_requests_total{outcome="unloaded"}'), 1)


class Ending(unittest.TestCase):
    def test_sigterm_finishes_running_requests(self):
        with Server(COMMAND, MODEL, "--drain-seconds", "600") as server:
            replies = []
            thread = threading.Thread(
                target=lambda: replies.append(server.complete(PROMPT, max_tokens=400, ignore_eos=True)))
            thread.start()
            server.wait_for("moracle_generated_tokens_total", lambda count: count > 0)
            self.assertEqual(server.end(), 0)
            thread.join()
            self.assertEqual(replies[0]["usage"]["completion_tokens"], 400)

    def test_time_to_drain_is_bounded(self):
        with Server(COMMAND, MODEL, "--drain-seconds", "0.1") as server:
            statuses = []
            thread = threading.Thread(target=lambda: statuses.append(
                server.request("POST", "/v1/completions",
                               {"prompt": PROMPT, "max_tokens": 2000, "ignore_eos": True, "n": 8})[0]))
            thread.start()
            server.wait_for("moracle_generated_tokens_total", lambda count: count > 0)
            self.assertEqual(server.end(), 1)
            thread.join()
            self.assertEqual(statuses, [503])

    def test_options_are_checked(self):
        for options, part in ((("--port", "70000"), "65535"), (("--allow-origin", "a.example"), "https://a.example:8000"),
                              (("--host", "nowhere"), "--host"),
                              (("--lora", "x"), "NAME=DIR"), (("--cache-bytes", "10"), "at least one page"),
                              (("--max-sequences", "1000"), "--max-sequences"),
                              (("--api-key-file", "/nothing"), "/nothing")):
            ran = subprocess.run([COMMAND, "serve", MODEL, "--port", "0", *options], capture_output=True, text=True)
            self.assertIn(ran.returncode, (1, 2), options)
            self.assertIn(part, ran.stderr)
            self.assertEqual(ran.stderr.count("\n"), 1)


if __name__ == "__main__":
    COMMAND, MODEL = sys.argv[1:3]
    del sys.argv[1:3]
    skip_without_server(COMMAND)
    unittest.main(verbosity=2)

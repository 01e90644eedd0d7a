"""Stress and denial-of-service tests: abuse_test.py COMMAND MODEL [--requests N] [--sanitized] [unittest's arguments].

Malformed requests beside slow clients, many idle connections, a killed server (Abuse), and attacks on time and memory (Attacks).
--sanitized: skip memory limits, because sanitizers keep freed memory, and allow three times the seconds."""
import concurrent.futures
import contextlib
import http.client
import json
import os
import random
import resource
import select
import signal
import socket
import sys
import tempfile
import threading
import time
import unittest

from client import Server, skip_without_server

COMMAND, MODEL, REQUESTS, SANITIZED = "", "", 1000, False
PROMPT = "And the LORD spake unto Moses, saying,"
GOOD = {"prompt": "And the", "max_tokens": 2, "n": 1, "temperature": 0.5, "stop": ["x"], "logit_bias": {"5": 1},
        "logprobs": 1, "echo": True, "stream": False, "seed": 1}
CHAT = {"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 2,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}], "tool_choice": "auto"}
SCHEMA = {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"enum": [1, "x"]}}}
RESPONSE = {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Who?"}]},
                      {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                      {"type": "function_call_output", "call_id": "1", "output": "x"}], "max_output_tokens": 2,
            "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}], "text": {"format": {"type": "text"}},
            "reasoning": {"effort": "low"}, "previous_response_id": None, "store": True, "metadata": {"a": "b"}}
MESSAGE = {"messages": [{"role": "user", "content": "Who?"},
                        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]},
                        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "x"}]}],
           "max_tokens": 2, "system": [{"type": "text", "text": "Be brief."}], "stop_sequences": ["x"],
           "tools": [{"name": "f", "input_schema": SCHEMA}], "tool_choice": {"type": "auto"}, "thinking": {"type": "disabled"}}
BODIES = {"/v1/completions": GOOD, "/v1/chat/completions": CHAT, "/v1/responses": RESPONSE, "/v1/messages": MESSAGE,
          "/v1/messages/count_tokens": {key: MESSAGE[key] for key in ("messages", "system", "tools")},
          "/tokenize": CHAT, "/detokenize": {"tokens": [5, 6]}, "/v1/load_lora_adapter": {"lora_name": "a", "lora_path": "b"},
          "/v1/unload_lora_adapter": {"lora_name": "a"}}
VALUES = [None, True, -1, 0, 1e308, 10**30, "", "a" * 300, "\u0000", [], [[]], {}, {"type": "json_schema"}, [None] * 50,
          {"a": {"b": {"c": []}}}, "\ud7ff", -0.0, 2**63]


def resident(server):
    with open(f"/proc/{server.process.pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


class Malformed:
    """Random malformed requests."""

    def __init__(self, seed):
        self.draw = random.Random(seed)

    def change(self, value):
        """Replaces one value somewhere inside."""
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = self.draw.choice(keys)
        if isinstance(value[key], (dict, list)) and value[key] and self.draw.random() < 0.7:
            return self.change(value[key])
        value[key] = self.draw.choice(VALUES)

    def body(self, path):
        draw = self.draw
        fields = json.loads(json.dumps(BODIES[path]))
        if draw.random() < 0.5:
            self.change(fields)
        for _ in range(draw.randrange(1, 4)):
            fields[draw.choice([*fields, "model", "n", "top_k", "response_format", "messages"])] = draw.choice(VALUES)
        text = bytearray(json.dumps(fields).encode())
        kind = draw.random()
        if kind < 0.3:
            for _ in range(draw.randrange(1, 6)):
                text[draw.randrange(len(text))] = draw.randrange(256)
        elif kind < 0.45:
            del text[draw.randrange(len(text)):]
        return bytes(text)

    def request(self):
        draw = self.draw
        path = draw.choice(list(BODIES))
        body = self.body(path)
        head = bytearray(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
                         .encode())
        if draw.random() < 0.3:
            for _ in range(draw.randrange(1, 4)):
                head[draw.randrange(len(head))] = draw.randrange(256)
        return bytes(head) + body


def answer(port, data):
    """All bytes of the reply. Shuts down the connection after a moment, for a server that waits for more of the request."""
    reply = b""
    with socket.create_connection(("127.0.0.1", port), timeout=0.3) as connection:
        try:
            connection.sendall(data)
            try:
                reply = connection.recv(65536)
            except TimeoutError:
                pass
            connection.settimeout(60)
            connection.shutdown(socket.SHUT_WR)  # also closes keep-alive connections
            while piece := connection.recv(65536):
                reply += piece
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise
            # The server closed with request bytes unread, or before the shutdown.
    return reply


class Abuse(unittest.TestCase):
    def test_malformed_requests_beside_slow_clients(self):
        with Server(COMMAND, MODEL) as server:
            slow = []
            for i in range(16):
                slow.append(socket.create_connection(("127.0.0.1", server.port)))
                slow[-1].sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n{"[:20 + 4 * i])
            malformed, statuses, lock = [Malformed(seed) for seed in range(4)], {}, threading.Lock()
            memory = []

            def send(source, count):
                for _ in range(count):
                    reply = answer(server.port, source.request())
                    status = reply.split(b" ", 2)[1].decode() if reply else "closed"
                    with lock:
                        statuses[status] = statuses.get(status, 0) + 1

            with concurrent.futures.ThreadPoolExecutor(4) as threads:
                for _ in range(5):
                    list(threads.map(send, malformed, [REQUESTS // 20] * 4))
                    memory.append(resident(server))
            print(f"{sum(statuses.values())} requests: {statuses}; resident MB: {[round(m, 1) for m in memory]}")
            self.assertFalse([status for status in statuses if status.startswith("5")], statuses)
            self.assertGreater(statuses.get("400", 0), REQUESTS // 4)
            self.assertTrue(SANITIZED or memory[-1] - memory[0] < 16, memory)
            self.assertEqual(server.complete(PROMPT, max_tokens=4, ignore_eos=True)["usage"]["completion_tokens"], 4)
            for connection in slow:
                connection.close()

    def test_idle_connections_cost_little_memory(self):
        count = 2000
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard < 2 * count + 200:
            self.skipTest(f"needs {2 * count + 200} open files; the limit is {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * count + 200), hard))
        with Server(COMMAND, MODEL) as server:
            server.complete(PROMPT, max_tokens=4)
            before, idle = resident(server), []
            for _ in range(count):
                idle.append(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60))
                idle[-1].request("POST", "/tokenize", json.dumps({"prompt": "And the LORD"}))
                self.assertEqual(idle[-1].getresponse().read()[:9], b'{"count":')
            grown = resident(server) - before
            print(f"{count} idle connections: {grown:.1f} MB")
            self.assertTrue(SANITIZED or grown < 64, grown)
            idle[count // 2].request("GET", "/health")
            self.assertEqual(idle[count // 2].getresponse().status, 200)
            self.assertEqual(server.complete(PROMPT, max_tokens=4, ignore_eos=True)["usage"]["completion_tokens"], 4)
            for connection in idle:
                connection.close()

    def test_killed_server_leaves_no_client_waiting(self):
        body = {"prompt": PROMPT, "max_tokens": 1900, "ignore_eos": True}
        server, ended = Server(COMMAND, MODEL), []

        def client(stream):
            try:
                with server.connect() as connection:
                    connection.request("POST", "/v1/completions", json.dumps({**body, "stream": stream}))
                    text = connection.getresponse().read()
                ended.append("[DONE]" if b"[DONE]" in text else "cut")
            except (OSError, http.client.HTTPException):
                ended.append("error")

        threads = [threading.Thread(target=client, args=(i % 2 == 0,)) for i in range(8)]
        for thread in threads:
            thread.start()
        server.wait_for("moracle_requests_running", lambda running: running == 8)
        self.assertEqual(server.end(signal.SIGKILL), -signal.SIGKILL)
        for thread in threads:
            thread.join(timeout=30)
        self.assertEqual(ended, ["error"] * 8)
        # A new server can reuse the port at once.
        with Server(COMMAND, MODEL, "--port", str(server.port)) as again:
            self.assertEqual(again.port, server.port)
            self.assertEqual(again.complete(PROMPT, max_tokens=4, ignore_eos=True)["usage"]["completion_tokens"], 4)


MIB = 1 << 20
SLOW_TEXT = json.dumps({"prompt": " " * 4 * MIB}).encode()  # one word: takes the tokenizer seconds
POST = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


def cpu_seconds(server):
    with open(f"/proc/{server.process.pid}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rests(server):
    before = cpu_seconds(server)
    time.sleep(0.3)
    return cpu_seconds(server) - before < 0.1


def wait_for(is_there, seconds=30):
    end = time.monotonic() + seconds
    while not is_there():
        assert time.monotonic() < end, "never true"
        time.sleep(0.02)


def allowed(seconds):
    """Tokenizing three SLOW_TEXTs takes 18 s, with sanitizers 31: a server that does not cancel them exceeds the limits of both."""
    return seconds * (3 if SANITIZED else 1)


def length(size):
    return b"Content-Length: %d\r\n\r\n" % size


class Attacks(unittest.TestCase):
    """/health answers during each attack, and memory is bounded."""

    @contextlib.contextmanager
    def attack(self, server, megabytes):
        """/health answers within a second, and memory grows by less than `megabytes`."""
        over, waits, memory = threading.Event(), [], [resident(server)]

        def watch():
            while not over.is_set():
                begin = time.monotonic()
                status = server.request("GET", "/health")[0]
                waits.append(time.monotonic() - begin if status == 200 else 1e9)
                memory.append(resident(server))
                time.sleep(0.02)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        print(f"/health: {max(waits):.3f} s at most; resident MB: {memory[0]:.0f}, at most {max(memory):.0f}")
        self.assertLess(max(waits), allowed(1))
        self.assertTrue(SANITIZED or max(memory) - memory[0] < megabytes)

    def open(self, server, data=b""):
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        self.addCleanup(connection.close)
        connection.sendall(data)
        return connection

    def flood(self, server, data, piece, most):
        """Sends pieces until the server answers, and returns the status; None after `most` bytes."""
        connection = self.open(server, data)
        for _ in range(0, most, len(piece)):
            if select.select([connection], [], [], 0)[0]:
                return int(connection.recv(4096).split(b" ", 2)[1])
            connection.sendall(piece)
        return None

    def test_json_with_many_values_uses_bounded_memory(self):
        if SANITIZED:
            self.skipTest("sanitizers need minutes for these bodies; this test is about time")

        def chat(**fields):
            return json.dumps({"messages": [{"role": "user", "content": "a"}], "prompt": "a", **fields})

        def messages(each, count):
            return f'{{"messages":[{",".join([each] * count)}]}}'

        many = {f"k{i:x}": 0 for i in range(300000)}
        few = {f"k{i:x}": 0 for i in range(4080)}
        expected = [(400, "/tokenize", chat(**many)), (400, "/v1/chat/completions", chat(chat_template_kwargs={"a": many})),
                    (400, "/v1/completions", chat(response_format={"type": "json_schema", "json_schema": {"schema": many}})),
                    (200, "/tokenize", chat(x=[few] * 100)),
                    (400, "/v1/chat/completions", messages("{}", 2 * MIB)),
                    (400, "/v1/chat/completions", messages('{"role":"user","content":[]}', 280000)),
                    (200, "/detokenize", json.dumps({"tokens": [0] * 2 * MIB})),
                    (None, "/tokenize", chat(messages=[{"role": "user", "content": "a", "reasoning": "b", **few}] * 100))]
        with Server(COMMAND, MODEL) as server, self.attack(server, 700):
            before = cpu_seconds(server)
            with concurrent.futures.ThreadPoolExecutor(5) as threads:
                for (status, path, _), reply in zip(expected, threads.map(lambda each: server.post(*each[1:]), expected)):
                    self.assertIn(status, (reply[0], None), f"{path} {str(reply)[:200]}")
            print(f"{cpu_seconds(server) - before:.1f} CPU seconds")
            self.assertLess(cpu_seconds(server) - before, 15)

    def test_endless_chunk_extensions_and_trailers_are_refused(self):
        with Server(COMMAND, MODEL) as server, self.attack(server, 16):
            for begin, piece in ((b"5;", b"a" * MIB), (b"5", b';a="' + b"b" * MIB), (b"0\r\n", b"X: " + b"a" * MIB),
                                 (b"0\r\n", b"X: a\r\n" * 1000), (b"", b"1;%s\r\na\r\n" % (b"a" * 1000) * 100)):
                self.assertEqual(self.flood(server, CHUNKED + begin, piece, 64 * MIB), 431, piece[:20])

    def test_bodies_without_api_key_are_not_read(self):
        with tempfile.NamedTemporaryFile("w", suffix=".key") as key:
            key.write("secret")
            key.flush()
            server = Server(COMMAND, MODEL, "--api-key-file", key.name)
        with server, self.attack(server, 16):
            for _ in range(20):
                connection = self.open(server, POST + length(8 * MIB))
                self.assertEqual(connection.recv(12), b"HTTP/1.1 401")
                with contextlib.suppress(OSError):
                    connection.sendall(b" " * (8 * MIB - 1))
            for data in (CHUNKED + b"800000\r\n", POST + b"Expect: 100-continue\r\n" + length(8 * MIB)):
                self.assertEqual(self.open(server, data).recv(12), b"HTTP/1.1 401")

    def test_endless_bodies_are_refused(self):
        large = json.dumps({"prompt": "a" * (MIB - 100)}).encode()
        with Server(COMMAND, MODEL, "--max-body", str(MIB)) as server:
            with self.attack(server, 32):
                held = [self.open(server, POST + length(len(large)) + large[:-1]) for _ in range(60)]
                wait_for(lambda: len(select.select(held, [], [], 0)[0]) >= len(held) - 8)
                for refused in select.select(held, [], [], 0)[0]:
                    reply = refused.recv(4096)
                    self.assertTrue(reply.startswith(b"HTTP/1.1 503 ") and b"\r\nRetry-After: 1\r\n" in reply, reply)
                self.assertEqual(server.post("/tokenize", {"prompt": "a" * 60000})[0], 200)
                for connection in held:
                    connection.close()
            wait_for(lambda: server.request("POST", "/tokenize", large)[0] == 200)

    def test_long_tokenization_leaves_a_worker_and_is_cancelled(self):
        server = Server(COMMAND, MODEL, "--drain-seconds", "5")
        request = POST + length(len(SLOW_TEXT)) + SLOW_TEXT
        with self.attack(server, 1500):
            clients = [self.open(server, request) for _ in range(3)]
            wait_for(lambda: cpu_seconds(server) > 1)
            begin = time.monotonic()
            self.assertEqual(server.post("/tokenize", {"prompt": "a"})[0], 200)
            self.assertLess(time.monotonic() - begin, allowed(1), "no worker is left for small requests")
            for client in clients:
                client.close()
            wait_for(lambda: rests(server), allowed(5))
        clients = [self.open(server, request) for _ in range(3)]
        before = cpu_seconds(server)
        wait_for(lambda: cpu_seconds(server) > before + 0.5)
        begin = time.monotonic()
        self.assertEqual(server.end(), 0)
        self.assertLess(time.monotonic() - begin, allowed(5))


if __name__ == "__main__":
    COMMAND, MODEL = sys.argv[1:3]
    del sys.argv[1:3]
    if sys.argv[1:2] == ["--requests"]:
        REQUESTS = int(sys.argv[2])
        del sys.argv[1:3]
    if sys.argv[1:2] == ["--sanitized"]:
        SANITIZED = True
        del sys.argv[1]
    skip_without_server(COMMAND)
    unittest.main(verbosity=2)

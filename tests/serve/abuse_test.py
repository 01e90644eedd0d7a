"""Treats the server badly: abuse_test.py COMMAND MODEL [--requests N] [--any-memory] [unittest's arguments].

Malformed requests beside slow clients, many idle connections, and a server that is killed. --any-memory: sanitizers keep
freed memory, so that its growth says nothing."""
import concurrent.futures
import http.client
import json
import random
import resource
import signal
import socket
import sys
import threading
import unittest

from client import Server, skip_without_server

COMMAND, MODEL, REQUESTS, ANY_MEMORY = "", "", 1000, False
PROMPT = "And the LORD spake unto Moses, saying,"
GOOD = {"prompt": "And the", "max_tokens": 2, "n": 1, "temperature": 0.5, "stop": ["x"], "logit_bias": {"5": 1},
        "logprobs": 1, "echo": True, "stream": False, "seed": 1}
CHAT = {"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 2,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}], "tool_choice": "auto"}
VALUES = [None, True, -1, 0, 1e308, 10**30, "", "a" * 300, "\u0000", [], [[]], {}, {"type": "json_schema"}, [None] * 50,
          {"a": {"b": {"c": []}}}, "\ud7ff", -0.0, 2**63]


def resident(server):
    with open(f"/proc/{server.process.pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


class Malformed:
    """Random bad requests."""

    def __init__(self, seed):
        self.draw = random.Random(seed)

    def body(self):
        draw = self.draw
        fields = dict(draw.choice([GOOD, CHAT]))
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
        draw, body = self.draw, self.body()
        path = draw.choice(["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize",
                            "/v1/load_lora_adapter", "/v1/unload_lora_adapter"])
        head = bytearray(f"POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
                         .encode())
        if draw.random() < 0.3:
            for _ in range(draw.randrange(1, 4)):
                head[draw.randrange(len(head))] = draw.randrange(256)
        return bytes(head) + body


def answer(port, data):
    """All bytes of the reply. A server that still waits for more of the request hears of its end after a moment."""
    reply = b""
    with socket.create_connection(("127.0.0.1", port), timeout=0.3) as connection:
        try:
            connection.sendall(data)
            try:
                reply = connection.recv(65536)
            except TimeoutError:
                pass
            connection.settimeout(60)
            connection.shutdown(socket.SHUT_WR)  # also ends connections that would be kept
            while piece := connection.recv(65536):
                reply += piece
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise
            # Closed with bytes of the request unread, or before the shutdown.
    return reply


class Abuse(unittest.TestCase):
    def test_malformed_requests_beside_slow_clients(self):
        with Server(COMMAND, MODEL) as server:
            slow = []
            for i in range(16):
                slow.append(socket.create_connection(("127.0.0.1", server.port)))
                slow[-1].sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 500\r\n\r\n{"[:20 + 4 * i])
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
            self.assertTrue(ANY_MEMORY or memory[-1] - memory[0] < 16, memory)
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
            self.assertTrue(ANY_MEMORY or grown < 64, grown)
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
        # A new server takes the port at once.
        with Server(COMMAND, MODEL, "--port", str(server.port)) as again:
            self.assertEqual(again.port, server.port)
            self.assertEqual(again.complete(PROMPT, max_tokens=4, ignore_eos=True)["usage"]["completion_tokens"], 4)


if __name__ == "__main__":
    COMMAND, MODEL = sys.argv[1:3]
    del sys.argv[1:3]
    if sys.argv[1:2] == ["--requests"]:
        REQUESTS = int(sys.argv[2])
        del sys.argv[1:3]
    if sys.argv[1:2] == ["--any-memory"]:
        ANY_MEMORY = True
        del sys.argv[1]
    skip_without_server(COMMAND)
    unittest.main(verbosity=2)

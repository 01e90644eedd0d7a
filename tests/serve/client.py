"""Server process and HTTP client for tests, with the standard library only."""
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time


def skip_without_server(command):
    """Skips the test in a build without the HTTP library."""
    ran = subprocess.run([command, "serve", "no-model"], capture_output=True, text=True)
    if "libboost-dev" in ran.stderr:
        print(f"skipped: {ran.stderr}")
        sys.exit(77)


def wait_until(condition, seconds=60):
    """Waits until the condition is true. Returns False after a timeout."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


class Server:
    """`moracle serve` on a free port, as a context manager. `code`: the exit code after the end. `tls`: for HTTPS, the
    SSLContext of the client."""

    tls = None

    def __init__(self, command, model, *options, tls=None):
        self.tls = tls
        self.errors = tempfile.TemporaryFile("w+")
        defaults = [each for name, value in (("--port", "0"), ("--threads", "2")) if name not in options
                    for each in (name, value)]
        self.process = subprocess.Popen([command, "serve", model, *defaults, *options],
                                        stdout=subprocess.PIPE, stderr=self.errors, text=True)
        self.code = None
        line = self.process.stdout.readline()
        if not line.startswith(f"listening on {'https' if tls else 'http'}://127.0.0.1:"):
            self.process.wait()
            self.errors.seek(0)
            raise RuntimeError(f"the server does not start: {line}{self.errors.read()}")
        self.port = int(line.rsplit(":", 1)[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def end(self, how=signal.SIGTERM):
        if self.code is None:
            self.process.send_signal(how)
            self.code = self.process.wait(timeout=600)
            self.process.stdout.close()
            self.errors.close()
        return self.code

    def connect(self):
        if self.tls:
            return contextlib.closing(
                http.client.HTTPSConnection("127.0.0.1", self.port, timeout=300, context=self.tls))
        return contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=300))

    def request(self, method, path, body=None, headers=()):
        """Status, headers and text of the reply."""
        with self.connect() as connection:
            text = body if isinstance(body, (str, bytes, type(None))) else json.dumps(body)
            connection.request(method, path, text, dict(headers))
            reply = connection.getresponse()
            return reply.status, reply.headers, reply.read().decode()

    def post(self, path, body, headers=()):
        """Status and JSON of the reply."""
        status, _, text = self.request("POST", path, body, headers)
        return status, json.loads(text)

    def complete(self, prompt, **fields):
        status, reply = self.post("/v1/completions", {"prompt": prompt, **fields})
        assert status == 200, reply
        return reply

    def stream(self, path, body):
        """The JSON of each event."""
        with self.connect() as connection:
            connection.request("POST", path, json.dumps({**body, "stream": True}))
            reply = connection.getresponse()
            assert reply.status == 200, reply.read()
            assert reply.headers["Content-Type"] == "text/event-stream"
            for line in reply:
                line = line.decode().strip()
                if line == "data: [DONE]":
                    return
                if line:
                    assert line.startswith("data: "), line
                    yield json.loads(line[6:])
        raise AssertionError("the stream ends without [DONE]")

    def events(self, path, body, headers=()):
        """The JSON of each event of a dialect that names its events."""
        with self.connect() as connection:
            connection.request("POST", path, json.dumps({**body, "stream": True}), dict(headers))
            reply = connection.getresponse()
            assert reply.status == 200, reply.read()
            assert reply.headers["Content-Type"] == "text/event-stream"
            for event in reply.read().decode().split("\n\n")[:-1]:
                name, data = event.split("\n")
                parsed = json.loads(data.removeprefix("data: "))
                assert name == f"event: {parsed['type']}", event
                yield parsed

    def metric(self, name):
        for line in self.request("GET", "/metrics")[2].splitlines():
            if line.split(" ")[0] == name:
                return float(line.split(" ")[1])
        if "{" in name:
            return 0  # a label is absent before its first event
        raise AssertionError(f"no metric {name}")

    def wait_for(self, name, condition):
        """Waits until the metric meets the condition. Metrics are updated after each step."""
        assert wait_until(lambda: condition(self.metric(name))), f"{name} is {self.metric(name)}"

    def open_files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def raw(self, data, timeout=60):
        """Sends raw bytes, and returns all bytes until the server closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as connection:
            connection.sendall(data)
            received = b""
            while piece := connection.recv(65536):
                received += piece
            return received

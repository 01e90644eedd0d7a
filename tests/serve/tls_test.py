"""Tests HTTPS and the log of requests: tls_test.py COMMAND MODEL."""
import json
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import unittest

from client import Server, skip_without_server

COMMAND, MODEL = "", ""
FILES = tempfile.TemporaryDirectory()
CERT, KEY, OTHER = f"{FILES.name}/cert.pem", f"{FILES.name}/key.pem", f"{FILES.name}/other.pem"
TEXT = {"prompt": "And the LORD", "max_tokens": 8, "seed": 1, "temperature": 0}


def make_certificate():
    if not shutil.which("openssl"):
        print("skipped: openssl is missing")
        sys.exit(77)
    for key, cert in ((KEY, CERT), (OTHER, f"{FILES.name}/other_cert.pem")):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                        "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost",
                        "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"], check=True, capture_output=True)


def trusting():
    return ssl.create_default_context(cafile=CERT)


class Https(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(COMMAND, MODEL, "--tls-cert", CERT, "--tls-key", KEY, tls=trusting())

    @classmethod
    def tearDownClass(cls):
        cls.server.end()

    def test_replies_equal_those_of_http(self):
        with Server(COMMAND, MODEL) as plain:
            wanted = plain.complete(**TEXT)["choices"]
            self.assertEqual(self.server.complete(**TEXT)["choices"], wanted)
            events = lambda server: "".join(  # noqa: E731
                each["choices"][0]["text"] for each in server.stream("/v1/completions", TEXT))
            self.assertEqual(events(self.server), events(plain))

    def test_connection_stays_open_and_large_bodies_pass(self):
        with self.server.connect() as connection:
            for size in (1, 300_000, 1):
                connection.request("POST", "/tokenize", json.dumps({"prompt": "a " * size}))
                reply = connection.getresponse()
                self.assertEqual(reply.status, 200)
                self.assertGreaterEqual(json.loads(reply.read())["count"], size)
        for mebibytes in (9, 48):  # more than any socket buffers
            status, reply = self.server.post("/v1/completions", {"prompt": "a" * (mebibytes << 20)})
            self.assertEqual(status, 413, reply)

    def test_closed_connection_ends_with_a_tls_message(self):
        with self.server.connect() as connection:
            connection.connect()
            connection.sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            received = b""
            while piece := connection.sock.recv(65536):  # an unclean end raises
                received += piece
            self.assertIn(b'"ready"', received)

    def test_client_that_leaves_cancels_its_request(self):
        before = self.server.metric('moracle_requests_total{outcome="cancelled"}')
        with self.server.connect() as connection:
            connection.request("POST", "/v1/completions", json.dumps({"prompt": "And", "max_tokens": 400, "stream": True,
                                                                      "ignore_eos": True}))
            connection.getresponse().readline()
        self.server.wait_for('moracle_requests_total{outcome="cancelled"}', lambda count: count > before)

    def test_other_clients_are_turned_away(self):
        with self.assertRaises(ssl.SSLCertVerificationError), self.server.connect() as connection:
            connection.__init__("127.0.0.1", self.server.port, context=ssl.create_default_context())
            connection.request("GET", "/health")
        self.assertEqual(self.server.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")[:4], b"")
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with self.assertRaises((ssl.SSLError, OSError)), self.server.connect() as connection:
            connection.__init__("127.0.0.1", self.server.port, context=old)
            connection.request("GET", "/health")
        self.assertEqual(self.server.request("GET", "/health")[0], 200)

    def test_wrong_files_are_refused_by_name(self):
        for options, message in ((["--tls-cert", CERT], "tls_key: needs both"), (["--tls-key", KEY], "tls_cert: needs both"),
                                 (["--tls-cert", f"{FILES.name}/none", "--tls-key", KEY], "none: tls_cert: needs a readable file; No such"),
                                 (["--tls-cert", CERT, "--tls-key", f"{FILES.name}/none"], "none: tls_key: needs a readable file; No such"),
                                 (["--tls-cert", KEY, "--tls-key", KEY], "tls_cert: needs a certificate"),
                                 (["--tls-cert", CERT, "--tls-key", CERT], "tls_key: needs the key"),
                                 (["--tls-cert", CERT, "--tls-key", OTHER], "tls_key: needs the key")):
            ran = subprocess.run([COMMAND, "serve", MODEL, "--port", "0", *options], capture_output=True, text=True)
            self.assertNotEqual(ran.returncode, 0)
            self.assertIn(message.replace("tls_", "--tls-") if "--tls-" in ran.stderr else message, ran.stderr)


class Log(unittest.TestCase):
    def lines(self, *options):
        """The lines of a few requests, by path."""
        with Server(COMMAND, MODEL, *options) as server:
            server.complete(**TEXT)
            list(server.stream("/v1/completions", {**TEXT, "max_tokens": 3}))
            server.post("/v1/completions", {**TEXT, "temperature": -1})
            server.request("GET", "/health")
            server.request("POST", "/v1/embeddings", "{}")
            return [json.loads(server.process.stdout.readline()) for _ in range(5)]

    def test_lines_have_fields_without_contents(self):
        whole, stream, wrong, health, unsupported = self.lines("--log-requests")
        for line in (whole, stream, wrong, health, unsupported):
            self.assertRegex(line["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
            self.assertNotIn("LORD", json.dumps(line))
        self.assertEqual((whole["method"], whole["path"], whole["status"]), ("POST", "/v1/completions", 200))
        self.assertEqual((whole["completion_tokens"], whole["finish_reasons"], whole["stream"]), (8, ["length"], False))
        self.assertGreater(whole["prompt_tokens"], 0)
        self.assertGreater(whole["seconds"], 0)
        self.assertEqual((stream["status"], stream["stream"], stream["completion_tokens"]), (200, True, 3))
        self.assertLessEqual(stream["first_seconds"], stream["seconds"])
        self.assertEqual((wrong["status"], wrong["error_param"]), (400, "temperature"))
        self.assertEqual((health["method"], health["path"], health["status"]), ("GET", "/health", 200))
        self.assertEqual((unsupported["status"], unsupported["error_code"]), (400, "not_supported"))

    def test_names_of_a_schema_are_contents(self):
        with Server(COMMAND, MODEL, "--log-requests") as server:
            server.post("/v1/completions", {"prompt": "a", "guided_json": {"properties": {"LORD": {"type": 5}}}})
            line = server.process.stdout.readline()
        self.assertNotIn("LORD", line)
        self.assertEqual(json.loads(line)["error_param"], "guided_json")

    def test_contents_are_written_on_request(self):
        whole, stream, wrong, _, _ = self.lines("--log-requests=contents")
        self.assertEqual(whole["request"], TEXT)
        self.assertEqual(whole["reply"]["usage"]["completion_tokens"], 8)
        self.assertTrue(stream["events"].endswith("data: [DONE]\n\n"))
        self.assertIn("temperature", wrong["reply"]["error"]["message"])


if __name__ == "__main__":
    COMMAND, MODEL = sys.argv.pop(1), sys.argv.pop(1)
    skip_without_server(COMMAND)
    make_certificate()
    ran = subprocess.run([COMMAND, "serve", "no-model", "--tls-cert", CERT, "--tls-key", KEY], capture_output=True, text=True)
    if "libssl-dev" in ran.stderr:
        print(f"skipped: {ran.stderr}")
        sys.exit(77)
    unittest.main()

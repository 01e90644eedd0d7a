"""Tests the server's page and foreign pages in headless Chromium: page_test.py COMMAND MODEL [unittest's arguments]."""
import http.server
import json
import sys
import tempfile
import threading
import unittest

from browser import Page, find_browser
from client import Server, skip_without_server

COMMAND, MODEL = "", ""


class ServedPage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(COMMAND, MODEL, "--deterministic")
        cls.origin = f"http://127.0.0.1:{cls.server.port}/"
        cls.page = Page(find_browser(), cls.origin)
        cls.page.wait("document.readyState === 'complete' && !!document.getElementById('plan')")

    @classmethod
    def tearDownClass(cls):
        cls.page.close()
        cls.server.end()

    def send(self, text, kind, tokens):
        self.page.evaluate(f"""(() => {{
            document.getElementById('clear').click();
            const set = (id, value) => document.getElementById(id).value = value;
            set('kind', '{kind}'); set('tokens', {tokens}); set('temperature', 0); set('text', '{text}');
            document.getElementById('form').requestSubmit();
        }})()""")

    def answer(self):
        self.page.wait("document.getElementById('send').textContent === 'Send'")
        return self.page.evaluate("document.querySelector('.message.assistant').textContent")

    def test_plan_folds_backends_of_other_devices(self):
        self.page.wait("!!document.querySelector('#plan > details')")
        folded = self.page.evaluate("document.querySelector('#plan > details > details > summary').textContent")
        self.assertRegex(folded, r"^\d+ other backends$")
        rows = "[...document.querySelectorAll('#plan > details:first-child > table tr')].map(e => e.textContent)"
        shown = self.page.evaluate(rows)
        self.assertTrue(any(row.startswith("cpu") for row in shown), shown)
        self.assertFalse(any("platform: needs" in row for row in shown), shown)

    def test_plan_shows_each_backend_with_its_reasons(self):
        lines = self.page.wait("[...document.querySelectorAll('#plan > details > summary')].map(e => e.textContent)")
        self.assertTrue(any(line.startswith("experts") for line in lines), lines)
        rows = self.page.evaluate("[...document.querySelectorAll('#plan tr')].map(e => e.textContent)")
        self.assertTrue(any("needs" in row for row in rows), rows[:3])
        self.assertTrue(self.page.evaluate("document.querySelectorAll('#plan td.yes').length") >= len(lines))

    def test_page_shows_the_text_of_the_api(self):
        self.send("In the beginning", "text", 24)
        expected = self.server.complete("In the beginning", max_tokens=24, temperature=0)["choices"][0]["text"]
        self.assertEqual(self.answer(), expected)
        self.send("Who is Moses?", "chat", 16)
        body = {"messages": [{"role": "user", "content": "Who is Moses?"}], "max_tokens": 16, "temperature": 0}
        expected = self.server.post("/v1/chat/completions", body)[1]["choices"][0]["message"]["content"]
        self.assertEqual(self.answer(), expected)

    def test_reasoning_folds_and_calls_are_shown(self):
        shown = self.page.evaluate("""(() => {
            const bubble = show('', 'assistant');
            for (const delta of [{reasoning_content: 'h'}, {reasoning_content: 'm'}, {content: 'Fi'}, {content: 'ne'},
                                 {tool_calls: [{id: 'a', function: {name: 'f', arguments: '{'}}]},
                                 {tool_calls: [{function: {arguments: '}'}}]}]) add(bubble, delta);
            const fold = bubble.querySelector('details');
            const found = [fold.open, fold.lastChild.textContent, answer(bubble), bubble.querySelector('code').textContent];
            bubble.remove();
            return found;
        })()""")
        self.assertEqual(shown, [False, "hm", "Fine", "f {}"])

    def test_stop_ends_the_text(self):
        self.send("And the LORD spake", "text", 1900)
        self.page.wait("document.querySelector('.message.assistant').textContent.length > 20")
        self.assertEqual(self.page.evaluate("document.getElementById('send').textContent"), "Stop")
        self.page.evaluate("document.getElementById('send').click()")
        self.answer()
        self.page.wait("document.getElementById('running').textContent === '0'")

    def test_errors_are_shown(self):
        self.send("a", "text", 5000000)
        self.answer()
        self.assertIn("needs", self.page.evaluate("document.querySelector('.message.error').textContent"))

    def test_cache_and_speed_are_shown(self):
        self.assertRegex(self.page.wait("document.getElementById('cache').textContent"), r"^\d+ of \d+ pages in use")
        self.page.wait("/^[0-9]+$/.test(document.getElementById('speed').textContent)")

    def test_page_requests_only_its_own_server(self):
        self.page.evaluate("1")  # reads pending events
        self.assertTrue(self.page.urls)
        self.assertEqual([url for url in self.page.urls if not url.startswith((self.origin, "data:"))], [])


class EmptyPage(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<title>other</title>")

    def log_message(self, *_):
        pass


class OtherPages(unittest.TestCase):
    """Scripts of pages from another server. Different ports or host names are different origins."""

    KEY = "secret-key"

    @classmethod
    def setUpClass(cls):
        cls.others = http.server.ThreadingHTTPServer(("127.0.0.1", 0), EmptyPage)
        threading.Thread(target=cls.others.serve_forever, daemon=True).start()
        port = cls.others.server_address[1]
        with tempfile.NamedTemporaryFile("w", suffix=".key") as key:
            key.write(cls.KEY)
            key.flush()
            cls.server = Server(COMMAND, MODEL, "--allow-origin", f"http://127.0.0.1:{port}", "--api-key-file", key.name)
        cls.pages = {}
        for name in ("127.0.0.1", "localhost"):
            page = cls.pages[name] = Page(find_browser(), f"http://{name}:{port}/")
            page.wait("document.title === 'other'")

    @classmethod
    def tearDownClass(cls):
        for page in cls.pages.values():
            page.close()
        cls.server.end()
        cls.others.shutdown()
        cls.others.server_close()

    def fetch(self, page, path, body=None, key=KEY):
        """Status and streamed text that the page's script receives, or the error."""
        options = {"headers": {"Authorization": f"Bearer {key}", "X-Client": "1"}}
        if body:
            options |= {"method": "POST", "body": json.dumps(body)}
            options["headers"]["Content-Type"] = "application/json"
        self.pages[page].evaluate(f"""(() => {{
            window.seen = null;
            (async () => {{
                const reply = await fetch('http://127.0.0.1:{self.server.port}{path}', {json.dumps(options)});
                const reader = reply.body.getReader(), decoder = new TextDecoder();
                let text = '', pieces = 0;
                for (let piece; !(piece = await reader.read()).done; ++pieces) text += decoder.decode(piece.value, {{stream: true}});
                window.seen = {{status: reply.status, text, pieces}};
            }})().catch(error => window.seen = {{status: 0, text: String(error), pieces: 0}});
        }})()""")
        return self.pages[page].wait("window.seen")

    def test_allowed_origin_sees_answers_streams_and_errors(self):
        chat = {"messages": [{"role": "user", "content": "Who is Moses?"}], "max_tokens": 12, "temperature": 0}
        seen = self.fetch("127.0.0.1", "/v1/chat/completions", chat)
        self.assertEqual((seen["status"], json.loads(seen["text"])["object"]), (200, "chat.completion"))
        seen = self.fetch("127.0.0.1", "/v1/chat/completions", {**chat, "stream": True})
        self.assertEqual(seen["status"], 200)
        self.assertTrue(seen["text"].endswith("data: [DONE]\n\n"), seen)
        seen = self.fetch("127.0.0.1", "/v1/models")
        self.assertEqual(seen["status"], 200)
        for status, path, body, key in ((400, "/v1/completions", {"prompt": 5}, self.KEY), (401, "/v1/completions", chat, "wrong"),
                                        (401, "/metrics", None, "wrong"), (404, "/nothing", None, self.KEY),
                                        (413, "/tokenize", {"prompt": "a" * (9 << 20)}, self.KEY)):
            seen = self.fetch("127.0.0.1", path, body, key)
            self.assertEqual(seen["status"], status, seen)
            self.assertIn("error", json.loads(seen["text"]))

    def test_foreign_page_sees_nothing(self):
        def prompt_tokens():
            lines = self.server.request("GET", "/metrics", headers={"Authorization": f"Bearer {self.KEY}"})[2].splitlines()
            return next(line for line in lines if line.startswith("moracle_prompt_tokens_total"))

        before = prompt_tokens()
        for path, body in (("/health", None), ("/v1/completions", {"prompt": "a", "max_tokens": 1})):
            self.assertEqual(self.fetch("localhost", path, body)["status"], 0)
        self.assertEqual(prompt_tokens(), before)


if __name__ == "__main__":
    COMMAND, MODEL = sys.argv[1:3]
    del sys.argv[1:3]
    if not find_browser():
        print("skipped: no Chromium is installed")
        sys.exit(77)
    skip_without_server(COMMAND)
    unittest.main(verbosity=2)

"""Tests the server's page in headless Chromium: page_test.py COMMAND MODEL [unittest's arguments]."""
import sys
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

    def test_plan_shows_each_backend_with_its_reasons(self):
        lines = self.page.wait("[...document.querySelectorAll('#plan summary')].map(e => e.textContent)")
        self.assertTrue(any(line.startswith("experts") for line in lines), lines)
        rows = self.page.evaluate("[...document.querySelectorAll('#plan tr')].map(e => e.textContent)")
        self.assertTrue(any("needs" in row for row in rows), rows[:3])
        self.assertTrue(self.page.evaluate("document.querySelectorAll('#plan td.yes').length") >= len(lines))

    def test_texts_are_those_of_the_interface(self):
        self.send("In the beginning", "text", 24)
        expected = self.server.complete("In the beginning", max_tokens=24, temperature=0)["choices"][0]["text"]
        self.assertEqual(self.answer(), expected)
        self.send("Who is Moses?", "chat", 16)
        body = {"messages": [{"role": "user", "content": "Who is Moses?"}], "max_tokens": 16, "temperature": 0}
        expected = self.server.post("/v1/chat/completions", body)[1]["choices"][0]["message"]["content"]
        self.assertEqual(self.answer(), expected)

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

    def test_nothing_else_is_requested(self):
        self.page.evaluate("1")  # reads the events so far
        self.assertTrue(self.page.urls)
        self.assertEqual([url for url in self.page.urls if not url.startswith((self.origin, "data:"))], [])


if __name__ == "__main__":
    COMMAND, MODEL = sys.argv[1:3]
    del sys.argv[1:3]
    if not find_browser():
        print("skipped: no Chromium is installed")
        sys.exit(77)
    skip_without_server(COMMAND)
    unittest.main(verbosity=2)

"""Tests conversations of `moracle run --chat`, over pipes and in a pseudo-terminal:
conversation_test.py COMMAND [unittest's arguments]. The models answer with scripted texts."""
import json
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "serve"))
import scripted_model  # noqa: E402

COMMAND = ""
SECONDS = 120
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"town": {"type": "string"}}}}}]
# The prompt ends with the last message, which selects the answer. The template adds no text before the answer.
TEMPLATE = """{% if tools %}Tools: {{ tools | tojson }}{% endif %}{% for m in messages %}
{{- '\\n' if m.role != 'assistant' }}
{{- m.role ~ (' ' ~ m.name if m.name) ~ ': ' if m.role != 'assistant' }}{{ m.content }}{% for c in m.tool_calls or [] %}
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}{% endfor %}"""
SCRIPTS = {
    "<|hello|>": ["Hel", "lo."],
    "<|lines|>": ["two\n", "lines"],
    "<|call|>": ["I look", ".\n", "<tool_call>", "{\"name\": \"get_weather\", \"arguments\": ", "{\"town\": \"Köln\"}}",
                 "</tool_call>"],
    "<|rain|>": ["It ", "rains."]}
FIGURES = re.compile(r"prompt (\d+) tokens \((\d+) in the cache\), .*; answer (\d+) tokens, .*, stopped by (\w+)")


def figures(text):
    """Per turn: prompt tokens, cached prompt tokens, answer tokens, stop reason."""
    return [(int(a), int(b), int(c), d) for a, b, c, d in FIGURES.findall(text)]


class Terminal:
    """Runs the command in a pseudo-terminal."""

    def __init__(self, *arguments):
        self.pid, self.file = pty.fork()
        if self.pid == 0:
            os.execv(COMMAND, [COMMAND, *arguments])
        self.shown = b""

    def wait_for(self, text):
        """Reads up to `text`, and returns the text read."""
        end = time.monotonic() + SECONDS
        while text.encode() not in self.shown:
            if time.monotonic() > end:
                raise AssertionError(f"{text!r} is missing in {self.shown!r}")
            if not select.select([self.file], [], [], 0.1)[0]:
                continue
            try:
                self.shown += os.read(self.file, 65536)
            except OSError:
                raise AssertionError(f"{text!r} is missing at the end of {self.shown!r}") from None
        before, _, self.shown = self.shown.partition(text.encode())
        return before.decode(errors="replace") + text

    def type(self, text):
        os.write(self.file, text.encode())

    def code(self):
        """Waits for the exit code."""
        while True:
            try:
                if not os.read(self.file, 65536):
                    break
            except OSError:
                break
        _, status = os.waitpid(self.pid, 0)
        os.close(self.file)
        return os.waitstatus_to_exitcode(status)


class Conversations(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model = f"{cls.folder.name}/model"
        scripted_model.write(cls.model, TEMPLATE, SCRIPTS)
        cls.tools = f"{cls.folder.name}/tools.json"
        pathlib.Path(cls.tools).write_text(json.dumps(TOOLS))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def talk(self, lines, *arguments, code=0, model=None):
        ran = subprocess.run([COMMAND, "run", model or self.model, "--chat", *arguments],
                             input=lines if isinstance(lines, bytes) else lines.encode(),
                             capture_output=True, timeout=SECONDS, check=False)
        self.assertEqual(ran.returncode, code, ran.stderr)
        return ran.stdout.decode(), ran.stderr.decode()

    def test_lines_of_a_pipe_are_turns_and_only_new_tokens_are_computed(self):
        out, err = self.talk("<|hello|>\n\n<|lines|>\n<|hello|>", "--system", "Be brief")
        self.assertEqual(out, "Hello.\ntwo\nlines\nHello.\n")
        self.assertNotIn("> ", err)
        first, second, third = figures(err)
        self.assertEqual(first[1:], (0, 3, "eos"))
        # The cache holds the first prompt and its answer, except the end token.
        self.assertEqual(second[1], first[0] + 2)
        self.assertEqual(third[1], second[0] + 2)

    def test_reset_forgets_all_but_the_system_message(self):
        _, err = self.talk("<|hello|>\n/reset\n<|hello|>\n", "--system", "Be brief")
        first, second = figures(err)
        self.assertEqual(first[0], second[0])
        self.assertEqual(second[1], second[0] - 1)

    def test_backslash_continues_a_line(self):
        _, plain = self.talk("a<|hello|>\n")
        out, continued = self.talk("a\\\nb<|hello|>\n")
        self.assertEqual(out, "Hello.\n")
        self.assertEqual(figures(continued)[0][0], figures(plain)[0][0] + 2)

    def test_texts_end_at_stop_strings_and_stop_token_ids(self):
        out, err = self.talk("<|lines|>\n<|hello|>\n", "--stop", "wo\nli", "--stop", "o.")
        self.assertEqual(out, "t\nHell\n")
        self.assertEqual([one[3] for one in figures(err)], ["stop", "stop"])
        out, err = self.talk("<|hello|>\n", "--ignore-eos", "--stop", scripted_model.END)
        self.assertEqual((out, figures(err)[0][2:]), ("Hello.\n", (3, "stop")))
        tokens = json.loads(self.talk("", "-p", "<|hello|>", "--json")[0])["ids"]
        self.assertEqual(len(tokens), 3)
        for arguments, text in ((["--stop-token-ids", f"5,{tokens[1]}"], "Hello."), (["--stop", "lo"], "Hel")):
            answer = json.loads(self.talk("", "-p", "<|hello|>", "--json", *arguments)[0])
            self.assertEqual((answer["text"], len(answer["ids"])), (text, 2))
            self.assertEqual(answer["stop_reason"], "stop" if "--stop" in arguments else "eos")

    def test_files_of_the_model_give_stops_and_options(self):
        model = f"{self.folder.name}/tuned"
        scripted_model.write(model, TEMPLATE, SCRIPTS)
        config = pathlib.Path(model, "config.json")
        config.write_text(json.dumps({**json.loads(config.read_text()), "eos_token_id": None}))
        _, err = self.talk("<|hello|>\n", "-n", "9", model=model)
        self.assertEqual(figures(err)[0][2:], (9, "length"))
        end = {"eos_token": {"content": scripted_model.END, "lstrip": False}, "chat_template": TEMPLATE}
        pathlib.Path(model, "tokenizer_config.json").write_text(json.dumps(end))
        out, err = self.talk("<|hello|>\n", "-n", "9", model=model)
        self.assertEqual((out, figures(err)[0][2:]), ("Hello.\n", (3, "eos")))
        generation = {"max_new_tokens": 1, "num_beams": 2, "stop_strings": ["wo"]}
        pathlib.Path(model, "generation_config.json").write_text(json.dumps(generation))
        out, err = self.talk("<|hello|>\n", model=model)
        self.assertEqual((out, figures(err)[0][2:]), ("Hel\n", (1, "length")))
        self.assertEqual(err.count("generation_config.json: num_beams 2 is not followed"), 1)
        out, _ = self.talk("<|lines|>\n", "-n", "9", model=model)
        self.assertEqual(out, "t\n")
        out, err = self.talk("<|lines|>\n", "-n", "9", "--stop", "x", "--min-tokens", "7", model=model)
        self.assertEqual(figures(err)[0][2:], (9, "length"))

    def test_calls_are_shown_and_the_next_line_is_the_result(self):
        out, err = self.talk("<|call|>\nwet: <|rain|>\n<|hello|>\n", "--tools", self.tools)
        self.assertEqual(out, 'I look.\nget_weather {"town":"Köln"}\nIt rains.\nHello.\n')
        asked, told, greeted = figures(err)
        self.assertGreaterEqual(told[1], asked[0])
        self.assertGreaterEqual(greeted[1], told[0])

    def test_calls_of_a_single_prompt_follow_its_answer(self):
        out, _ = self.talk("", "--tools", self.tools, "-p", "<|call|>")
        self.assertEqual(out, 'I look.\n{"name":"get_weather","arguments":{"town":"Köln"}}\n')
        out, _ = self.talk("", "--tools", self.tools, "-p", "<|call|>", "--json")
        answer = json.loads(out)
        self.assertEqual(answer["text"], "I look.")
        self.assertEqual(answer["tool_calls"], [{"name": "get_weather", "arguments": {"town": "Köln"}}])

    def test_lines_that_are_not_utf8_are_reported_and_skipped(self):
        line = "standard input: needs lines of valid UTF-8; byte {} of this one is not part of a character; it is skipped"
        out, err = self.talk(b"<|hello|>\n\xff<|lines|>\nab\\\n\xc3<|lines|>\n<|hello|>\n")
        self.assertEqual(out, "Hello.\nHello.\n")
        self.assertEqual(err.count("not part of a character"), 2)
        for byte in (0, 3):
            self.assertIn(line.format(byte), err)
        # A skipped line is not in the history.
        _, plain = self.talk("<|hello|>\n<|hello|>\n")
        self.assertEqual(figures(err), figures(plain))
        out, err = self.talk(b"<|call|>\n\x80\nwet: <|rain|>\n", "--tools", self.tools)
        self.assertTrue(out.endswith("It rains.\n"), out)
        self.assertIn(line.format(0), err)

    def test_errors_of_a_pipe_end_the_conversation(self):
        out, err = self.talk("<|hello|>\n" + "x" * 5000 + "\n<|hello|>\n", code=2)
        self.assertEqual(out, "Hello.\n")
        self.assertIn("prompt: needs fewer tokens than the model's context of 4096", err)
        _, err = self.talk("", "--json", code=2)
        self.assertIn("-p,--prompt: needs a prompt, or --prompt-file, with --json", err)
        for text, fact in (("{}", "needs a JSON array of functions; it is another value, or empty"),
                           ("nothing", "line 1, column 2: needs valid JSON; found a syntax error")):
            path = pathlib.Path(self.folder.name, "wrong.json")
            path.write_text(text)
            _, err = self.talk("<|hello|>\n", "--tools", str(path), code=2)
            self.assertIn(f"wrong.json: {fact}", err)

    def test_terminal_converses_until_ctrl_d(self):
        terminal = Terminal("run", self.model, "--chat")
        terminal.wait_for("Ctrl-D ends")
        terminal.wait_for("\n> ")
        terminal.type("<|hello|>\n")
        self.assertIn("Hello.", terminal.wait_for("stopped by eos"))
        terminal.wait_for("\n> ")
        terminal.type("x" * 2500 + "\\\n")
        terminal.wait_for("… ")
        terminal.type("x" * 2500 + "\n")
        terminal.wait_for("needs fewer tokens than the model's context")
        terminal.wait_for("\n> ")
        terminal.type("<|lines|>\n")
        self.assertIn("two\r\nlines", terminal.wait_for("stopped by eos"))
        terminal.wait_for("\n> ")
        terminal.type("\x04")
        self.assertEqual(terminal.code(), 0)

    def test_ctrl_c_stops_the_answer_and_not_the_program(self):
        # After the end token the model repeats one token until the context is full.
        terminal = Terminal("run", self.model, "--chat", "--ignore-eos", "--backend", "reference", "--threads", "1")
        terminal.wait_for("\n> ")
        for _ in range(2):
            terminal.type("<|hello|>\n")
            terminal.wait_for("Hello.")
            terminal.type("\x03")
            terminal.wait_for("stopped by request")
            terminal.wait_for("\n> ")
        terminal.type("dropped\x03")
        terminal.wait_for("\n> ")
        terminal.type("/reset\n")
        terminal.wait_for("\n> ")
        terminal.type("\x04")
        self.assertEqual(terminal.code(), 0)

    def test_sigterm_ends_the_program(self):
        terminal = Terminal("run", self.model, "--chat")
        terminal.wait_for("\n> ")
        os.kill(terminal.pid, signal.SIGTERM)
        self.assertEqual(terminal.code(), 1)


if __name__ == "__main__":
    COMMAND = sys.argv.pop(1)
    unittest.main()

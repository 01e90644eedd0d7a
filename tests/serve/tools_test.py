"""Tests tool calls over HTTP, with models that answer with scripted texts: tools_test.py COMMAND [unittest's arguments]."""
import json
import sys
import tempfile
import unittest

import scripted_model
from client import Server, skip_without_server

COMMAND = ""
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"town": {"type": "string"}}}}}]

# The prompt ends with the last message, which selects the answer.
HERMES = """{% if tools %}Tools: {{ tools | tojson }}{% endif %}{% for m in messages %}
{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}{% endfor %}"""
MISTRAL = """{% if tools %}Tools: {{ tools | tojson }}{% endif %}{% for m in messages %}
{{ m.role }}: {{ m.content }}{% if m.tool_calls %}[TOOL_CALLS] [{% for c in m.tool_calls %}
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}
{{- ", " if not loop.last }}{% endfor %}]{% endif %}{% endfor %}"""


class ToolCalls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        scripted_model.write(f"{cls.folder.name}/hermes", HERMES, {
            "<|two|>": ["I will look", ".\n", "<tool_call>", "\n{\"name\": \"get_wea", "ther\", \"arguments\": ",
                        "{\"town\": \"Köln\"}}", "\n</tool_call>", "\n<tool_", "call>{\"name\": \"get_weather\", ",
                        "\"arguments\": {\"town\": \"", "Bonn\"}", "}</tool_c", "all>"],
            "<|text|>": ["Only", " text <tool", "_call> here"],
            "<|unknown|>": ["<tool_call>{\"name\": \"other\", ", "\"arguments\": {}}</tool_call> "],
            "<|endless|>": ["<tool_call>{\"name\": ", "\"get_weather\", \"arguments\": {}}"]})
        scripted_model.write(f"{cls.folder.name}/mistral", MISTRAL, {
            "<|call|>": ["[TOOL_CALLS]", "[{\"name\": \"get_weather\", ", "\"arguments\": {\"town\": \"Ulm\"}", "}]"]},
            special=("[TOOL_CALLS]",))
        cls.hermes = Server(COMMAND, f"{cls.folder.name}/hermes")
        cls.mistral = Server(COMMAND, f"{cls.folder.name}/mistral")

    @classmethod
    def tearDownClass(cls):
        cls.hermes.end()
        cls.mistral.end()
        cls.folder.cleanup()

    def chat(self, server, content, **fields):
        body = {"messages": [{"role": "user", "content": content}], "tools": TOOLS, "temperature": 0, **fields}
        status, reply = server.post("/v1/chat/completions", body)
        self.assertEqual(status, 200, reply)
        whole = reply["choices"][0]
        self.assertEqual(self.streamed(server, body), self.without_ids(whole["message"], whole["finish_reason"]))
        return whole

    @staticmethod
    def without_ids(message, reason):
        calls = [call["function"] for call in message.get("tool_calls", [])]
        return message["content"] or "", calls, reason

    def streamed(self, server, body):
        text, calls, reason = "", [], None
        for event in server.stream("/v1/chat/completions", body):
            choice = event["choices"][0]
            self.assertIsNone(reason)
            text += choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls", []):
                self.assertEqual((call["index"], call["type"]), (len(calls), "function"))
                self.assertTrue(call["id"])
                calls.append(call["function"])
            reason = choice["finish_reason"]
        return text, calls, reason

    def test_calls_are_removed_from_the_text(self):
        choice = self.chat(self.hermes, "<|two|>")
        message = choice["message"]
        self.assertEqual(message["content"], "I will look.")
        self.assertEqual([(call["type"], call["function"]) for call in message["tool_calls"]],
                         [("function", {"name": "get_weather", "arguments": json.dumps({"town": town}, ensure_ascii=False,
                                                                                       separators=(",", ":"))})
                          for town in ("Köln", "Bonn")])
        self.assertEqual(len({call["id"] for call in message["tool_calls"]}), 2)
        self.assertEqual(choice["finish_reason"], "tool_calls")

    def test_tags_may_be_special_tokens(self):
        message = self.chat(self.mistral, "<|call|>")["message"]
        self.assertIsNone(message["content"])
        self.assertEqual(message["tool_calls"][0]["function"], {"name": "get_weather", "arguments": "{\"town\":\"Ulm\"}"})
        self.assertRegex(message["tool_calls"][0]["id"], "^[a-zA-Z0-9]{9}$")
        # Without tools, decoding skips special tokens.
        plain = self.chat(self.mistral, "<|call|>", tools=None)
        self.assertEqual(plain["message"]["content"], "[{\"name\": \"get_weather\", \"arguments\": {\"town\": \"Ulm\"}}]")

    def test_text_without_a_valid_call_stays_text(self):
        for content, text in (("<|text|>", "Only text <tool_call> here"),
                              ("<|unknown|>", "<tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call> ")):
            choice = self.chat(self.hermes, content)
            self.assertEqual(choice["message"], {"role": "assistant", "content": text})
            self.assertEqual(choice["finish_reason"], "stop")

    def test_unclosed_call_counts_only_at_the_end_of_the_answer(self):
        self.assertEqual(self.chat(self.hermes, "<|endless|>")["finish_reason"], "tool_calls")
        cut = self.chat(self.hermes, "<|endless|>", max_tokens=2)
        self.assertEqual(cut["finish_reason"], "length")
        self.assertTrue(cut["message"]["content"].startswith("<tool_call>"))
        self.assertEqual(self.chat(self.hermes, "<|two|>", max_tokens=9)["finish_reason"], "length")

    def test_no_tools_means_no_calls(self):
        for fields in ({"tools": None}, {"tool_choice": "none"}):
            choice = self.chat(self.hermes, "<|two|>", **fields)
            self.assertIn("<tool_call>", choice["message"]["content"])
            self.assertEqual(choice["finish_reason"], "stop")

    def test_single_call_ends_the_answer(self):
        choice = self.chat(self.hermes, "<|two|>", parallel_tool_calls=False)
        self.assertEqual([call["function"]["arguments"] for call in choice["message"]["tool_calls"]], ["{\"town\":\"Köln\"}"])
        self.assertEqual((choice["message"]["content"], choice["finish_reason"]), ("I will look.", "tool_calls"))

    def test_results_of_tools_reach_the_prompt(self):
        call = self.chat(self.hermes, "<|two|>")["message"]["tool_calls"][0]
        messages = [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": call["id"], "content": "cold<|text|>"}]
        body = {"messages": messages, "tools": TOOLS}
        ids = self.hermes.post("/tokenize", body)[1]["tokens"]
        prompt = self.hermes.post("/detokenize", {"tokens": ids})[1]["prompt"]
        self.assertEqual(prompt, f"Tools: {json.dumps(TOOLS)}user: Weather?assistant: <tool_call>\n"
                                 "{\"name\": \"get_weather\", \"arguments\": {\"town\": \"Köln\"}}\n</tool_call>"
                                 "tool: cold<|text|>")
        status, reply = self.hermes.post("/v1/chat/completions", {**body, "temperature": 0})
        self.assertEqual((status, reply["choices"][0]["message"]["content"]), (200, "Only text <tool_call> here"))

    def test_forced_tool_choices_are_refused(self):
        for fields in ({"tool_choice": "required"},
                       {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}}):
            status, reply = self.hermes.post("/v1/chat/completions", {
                "messages": [{"role": "user", "content": "<|text|>"}], "tools": TOOLS, **fields})
            self.assertEqual((status, reply["error"]["param"]), (400, next(iter(fields))))


if __name__ == "__main__":
    COMMAND = sys.argv.pop(1)
    skip_without_server(COMMAND)
    unittest.main(verbosity=2)

"""Tests reasoning over HTTP in all dialects, with a model that answers with scripted texts: reasoning_test.py COMMAND."""
import json
import sys
import tempfile
import unittest

import scripted_model
from client import Server, skip_without_server

COMMAND = ""
TEMPLATE = """{% for m in messages %}{{ m.role }}:{% if m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}{{ start }}
{%- if opens %}<think>
{% endif %}"""
SCRIPTS = {"<|think|>": ["<think>", "\nstep one", " step two", " step three\n", "</think>", "\n\nFi", "ne."],
           "<|open|>": ["one", " two", " three</thi", "nk>", "{\"town\": \"Ulm\"}"],
           "<|plain|>": ["Plain", " text"]}
USER = [{"role": "user", "content": "Why?"}]


class Reasoning(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        scripted_model.write(f"{cls.folder.name}/model", TEMPLATE, SCRIPTS)
        cls.server = Server(COMMAND, f"{cls.folder.name}/model")

    @classmethod
    def tearDownClass(cls):
        cls.server.end()
        cls.folder.cleanup()

    def post(self, path, start, **fields):
        body = {"temperature": 0, "chat_template_kwargs": {"start": start}, **fields}
        status, reply = self.server.post(path, body)
        self.assertEqual(status, 200, reply)
        return reply

    def chat(self, start, **fields):
        body = {"messages": USER, "temperature": 0, "chat_template_kwargs": {"start": start}, **fields}
        status, reply = self.server.post("/v1/chat/completions", body)
        self.assertEqual(status, 200, reply)
        deltas = [event["choices"][0]["delta"] for event in self.server.stream("/v1/chat/completions", body)]
        message = reply["choices"][0]["message"]
        for key in ("content", "reasoning_content"):
            self.assertEqual("".join(delta.get(key) or "" for delta in deltas), message.get(key) or "")
        return message, reply

    def test_chat_splits_reasoning(self):
        message, reply = self.chat("<|think|>")
        self.assertEqual((message["reasoning_content"], message["content"]), ("step one step two step three", "Fine."))
        self.assertEqual(reply["usage"]["completion_tokens_details"], {"reasoning_tokens": 5})
        message, reply = self.chat("<|plain|>")
        self.assertEqual(message, {"role": "assistant", "content": "Plain text"})
        self.assertEqual(reply["usage"]["completion_tokens_details"], {"reasoning_tokens": 0})

    def test_budget_closes_the_reasoning(self):
        for budget, text in ((0, None), (1, "step one"), (2, "step one step two"), (99, "step one step two step three")):
            message, _ = self.chat("<|think|>", thinking_token_budget=budget)
            self.assertEqual((message.get("reasoning_content"), message["content"]), (text, "Fine."))

    def test_responses_have_a_reasoning_item(self):
        status, reply = self.server.post("/v1/responses", {"input": "<|think|>", "temperature": 0})
        self.assertEqual(status, 200, reply)
        self.assertEqual([item["type"] for item in reply["output"]], ["reasoning", "message"])
        self.assertEqual(reply["output"][0]["content"], [{"type": "reasoning_text", "text": "step one step two step three"}])
        self.assertEqual(reply["usage"]["output_tokens_details"], {"reasoning_tokens": 5})
        events = [event["type"] for event in self.server.events("/v1/responses", {"input": "<|think|>", "temperature": 0})]
        for kind in ("reasoning_text.delta", "reasoning_text.done", "output_text.delta"):
            self.assertIn(f"response.{kind}", events)
        self.assertLess(events.index("response.reasoning_text.done"), events.index("response.output_text.delta"))
        continued = self.server.post("/v1/responses", {"input": "<|plain|>", "previous_response_id": reply["id"]})[1]
        self.assertEqual(continued["status"], "completed", continued)

    def test_messages_have_a_thinking_block(self):
        body = {"messages": [{"role": "user", "content": "<|think|>"}], "max_tokens": 50, "temperature": 0,
                "thinking": {"type": "enabled", "budget_tokens": 2}}
        status, reply = self.server.post("/v1/messages", body)
        self.assertEqual(status, 200, reply)
        self.assertEqual(reply["content"], [{"type": "thinking", "thinking": "step one step two", "signature": ""},
                                            {"type": "text", "text": "Fine."}])
        self.assertEqual(reply["usage"]["output_tokens_details"], {"thinking_tokens": 4})
        deltas = [event["delta"]["type"] for event in self.server.events("/v1/messages", body) if "delta" in event
                  and "type" in event["delta"]]
        self.assertEqual(sorted(set(deltas)), ["text_delta", "thinking_delta"])

    def test_history_keeps_reasoning(self):
        messages = [*USER, {"role": "assistant", "reasoning_content": "hm", "content": "So."}, *USER]
        ids = self.server.post("/tokenize", {"messages": messages})[1]["tokens"]
        prompt = self.server.post("/detokenize", {"tokens": ids})[1]["prompt"]
        self.assertEqual(prompt, "user:Why?assistant:<think>\nhm\n</think>\n\nSo.user:Why?")

    def test_grammar_begins_after_the_reasoning(self):
        form = {"type": "json_schema", "json_schema": {"schema": {
            "type": "object", "properties": {"town": {"enum": ["Ulm"]}}, "required": ["town"]}}}
        body = {"messages": USER, "temperature": 0, "response_format": form, "max_tokens": 60,
                "chat_template_kwargs": {"start": "", "opens": True}}
        status, reply = self.server.post("/v1/chat/completions", body)
        if status == 400 and "MORACLE_XGRAMMAR" in reply["error"]["message"]:
            self.skipTest(reply["error"]["message"])
        self.assertEqual(status, 200, reply)
        # The prompt ends with "<think>\n", whose successor is the first script's text.
        message = reply["choices"][0]["message"]
        self.assertTrue(message["reasoning_content"])
        if reply["choices"][0]["finish_reason"] == "stop":
            self.assertEqual(json.loads(message["content"]), {"town": "Ulm"})

    def test_wrong_budgets_are_refused_by_name(self):
        for path, fields, field in (
                ("/v1/chat/completions", {"messages": USER, "thinking_token_budget": -1}, "thinking_token_budget"),
                ("/v1/chat/completions", {"messages": USER, "thinking_token_budget": "5"}, "thinking_token_budget"),
                ("/v1/responses", {"input": "a", "thinking_token_budget": 1.5}, "thinking_token_budget"),
                ("/v1/messages", {"messages": USER, "max_tokens": 5, "thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
                ("/v1/messages", {"messages": USER, "max_tokens": 5, "thinking": {"type": "enabled", "budget_tokens": 0}},
                 "thinking.budget_tokens")):
            status, reply = self.server.post(path, fields)
            self.assertEqual(status, 400, reply)
            self.assertTrue(reply["error"]["message"].startswith(field), reply)


if __name__ == "__main__":
    COMMAND = sys.argv.pop(1)
    skip_without_server(COMMAND)
    unittest.main(verbosity=2)

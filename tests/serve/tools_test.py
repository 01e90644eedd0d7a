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

CHANNELS = """{% if tools %}Tools: {{ tools | tojson }}{% endif %}{% for m in messages %}{% if m.tool_calls %}
{%- if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}
{%- set f = m.tool_calls[0].function %}{{ '<|start|>assistant to=functions.' + f.name + '<|channel|>commentary json<|message|>' }}
{{- f.arguments | tojson }}{{ '<|call|>' }}{% else %}{{ '<|start|>' + m.role + '<|message|>' + m.content }}{% endif %}{% endfor %}"""


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
        scripted_model.write(f"{cls.folder.name}/channels", CHANNELS, {
            "<|ask|>": ["<|channel|>", "commentary to=functions.get_weather ", "<|constrain|>", "json", "<|message|>",
                        "{\"town\": ", "\"Ulm\"}"]}, special=("<|channel|>", "<|constrain|>", "<|message|>"))
        # The prompt holds only the number of tools.
        scripted_model.write(f"{cls.folder.name}/many", HERMES.replace("tools | tojson", "tools | length"), {"<|text|>": []})
        cls.many = Server(COMMAND, f"{cls.folder.name}/many")
        cls.channels = Server(COMMAND, f"{cls.folder.name}/channels")
        cls.hermes = Server(COMMAND, f"{cls.folder.name}/hermes")
        cls.mistral = Server(COMMAND, f"{cls.folder.name}/mistral")

    @classmethod
    def tearDownClass(cls):
        cls.hermes.end()
        cls.mistral.end()
        cls.channels.end()
        cls.many.end()
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
                if "id" in call:
                    self.assertEqual((call["index"], call["type"]), (len(calls), "function"))
                    calls.append(call["function"])
                else:
                    self.assertEqual(call["index"], len(calls) - 1)
                    calls[-1]["arguments"] += call["function"]["arguments"]
            reason = choice["finish_reason"]
        return text, calls, reason

    def test_calls_are_removed_from_the_text(self):
        choice = self.chat(self.hermes, "<|two|>")
        message = choice["message"]
        self.assertEqual(message["content"], "I will look.")
        self.assertEqual([(call["type"], call["function"]["name"], json.loads(call["function"]["arguments"]))
                          for call in message["tool_calls"]],
                         [("function", "get_weather", {"town": town}) for town in ("Köln", "Bonn")])
        self.assertEqual(len({call["id"] for call in message["tool_calls"]}), 2)
        self.assertEqual(choice["finish_reason"], "tool_calls")

    def test_tags_may_be_special_tokens(self):
        message = self.chat(self.mistral, "<|call|>")["message"]
        self.assertIsNone(message["content"])
        self.assertEqual(message["tool_calls"][0]["function"], {"name": "get_weather", "arguments": "{\"town\": \"Ulm\"}"})
        self.assertRegex(message["tool_calls"][0]["id"], "^[a-zA-Z0-9]{9}$")
        # Without tools, decoding skips special tokens.
        plain = self.chat(self.mistral, "<|call|>", tools=None)
        self.assertEqual(plain["message"]["content"], "[{\"name\": \"get_weather\", \"arguments\": {\"town\": \"Ulm\"}}]")

    def test_arguments_come_as_they_are_generated(self):
        body = {"messages": [{"role": "user", "content": "<|two|>"}], "tools": TOOLS, "temperature": 0}
        pieces = [call["function"]["arguments"] for event in self.hermes.stream("/v1/chat/completions", body)
                  for call in event["choices"][0]["delta"].get("tool_calls", [])]
        self.assertEqual([piece for piece in pieces if piece], ["{\"town\": \"Köln\"}", "{\"town\": \"", "Bonn\"}"])

    def test_channels_hold_calls(self):
        choice = self.chat(self.channels, "<|ask|>")
        self.assertEqual(choice["message"]["tool_calls"][0]["function"], {"name": "get_weather", "arguments": "{\"town\": \"Ulm\"}"})
        self.assertEqual((choice["message"]["content"], choice["finish_reason"]), (None, "tool_calls"))
        plain = self.chat(self.channels, "<|ask|>", tools=None)
        self.assertEqual(plain["message"]["content"], "{\"town\": \"Ulm\"}")

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
        self.assertEqual(cut["message"]["tool_calls"][0]["function"]["arguments"], "{}")
        name = self.chat(self.hermes, "<|endless|>", max_tokens=1)
        self.assertEqual(name["message"]["content"], "<tool_call>{\"name\": ")
        self.assertEqual(self.chat(self.hermes, "<|two|>", max_tokens=9)["finish_reason"], "length")

    def test_no_tools_means_no_calls(self):
        for fields in ({"tools": None}, {"tool_choice": "none"}):
            choice = self.chat(self.hermes, "<|two|>", **fields)
            self.assertIn("<tool_call>", choice["message"]["content"])
            self.assertEqual(choice["finish_reason"], "stop")

    def test_single_call_ends_the_answer(self):
        choice = self.chat(self.hermes, "<|two|>", parallel_tool_calls=False)
        self.assertEqual([call["function"]["arguments"] for call in choice["message"]["tool_calls"]], ["{\"town\": \"Köln\"}"])
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

    FORCED = [{"type": "function", "function": {"name": name, "parameters": {
        "type": "object", "properties": {"town": {"enum": ["Ulm", "Bonn"]}}, "required": ["town"]}}} for name in ("look", "leave")]

    def forced(self, server, content, **fields):
        body = {"messages": [{"role": "user", "content": content}], "tools": self.FORCED, "temperature": 0, "max_tokens": 200, **fields}
        status, reply = server.post("/v1/chat/completions", body)
        if status == 400 and "MORACLE_XGRAMMAR" in reply["error"]["message"]:
            self.skipTest(reply["error"]["message"])
        self.assertEqual(status, 200, reply)
        return reply["choices"][0]

    def test_tool_choice_forces_a_call(self):
        for server, content in ((self.hermes, "<|text|>"), (self.mistral, "Hi"), (self.channels, "Hi")):
            for choice, names in (("required", {"look", "leave"}),
                                  ({"type": "function", "function": {"name": "leave"}}, {"leave"})):
                whole = self.forced(server, content, tool_choice=choice, parallel_tool_calls=False)
                [call] = whole["message"]["tool_calls"]
                self.assertIn(call["function"]["name"], names)
                self.assertIn(json.loads(call["function"]["arguments"])["town"], ("Ulm", "Bonn"))
                self.assertEqual((whole["finish_reason"], whole["message"]["content"]), ("tool_calls", None))

    def test_formats_with_grammars_of_their_own_are_forced(self):
        begin = ("{% if tools %}Tools: {{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content or '' }}"
                 "{% if m.tool_calls %}")
        one = "{% for c in m.tool_calls %}{% set f = c.function %}"
        end = "{% endif %}{% endfor %}"
        gemma = (begin + one + "{{ '<|tool_call>call:' + f.name + '{' }}{% for k, v in f.arguments.items() %}{{ k + ':' }}"
                 "{{ '<|\"|>' + v + '<|\"|>' if v is string else v | tojson }}{{ ',' if not loop.last }}{% endfor %}"
                 "{{ '}<tool_call|>' }}{% endfor %}" + end)
        minimax = (begin + "{{ ']<]minimax[>[<tool_call>\\n' }}" + one + "{{ ']<]minimax[>[<invoke name=\"' + f.name + '\">' }}"
                   "{% for k, v in f.arguments.items() %}{{ ']<]minimax[>[<' + k + '>' }}{{ v if v is string else v | tojson }}"
                   "{{ ']<]minimax[>[</' + k + '>' }}{% endfor %}{{ ']<]minimax[>[</invoke>\\n' }}{% endfor %}"
                   "{{ ']<]minimax[>[</tool_call>' }}" + end)
        for name, template, tags in (("gemma", gemma, ["<|tool_call>", "<tool_call|>", "<|\"|>"]),
                                     ("minimax", minimax, ["]<]minimax[>[", "<tool_call>", "</tool_call>"])):
            scripted_model.write(f"{self.folder.name}/{name}", template, {"<|tags|>": tags}, special=tags)
            with self.subTest(name), Server(COMMAND, f"{self.folder.name}/{name}") as server:
                for choice, names in (("required", {"look", "leave"}),
                                      ({"type": "function", "function": {"name": "leave"}}, {"leave"})):
                    for temperature in (0, 1):
                        whole = self.forced(server, "Hi", tool_choice=choice, parallel_tool_calls=False, temperature=temperature, seed=2)
                        [call] = whole["message"]["tool_calls"]
                        self.assertIn(call["function"]["name"], names)
                        self.assertIn(json.loads(call["function"]["arguments"])["town"], ("Ulm", "Bonn"))
                        self.assertEqual((whole["finish_reason"], whole["message"]["content"]), ("tool_calls", None))

    def test_random_texts_hold_to_the_choice(self):
        for seed in range(20):
            whole = self.forced(self.hermes, "Hi", tool_choice="required", temperature=1, seed=seed, parallel_tool_calls=False)
            if whole["finish_reason"] == "length":
                continue
            [call] = whole["message"]["tool_calls"]
            self.assertIn(json.loads(call["function"]["arguments"])["town"], ("Ulm", "Bonn"))

    def test_strict_tools_hold_to_their_schema(self):
        # The script's text before the call is free; its arguments break the schema.
        tools = json.loads(json.dumps(self.FORCED).replace("look", "get_weather"))
        for tool in tools:
            tool["function"]["strict"] = True
        whole = self.forced(self.hermes, "<|two|>", tools=tools, max_tokens=120)
        call = whole["message"]["tool_calls"][0]
        self.assertEqual(whole["message"]["content"][:12], "I will look.")
        self.assertEqual((call["function"]["name"], set(json.loads(call["function"]["arguments"]))), ("get_weather", {"town"}))
        self.assertNotIn("Köln", json.dumps(whole))

    def test_budget_leads_to_the_forced_call_of_channels(self):
        scripted_model.write(f"{self.folder.name}/thinks", CHANNELS, {
            "<|ask|>": ["<|channel|>", "analysis", "<|message|>", "one", " two", " three"],
            "<|tags|>": ["<|end|>", "<|start|>", "assistant"]},
            special=("<|channel|>", "<|message|>", "<|end|>", "<|start|>"), end_text="<|return|>")
        with Server(COMMAND, f"{self.folder.name}/thinks") as server:
            whole = self.forced(server, "<|ask|>", tool_choice="required", thinking_token_budget=2)
            self.assertEqual(whole["message"]["reasoning_content"], "one two")
            [call] = whole["message"]["tool_calls"]
            self.assertIn(json.loads(call["function"]["arguments"])["town"], ("Ulm", "Bonn"))

    def test_names_in_grammars_are_limited(self):
        def tools(names):
            return [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in names]

        self.forced(self.hermes, "<|text|>", tools=tools(["mcp__server__look-up.it", "天気"]), tool_choice="required")
        for names, index in ((["a" * 257], 0), (["a", 'a"b'], 1), (["a b"], 0), (["a</tool_call>"], 0), (["a\n"], 0),
                             ([f"{i:03}" + "a" * 253 for i in range(129)], 128)):
            body = {"messages": [{"role": "user", "content": "<|text|>"}], "tools": tools(names), "temperature": 0}
            status, reply = self.many.post("/v1/chat/completions", {**body, "tool_choice": "required"})
            self.assertEqual((status, reply["error"]["param"]), (400, f"tools[{index}].name"), reply)
            self.assertEqual(self.many.post("/v1/chat/completions", body)[0], 200)

    def test_many_tools_are_limited(self):
        def tools(count, **fields):
            return [{"type": "function", "function": {"name": f"tool{i}", "parameters": {
                "type": "object", "properties": {f"p{k}": {"type": "string"} for k in range(5)}}, **fields}} for i in range(count)]

        self.forced(self.many, "Hi", tools=tools(512), tool_choice="required", max_tokens=20)
        for offered, param in ((tools(513), "tools"), (tools(200, strict=True), "tools[")):
            status, reply = self.many.post("/v1/chat/completions", {
                "messages": [{"role": "user", "content": "Hi"}], "tools": offered, "tool_choice": "required"})
            self.assertEqual((status, reply["error"]["param"][:6]), (400, param), reply)

    def test_wrong_choices_are_refused_by_name(self):
        strict = json.loads(json.dumps(TOOLS))
        strict[0]["function"].update(strict=True, parameters={"type": "object", "properties": {"a": {"not": {}}}})
        for fields, param in (({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
                              ({"tool_choice": "required", "tools": []}, "tools"),
                              ({"tool_choice": "required", "tools": strict}, "tools[0].parameters")):
            status, reply = self.hermes.post("/v1/chat/completions", {
                "messages": [{"role": "user", "content": "<|text|>"}], "tools": TOOLS, **fields})
            if status == 400 and "MORACLE_XGRAMMAR" in reply["error"]["message"]:
                self.skipTest(reply["error"]["message"])
            self.assertEqual(status, 400, reply)
            self.assertTrue(reply["error"]["param"].startswith(param), reply)


if __name__ == "__main__":
    COMMAND = sys.argv.pop(1)
    skip_without_server(COMMAND)
    unittest.main(verbosity=2)

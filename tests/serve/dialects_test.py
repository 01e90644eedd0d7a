"""Tests /v1/responses and /v1/messages over HTTP, with models that answer with scripted texts: dialects_test.py COMMAND."""
import json
import sys
import tempfile
import unittest

import scripted_model
from client import Server, skip_without_server

COMMAND = ""
PARAMETERS = {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}
FLAT_TOOLS = [{"type": "function", "name": "get_weather", "description": "Weather.", "parameters": PARAMETERS}]
CUSTOM_TOOLS = [{"name": "get_weather", "description": "Weather.", "input_schema": PARAMETERS}]
TEMPLATE = """{% if tools %}Tools: {{ tools | tojson }}{% endif %}{% for m in messages %}
{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}{% endfor %}"""
SCRIPTS = {"<|two|>": ["I will look", ".\n", "<tool_call>", "\n{\"name\": \"get_wea", "ther\", \"arguments\": ",
                       "{\"town\": \"Köln\"}}", "\n</tool_call>", "\n<tool_", "call>{\"name\": \"get_weather\", ",
                       "\"arguments\": {\"town\": \"", "Bonn\"}", "}</tool_c", "all>"],
           "<|text|>": ["Only", " plain", " text", " here"], "<|empty|>": []}
LONG = "/v1/messages/count_tokens"


class Dialect(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        scripted_model.write(f"{cls.folder.name}/model", TEMPLATE, SCRIPTS)
        key = tempfile.NamedTemporaryFile("w", suffix=".key")
        key.write("secret-key\n")
        key.flush()
        cls.server = Server(COMMAND, f"{cls.folder.name}/model", "--api-key-file", key.name, "--max-body", "200000")
        key.close()

    @classmethod
    def tearDownClass(cls):
        cls.server.end()
        cls.folder.cleanup()

    KEY = {"x-api-key": "secret-key"}

    def post(self, path, body):
        return self.server.post(path, body, self.KEY)


def without_ids(value):
    """Drops what differs between two answers to one request."""
    if isinstance(value, dict):
        return {key: without_ids(each) for key, each in value.items()
                if key not in ("id", "call_id", "created_at", "completed_at", "previous_response_id", "item_id")}
    return [without_ids(each) for each in value] if isinstance(value, list) else value


class Responses(Dialect):
    def whole(self, given, **fields):
        """The reply, after a check that the events of a stream build the same one."""
        body = {"input": given, "temperature": 0, **fields}
        status, reply = self.post("/v1/responses", body)
        self.assertEqual(status, 200, reply)
        self.assertEqual(without_ids(self.streamed(body)), without_ids(reply))
        return reply

    def streamed(self, body):
        items, events = [], list(self.server.events("/v1/responses", body, self.KEY))
        self.assertEqual([event["sequence_number"] for event in events], list(range(len(events))))
        self.assertEqual([event["type"] for event in events[:2]], ["response.created", "response.in_progress"])
        for event in events[:2]:
            self.assertEqual((event["response"]["status"], event["response"]["output"]), ("in_progress", []))
        for event in events[2:-1]:
            kind = event["type"].removeprefix("response.")
            if kind == "output_item.added":
                self.assertEqual((event["output_index"], event["item"]["status"]), (len(items), "in_progress"))
                items.append({**event["item"], "text": "", "is_done": False})
                continue
            item = items[event["output_index"]]
            self.assertFalse(item["is_done"])
            if kind == "output_item.done":
                self.assertEqual(event["item"]["id"], item["id"])
                text = event["item"]["arguments"] if item["type"] == "function_call" else event["item"]["content"][0]["text"]
                self.assertEqual(text, item["text"])
                item.update(event["item"], is_done=True)
                continue
            self.assertEqual(event["item_id"], item["id"])
            if kind.endswith(".delta"):
                item["text"] += event["delta"]
            elif kind == "function_call_arguments.done":
                self.assertEqual(event["arguments"], item["text"])
            elif kind.endswith("text.done"):
                self.assertEqual(event["text"], item["text"])
            else:
                self.assertIn(kind, ("content_part.added", "content_part.done"))
        last = events[-1]
        self.assertEqual(last["type"], f"response.{last['response']['status']}")
        for item in items:
            self.assertTrue(item.pop("is_done"))
            del item["text"]
        self.assertEqual(last["response"]["output"], items)
        return last["response"]

    def test_text_is_one_message(self):
        reply = self.whole("<|text|>", instructions="Be brief.", metadata={"a": "b"}, max_output_tokens=50)
        self.assertEqual(reply["output"][0]["content"][0]["text"], "Only plain text here")
        self.assertEqual([item["type"] for item in reply["output"]], ["message"])
        self.assertEqual((reply["status"], reply["error"], reply["incomplete_details"]), ("completed", None, None))
        self.assertEqual((reply["instructions"], reply["metadata"], reply["max_output_tokens"]), ("Be brief.", {"a": "b"}, 50))
        usage = reply["usage"]
        self.assertEqual((usage["output_tokens"], usage["output_tokens_details"]), (5, {"reasoning_tokens": 0}))
        self.assertEqual(usage["total_tokens"], usage["input_tokens"] + 5)

    def test_calls_are_items(self):
        reply = self.whole("<|two|>", tools=FLAT_TOOLS)
        self.assertEqual([item["type"] for item in reply["output"]], ["message", "function_call", "function_call"])
        self.assertEqual([json.loads(item["arguments"]) for item in reply["output"][1:]], [{"town": "Köln"}, {"town": "Bonn"}])
        self.assertEqual(len({item["call_id"] for item in reply["output"][1:]}), 2)
        self.assertEqual(reply["status"], "completed")

    def test_single_call_ends_the_answer(self):
        reply = self.whole("<|two|>", tools=FLAT_TOOLS, parallel_tool_calls=False)
        self.assertEqual([item["type"] for item in reply["output"]], ["message", "function_call"])
        self.assertEqual((reply["status"], reply["usage"]["output_tokens"]), ("completed", 6))

    def test_token_limit_makes_the_response_incomplete(self):
        reply = self.whole("<|text|>", max_output_tokens=2)
        self.assertEqual((reply["status"], reply["incomplete_details"]), ("incomplete", {"reason": "max_output_tokens"}))
        self.assertEqual((reply["output"][0]["status"], reply["output"][0]["content"][0]["text"]), ("incomplete", "Only plain"))
        self.assertEqual(self.whole("<|text|>", max_output_tokens=2**30)["status"], "completed")

    def test_answer_without_text_has_no_items(self):
        self.assertEqual(self.whole("<|empty|>")["output"], [])

    def test_stored_response_continues_the_conversation(self):
        first = self.post("/v1/responses", {"input": "<|two|>", "tools": FLAT_TOOLS, "temperature": 0})[1]
        results = [{"type": "function_call_output", "call_id": item["call_id"], "output": "cold<|text|>"}
                   for item in first["output"] if item["type"] == "function_call"]
        body = {"tools": FLAT_TOOLS, "temperature": 0}
        stored = self.whole(results, previous_response_id=first["id"], **body)
        given = [{"role": "user", "content": "<|two|>"}, *first["output"], *results]
        stateless = self.whole(given, store=False, **body)
        self.assertEqual(stored["usage"]["input_tokens"], stateless["usage"]["input_tokens"])
        self.assertEqual(stored["output"][0]["content"], stateless["output"][0]["content"])
        third = self.whole([{"role": "user", "content": [{"type": "input_text", "text": "<|text|>"}]}],
                           previous_response_id=stored["id"], **body)
        self.assertGreater(third["usage"]["input_tokens"], stored["usage"]["input_tokens"])
        status, _, text = self.server.request("GET", f"/v1/responses/{stored['id']}", headers=self.KEY)
        self.assertEqual((status, json.loads(text)), (200, stored))
        for missing in (stateless["id"], "resp_0"):
            status, reply = self.post("/v1/responses", {"input": "a", "previous_response_id": missing})
            self.assertEqual((status, reply["error"]["param"]), (400, "previous_response_id"))
            self.assertEqual(self.server.request("GET", f"/v1/responses/{missing}", headers=self.KEY)[0], 404)

    def test_stored_response_is_listed_and_deleted(self):
        given = ["<|text|>", "second"]
        first = self.post("/v1/responses", {"input": [{"role": "user", "content": text} for text in given], "temperature": 0})[1]
        path = f"/v1/responses/{first['id']}"

        def get(query=""):
            status, _, text = self.server.request("GET", path + query, headers=self.KEY)
            return status, json.loads(text)

        status, items = get("/input_items?order=asc")
        self.assertEqual((status, items["object"], items["has_more"]), (200, "list", False))
        self.assertEqual([item["content"] for item in items["data"]], [[{"type": "input_text", "text": text}] for text in given])
        ids = [item["id"] for item in items["data"]]
        self.assertEqual((items["first_id"], items["last_id"], len(set(ids))), (ids[0], ids[1], 2))
        self.assertEqual([item["id"] for item in get("/input_items")[1]["data"]], ids[::-1])
        page = get("/input_items?limit=1&order=asc")[1]
        self.assertEqual(([item["id"] for item in page["data"]], page["has_more"]), (ids[:1], True))
        page = get(f"/input_items?limit=1&order=asc&after={ids[0]}")[1]
        self.assertEqual(([item["id"] for item in page["data"]], page["has_more"]), (ids[1:], False))
        for query, field in (("/input_items?limit=0", "limit"), ("/input_items?limit=x", "limit"), ("/input_items?order=up", "order"),
                             ("/input_items?after=msg_1", "after"), ("?stream=true", "stream")):
            status, reply = get(query)
            self.assertEqual((status, reply["error"]["param"]), (400, field))
        self.assertEqual(get("?stream=false"), (200, first))
        self.assertEqual(self.server.request("DELETE", path)[0], 401)
        status, _, text = self.server.request("DELETE", path, headers=self.KEY)
        self.assertEqual((status, json.loads(text)), (200, {"id": first["id"], "object": "response", "deleted": True}))
        for method, suffix in (("DELETE", ""), ("GET", ""), ("GET", "/input_items")):
            self.assertEqual(self.server.request(method, path + suffix, headers=self.KEY)[0], 404)
        self.assertEqual(self.post("/v1/responses", {"input": "a", "previous_response_id": first["id"]})[0], 400)

    def test_listed_items_have_types_and_ids_as_texts(self):
        given = [{"role": "user", "content": "<|text|>", "type": None}, {"role": "user", "content": "second", "id": 5, "status": {}}]
        first = self.post("/v1/responses", {"input": given, "temperature": 0})[1]
        text = self.server.request("GET", f"/v1/responses/{first['id']}/input_items?order=asc", headers=self.KEY)[2]
        for item, content in zip(json.loads(text)["data"], ("<|text|>", "second"), strict=True):
            self.assertEqual((item["type"], item["status"]), ("message", "completed"))
            self.assertTrue(item["id"].startswith("msg_"), item)
            self.assertEqual(item["content"], [{"type": "input_text", "text": content}])

    def test_wrong_fields_are_refused_by_name(self):
        item = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
        deep = json.loads("[" * 60 + "]" * 60)
        for field, values in {
                "input": [None, 5, {}, [], [5], [{}], [{"role": "critic", "content": "a"}], [{"role": "user", "content": 5}],
                          [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}], [{"type": "item_reference"}],
                          [{"type": "custom_tool_call"}], [{**item, "call_id": 5}], [{**item, "name": None}], [deep],
                          [{**item, "arguments": "{"}], [{**item, "arguments": {}}], [{**item, "arguments": "[" * 9999}],
                          [{"type": "function_call_output", "call_id": "1"}], [{"type": "reasoning", "content": [5]}]],
                "tools": [5, [5], [{"type": "web_search"}], [{"type": "custom", "name": "a"}], [{"type": "function"}],
                          [{"type": "function", "name": ""}], deep],
                "tool_choice": [5, "any", {"type": "web_search"}, {"type": "function"}],
                "parallel_tool_calls": ["yes"], "max_output_tokens": [0, -1, 1.5, "5"], "store": [1], "stream": ["x"],
                "previous_response_id": [5, "", "x" * 100000], "instructions": [5, ["a"]], "background": [True],
                "conversation": ["conv_1"], "truncation": ["auto"], "include": ["a", ["file_search_call.results"]],
                "text": [5, {"verbosity": "low"}, {"format": 5}, {"format": {"type": "grammar"}}], "top_logprobs": [2],
                "reasoning": ["a", {"effort": "extreme"}], "metadata": [5], "temperature": [-1, "1"], "n": [2],
        }.items():
            for value in values:
                with self.subTest(f"{field}={value!r}"[:80]):
                    status, reply = self.post("/v1/responses", {"input": "<|text|>", field: value})
                    self.assertEqual(status, 400, reply)
                    self.assertEqual(reply["error"]["param"].split(".")[0].split("[")[0], field)
        status, reply = self.post("/v1/responses", {"input": "a", "tools": [{"type": "web_search"}]})
        self.assertIn("web_search", reply["error"]["message"])
        status, reply = self.post("/v1/responses", {"input": "a", "tools": FLAT_TOOLS * 2000})
        self.assertEqual((status, reply["error"]["type"]), (413, "invalid_request_error"))
        self.assertEqual(self.post("/v1/responses", {"input": "a", "model": "b"})[1]["error"]["code"], "model_not_found")


    def test_repeated_fields_are_limited(self):
        # A stream repeats them three times, and a client that reads slowly must not lose the reply.
        with Server(COMMAND, f"{self.folder.name}/model") as server:
            body = {"input": "<|text|>", "temperature": 0, "stream": True}
            for field, value in {"metadata": {"a": "b" * 1048576}, "tools": FLAT_TOOLS * 10000, "user": ["a" * 9] * 100000}.items():
                status, reply = server.post("/v1/responses", {**body, "tool_choice": "none", field: value})
                self.assertEqual((status, reply["error"]["param"]), (400, field))
            events = list(server.events("/v1/responses", {**body, "metadata": {"a": "b" * 1047000}}))
            self.assertEqual(events[-1]["type"], "response.completed")


class Messages(Dialect):
    def whole(self, content, **fields):
        """The reply, after a check that the events of a stream build the same one."""
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 100, "temperature": 0, **fields}
        status, reply = self.post("/v1/messages", body)
        self.assertEqual(status, 200, reply)
        self.assertEqual(without_ids(self.streamed(body)), without_ids(reply))
        return reply

    def streamed(self, body):
        events = list(self.server.events("/v1/messages", body, self.KEY))
        self.assertEqual((events[0]["type"], events[-2]["type"], events[-1]), ("message_start", "message_delta", {"type": "message_stop"}))
        message, blocks, is_open = events[0]["message"], [], False
        self.assertEqual((message["content"], message["stop_reason"], message["usage"]["output_tokens"]), ([], None, 0))
        for event in events[1:-2]:
            if event["type"] == "content_block_start":
                self.assertEqual((is_open, event["index"]), (False, len(blocks)))
                blocks.append({**event["content_block"], "json": ""})
                is_open = True
                continue
            self.assertEqual((is_open, event["index"]), (True, len(blocks) - 1))
            if event["type"] == "content_block_stop":
                is_open = False
                continue
            delta = event["delta"]
            key = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}[delta["type"]]
            blocks[-1]["json" if key == "partial_json" else key] += delta[key]
        self.assertFalse(is_open)
        for block in blocks:
            if text := block.pop("json"):
                block["input"] = json.loads(text)
        return {**message, "content": blocks, **events[-2]["delta"], "usage": events[-2]["usage"]}

    def test_text_is_one_block(self):
        reply = self.whole("<|text|>", system=[{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Please."}])
        self.assertEqual(reply["content"], [{"type": "text", "text": "Only plain text here"}])
        self.assertEqual((reply["stop_reason"], reply["stop_sequence"], reply["role"]), ("end_turn", None, "assistant"))
        self.assertEqual(reply["usage"]["output_tokens"], 5)

    def test_calls_are_blocks(self):
        reply = self.whole("<|two|>", tools=CUSTOM_TOOLS)
        self.assertEqual([(block["type"], block.get("input")) for block in reply["content"]],
                         [("text", None), ("tool_use", {"town": "Köln"}), ("tool_use", {"town": "Bonn"})])
        self.assertEqual(reply["stop_reason"], "tool_use")
        single = self.whole("<|two|>", tools=CUSTOM_TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
        self.assertEqual([block["type"] for block in single["content"]], ["text", "tool_use"])
        self.assertEqual(single["stop_reason"], "tool_use")

    def test_stop_reasons(self):
        self.assertEqual(self.whole("<|text|>", max_tokens=2)["stop_reason"], "max_tokens")
        stopped = self.whole("<|text|>", stop_sequences=["never", " text"])
        self.assertEqual((stopped["stop_reason"], stopped["stop_sequence"]), ("stop_sequence", " text"))
        self.assertEqual(stopped["content"], [{"type": "text", "text": "Only plain"}])
        self.assertEqual(self.whole("<|empty|>")["content"], [])
        self.assertEqual(self.whole("<|text|>", max_tokens=2**30)["stop_reason"], "end_turn")

    def test_format_applies_beside_tools_that_are_off(self):
        body = {"messages": [{"role": "user", "content": "<|text|>"}], "max_tokens": 20, "temperature": 0, "tools": CUSTOM_TOOLS,
                "output_config": {"format": {"type": "json_schema", "schema": {"enum": ["Ulm"]}}}}
        status, reply = self.post("/v1/messages", {**body, "tool_choice": {"type": "none"}})
        if status == 400 and "MORACLE_XGRAMMAR" in reply["error"]["message"]:
            self.skipTest(reply["error"]["message"])
        self.assertEqual((status, reply["content"]), (200, [{"type": "text", "text": "\"Ulm\""}]))
        self.assertEqual(self.post("/v1/messages", body)[0], 400)

    def test_results_of_tools_reach_the_prompt(self):
        first = self.whole("<|two|>", tools=CUSTOM_TOOLS)
        results = [{"type": "tool_result", "tool_use_id": block["id"], "content": [{"type": "text", "text": "cold"}]}
                   for block in first["content"] if block["type"] == "tool_use"]
        body = {"messages": [{"role": "user", "content": "<|two|>"}, {"role": "assistant", "content": first["content"]},
                             {"role": "user", "content": [*results, {"type": "text", "text": "<|text|>"}]}],
                "tools": CUSTOM_TOOLS, "max_tokens": 50, "temperature": 0}
        status, reply = self.post("/v1/messages", body)
        self.assertEqual((status, reply["content"][0]["text"]), (200, "Only plain text here"))
        self.assertEqual(self.post(LONG, body), (200, {"input_tokens": reply["usage"]["input_tokens"]}))

    def test_errors_have_the_dialects_form(self):
        def refused(status, kind, *request):
            got, _, text = self.server.request(*request)
            error = json.loads(text)
            self.assertEqual((got, error["type"], error["error"]["type"]), (status, "error", kind), text)
            self.assertTrue(error["error"]["message"])

        good = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
        for path in ("/v1/messages", LONG):
            refused(401, "authentication_error", "POST", path, good)
            refused(401, "authentication_error", "POST", path, good, {"x-api-key": "secret-kez"})
            refused(404, "not_found_error", "POST", path, {**good, "model": "other"}, self.KEY)
            refused(400, "invalid_request_error", "POST", path, b"{", self.KEY)
            refused(400, "invalid_request_error", "POST", path, b'{"messages":"\xff"}', self.KEY)
            refused(400, "invalid_request_error", "POST", path, b"[" * 100000, self.KEY)
            refused(405, "invalid_request_error", "GET", path, None, self.KEY)
            refused(403, "permission_error", "POST", path, good, {**self.KEY, "Host": "evil.example"})
            refused(415, "invalid_request_error", "POST", path, good, {**self.KEY, "Content-Encoding": "gzip"})
            refused(413, "request_too_large", "POST", path, {**good, "system": "a" * 300000}, self.KEY)
        self.assertEqual(self.post("/v1/messages?beta=true", good)[0], 200)
        self.assertEqual(self.server.post("/v1/messages", good, {"Authorization": "Bearer secret-key"})[0], 200)

    def test_wrong_fields_are_refused_by_name(self):
        def message(content, role="user"):
            return [{"role": role, "content": content}, {"role": "user", "content": "a"}]

        use = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
        deep = json.loads("[" * 60 + "]" * 60)
        for field, values in {
                "messages": [None, 5, [], [5], [{}], message("a", "tool"), message(5), message([]), message([5]), message(deep),
                             message([{"type": "image"}]), message([{"type": "text"}]), message([{"type": "tool_result"}]),
                             message([{"type": "tool_result", "tool_use_id": "1", "content": 5}]), message([use]),
                             message([{**use, "input": "{}"}], "assistant"), message([{**use, "id": 5}], "assistant"),
                             message([{"type": "thinking"}], "assistant"), message([{"type": "tool_result"}], "assistant"),
                             [*message("a"), {"role": "assistant", "content": "a"}]],
                "max_tokens": [None, 0, -1, "5"], "system": [5, [5], [{"type": "image"}]], "stop_sequences": [5, [""], ["a"] * 17],
                "tools": [5, [5], [{"type": "web_search_20250305", "name": "web_search"}], [{"input_schema": {}}], deep],
                "tool_choice": [5, "auto", {"type": "some"}, {"type": "tool"}, {"type": "auto", "disable_parallel_tool_use": 1}],
                "thinking": [5, {"type": "some"}], "output_config": [5, {"effort": "extreme"}, {"format": {"type": "x"}}],
                "mcp_servers": [[{"type": "url"}]], "container": ["a"], "stop": ["a"], "metadata": [5],
                "context_management": [5, {"edits": 5}, {"edits": [{"type": "clear_tool_uses_20250919"}]}],
                "temperature": [-1], "top_p": [0], "top_k": [0.5], "stream": ["x"],
        }.items():
            for value in values:
                with self.subTest(f"{field}={value!r}"[:80]):
                    good = {"messages": [{"role": "user", "content": "<|text|>"}], "max_tokens": 5}
                    status, reply = self.post("/v1/messages", {**good, field: value})
                    self.assertEqual(status, 400, reply)
                    self.assertTrue(reply["error"]["message"].startswith(field), reply)


if __name__ == "__main__":
    COMMAND = sys.argv.pop(1)
    skip_without_server(COMMAND)
    unittest.main(verbosity=2)

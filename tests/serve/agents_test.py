"""Tests the SDKs of OpenAI and Anthropic against models with scripted answers: agents_test.py COMMAND [unittest's arguments].

Events are validated field by field against the SDKs' own models, which the SDKs themselves do not do."""
import asyncio
import importlib.util
import json
import sys
import tempfile
import unittest

import scripted_model
from client import Server, skip_without_server
from dialects_test import CUSTOM_TOOLS, FLAT_TOOLS, SCRIPTS, TEMPLATE

COMMAND = ""
TURNS = 20
# A result that ends with this token makes the model call again.
AGAIN = {"<|again|>": ["Next.\n<tool_call>{\"name\": \"get_weather\", \"argu", "ments\": {\"town\": \"Ulm\"}}", "</tool_call>\n"],
         "<|done|>": ["All", " towns", " are cold."]}
CHAT_TOOLS = [{"type": "function", "function": {key: value for key, value in FLAT_TOOLS[0].items() if key != "type"}}]


FORCED = {"type": "object", "properties": {"town": {"enum": ["Ulm", "Bonn"]}}, "required": ["town"], "additionalProperties": False}


def result_of(turn):
    """What the stubbed tool returns."""
    return "cold<|again|>" if turn + 1 < TURNS else "cold<|done|>"


class Agents(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        scripted_model.write(f"{cls.folder.name}/model", TEMPLATE, {**SCRIPTS, **AGAIN})
        cls.server = Server(COMMAND, f"{cls.folder.name}/model")
        cls.model = {"model": "model", "temperature": 0}

    @classmethod
    def tearDownClass(cls):
        cls.server.end()
        cls.folder.cleanup()


class OpenAi(Agents):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        import openai
        cls.openai = openai
        cls.options = {"base_url": f"http://127.0.0.1:{cls.server.port}/v1", "api_key": "unused", "max_retries": 0}
        cls.client = openai.OpenAI(**cls.options)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        super().tearDownClass()

    def test_events_have_the_fields_of_the_sdk(self):
        from openai.types.responses import Response, ResponseStreamEvent
        from pydantic import TypeAdapter
        events = TypeAdapter(ResponseStreamEvent)
        for fields in ({}, {"tools": FLAT_TOOLS}, {"max_output_tokens": 3}):
            for event in self.server.events("/v1/responses", {"input": "<|two|>", "temperature": 0, **fields}):
                self.assertEqual(events.validate_python(event, strict=True).type, event["type"])
            status, reply = self.server.post("/v1/responses", {"input": "<|two|>", **fields})
            self.assertEqual(TypeAdapter(Response).validate_python(reply, strict=True).id, reply["id"])

    def test_response_whole_and_as_a_stream(self):
        whole = self.client.responses.create(input="<|text|>", **self.model)
        self.assertEqual((whole.output_text, whole.status), ("Only plain text here", "completed"))
        self.assertEqual(self.client.responses.retrieve(whole.id), whole)
        with self.client.responses.stream(input="<|text|>", **self.model) as stream:
            text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            self.assertEqual((text, stream.get_final_response().output_text), (whole.output_text,) * 2)
        with self.client.responses.stream(input="<|two|>", tools=FLAT_TOOLS, **self.model) as stream:
            calls = [event.item for event in stream if event.type == "response.output_item.done"][1:]
        self.assertEqual([json.loads(call.arguments)["town"] for call in calls], ["Köln", "Bonn"])

    def test_stored_response_is_listed_and_deleted(self):
        from openai.types.responses import ResponseItem
        from pydantic import TypeAdapter
        first = self.client.responses.create(input="<|two|>", tools=FLAT_TOOLS, **self.model)
        results = [{"type": "function_call_output", "call_id": item.call_id, "output": "cold<|text|>"}
                   for item in first.output if item.type == "function_call"]
        reply = self.client.responses.create(input=results, previous_response_id=first.id, tools=FLAT_TOOLS, **self.model)
        items = list(self.client.responses.input_items.list(reply.id, order="asc", limit=2))  # pages of two
        self.assertEqual([item.type for item in items], ["message", *(item.type for item in first.output), *["function_call_output"] * 2])
        for item in items:
            TypeAdapter(ResponseItem).validate_python(item.model_dump(exclude_unset=True))
        self.assertIsNone(self.client.responses.delete(reply.id))
        with self.assertRaises(self.openai.NotFoundError):
            self.client.responses.retrieve(reply.id)
        self.assertEqual(self.client.responses.retrieve(first.id), first)
        with self.assertRaisesRegex(self.openai.BadRequestError, "stream"), self.client.responses.retrieve(first.id, stream=True):
            pass

    def test_structured_outputs_of_vllm(self):
        if not self.client.models.retrieve("model").capabilities["structured_outputs"]:
            self.skipTest("a build without xgrammar")
        for outputs, pattern in (({"choice": ["yes", "no"]}, "yes|no"), ({"regex": "[a-c]{3}"}, "[a-c]{3}"),
                                 ({"grammar": 'root ::= "x" [0-9] [0-9]'}, "x[0-9]{2}")):
            reply = self.client.chat.completions.create(messages=[{"role": "user", "content": "Go"}], max_tokens=20,
                                                        extra_body={"structured_outputs": outputs}, **self.model)
            self.assertRegex(reply.choices[0].message.content, f"^(?:{pattern})$")

    def test_special_tokens_have_log_probabilities(self):
        scores = self.client.chat.completions.create(messages=[{"role": "user", "content": "<|text|>"}], logprobs=True,
                                                     top_logprobs=2, **self.model).choices[0].logprobs.content
        self.assertEqual([score.token for score in scores], ["Only", " plain", " text", " here", "<|end|>"])
        self.assertEqual(bytes(scores[-1].bytes).decode(), "<|end|>")

    def test_embeddings_are_refused_with_the_reason(self):
        with self.assertRaisesRegex(self.openai.BadRequestError, "this server generates text"):
            self.client.embeddings.create(input="a", model="model")

    def test_stored_conversation_of_many_turns(self):
        reply = self.client.responses.create(input="<|again|>", tools=FLAT_TOOLS, **self.model)
        for turn in range(TURNS):
            call = reply.output[-1]
            self.assertEqual((call.type, call.name, json.loads(call.arguments)), ("function_call", "get_weather", {"town": "Ulm"}))
            reply = self.client.responses.create(
                previous_response_id=reply.id, tools=FLAT_TOOLS, **self.model,
                input=[{"type": "function_call_output", "call_id": call.call_id, "output": result_of(turn)}])
        self.assertEqual(reply.output_text, "All towns are cold.")

    def test_stateless_conversation_of_many_turns(self):
        items = [{"role": "user", "content": "<|again|>"}]
        for turn in range(TURNS + 1):
            with self.client.responses.stream(input=items, tools=FLAT_TOOLS, store=False, **self.model) as stream:
                for _ in stream:
                    pass
                reply = stream.get_final_response()
            items += [item.model_dump(exclude={"parsed_arguments"}, exclude_none=True) for item in reply.output]
            for item in reply.output:
                if item.type == "message":
                    for part in items[-len(reply.output)]["content"]:
                        part.pop("parsed", None)
            if reply.output[-1].type != "function_call":
                break
            items.append({"type": "function_call_output", "call_id": reply.output[-1].call_id, "output": result_of(turn)})
        self.assertEqual((turn, reply.output_text), (TURNS, "All towns are cold."))

    def test_chat_conversation_of_many_turns(self):
        messages = [{"role": "user", "content": "<|again|>"}]
        for turn in range(TURNS + 1):
            message = self.client.chat.completions.create(messages=messages, tools=CHAT_TOOLS, **self.model).choices[0].message
            if not message.tool_calls:
                break
            messages += [message.model_dump(exclude_none=True),
                         {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": result_of(turn)}]
        self.assertEqual((turn, message.content), (TURNS, "All towns are cold."))

    def test_forced_calls_of_many_turns(self):
        tools = [{**FLAT_TOOLS[0], "parameters": FORCED, "strict": True}]
        fields = {**self.model, "tools": tools, "max_output_tokens": 200, "parallel_tool_calls": False}
        given, previous = "Go on", None
        for turn in range(TURNS):
            choice = "required" if turn % 2 else {"type": "function", "name": "get_weather"}
            try:
                reply = self.client.responses.create(input=given, previous_response_id=previous, tool_choice=choice, **fields)
            except self.openai.BadRequestError as error:
                if "MORACLE_XGRAMMAR" in str(error):
                    self.skipTest(str(error))
                raise
            [call] = reply.output
            self.assertEqual((call.name, json.loads(call.arguments)["town"] in ("Ulm", "Bonn")), ("get_weather", True))
            given, previous = [{"type": "function_call_output", "call_id": call.call_id, "output": "cold"}], reply.id
        self.assertGreater(reply.usage.input_tokens, 200)

    def test_asynchronous_responses(self):
        async def all_of_them():
            async with self.openai.AsyncOpenAI(**self.options) as client:
                async def streamed():
                    stream = await client.responses.create(input="<|text|>", stream=True, **self.model)
                    return "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])

                async def whole():
                    return (await client.responses.create(input="<|text|>", **self.model)).output_text

                return await asyncio.gather(*(each() for each in [streamed, whole] * 8))

        self.assertEqual(set(asyncio.run(all_of_them())), {"Only plain text here"})

    def test_errors_become_exceptions(self):
        with self.assertRaises(self.openai.NotFoundError):
            self.client.responses.create(model="other", input="a")
        with self.assertRaises(self.openai.BadRequestError) as wrong:
            self.client.responses.create(input="a", tools=[{"type": "web_search"}], **self.model)
        self.assertEqual(wrong.exception.param, "tools[0].type")
        with self.assertRaises(self.openai.NotFoundError):
            self.client.responses.retrieve("resp_missing")


class Anthropic(Agents):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        import anthropic
        cls.anthropic = anthropic
        cls.options = {"base_url": f"http://127.0.0.1:{cls.server.port}", "api_key": "unused", "max_retries": 0}
        cls.client = anthropic.Anthropic(**cls.options)
        cls.model = {"model": "model", "max_tokens": 100, "extra_body": {"temperature": 0}}  # the SDK has no temperature

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        super().tearDownClass()

    def fields(self, content, **more):
        return {**self.model, "messages": [{"role": "user", "content": content}], **more}

    def test_events_have_the_fields_of_the_sdk(self):
        from anthropic.types import Message, RawMessageStreamEvent
        from pydantic import TypeAdapter
        events = TypeAdapter(RawMessageStreamEvent)
        for more in ({}, {"tools": CUSTOM_TOOLS}, {"max_tokens": 3}):
            body = {"messages": [{"role": "user", "content": "<|two|>"}], "max_tokens": 100, "temperature": 0, **more}
            for event in self.server.events("/v1/messages", body):
                self.assertEqual(events.validate_python(event, strict=True).type, event["type"])
            status, reply = self.server.post("/v1/messages", body)
            self.assertEqual(TypeAdapter(Message).validate_python(reply, strict=True).id, reply["id"])

    def test_message_whole_and_as_a_stream(self):
        for fields in (self.fields("<|text|>"), self.fields("<|two|>", tools=CUSTOM_TOOLS)):
            whole = self.client.messages.create(**fields)
            with self.client.messages.stream(**fields) as stream:
                text = "".join(stream.text_stream)
                final = stream.get_final_message()
            self.assertEqual(text, "".join(block.text for block in whole.content if block.type == "text"))
            self.assertEqual([block.model_dump(exclude={"id", "parsed_output"}) for block in final.content],
                             [block.model_dump(exclude={"id", "parsed_output"}) for block in whole.content])
            self.assertEqual((final.stop_reason, final.usage.output_tokens), (whole.stop_reason, whole.usage.output_tokens))
            counted = self.client.messages.count_tokens(
                **{key: value for key, value in fields.items() if key != "max_tokens"})
            self.assertEqual(counted.input_tokens, whole.usage.input_tokens)

    def test_conversation_of_many_turns(self):
        messages = [{"role": "user", "content": "<|again|>"}]
        for turn in range(TURNS + 1):
            if turn % 2:
                with self.client.messages.stream(**self.model, messages=messages, tools=CUSTOM_TOOLS) as stream:
                    reply = stream.get_final_message()
            else:
                reply = self.client.messages.create(**self.model, messages=messages, tools=CUSTOM_TOOLS)
            if reply.stop_reason != "tool_use":
                break
            call = reply.content[-1]
            self.assertEqual((call.name, call.input), ("get_weather", {"town": "Ulm"}))
            messages += [{"role": "assistant", "content": reply.content},
                         {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": result_of(turn)}]}]
        self.assertEqual((turn, reply.content[0].text), (TURNS, "All towns are cold."))

    def test_forced_calls_of_many_turns(self):
        tools = [{**CUSTOM_TOOLS[0], "input_schema": FORCED}]
        messages = [{"role": "user", "content": "Go on"}]
        for turn in range(TURNS):
            choice = {"type": "any" if turn % 2 else "tool", "disable_parallel_tool_use": True}
            if choice["type"] == "tool":
                choice["name"] = "get_weather"
            try:
                with self.client.messages.stream(**{**self.model, "max_tokens": 300}, messages=messages, tools=tools,
                                                 tool_choice=choice) as stream:
                    reply = stream.get_final_message()
            except self.anthropic.BadRequestError as error:
                if "MORACLE_XGRAMMAR" in str(error):
                    self.skipTest(str(error))
                raise
            [call] = reply.content
            self.assertEqual((call.name, call.input["town"] in ("Ulm", "Bonn"), reply.stop_reason), ("get_weather", True, "tool_use"))
            messages += [{"role": "assistant", "content": reply.content},
                         {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "cold"}]}]

    def test_asynchronous_messages(self):
        async def all_of_them():
            async with self.anthropic.AsyncAnthropic(**self.options) as client:
                async def streamed():
                    async with client.messages.stream(**self.fields("<|text|>")) as stream:
                        return "".join([text async for text in stream.text_stream])

                async def whole():
                    return (await client.messages.create(**self.fields("<|text|>"))).content[0].text

                return await asyncio.gather(*(each() for each in [streamed, whole] * 8))

        self.assertEqual(set(asyncio.run(all_of_them())), {"Only plain text here"})

    def test_errors_become_exceptions(self):
        with self.assertRaises(self.anthropic.NotFoundError):
            self.client.messages.create(**{**self.fields("a"), "model": "other"})
        with self.assertRaises(self.anthropic.BadRequestError) as wrong:
            self.client.messages.create(**self.fields([{"type": "document"}]))
        self.assertIn("messages[0].content[0].type", str(wrong.exception))


if __name__ == "__main__":
    COMMAND = sys.argv.pop(1)
    skip_without_server(COMMAND)
    packages = {"openai": OpenAi, "anthropic": Anthropic}
    there = [name for name in packages if importlib.util.find_spec(name)]
    for name in packages.keys() - there:
        print(f"skipped: this Python has no package {name}")
        del globals()[packages[name].__name__]
    if not there:
        sys.exit(77)
    del Agents
    unittest.main(verbosity=2)

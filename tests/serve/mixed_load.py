"""Load test of all dialects: mixed_load.py COMMAND [--requests N] [--seconds N].

Three models behind one server, with drafts: completions, chats, responses and messages, whole and as streams, greedy and
sampled, with tools, forced calls, grammars, reasoning and penalties, beside clients that leave and wrong bodies. A server
without drafts answers each different request once, alone; every answer under load must equal it. Exits with 1 if an answer
is wrong or missing, or if memory grows after the second quarter.
"""
import argparse
import asyncio
import collections
import itertools
import json
import os
import random
import sys
import tempfile
import time

import scripted_model
from client import Server, skip_without_server
from connection import Connection, head_of

PARAMETERS = {"type": "object", "properties": {"town": {"enum": ["Bonn", "Ulm"]}}, "required": ["town"],
              "additionalProperties": False}
PERSON = {"type": "object", "properties": {
    "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 130}, "weight": {"type": "number"},
    "towns": {"type": "array", "items": PARAMETERS}, "note": {"type": ["string", "null"]}}, "required": ["name", "age", "towns"]}
FUNCTION = {"name": "get_weather", "description": "Weather.", "parameters": PARAMETERS}
CALLS = """{% if tools %}Tools: {{ tools | tojson }}{% endif %}{% for m in messages %}
{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}{% endfor %}"""
THINKS = """{% for m in messages %}
{{ m.role }}: {% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% endfor %}"""
SCRIPTS = {
    "calls": (CALLS, {"<|call|>": ["Looking", ".\n", "<tool_call>", "\n{\"name\": \"get_wea", "ther\", \"arguments\": ",
                                   "{\"town\": \"Ulm\"}}", "\n</tool_call>"],
                      "<|text|>": ["Only", " plain", " text", " here", " and", " some", " more"]}),
    "thinks": (THINKS, {"<|deep|>": ["<think>", "First", " this", ", then", " that.", "</think>", "So", " it", " is!"],
                        "<|quick|>": ["At", " once;"]}),
    "plain": (CALLS, {"<|go|>": ["one ", "two ", "three ", "four ", "five ", "six ", "seven "]}),
}
PATHS = {"completion": "/v1/completions", "chat": "/v1/chat/completions", "response": "/v1/responses",
         "message": "/v1/messages"}
WRONG = [b"", b"{", b"[1]", b'{"model": "calls"}', b'{"model": "other", "prompt": "a"}', b"\xff",
         b'{"model": "plain", "prompt": "a", "temperature": -1}', b'{"model": "calls", "messages": [{"role": "x"}]}']


def requests(draw, count, has_grammars):
    """Different requests: the dialect and the body."""
    asked = []
    while len(asked) < count:
        model = draw.choice(list(SCRIPTS))
        start = draw.choice(list(SCRIPTS[model][1]))
        filler = " ".join(draw.choices(["Moses", "Egypt", "bread", "water", "one two"], k=draw.randint(0, 30)))
        dialect = draw.choice(list(PATHS))
        schema = draw.choice([PARAMETERS, PERSON])
        body = {"model": model, "temperature": draw.choice([0, 0, 3]), "seed": len(asked)}
        limit = draw.choice([1, 4, 12, 40])
        # A prompt with the answer gives n-grams that are right.
        answer = start + "".join(SCRIPTS[model][1][start]) if draw.random() < 0.5 else ""
        prompt = f"{answer} {filler} {start}"
        if draw.random() < 0.2:
            body["presence_penalty"] = 1.5
        kind = draw.choice(["text", "text", "tools", "forced", "grammar", "schema"])
        if kind in ("forced", "grammar", "schema") and not has_grammars:
            kind = "text"
        if dialect == "completion":
            body.update(prompt=prompt, max_tokens=limit)
            if kind == "grammar":
                body["structured_outputs"] = draw.choice([{"regex": "[ab]{3,9}"}, {"choice": ["yes", "no", "yes, so"]},
                                                          {"grammar": 'root ::= "(" root ")" | "x"'}])
            elif kind == "schema":
                body["response_format"] = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        else:
            with_tools = kind in ("tools", "forced") and model != "thinks"
            strict = {"strict": True} if has_grammars and draw.random() < 0.5 else {}
            said = [{"role": "user", "content": prompt}]
            if dialect == "message":
                body = {"model": model, "temperature": 0, "messages": said, "max_tokens": limit}
                if with_tools:
                    body["tools"] = [{"name": "get_weather", "input_schema": PARAMETERS}]
                    if kind == "forced":
                        body.update(tool_choice={"type": "tool", "name": "get_weather"}, max_tokens=200)
            elif dialect == "chat":
                body.update(messages=said, max_tokens=limit)
                if with_tools:
                    body["tools"] = [{"type": "function", "function": {**FUNCTION, **strict}}]
                    if kind == "forced":
                        body.update(tool_choice="required", max_tokens=200)
                elif kind == "schema":
                    body["response_format"] = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
                elif kind == "grammar":
                    body["structured_outputs"] = {"json": schema}
            else:
                body.update(input=prompt, max_output_tokens=limit, store=draw.random() < 0.1)
                if with_tools:
                    body["tools"] = [{"type": "function", **FUNCTION, **strict}]
                    if kind == "forced":
                        body.update(tool_choice="required", max_output_tokens=200)
                elif kind == "schema":
                    body["text"] = {"format": {"type": "json_schema", "name": "n", "schema": schema}}
        asked.append((dialect, body))
    return asked


def of_chat(message, finish):
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or []]
    return message.get("content") or "", message.get("reasoning_content") or "", calls, finish


def of_blocks(blocks, finish):
    return [(block["type"], block.get("text"), block.get("thinking"), block.get("name"), block.get("input"))
            for block in blocks], finish


def of_response(reply):
    items = []
    for item in reply["output"]:
        texts = [part["text"] for part in item.get("content") or []]
        items.append((item["type"], texts, item.get("name"), item.get("arguments")))
    return items, reply["status"], reply["error"], (reply["usage"] or {}).get("output_tokens")


def meaning(dialect, reply):
    """What must not depend on the load: texts, calls and reasons to stop."""
    if dialect == "completion":
        return reply["choices"][0]["text"], reply["choices"][0]["finish_reason"]
    if dialect == "chat":
        return of_chat(reply["choices"][0]["message"], reply["choices"][0]["finish_reason"])
    if dialect == "message":
        return of_blocks(reply["content"], reply["stop_reason"])
    return of_response(reply)


def meaning_of_stream(dialect, reply):
    events = [event.split("data: ", 1)[1] for event in reply.decode().split("\n\n")[:-1]]
    if dialect in ("completion", "chat"):
        if events.pop() != "[DONE]":
            raise ValueError("no [DONE]")
    events = [json.loads(event) for event in events]
    if dialect == "completion":
        choices = [event["choices"][0] for event in events]
        return "".join(choice["text"] for choice in choices), choices[-1]["finish_reason"]
    if dialect == "response":
        return of_response(events[-1]["response"])
    if dialect == "chat":
        message, calls = {"content": "", "reasoning_content": ""}, {}
        for delta in (event["choices"][0]["delta"] for event in events):
            for key in message:
                message[key] += delta.get(key) or ""
            for part in delta.get("tool_calls") or []:
                call = calls.setdefault(part["index"], {"name": "", "arguments": ""})
                for key in call:
                    call[key] += part["function"].get(key) or ""
        message["tool_calls"] = [{"function": call} for call in calls.values()]
        return of_chat(message, events[-1]["choices"][0]["finish_reason"])
    blocks, finish = [], None
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            delta, block = event["delta"], blocks[event["index"]]
            for key, of_block in (("text", "text"), ("thinking", "thinking"), ("partial_json", "json")):
                if key in delta:
                    block[of_block] += delta[key]
        elif event["type"] == "message_delta":
            finish = event["delta"]["stop_reason"]
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["json"] or "{}")
    return of_blocks(blocks, finish)


class Load:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.counts, self.faults, self.memory = collections.Counter(), [], []
        self.numbers = itertools.count()

    def server(self, *more):
        models = [f"--model={name}={self.folder}/{name}" for name in SCRIPTS]
        return Server(self.options.command, models[0], *models[1:], "--deterministic", "--max-waiting", "4096",
                      "--cache-bytes", "4000000", "--threads", str(self.options.threads), *more)

    async def expect(self, port, has_grammars):
        connection, self.asked = Connection(port), []
        for dialect, body in requests(random.Random(3), self.options.different, has_grammars):
            status, reply = await connection.post(PATHS[dialect], body)
            reply = json.loads(reply)
            if status != 200:  # forced calls may not fit
                raise ValueError(f"{dialect} {body}: {status} {reply}")
            self.asked.append((dialect, body, meaning(dialect, reply)))
        connection.close()

    def fault(self, text):
        self.counts["faults"] += 1
        self.faults.append(text)

    async def ask(self, connection, draw):
        dialect, body, expected = draw.choice(self.asked)
        stream = draw.random() < 0.5
        status, reply = await connection.post(PATHS[dialect], {**body, "stream": stream} if stream else body)
        got = meaning_of_stream(dialect, reply) if stream and status == 200 else (
            meaning(dialect, json.loads(reply)) if status == 200 else (status, reply))
        self.counts[f"{dialect} {'streams' if stream else 'replies'}"] += 1
        if got != expected:
            self.fault(f"{dialect} {body}: {got} instead of {expected}")

    async def leave(self, port, draw):
        dialect, body, _ = draw.choice(self.asked)
        data = json.dumps({**body, "stream": True}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head_of(PATHS[dialect], data) + data)
        if draw.random() < 0.7:
            await reader.read(100)
        writer.close()
        self.counts["left"] += 1

    async def client(self, port, seed):
        draw, connection = random.Random(seed), Connection(port)
        end = time.monotonic() + self.options.seconds
        while next(self.numbers) < self.options.requests and time.monotonic() < end:
            kind = draw.random()
            try:
                if kind < 0.9:
                    await self.ask(connection, draw)
                elif kind < 0.95:
                    await self.leave(port, draw)
                else:
                    status, _ = await connection.post(draw.choice(list(PATHS.values())), draw.choice(WRONG))
                    self.counts["wrong bodies"] += 1
                    if status not in (400, 404):
                        self.fault(f"a wrong body has status {status}")
            except (OSError, ValueError, EOFError, KeyError, IndexError, TypeError) as error:
                self.fault(f"{type(error).__name__}: {error}")
                connection.close()
        connection.close()

    async def load(self, server):
        work = asyncio.gather(*(self.client(server.port, i) for i in range(self.options.clients)))
        while not work.done():
            await asyncio.wait([work], timeout=min(1, self.options.requests / 20000))
            with open(f"/proc/{server.process.pid}/statm", encoding="ascii") as file:
                pages = int(file.read().split()[1])
            self.memory.append((sum(self.counts.values()), pages * os.sysconf("SC_PAGESIZE") / 1e6))
        work.result()

    def run(self):
        with self.server() as plain:
            status, _, _ = plain.request("POST", "/v1/completions", {"model": "plain", "prompt": "a", "max_tokens": 1,
                                                                     "structured_outputs": {"choice": ["a"]}})
            asyncio.run(self.expect(plain.port, status == 200))
        with self.server("--speculate", "ngram") as server:
            begin = time.monotonic()
            asyncio.run(self.load(server))
            spent = time.monotonic() - begin
            metrics = server.request("GET", "/metrics")[2].splitlines()
            drafts = sum(float(line.rsplit(" ", 1)[1]) for line in metrics
                         if line.startswith("moracle_draft_tokens_accepted_total"))
            if server.end() != 0:
                self.fault(f"the server ends with {server.code}")
        done = sum(self.counts.values()) - self.counts["faults"]
        quarters = [max((mb for at, mb in self.memory if done * q / 4 <= at <= done * (q + 1) / 4), default=0)
                    for q in range(4)]
        print(f"{done} requests of {len(self.asked)} kinds in {spent:.0f} s, {drafts:.0f} accepted drafts, grammars: "
              f"{'yes' if status == 200 else 'no'}")
        print(", ".join(f"{value} {key}" for key, value in sorted(self.counts.items())))
        print("most resident memory by quarter:", ", ".join(f"{mb:.0f} MB" for mb in quarters))
        if done >= 20000 and quarters[3] > 1.1 * quarters[1]:
            self.fault("memory grows")
        for fault in self.faults[:10]:
            print(f"fault: {fault}")
        print(f"{len(self.faults)} faults")
        return 1 if self.faults or done == 0 or drafts == 0 else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command")
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=3600, help="ends earlier after so many")
    parser.add_argument("--different", type=int, default=300, help="different requests")
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--threads", type=int, default=1, help="of each model; more wait for each other on a busy machine")
    options = parser.parse_args()
    skip_without_server(options.command)
    with tempfile.TemporaryDirectory() as folder:
        for name, (template, scripts) in SCRIPTS.items():
            scripted_model.write(f"{folder}/{name}", template, scripts)
        sys.exit(Load(options, folder).run())


if __name__ == "__main__":
    main()

"""Soak test: loads a server and checks every text against `moracle run`: soak.py COMMAND MODEL [--seconds N].

Mixed requests run beside disconnects, invalid bodies, reloads, adapter changes, and a KV cache that is too small for all
sequences. Exits with 1 if a text is wrong, a request has no valid reply, or memory grows after the first quarter. One
thread runs all clients on keep-alive connections, to leave the CPU to the server.
"""
import argparse
import asyncio
import collections
import json
import os
import random
import subprocess
import sys
import tempfile
import time

from client import Server, skip_without_server
from connection import Connection, head_of
from server_test import write_adapter

# The long prompts end just below a page of 256 positions, so that their texts need another page.
PROMPTS = ["And the LORD spake unto Moses, saying,", "In the beginning", "Blessed are", "And it came to pass " * 45,
           "Thou shalt not " * 57]
LENGTHS = [1, 8, 30, 90, 300]
WRONG = [b"", b"{", b"[1]", b'{"prompt": 5}', b'{"prompt": "a", "temperature": -1}', b"\xff\xfe", b'{"prompt": ""}',
         b'{"prompt": "a", "model": "missing"}', b'{"prompt": "a", "max_tokens": 100000}']
# Valid replies without a text: queue full, adapter unloaded.
REFUSED = {429, 404}


class Soak:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.counts = collections.Counter()
        self.faults, self.memory = [], []
        self.jobs = []
        draw = random.Random(options.seed)
        for i in range(options.texts):
            fields = {"prompt": draw.choices(PROMPTS, [4, 4, 4, 1, 1])[0],
                      "max_tokens": draw.choices(LENGTHS, [8, 6, 4, 2, 0.5])[0], "seed": i,
                      "temperature": draw.choice([0, 0.8])}
            adapter = draw.choice([None, None, "one", "two"])
            self.jobs.append((fields, adapter, self.text_of_run(fields, adapter)))

    def text_of_run(self, fields, adapter):
        command = [self.options.command, "run", self.options.model, "-p", fields["prompt"], "--deterministic", "--threads",
                   "2", "--json", "-n", str(fields["max_tokens"]), "--seed", str(fields["seed"]), "--temperature",
                   str(fields["temperature"])]
        if adapter:
            command += ["--lora", f"{self.folder}/{adapter}"]
        return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)["text"]

    def count(self, what, fault=None):
        self.counts[what] += 1
        if fault:
            self.faults.append(fault)

    def check(self, text, job):
        fields, adapter, expected = job
        self.count("texts", None if text == expected else f"{adapter} {fields}: {text!r} instead of {expected!r}")

    async def ask(self, connection, job, stream):
        fields, adapter, _ = job
        body = {**fields, "stream": stream, **({"model": adapter} if adapter else {})}
        status, reply = await connection.post("/v1/completions", body)
        if status != 200:
            return self.count(f"status {status}", None if status in REFUSED else f"{fields}: {status} {reply}")
        if not stream:
            return self.check(json.loads(reply)["choices"][0]["text"], job)
        events = reply.decode().split("\n\n")
        if events[-2:] != ["data: [DONE]", ""]:
            known = "unloaded" in events[-2] and adapter
            return self.count("streams cut", None if known else f"a stream ends with {events[-2:]}")
        self.check("".join(json.loads(event[6:])["choices"][0]["text"] for event in events[:-2]), job)

    async def leave(self, port, job, draw):
        body = json.dumps({**job[0], "max_tokens": 600, "stream": draw.random() < 0.7, "ignore_eos": True}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head_of("/v1/completions", body) + body)
        if draw.random() < 0.7:
            await reader.read(100)
        writer.close()
        self.count("left")

    async def client(self, port, seed, end):
        draw, connection = random.Random(seed), Connection(port)
        while time.monotonic() < end and self.requests() < self.options.requests:
            job, kind = draw.choice(self.jobs), draw.random()
            try:
                if kind < 0.8:
                    await self.ask(connection, job, stream=kind > 0.55)
                elif kind < 0.9:
                    await self.leave(port, job, draw)
                else:
                    status, _ = await connection.post("/v1/completions", draw.choice(WRONG))
                    self.count("wrong bodies", None if status in (400, 404) else f"a wrong body has status {status}")
            except (OSError, ValueError, EOFError) as error:
                self.count("no answer", f"{type(error).__name__}: {error}")
                connection.close()
        connection.close()

    def requests(self):
        return sum(self.counts.values()) - self.counts["reloads"] - self.counts["adapter changes"]

    async def change(self, port, end):
        draw, has_two, connection = random.Random(7), False, Connection(port)
        while time.monotonic() < end and self.requests() < self.options.requests:
            # Requests for an unloaded adapter are rejected; retry, it is loaded again soon.
            await asyncio.sleep(draw.uniform(0.5, self.options.change_seconds) if has_two else 0.5)
            if has_two and draw.random() < 0.4:
                status, _ = await connection.post("/reload", b"")
                self.count("reloads", None if status == 200 else f"reload: {status}")
                continue
            path = "/v1/unload_lora_adapter" if has_two else "/v1/load_lora_adapter"
            body = {"lora_name": "two"} if has_two else {"lora_name": "two", "lora_path": "two"}
            status, reply = await connection.post(path, body)
            self.count("adapter changes", None if status == 200 else f"{path}: {status} {reply}")
            has_two = not has_two
        connection.close()

    def resident(self, server):
        with open(f"/proc/{server.process.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6

    def cpu_seconds(self, server):
        with open(f"/proc/{server.process.pid}/stat", encoding="ascii") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def left_over(self, server):
        # The server notices a disconnect at the next step.
        for _ in range(1000):
            running = server.metric("moracle_requests_running") + server.metric("moracle_requests_waiting")
            if running == 0:
                break
            time.sleep(0.01)
        return running

    async def load(self, server, end):
        clients = [self.client(server.port, i, end) for i in range(self.options.clients)]
        work = asyncio.gather(self.change(server.port, end), *clients)
        while not work.done():
            await asyncio.wait([work], timeout=min(5, self.options.seconds / 12))
            self.memory.append(self.resident(server))
        work.result()

    def run(self):
        with Server(self.options.command, self.options.model, "--deterministic", "--lora", f"one={self.folder}/one",
                    "--adapter-folder", self.folder, "--max-sequences", "12", "--max-waiting", "12", "--cache-bytes",
                    str(self.options.cache_bytes), "--threads", str(self.options.threads)) as server:
            begin = time.monotonic()
            asyncio.run(self.load(server, begin + self.options.seconds))
            self.spent = time.monotonic() - begin
            self.server_seconds = self.cpu_seconds(server)
            preemptions = int(server.metric("moracle_preemptions_total"))
            running = self.left_over(server)
            if server.end() != 0 or running > 0:
                self.faults.append(f"the server ends with {server.code}, {running} sequences")
        return self.report(preemptions)

    def report(self, preemptions):
        quarter = len(self.memory) // 4
        early, late = max(self.memory[quarter:2 * quarter] or [0]), max(self.memory[-quarter:] or [0])
        print(f"{self.requests()} requests in {self.spent:.0f} s; processor seconds: server {self.server_seconds:.0f}, "
              f"clients {time.process_time():.0f}")
        print(", ".join(f"{value} {key}" for key, value in sorted(self.counts.items())) + f", {preemptions} preemptions")
        print(f"resident memory: at most {early:.0f} MB in the second quarter, {late:.0f} MB in the last")
        if self.options.seconds >= 60 and late > 1.1 * early:
            self.faults.append("memory grows")
        for fault in self.faults[:10]:
            print(f"fault: {fault}")
        print(f"{len(self.faults)} faults")
        return 1 if self.faults or not self.counts["texts"] else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command")
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--requests", type=int, default=1 << 60, help="ends earlier after so many")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--texts", type=int, default=40, help="different requests")
    parser.add_argument("--cache-bytes", type=int, default=4_000_000)
    parser.add_argument("--change-seconds", type=float, default=3, help="between reloads and changes of adapters, at most")
    parser.add_argument("--threads", type=int, default=2, help="of the server")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    skip_without_server(options.command)
    with tempfile.TemporaryDirectory() as folder:
        for i, name in enumerate(("one", "two")):
            write_adapter(f"{folder}/{name}", i)
        sys.exit(Soak(options, folder).run())


if __name__ == "__main__":
    main()

"""Loads a server for a while and checks every text against `moracle run`: soak.py COMMAND MODEL [--seconds N].

Requests of mixed kinds and lengths come at the same time as clients that leave, wrong bodies, reloads, adapters that
come and go, and a cache that is too small for all sequences. Ends with 1 if a text is wrong, if a request has no proper
answer, or if memory grows after the first quarter.
"""
import argparse
import collections
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time

from client import Server, skip_without_server
from server_test import write_adapter

# The long ones end just below a page of 256 positions, so that their texts need another page on the way.
PROMPTS = ["And the LORD spake unto Moses, saying,", "In the beginning", "And it came to pass " * 45,
           "Thou shalt not " * 57, "Blessed are"]
WRONG = [b"", b"{", b"[1]", b'{"prompt": 5}', b'{"prompt": "a", "temperature": -1}', b"\xff\xfe", b'{"prompt": ""}',
         b'{"prompt": "a", "model": "missing"}', b'{"prompt": "a", "max_tokens": 100000}']
# Proper answers that carry no text: too busy, adapter or model gone, an adapter that was unloaded while it waited.
REFUSED = {429, 404, 500}


class Soak:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.counts, self.lock = collections.Counter(), threading.Lock()
        self.faults, self.memory = [], []
        self.jobs = []
        draw = random.Random(options.seed)
        for i in range(options.texts):
            fields = {"prompt": draw.choice(PROMPTS), "max_tokens": draw.choice([1, 30, 90, 300]), "seed": i,
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
        with self.lock:
            self.counts[what] += 1
            if fault:
                self.faults.append(fault)

    def check(self, text, job):
        fields, adapter, expected = job
        self.count("texts", None if text == expected else f"{adapter} {fields}: {text!r} instead of {expected!r}")

    def ask(self, server, job):
        fields, adapter, _ = job
        status, reply = server.post("/v1/completions", {**fields, **({"model": adapter} if adapter else {})})
        if status == 200:
            return self.check(reply["choices"][0]["text"], job)
        known = status in REFUSED and (status != 500 or "unloaded" in reply["error"]["message"])
        self.count(f"status {status}", None if known else f"{fields}: {status} {reply}")

    def stream(self, server, job):
        fields, adapter, _ = job
        if adapter:
            return self.ask(server, job)
        with server.connect() as connection:
            connection.request("POST", "/v1/completions", json.dumps({**fields, "stream": True}))
            reply = connection.getresponse()
            if reply.status != 200:
                return self.count(f"status {reply.status}", None if reply.status == 429 else f"stream: {reply.status}")
            events = reply.read().decode().split("\n\n")
        if events[-2:] != ["data: [DONE]", ""]:
            return self.count("broken stream", f"a stream ends with {events[-2:]}")
        self.check("".join(json.loads(event[6:])["choices"][0]["text"] for event in events[:-2]), job)

    def leave(self, server, job, draw):
        body = json.dumps({**job[0], "max_tokens": 600, "stream": draw.random() < 0.7, "ignore_eos": True}).encode()
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            if draw.random() < 0.7:
                connection.recv(100)
        self.count("left")

    def client(self, server, seed, end):
        draw = random.Random(seed)
        while time.monotonic() < end:
            job, kind = draw.choice(self.jobs), draw.random()
            try:
                if kind < 0.55:
                    self.ask(server, job)
                elif kind < 0.8:
                    self.stream(server, job)
                elif kind < 0.9:
                    self.leave(server, job, draw)
                else:
                    status = server.request("POST", "/v1/completions", draw.choice(WRONG))[0]
                    self.count("wrong bodies", None if status in (400, 404) else f"a wrong body has status {status}")
            except (OSError, ValueError, AssertionError) as error:
                self.count("no answer", f"{type(error).__name__}: {error}")

    def change(self, server, end):
        draw, has_two = random.Random(7), False
        while time.monotonic() < end:
            time.sleep(draw.uniform(0.5, 3))
            if draw.random() < 0.4:
                status = server.post("/reload", "")[0]
                self.count("reloads", None if status == 200 else f"reload: {status}")
                continue
            path = "/v1/unload_lora_adapter" if has_two else "/v1/load_lora_adapter"
            body = {"lora_name": "two"} if has_two else {"lora_name": "two", "lora_path": "two"}
            status, reply = server.post(path, body)
            self.count("adapter changes", None if status == 200 else f"{path}: {status} {reply}")
            has_two = not has_two

    def resident(self, server):
        with open(f"/proc/{server.process.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6

    def left_over(self, server):
        # The server hears of a client that has just left at the next step.
        for _ in range(1000):
            running = server.metric("moracle_requests_running") + server.metric("moracle_requests_waiting")
            if running == 0:
                break
            time.sleep(0.01)
        return running

    def run(self):
        begin = time.monotonic()
        end = begin + self.options.seconds
        with Server(self.options.command, self.options.model, "--deterministic", "--lora", f"one={self.folder}/one",
                    "--adapter-folder", self.folder, "--max-sequences", "12", "--max-waiting", "12", "--cache-bytes",
                    str(self.options.cache_bytes)) as server:
            threads = [threading.Thread(target=self.client, args=(server, i, end)) for i in range(self.options.clients)]
            threads.append(threading.Thread(target=self.change, args=(server, end)))
            for thread in threads:
                thread.start()
            while time.monotonic() < end:
                time.sleep(min(5, self.options.seconds / 12))
                self.memory.append(self.resident(server))
            for thread in threads:
                thread.join()
            self.count("preemptions")
            self.counts["preemptions"] = int(server.metric("moracle_preemptions_total"))
            running = self.left_over(server)
            if server.end() != 0 or running > 0:
                self.faults.append(f"the server ends with {server.code}, {running} sequences")
        return self.report()

    def report(self):
        quarter = len(self.memory) // 4
        early, late = max(self.memory[quarter:2 * quarter] or [0]), max(self.memory[-quarter:] or [0])
        print(", ".join(f"{value} {key}" for key, value in sorted(self.counts.items())))
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
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--texts", type=int, default=40, help="different requests")
    parser.add_argument("--cache-bytes", type=int, default=4_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    skip_without_server(options.command)
    with tempfile.TemporaryDirectory() as folder:
        for i, name in enumerate(("one", "two")):
            write_adapter(f"{folder}/{name}", i)
        sys.exit(Soak(options, folder).run())


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Times a server with OpenAI's interface under load, with the standard library alone.

    moracle serve --model-shape qwen3-30b-a3b --layers 2 &
    python3 bench/serve_load.py http://127.0.0.1:8000 --clients 1,8,32,64

Each client sends one request after another: random token ids as the prompt, so that no beginning is shared, and always
the same number of new tokens. The first second of each row does not count. --steady leaves prompts out: every client
streams one long text, and only the seconds count in which all of them do, as in `moracle bench --batch`; below, the
host's parts of a step from Moracle's /metrics. --behind N times the first token of a short request while a prompt of N tokens is taken in.
"""
import argparse
import http.client
import json
import random
import selectors
import socket
import statistics
import threading
import time
import urllib.parse


class Api:
    def __init__(self, options):
        url = urllib.parse.urlsplit(options.url)
        self.host, self.port, self.options = url.hostname, url.port or 80, options
        self.draw = random.Random(options.seed)

    def connect(self):
        return http.client.HTTPConnection(self.host, self.port, timeout=600)

    def body(self, prompt_tokens, new_tokens, **fields):
        ids = [self.draw.randrange(1000, self.options.vocabulary) for _ in range(prompt_tokens)]
        return json.dumps({"prompt": ids, "max_tokens": new_tokens, "ignore_eos": True,
                           "seed": self.draw.randrange(1 << 30), **self.options.fields, **fields})

    def complete(self, connection, body):
        """Returns the number of new tokens."""
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        reply = json.loads(connection.getresponse().read())
        if "usage" not in reply:
            raise SystemExit(f"the server answers: {reply}")
        return reply["usage"]["completion_tokens"]

    def first_token(self, body):
        """Seconds until the first event of a stream, and until its end."""
        connection, begin = self.connect(), time.monotonic()
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        reply.readline()
        first = time.monotonic() - begin
        reply.read()
        connection.close()
        return first, time.monotonic() - begin


def throughput(api, clients, seconds):
    """Tokens per second of all clients together, counted when a request ends."""
    options, done, lock = api.options, [], threading.Lock()
    begin = time.monotonic()
    end = begin + seconds

    def client():
        connection = api.connect()
        while time.monotonic() < end:
            with lock:
                body = api.body(options.prompt, options.tokens)
            started = time.monotonic()
            count = api.complete(connection, body)
            with lock:
                done.append((started, time.monotonic(), count))
        connection.close()

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Spread the tokens of a request evenly over its time, and count only those inside the window: at its edges some
    # clients are idle.
    first, last = begin + 1, end
    inside = sum(count * max(0, min(stop, last) - max(start, first)) / (stop - start) for start, stop, count in done)
    return inside / (last - first), statistics.median(stop - start for start, stop, _ in done), len(done)


def host_parts(api):
    """Seconds of the host's parts of steps, of whole steps, and the number of steps so far. None: no such metrics."""
    connection = api.connect()
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    if "moracle_step_seconds_count" not in values:
        return None
    parts = {name: float(values.get(f'moracle_part_seconds_total{{part="{name}",backend="cpu"}}', 0))
             for name in ("scheduling", "enqueueing", "answers", "grammars")}
    return {**parts, "step": float(values["moracle_step_seconds_sum"]), "count": float(values["moracle_step_seconds_count"])}


class Stream:
    """Reads a streamed text of one client."""

    def __init__(self, api, new_tokens):
        body = api.body(api.options.prompt, new_tokens, stream=True).encode()
        self.socket = socket.create_connection((api.host, api.port), timeout=600)
        self.socket.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                            b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.events, self.rest, self.ended = 0, b"", False

    def read(self):
        """Reads the available events. Each event carries one token, because no token here has an empty text."""
        data = self.rest + self.socket.recv(1 << 16)
        self.ended = self.ended or len(data) == len(self.rest) or b"[DONE]" in data
        self.events += data.count(b"data: {")
        self.rest = data[-6:] if not data.endswith(b"\n") else b""


def steady(api, clients, seconds):
    """Tokens per second while every client receives a text. Also: pieces between the first and the last moment."""
    streams = [Stream(api, api.options.tokens) for _ in range(clients)]
    with selectors.DefaultSelector() as ready:
        for stream in streams:
            ready.register(stream.socket, selectors.EVENT_READ, stream)

        def receive(until):
            while not until():
                for key, _ in ready.select(0.1):
                    key.data.read()
                if any(stream.ended for stream in streams):
                    raise SystemExit("a text ended too early: raise --tokens, or look at the server's errors")

        receive(lambda: all(stream.events > 2 for stream in streams))
        parts = host_parts(api)
        begin, before = time.monotonic(), sum(stream.events for stream in streams)
        receive(lambda: time.monotonic() - begin >= seconds)
        # Every step sends each client one token: end the window right after a token, so that it cuts no step.
        cut = sum(stream.events for stream in streams)
        receive(lambda: sum(stream.events for stream in streams) >= cut + clients)
        spent, events = time.monotonic() - begin, sum(stream.events for stream in streams) - before
    after = host_parts(api) if parts else None
    for stream in streams:
        stream.socket.close()
    return events / spent, events, after and {name: after[name] - value for name, value in parts.items()}


def behind(api, long_prompt, times):
    """First token of a short request: alone, and while a long prompt is taken in."""
    rows = []
    for _ in range(times):
        alone, _ = api.first_token(api.body(16, 4, stream=True))
        long_times = []
        body = api.body(long_prompt, 1, stream=True)
        thread = threading.Thread(target=lambda b=body: long_times.append(api.first_token(b)[0]))
        thread.start()
        time.sleep(2 * alone + 0.05)
        short, _ = api.first_token(api.body(16, 4, stream=True))
        thread.join()
        rows.append((alone, short, long_times[0]))
    return [statistics.median(column) for column in zip(*rows)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--clients", default="1,8,32,64", help="clients at the same time; several with commas")
    parser.add_argument("--prompt", type=int, default=16, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=128, help="new tokens of each request")
    parser.add_argument("--seconds", type=float, default=20, help="for each number of clients")
    parser.add_argument("--vocabulary", type=int, default=30000, help="prompts have ids from 1000 to this")
    parser.add_argument("--fields", type=json.loads, default={}, help='further fields of every request: {"top_k": 20}')
    parser.add_argument("--steady", action="store_true", help="one long stream for each client, without its prompt")
    parser.add_argument("--behind", type=int, default=0, help="also: first token behind a prompt of so many tokens")
    parser.add_argument("--step-tokens", type=int, default=512, help="of the server, to express times in chunks")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    api = Api(options)
    numbers = [int(each) for each in options.clients.split(",") if each]
    if options.steady:
        print("clients  tokens/s    tokens")
        for clients in numbers:
            rate, count, parts = steady(api, clients, options.seconds)
            print(f"{clients:7}  {rate:8.1f}  {count:8}", flush=True)
            if parts:
                steps = parts.pop("count")
                print("         of a step: " + ", ".join(
                    f"{name} {seconds / steps * 1e6:.0f} µs ({seconds / parts['step'] * 100:.2f} %)"
                    for name, seconds in parts.items()), flush=True)
        numbers = []
    else:
        print("clients  tokens/s  seconds/request  requests")
    for clients in numbers:
        rate, seconds, count = throughput(api, clients, options.seconds)
        print(f"{clients:7}  {rate:8.1f}  {seconds:15.3f}  {count:8}", flush=True)
    if options.behind:
        alone, short, whole = behind(api, options.behind, 5)
        chunk = whole * options.step_tokens / options.behind
        print(f"first token: {alone:.3f} s alone, {short:.3f} s behind a prompt of {options.behind} tokens, which takes "
              f"{whole:.3f} s: {short / chunk:.2f} chunks of {chunk:.3f} s")


if __name__ == "__main__":
    main()

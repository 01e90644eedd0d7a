#!/usr/bin/env python3
"""A client of `moracle serve`, on Python's standard library: prints the answer while the server computes it.

    moracle serve MODEL                                    # listens on http://127.0.0.1:8000
    python chat_client.py http://127.0.0.1:8000 "Who is Moses?" [MAX_TOKENS]
"""
import json
import sys
import urllib.error
import urllib.request


def stream(url, question, max_tokens):
    """The pieces of the answer, as they come."""
    body = {"messages": [{"role": "user", "content": question}], "max_tokens": max_tokens, "stream": True}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        for line in answer:  # server-sent events: "data: {…}", then "data: [DONE]"
            if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
                continue
            event = json.loads(line[len(b"data: "):])
            for choice in event.get("choices", []):
                yield choice["delta"].get("content") or ""


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit("usage: chat_client.py URL QUESTION [MAX_TOKENS]")
    url, question = sys.argv[1].rstrip("/"), sys.argv[2]
    try:
        for piece in stream(url, question, int(sys.argv[3]) if len(sys.argv) == 4 else 64):
            print(piece, end="", flush=True)
    except urllib.error.HTTPError as error:  # the server explains what it refuses
        sys.exit(f"{url}: {json.load(error)['error']['message']}")
    except OSError as error:
        sys.exit(f"{url}: {error}")
    print()


main()

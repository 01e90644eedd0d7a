#!/usr/bin/env python3
"""Runs examples/chat_client.py against a server: chat_client_test.py COMMAND MODEL CLIENT. PYTHONPATH has tests/serve."""
import subprocess
import sys

from client import Server, skip_without_server


def ask(client, url, *arguments):
    return subprocess.run([sys.executable, client, url, *arguments], capture_output=True, text=True)


def main():
    command, model, client = sys.argv[1:]
    skip_without_server(command)
    with Server(command, model) as server:
        url = f"http://127.0.0.1:{server.port}"
        answer = ask(client, url, "Who is Moses?", "8")
        assert answer.returncode == 0 and answer.stdout.strip() and not answer.stderr, answer
        refused = ask(client, url, "Who is Moses?", "-3")
        assert refused.returncode == 1 and "max_tokens" in refused.stderr, refused
    gone = ask(client, url, "Who is Moses?")
    assert gone.returncode == 1 and gone.stderr.startswith(url), gone


main()

#!/usr/bin/env python3
"""Runs programs on one model and compares what they print, except the empty lines: same_output.py MODEL PROGRAM PROGRAM"""
import subprocess
import sys


def printed(program, model):
    text = subprocess.run([program, model], check=True, capture_output=True, text=True).stdout
    return [line for line in text.splitlines() if line]


def main():
    model, first, second = sys.argv[1:]
    want, got = printed(first, model), printed(second, model)
    if len(want) < 4 or not want[-1].startswith("root mean square of the output: "):
        sys.exit(f"{first}: needs a table and a result; it printed\n" + "\n".join(want))
    if float(want[-1].rsplit(" ", 1)[1]) == 0:
        sys.exit(f"{first}: needs an output that is not 0")
    if got != want:
        sys.exit("the outputs differ\n" + "\n".join(want) + "\n---\n" + "\n".join(got))


main()

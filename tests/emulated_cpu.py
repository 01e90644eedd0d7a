#!/usr/bin/env python3
"""Runs the moracle command on an emulated CPU: no instruction that only some CPUs have may be in code
that all of them run. Exits with 77 where qemu-user is not installed or does not emulate the CPU."""
import json
import shutil
import subprocess
import sys

# What each CPU has of the instruction sets that kernels choose by, and the rows that then serve.
CPUS = {"Nehalem": ("none", {"cpu", "reference"}),
        "Haswell": ("avx2", {"cpu-avx2", "cpu", "reference"})}
PROMPT = "And the LORD spake unto Moses, saying,"
TEXT = " The LORD God of Israel, saying,"  # greedy; the same on every backend
SCHEMES = ("int4-w4a16-g128", "int8-w8a8", "mxfp4-w4a8", "bf16")

QEMU = shutil.which("qemu-x86_64")


def skip(reason: str) -> None:
    print(f"emulated_cpu.py: Skipped\n{reason}")
    sys.exit(77)


def main(cpu: str, command: str, model: str) -> None:
    if QEMU is None:
        skip("qemu-x86_64 is not installed (package qemu-user)")

    def moracle(*arguments: str) -> str:
        done = subprocess.run([QEMU, "-cpu", cpu, command, *arguments], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"moracle {' '.join(arguments)} on {cpu}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    isa, rows = CPUS[cpu]
    here = json.loads(moracle("machines", "--json"))["here"]["cpu"]["isa"]
    if here != isa:
        skip(f"this qemu's {cpu} has {here}, not {isa}: 7.2 is the first that emulates AVX2")
    text = moracle("run", model, "-p", PROMPT, "--temperature", "0", "-n", "8", "--threads", "2").rstrip("\n")
    if text != TEXT:
        sys.exit(f"moracle run on {cpu}: wrote {text!r}; needs {TEXT!r}")
    for scheme in SCHEMES:
        checked = json.loads(moracle("check", "--scheme", scheme, "--shape", "3x33x17x2", "--tokens", "4",
                                     "--threads", "2", "--json"))
        passed = {row["backend"] for row in checked["rows"] if row["passed"] > 0}
        if passed != rows:
            sys.exit(f"moracle check on {cpu} in {scheme}: {sorted(passed)} passed; needs {sorted(rows)}")


main(*sys.argv[1:])

#!/usr/bin/env python3
"""Fails if a kernel file of one instruction set defines a function that another file may share.

The linker keeps one copy of an inline function or template instance. If it keeps the copy of a file that was
compiled with AVX, every caller traps on a CPU without AVX. Usage: shared_functions.py NM "OBJECT;OBJECT;..."
"""
import re
import subprocess
import sys

ISA = re.compile(r"_(avx2|avx_vnni|avx512|avx512_vnni|avx512_bf16|amx)\.cc\.o(bj)?$")

nm, objects = sys.argv[1], [path for path in sys.argv[2].split(";") if ISA.search(path)]
if not objects:
    sys.exit("no object file of an instruction set: were the files renamed?")
shared = []
for path in objects:
    # W, V and u: weak functions, weak objects and unique objects that this file defines.
    for line in subprocess.run([nm, "-C", path], check=True, capture_output=True, text=True).stdout.splitlines():
        found = re.match(r"[0-9a-f]+ [WVu] (.+)", line)
        if found:
            shared.append(f"{path}: {found[1]}")
print("\n".join(shared) if shared else f"{len(objects)} files share no function")
sys.exit(bool(shared))

#!/usr/bin/env python3
"""Checks the #include edges of src/: a room may include itself and the
rooms before it. The build refuses most wrong edges by itself (cmake/Rooms.cmake); this names them."""
import pathlib
import re
import sys

ROOMS = ["base", "quant", "checkpoint", "text", "layout", "oracle", "kernels", "moe", "placement", "timing", "parallel", "models",
         "c_api", "conformance", "bench", "serve", "cli", "python"]
# Rooms outside src/.
FOLDERS = {"python": "python/src"}
# Public headers belong to rooms too.
PUBLIC = {"base.h": "base", "quant.h": "quant", "layer.h": "quant", "checkpoint.h": "checkpoint", "oracle.h": "oracle",
          "routing.h": "oracle", "text.h": "text", "device.h": "kernels", "moe.h": "moe", "placement.h": "placement", "parallel.h": "parallel", "model.h": "models", "gguf.h": "models",
          "moracle.h": "serve", "serve.h": "serve", "version.h": "base", "export.h": "base", "c.h": "c_api"}
INCLUDE = re.compile(r'^\s*#include\s+"([^"]+)"', re.M)

root = pathlib.Path(__file__).resolve().parent.parent
wrong = []


def check(path, room):
    for included in INCLUDE.findall(path.read_text(encoding="utf-8")):
        first, _, rest = included.partition("/")
        target = PUBLIC.get(rest) if first == "moracle" else first if first in ROOMS else None
        if target and ROOMS.index(target) > ROOMS.index(room):
            wrong.append(f"{path.relative_to(root)}: room '{room}' includes {included} of the later room '{target}'")


for room in ROOMS:
    for path in sorted((root / FOLDERS.get(room, f"src/{room}")).rglob("*")):
        if path.suffix in {".cc", ".h", ".inc", ".cu", ".cuh", ".cl"}:
            check(path, room)
for header, room in PUBLIC.items():
    check(root / "include" / "moracle" / header, room)
for header in (root / "include" / "moracle").glob("*.h"):
    if header.name not in PUBLIC:
        wrong.append(f"include/moracle/{header.name}: no room is named for it in tools/check_layers.py")
    if "\nnamespace moracle {" in header.read_text(encoding="utf-8"):
        wrong.append(f"include/moracle/{header.name}: needs 'namespace moracle MORACLE_API {{', or a shared library lacks its names")
print("\n".join(wrong) if wrong else "room edges: all point to earlier rooms")
sys.exit(bool(wrong))

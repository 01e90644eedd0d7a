#!/usr/bin/env python3
"""Fails where the tree uses a word or phrase that CONTRIBUTING.md's style section replaces by plain English.

Each entry is a pattern and what to write instead.
"""
import pathlib
import re
import subprocess
import sys

PHRASES = {
    r"\b(no|who)(body|ever)\b|\b(some|any)body\b": "name the subject: no thread, another process",
    r"\breckon": "estimate; extrapolate",
    r"\basked (for|of)\b": "requested; prefetched; checked for each",
    r"\b(is|are) said\b": "is reported; is printed",
    r"\bsuch as (there)\b|\bthat (there) are not\b": "say what exists",
    r"\bbecomes? of\b|\bstays? what\b": "say what happens to it",
    r"\bthat is none\b|\bthat are none\b": "is not a …; unknown …",
    r"\b(sizes|sized|sizing) up\b": "memory plan",
    r"\bof what\b": "name the thing",
    r"(//|\"\"\"|\. |\| )Of [a-z]": "start the sentence with its subject",
    r"\bfor trial\b|\bat all events\b": "to try; in any case",
    r"\bHeadTurn\b": "QkNormRope",
    r"\bTrouble\b": "DeviceError",
    r"\bModelDoor\b": "ModelAccess",
    r"\blibrary that writes\b": "Hugging Face tokenizers",
    r"\bC face\b": "C API",
    r"\bbeside the host\b": "asynchronous device; overlaps the next step",
    r"\b(equal|shared) beginnings?\b|\bbeginnings? of prompts?\b": "prefix",
    r"\bin one another\b": "nested",
    r"\bsomething else than\b": "other than",
    r"\bcomes? and goe?s?\b": "load and unload; appears and disappears",
    r"\bgoes? on alone\b": "continues after a failure",
}
SKIPPED = ("tests/golden/", "bench/lab/", "models/", "tools/check_words.py")
ENDINGS = {".cc", ".h", ".cu", ".cuh", ".cl", ".inc", ".py", ".md", ".cmake", ".txt", ".sh", ""}

root = pathlib.Path(__file__).resolve().parent.parent
listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=root, check=True,
                        capture_output=True, text=True).stdout
found = []
for name in listed.splitlines():
    path = root / name
    if name.startswith(SKIPPED) or path.suffix not in ENDINGS or not path.is_file():
        continue
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        for phrase, instead in PHRASES.items():
            match = re.search(phrase, line)
            if match:
                found.append(f"{name}:{number}: '{match[0].strip()}': {instead}")
print("\n".join(found) if found else "words: plain English")
sys.exit(bool(found))

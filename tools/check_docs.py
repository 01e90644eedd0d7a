#!/usr/bin/env python3
"""Compares tests/mission.md and tests/regressions.md with the tree: every point of
the two lists has one row; every test and every file named in a row exists; a row without a test says why."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
IDS = {"tests/mission.md": [f"S{part}.{i}" for part, last in enumerate((24, 20, 16, 9, 12)) for i in range(1, last + 1)],
       "tests/regressions.md": [f"D{i}" for i in range(1, 44)]}
# Reasons that a row may give instead of naming a test.
REASONS = ("no counterpart", "comes with", "cannot occur")

TEST = re.compile(r"^(?:TEST|TEST_F|TEST_P)\(\s*(\w+)\s*,\s*(\w+)\s*\)", re.M)
INSTANCE = re.compile(r"^INSTANTIATE_TEST_SUITE_P\(\s*(\w+)\s*,\s*(\w+)", re.M)
ADD_TEST = re.compile(r"add_test\(\s*NAME\s+([\w.]+)")
TEST_NAME = re.compile(r"(?:\w+/)?[A-Z]\w*\.\w+")
SUFFIXES = {".cc", ".h", ".cu", ".cuh", ".inc", ".md", ".py", ".txt", ".json", ".cmake"}


def known_tests():
    """All test names: Suite.Test of every source under tests/, with Instantiation/Suite for parameterized ones,
    and ctest's own."""
    names = set()
    for source in (ROOT / "tests").rglob("*.cc"):
        text = source.read_text(encoding="utf-8")
        names |= {f"{suite}.{test}" for suite, test in TEST.findall(text)}
        names |= {f"{instance}/{suite}" for instance, suite in INSTANCE.findall(text)}
    for lists in (ROOT / "tests").rglob("CMakeLists.txt"):
        names |= set(ADD_TEST.findall(lists.read_text(encoding="utf-8")))
    return names


def is_path(text):
    return "/" in text.rstrip("/") and " " not in text or pathlib.PurePath(text).suffix in SUFFIXES


def trouble_with(text, tests):
    """The error in one backticked text; None if it has none."""
    if TEST_NAME.fullmatch(text) and pathlib.PurePath(text).suffix not in SUFFIXES:
        instance, _, test = text.rpartition("/")
        if test in tests and (not instance or f"{instance}/{test.partition('.')[0]}" in tests):
            return ""
        return f"no test is called {text}"
    if is_path(text) and not any(ROOT.glob(text.rstrip("/"))):
        return f"no file is called {text}"
    return ""


def check(document, ids, tests):
    wrong, seen = [], {}
    text = (ROOT / document).read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        code = re.findall(r"`([^`]+)`", line)
        wrong += [f"{document}:{number}: {trouble}" for trouble in (trouble_with(c, tests) for c in code) if trouble]
        row = re.match(r"\|\s*([SD]\d+(?:\.\d+)?)\s*\|", line)
        if not row:
            continue
        if row[1] in seen:
            wrong.append(f"{document}:{number}: {row[1]} is in line {seen[row[1]]} already")
        seen[row[1]] = number
        named = any(TEST_NAME.fullmatch(c) or c.startswith("tests/") for c in code)
        if not named and not any(reason in line for reason in REASONS):
            wrong.append(f"{document}:{number}: {row[1]} names no test and gives no reason")
    wrong += [f"{document}: {missing} is missing" for missing in ids if missing not in seen]
    wrong += [f"{document}: {extra} is no point of the list" for extra in seen if extra not in ids]
    return wrong


def main():
    tests = known_tests()
    wrong = [line for document, ids in IDS.items() for line in check(document, ids, tests)]
    print("\n".join(wrong) if wrong else f"{', '.join(IDS)}: every test and file named is there")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())

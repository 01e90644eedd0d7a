#!/usr/bin/env python3
"""Proves docs/tutorials and the program of README.md. A fenced block whose first line names a file ("```cpp main.cc") is a part of that
file; the parts stand in order.

    check.py embed WORK COMMAND…   writes the files of embed.md to WORK/source, lets COMMAND (tests/consumer/test.cmake)
                                   build and run them, and compares the output with the page's console block
    check.py family                compares add_a_model_family.md with tests/recipes/architecture.patch, which
                                   tests/recipes/check.py applies, builds and tests
    check.py readme                compares the program of README.md with tests/consumer/main.cc, which the consumer
                                   test builds and runs
    check.py changes               removes each compared line in turn: the comparisons must report it
"""
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TUTORIALS = ROOT / "docs" / "tutorials"
PATCH = ROOT / "tests" / "recipes" / "architecture.patch"
MOST_LINES = 150


def read(page):
    lines = (TUTORIALS / page).read_text(encoding="utf-8").splitlines()
    if len(lines) > MOST_LINES:
        sys.exit(f"{page}: needs at most {MOST_LINES} lines; it has {len(lines)}")
    return lines


def blocks(lines):
    """{text after the backquotes: its lines}; blocks with equal texts are joined by an empty line."""
    found, name = {}, None
    for line in lines:
        if name is None and line.startswith("```"):
            name = line[3:]
            found[name] = found[name] + [""] if name in found else []
        elif line == "```":
            name = None
        elif name is not None:
            found[name].append(line)
    return found


def files(lines):
    """{path: its lines} of all blocks that name a file."""
    return {name.split(" ", 1)[1]: part for name, part in blocks(lines).items() if " " in name}


def difference(what, want, got):
    """The first line that differs, or nothing. Empty lines do not count."""
    want, got = [line for line in want if line], [line for line in got if line]
    for number in range(max(len(want), len(got))):
        pair = [text[number] if number < len(text) else "(nothing)" for text in (want, got)]
        if pair[0] != pair[1]:
            return f"{what} differs\n- {pair[0]}\n+ {pair[1]}"
    return ""


def compared(output):
    """Lines that do not depend on the machine: all but the choice and the rows of the oracle and the commands."""
    return [line for line in output if not line.startswith((" ", "→", ">", "$"))]


def output_difference(lines, printed):
    rows = [line for line in printed if line.startswith("> ")]
    if len(rows) != 1:
        return f"needs one row with '>'; there are {len(rows)}"
    return difference("embed.md: output", compared(blocks(lines)["console"]), compared(printed))


def family_difference(lines):
    added, path = {}, None
    for line in PATCH.read_text(encoding="utf-8").splitlines():
        if line.startswith("+++ b/"):
            path = line[len("+++ b/"):]
            added[path] = []
        elif line.startswith("+"):
            added[path].append(line[1:])
    parts = files(lines)
    if parts.keys() != added.keys():
        return f"add_a_model_family.md: needs parts of {sorted(added)}; it has parts of {sorted(parts)}"
    return "".join(difference(f"add_a_model_family.md: {path}", added[path], parts[path]) for path in added)


def check_embed(work, command):
    lines = read("embed.md")
    source = pathlib.Path(work) / "source"
    for path, part in files(lines).items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_text("\n".join(part) + "\n", encoding="utf-8")
    run = pathlib.Path(work) / "run"
    if subprocess.run([command[0], f"-DSOURCE={source}", f"-DWORK={run}", "-DPROGRAM=engine", *command[1:]]).returncode:
        return "embed.md: the program does not build or run"
    return output_difference(lines, (run / "output.txt").read_text(encoding="utf-8").splitlines())


def check_readme():
    page = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    program = (ROOT / "tests" / "consumer" / "main.cc").read_text(encoding="utf-8").splitlines()
    return difference("README.md: program", program[1:], blocks(page)["cpp"])


def without_each(lines, part):
    """The page without one line of `part`, for each that is not empty."""
    for number, line in enumerate(lines):
        if line and line in part:
            yield line, lines[:number] + lines[number + 1:]


def check_changes():
    page = read("add_a_model_family.md")
    for part in files(page).values():
        for line, changed in without_each(page, part):
            if not family_difference(changed):
                return f"add_a_model_family.md: this line can be removed unseen: {line}"
    page = read("embed.md")
    printed = blocks(page)["console"]
    for line, changed in without_each(page, compared(printed)):
        if not output_difference(changed, printed):
            return f"embed.md: this line can be removed unseen: {line}"
    return "" if compared(printed) else "embed.md: no line of the output is compared"


def main():
    verb, *arguments = sys.argv[1:] or ["help"]
    if verb == "embed" and len(arguments) > 1:
        wrong = check_embed(arguments[0], arguments[1:])
    elif verb == "family":
        wrong = family_difference(read("add_a_model_family.md"))
    elif verb == "readme":
        wrong = check_readme()
    elif verb == "changes":
        wrong = check_changes()
    else:
        sys.exit(__doc__)
    if wrong:
        sys.exit(wrong)


main()

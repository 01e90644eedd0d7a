#!/usr/bin/env python3
"""Writes src/base/regex/unicode_tables.cc: the Unicode tables of the libraries that models were tokenized with.

    pip install regex==2024.11.6 tokenizers==0.23.3
    python3 tools/make_unicode_tables.py

The regular expressions of tokenizers 0.23 and of tiktoken 0.14 use Unicode 16, as regex 2024.11.6 does. A character
that is newer is unassigned to them. Two pre-tokenizers have tables of other versions, which only the library tells.
"""
import pathlib
import sys

import regex
from tokenizers import pre_tokenizers

CATEGORIES = ["Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "P", "S"]
OUT = pathlib.Path(__file__).resolve().parent.parent / "src/base/regex/unicode_tables.cc"
CODES = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]


def ranges(codes):
    """Sorted codes as pairs of first and last."""
    found = []
    for code in codes:
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return found


def matching(pattern):
    compiled = regex.compile(pattern)
    return [code for code in CODES if compiled.match(chr(code))]


def removed_by(step):
    return [code for code in CODES if not step.pre_tokenize_str(chr(code))]


def isolated_by(step):
    return [code for code in CODES if len(step.pre_tokenize_str(f"a{chr(code)}a")) == 3]


def rows(entries):
    """Lines of at most 100 columns."""
    lines, line = [], "   "
    for entry in entries:
        if len(line) + len(entry) + 1 > 100:
            lines.append(line)
            line = "   "
        line += " " + entry
    return "\n".join([*lines, line])


def main():
    assert regex.__version__ == "2.5.148", "the tables of Unicode 16 are in regex 2024.11.6"
    category = {}
    for name in CATEGORIES:
        for code in matching(rf"\p{{{name}}}"):
            category[code] = name
    starts, last = [], None
    for code in range(0x110000):
        now = category.get(code, "None")
        if now != last:
            starts.append(f"{{0x{code:X}, k{now}}},")
        last = now
    pairs = {"kHan": ranges(matching(r"\p{Han}")),
             "kPunctuationStep": ranges(removed_by(pre_tokenizers.Punctuation("removed"))),
             "kDigitsStep": ranges(isolated_by(pre_tokenizers.Digits(True)))}
    text = ("// Written by tools/make_unicode_tables.py.\n#include \"base/regex/unicode_tables.h\"\n\n"
            "namespace moracle {\n\nusing enum UnicodeCategory;\n\n"
            "const std::vector<UnicodeStart>& unicode_categories() {\n"
            "  // clang-format off\n  static const std::vector<UnicodeStart> kStarts = {\n" + rows(starts)
            + "};\n  // clang-format on\n  return kStarts;\n}\n")
    for name, function in (("kHan", "unicode_han"), ("kPunctuationStep", "punctuation_step"),
                           ("kDigitsStep", "digits_step")):
        text += (f"\nconst std::vector<UnicodeRange>& {function}() {{\n"
                 f"  // clang-format off\n  static const std::vector<UnicodeRange> {name} = {{\n"
                 + rows(f"{{0x{a:X}, 0x{b:X}}}," for a, b in pairs[name])
                 + f"}};\n  // clang-format on\n  return {name};\n}}\n")
    OUT.write_text(text + "\n}  // namespace moracle\n")
    print(len(starts), "ranges of categories,", {name: len(each) for name, each in pairs.items()})


if __name__ == "__main__":
    sys.exit(main())

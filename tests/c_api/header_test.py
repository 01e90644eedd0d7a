#!/usr/bin/env python3
"""Checks that include/moracle/c.h is plain C, and that the shared library exports what it declares.

    header_test.py INCLUDE header CC CXX             C99 and C++ compilers accept it; it holds no C++ outside its guard
    header_test.py INCLUDE page PAGE                 each name of the header that the page of docs/ uses exists
    header_test.py INCLUDE library NM READELF FILE   exported symbols = declared functions; the SONAME
"""
import pathlib
import re
import subprocess
import sys

CPP_WORDS = r"\b(class|namespace|template|typename|public|private|virtual|operator|using|std|nullptr|bool|auto)\b|::|&&|\w\s*&\s*\w"


def plain(text):
    """The header without comments and C++ guards."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
    return re.sub(r"#ifdef __cplusplus\n.*?#endif", "", text, flags=re.S)


def declared(text):
    return set(re.findall(r"MORACLE_API[^;(]*?\b(moracle_\w+)\(", plain(text)))


def run(*command, **options):
    result = subprocess.run(command, capture_output=True, text=True, **options)
    if result.returncode:
        sys.exit(f"failed: {' '.join(command)}\n{result.stderr}")
    return result.stdout


def check_header(include, header, cc, cxx):
    for name in ("c.h", "export.h", "version.h"):
        found = re.search(CPP_WORDS, plain((include / "moracle" / name).read_text(encoding="utf-8")))
        if found:
            sys.exit(f"{name}: needs plain C; it has '{found[0]}'")
    for planted in ("class x;", "void f(int& x);", "std::string s;", "bool b;"):
        if not re.search(CPP_WORDS, planted):
            sys.exit(f"this test does not find '{planted}'")
    includes = set(re.findall(r'#include [<"]([^>"]+)', plain(header)))
    if includes != {"stddef.h", "stdint.h", "moracle/export.h", "moracle/version.h"}:
        sys.exit(f"c.h: needs only stddef.h, stdint.h, export.h and version.h; it includes {sorted(includes)}")
    # Use each function, so that a declaration of anything else does not compile.
    uses = "".join(f"  use((void (*)(void)){name});\n" for name in sorted(declared(header)))
    source = ('#include "moracle/c.h"\nvoid use(void (*)(void));\nint main(void);\nint main(void) {\n' + uses +
              "  return 0;\n}\n")
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", f"-I{include}"]
    for compiler, language, standard in ((cc, "c", "c99"), (cc, "c", "c11"), (cxx, "c++", "c++11")):
        strict = ["-Wstrict-prototypes"] if language == "c" else []
        run(compiler, "-x", language, f"-std={standard}", *warnings, *strict, "-", input=source)


def check_page(header, page):
    known = set(re.findall(r"\bmoracle_\w+|\bMORACLE_\w+", plain(header))) | {"moracle_c", "moracle_examples"}
    used = set(re.findall(r"\b(?:moracle|MORACLE)_\w+", pathlib.Path(page).read_text(encoding="utf-8"))) - {"moracle_"}
    if len(used) < 15 or used - known:
        sys.exit(f"{page}: uses {len(used)} names of c.h; these do not exist: {sorted(used - known)}")


def check_library(header, nm, readelf, library):
    exported = {line.split()[-1].split("@")[0] for line in run(nm, "-D", "--defined-only", library).splitlines()}
    exported.discard("MORACLE_C_0")  # the symbol version
    wanted = declared(header)
    if len(wanted) < 30:
        sys.exit(f"found only {len(wanted)} functions in c.h")
    if exported != wanted:
        sys.exit(f"only in c.h: {sorted(wanted - exported)}\nonly in the library: {sorted(exported - wanted)[:20]}")
    if "[libmoracle_c.so.0]" not in run(readelf, "-d", library):
        sys.exit("needs the SONAME libmoracle_c.so.0")


def main():
    include = pathlib.Path(sys.argv[1])
    header = (include / "moracle" / "c.h").read_text(encoding="utf-8")
    check = {"header": lambda *rest: check_header(include, header, *rest),
             "page": lambda page: check_page(header, page),
             "library": lambda *rest: check_library(header, *rest)}[sys.argv[2]]
    check(*sys.argv[3:])


main()

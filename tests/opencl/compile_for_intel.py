#!/usr/bin/env python3
"""Compiles the OpenCL kernels for Intel GPUs without such a GPU, with the offline compiler `ocloc`
(Debian: intel-opencl-icd). Every kernel must compile. The kernels for matrix engines must contain
dpas instructions and must not spill registers. Exits with 77, which means skipped, without ocloc.
A kernel that was right before, with the same text, options and compiler, is not compiled again.

usage: compile_for_intel.py FOLDER_OF_KERNELS"""
import concurrent.futures
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77
# Device names of ocloc, and the lanes of their matrix instructions.
DEVICES = {"acm-g10": 8, "pvc": 16}
PLAIN = "acm-g10"  # for kernels without matrix instructions
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "moracle-ocloc"
INCLUDE = re.compile(r'^#include "([^"]+)"')


def with_includes(folder, name, seen):
    """The text that the library gives to a driver, as sources.cc makes it."""
    if name in seen:
        return ""
    seen.add(name)
    lines = []
    for line in (folder / name).read_text(encoding="utf-8").splitlines(keepends=True):
        included = INCLUDE.match(line)
        lines.append(with_includes(folder, included[1], seen) if included else line)
    return "".join(lines)


def matrix_products():
    """Kinds of products of matrix_linear.cc: each type of codes, each form of scales."""
    for weight in ("I4", "E2M1", "I8", "E4M3"):
        for groups in ("", " -D ONE_GROUP"):
            yield f"WEIGHT_{weight} -D X_BF16{groups}"
    yield from ("WEIGHT_BF16 -D X_BF16 -D ONE_GROUP", "WEIGHT_F16 -D X_BF16 -D ONE_GROUP",
                "WEIGHT_E4M3 -D X_E4M3 -D ONE_GROUP", "WEIGHT_E4M3 -D X_E4M3 -D X_GROUPS", "WEIGHT_I4 -D X_E4M3",
                "WEIGHT_I8 -D X_I8 -D INTEGERS -D ONE_GROUP", "WEIGHT_I8 -D X_I8 -D INTEGERS -D ZERO_POINTS",
                "WEIGHT_I4 -D X_I8 -D INTEGERS", "WEIGHT_E2M1 -D X_I8")


def matrix_variants(lanes):
    """As matrix_linear.cc. Without whole blocks, the kernel for many rows needs the most registers."""
    large = " -cl-intel-256-GRF-per-thread"
    for product in matrix_products():
        few = "8 -D WHOLE_BLOCKS" + (large if product.startswith("WEIGHT_F16") else "")
        for rows in (few, "32" + large):
            yield f"-D {product} -D LANES={lanes} -D TILES=2 -D SPLITS=4 -D ROWS={rows}"


def simt_variants():
    """As simt_linear.cc."""
    products = [(weight, "X_BF16") for weight in ("I4", "E2M1", "I8", "E4M3", "BF16", "F16", "F32")]
    products += [("I8", "X_I8"), ("I8", "X_I8 -D WHOLE_ROWS"), ("I4", "X_I8"), ("E4M3", "X_E4M3")]
    for weight, x in products:
        yield f"-D WEIGHT_{weight} -D {x}"


def reference_variants():
    """As opencl_reference.cc."""
    for weight in ("I4", "E2M1", "I8", "E4M3", "BF16", "F16", "F32"):
        yield f"-D WEIGHT_{weight}"
    for codes in ("I8 -D X_CODES -D X_I8", "I8 -D X_CODES -D X_I8 -D WHOLE", "E4M3 -D X_CODES"):
        yield f"-D WEIGHT_{codes}"


def jobs(folder):
    """(device, file, options) of every compilation. Plain OpenCL C is compiled for one device."""
    for device, lanes in DEVICES.items():
        for options in matrix_variants(lanes):
            yield device, "matrix/matrix.cl", options
        if device != PLAIN:
            continue
        for options in simt_variants():
            yield device, "simt/gemv.cl", f"{options} -D SPLITS=8 -D ROWS=4"
            yield device, "simt/gemm.cl", options
        for options in reference_variants():
            yield device, "reference.cl", options
        for cache in (0, 1, 2):
            yield device, "attention/attend.cl", f"-D HEADS=4 -D CACHE={cache}"
        for file in sorted([*folder.glob("ops/*.cl"), *folder.glob("attention/*.cl")]):
            if file.name != "attend.cl":
                yield device, f"{file.parent.name}/{file.name}", ""
        yield device, "recurrent/recurrent.cl", ""
        yield device, "recurrent/gated_delta.cl", "-D KEYS=128 -D SLICES=8"
        yield device, "recurrent/mamba2.cl", "-D STATES=128 -D SLICES=8"
        yield device, "limits/limits.cl", "-D REAL=float -D FIRST(x)=x"


def disassembler():
    """The library that ocloc needs to disassemble, or None."""
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib"):
        for library in sorted(pathlib.Path(folder).glob("libiga64.so*")):
            return library
    return None


def compiled(folder, kernels, device, file, options):
    """Compiles a file in `folder`. (name of the binary or None, log)"""
    (folder / "kernel.cl").write_text(with_includes(kernels, file, set()), encoding="utf-8")
    done = subprocess.run(["ocloc", "compile", "-file", "kernel.cl", "-device", device, "-output", "out",
                           "-options", options], cwd=folder, capture_output=True, text=True, check=False)
    binaries = list(folder.glob("out_*.bin"))
    return binaries[0].name if done.returncode == 0 and binaries else None, done.stdout + done.stderr


def disassembled(folder, binary, device):
    """The instructions of a binary as text; None if it cannot be disassembled."""
    library = disassembler()
    if library is None:
        return None
    # ocloc opens the name without a version, which only the development package has.
    (folder / "libiga64.so").symlink_to(library)
    subprocess.run(["ocloc", "disasm", "-file", binary, "-device", device, "-dump", "dump"], cwd=folder,
                   env=os.environ | {"LD_LIBRARY_PATH": str(folder)}, capture_output=True, check=False)
    text = "".join(file.read_text(errors="replace") for file in (folder / "dump").glob("*.asm"))
    return text or None


def compile_one(kernels, device, file, options):
    """(line to print, True if it is as it must be)"""
    title = f"{device:8} {file} {options}".rstrip()
    is_matrix = file == "matrix/matrix.cl"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        binary, log = compiled(folder, kernels, device, file, options)
        if binary is None:
            return f"{title}: does not compile\n{log}", False
        spills = [int(count) for count in re.findall(r"spilled around (\d+)", log)]
        facts = f"spills {max(spills, default=0)}"
        if not is_matrix:
            return f"{title}: {facts}", True
        text = disassembled(folder, binary, device)
        dpas = None if text is None else len(re.findall(r"\bdpas\.", text))
        facts += ", not disassembled" if dpas is None else f", {dpas} dpas"
        return f"{title}: {facts}", dpas != 0 and not spills


def identity():
    """Changes when the compiler or this check changes."""
    files = [pathlib.Path(shutil.which("ocloc")), *sorted(pathlib.Path("/usr/lib/x86_64-linux-gnu").glob("libigc.so*"))]
    facts = [f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files]
    return "\n".join(facts).encode() + pathlib.Path(__file__).read_bytes()


def compile_or_recall(kernels, compiler, device, file, options):
    """As compile_one(), which costs 1 to 10 CPU seconds."""
    key = hashlib.sha256(compiler + "\0".join((device, options, with_includes(kernels, file, set()))).encode())
    known = CACHE / key.hexdigest()
    if known.exists():
        return known.read_text(encoding="utf-8"), True
    line, right = compile_one(kernels, device, file, options)
    if right:
        CACHE.mkdir(parents=True, exist_ok=True)
        known.write_text(line, encoding="utf-8")
    return line, right


def main():
    kernels = pathlib.Path(sys.argv[1])
    if not shutil.which("ocloc"):
        print("skipped: no ocloc; install intel-opencl-icd or intel-ocloc")
        return SKIPPED
    wrong = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        compiler = identity()
        for line, right in pool.map(lambda job: compile_or_recall(kernels, compiler, *job), jobs(kernels)):
            print(line if right else f"WRONG {line}", flush=True)
            wrong += not right
    print(f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

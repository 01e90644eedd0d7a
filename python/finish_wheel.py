"""Finishes a wheel that auditwheel repaired: python finish_wheel.py WHEEL FOLDER [--name NAME] [--cuda FOLDER]
[--most-megabytes N]

Adds the licences of the libraries that the wheel contains, from Debian's and Ubuntu's packages that gave them and from
nanobind. --cuda names the toolkit whose runtime is linked in: its licence is added, and libraries of the driver and of
NVIDIA's packages must not be in the wheel. Renames the distribution if asked. Fails if the wheel is larger than N million
bytes.
"""
import argparse
import base64
import hashlib
import importlib.metadata
import os
import pathlib
import re
import stat
import subprocess
import sys
import zipfile

# Headers whose code is compiled in. Linked libraries are found in the wheel.
HEADERS = ("libxxhash-dev", "nlohmann-json3-dev", "libboost-dev", "libcli11-dev")
# Packages that were only unpacked lie below a folder of CMAKE_PREFIX_PATH.
PREFIXES = [pathlib.Path(prefix) for prefix in os.environ.get("CMAKE_PREFIX_PATH", "").split(":") if prefix] + [pathlib.Path("/usr")]
DOCS = [prefix / "share" / "doc" for prefix in PREFIXES]
# Found at run time: the driver's library, and what torch or the toolkit brings.
FOUND_LATER = re.compile(r"lib(cuda|cudart|cublas|cublasLt|nccl|nvidia-[a-z]+|nvrtc|OpenCL)[-.]")


def package_of(library):
    """The package that a copied library such as libonig-71f6a8aa.so.5.3.0 comes from."""
    stem = library.split("-")[0] + ".so"
    listed = subprocess.run(["dpkg-query", "-S", f"*/{stem}.*"], capture_output=True, text=True, check=False).stdout
    names = {line.split(":")[0] for line in listed.splitlines() if "/usr/lib/" in line or "/lib/" in line}
    # dpkg does not know a package that was only unpacked, but its documents are there: libonig5 for libonig.so.
    unpacked = {folder.name for docs in DOCS for folder in docs.glob(f"{library.split('-')[0]}[0-9]*")}
    for found in (names, unpacked):
        licensed = sorted(name for name in found if not name.endswith("-dev") and copyright_of(name))
        if licensed:
            return licensed[0]
    return ""


def copyright_of(package):
    """The package's copyright file, None without one."""
    return next((docs / package / "copyright" for docs in DOCS if (docs / package / "copyright").exists()), None)


def cuda_licence(toolkit):
    """The licence of CUDA's runtime: beside the toolkit, in its Debian package, or in NVIDIA's package for Python."""
    files = [toolkit / "EULA.txt", *toolkit.glob("dist-info/nvidia_cuda_runtime-*/**/License.txt"),
             *pathlib.Path("/usr/share/doc").glob("cuda-cudart-dev-*/copyright"), *pathlib.Path("/usr/share/doc").glob("libcudart*/copyright")]
    for name in ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"):
        try:
            files += [file.locate() for file in importlib.metadata.files(name) or [] if file.name == "License.txt"]
        except importlib.metadata.PackageNotFoundError:
            pass
    for file in files:
        if pathlib.Path(file).exists():
            return pathlib.Path(file).read_bytes()
    sys.exit(f"finish_wheel: needs the licence of CUDA's runtime; found no EULA.txt or License.txt for {toolkit}")


def licences(names, cuda=None):
    """Licence texts by file name, for the files `names` of a wheel. Errors: a library without a licence."""
    libraries = sorted(pathlib.PurePath(name).name for name in names if ".libs/" in name and ".so" in name)
    packages = list(HEADERS)
    for library in libraries:
        if FOUND_LATER.match(library):
            sys.exit(f"finish_wheel: needs {library} outside of the wheel; the driver or torch brings it")
        package = package_of(library)
        if not package:
            sys.exit(f"finish_wheel: needs the package of {library} for its licence; found none below {', '.join(map(str, DOCS))}")
        packages.append(package)
    found = {}
    for package in packages:
        text = copyright_of(package)
        if text is None:
            sys.exit(f"finish_wheel: needs {package}/copyright; found none below {', '.join(map(str, DOCS))}")
        found[f"{package}.txt"] = text.read_bytes()
    if cuda is not None:
        found["cuda-runtime.txt"] = cuda_licence(cuda)
    for file in importlib.metadata.files("nanobind") or []:
        if file.name == "LICENSE":
            found["nanobind.txt"] = file.read_binary()
    return found


def record_line(name, content):
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"


def finished(wheel, name, cuda=None):
    """(file name, [(ZipInfo, content)]) of the finished wheel."""
    with zipfile.ZipFile(wheel) as archive:
        files = [(info, archive.read(info)) for info in archive.infolist() if not info.is_dir()]
    old = next(info.filename.split("/")[0] for info, _ in files if info.filename.endswith(".dist-info/METADATA"))
    new = old if name is None else f"{name.replace('-', '_')}-{old.split('-', 1)[1]}"
    added = licences([info.filename for info, _ in files], cuda)
    result = []
    for info, content in files:
        if info.filename.endswith(".dist-info/RECORD"):
            continue
        if info.filename == f"{old}/METADATA":
            head, separator, body = content.decode().partition("\n\n")
            lines = [f"Name: {name}" if name and line.startswith("Name: ") else line for line in head.splitlines()]
            lines += [f"License-File: libraries/{file}" for file in added]
            content = ("\n".join(lines) + separator + body).encode()
        info.filename = info.filename.replace(old, new, 1)
        result.append((info, content))
    for file, content in added.items():
        result.append((zipfile.ZipInfo(f"{new}/licenses/libraries/{file}", files[0][0].date_time), content))
    record = "".join(record_line(info.filename, content) for info, content in result) + f"{new}/RECORD,,\n"
    result.append((zipfile.ZipInfo(f"{new}/RECORD", files[0][0].date_time), record.encode()))
    tags = pathlib.Path(wheel).name.split("-", 2)[2]
    return f"{new.removesuffix('.dist-info')}-{tags}", result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("wheel", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--name")
    parser.add_argument("--cuda", type=pathlib.Path)
    parser.add_argument("--most-megabytes", type=float)
    options = parser.parse_args()
    name, files = finished(options.wheel, options.name, options.cuda)
    path = options.folder / name
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for info, content in files:
            info.compress_type = zipfile.ZIP_DEFLATED
            mode = info.external_attr >> 16 or 0o644
            info.external_attr = (mode | stat.S_IFREG) << 16  # pip keeps the command executable only in regular files
            archive.writestr(info, content, compresslevel=9)
    size = path.stat().st_size / 1e6
    print(f"{path}: {size:.1f} MB")
    if options.most_megabytes and size > options.most_megabytes:
        sys.exit(f"finish_wheel: needs at most {options.most_megabytes:g} MB; the wheel has {size:.1f} MB")


if __name__ == "__main__":
    main()

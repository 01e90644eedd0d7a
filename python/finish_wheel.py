"""Finishes a wheel that auditwheel repaired: python finish_wheel.py WHEEL FOLDER [--name NAME] [--most-megabytes N]

Adds the licences of the libraries that the wheel contains, from Debian's and Ubuntu's packages that gave them and from
nanobind. Renames the distribution if asked. Fails if the wheel is larger than N million bytes.
"""
import argparse
import base64
import hashlib
import importlib.metadata
import pathlib
import stat
import subprocess
import sys
import zipfile

# Headers whose code is compiled in. Linked libraries are found in the wheel.
HEADERS = ("libxxhash-dev", "nlohmann-json3-dev", "libboost-dev", "libcli11-dev")
DOCS = pathlib.Path("/usr/share/doc")


def package_of(library):
    """The package that a copied library such as libonig-71f6a8aa.so.5.3.0 comes from."""
    stem = library.split("-")[0] + ".so"
    listed = subprocess.run(["dpkg-query", "-S", f"*/{stem}.*"], capture_output=True, text=True, check=False).stdout
    names = {line.split(":")[0] for line in listed.splitlines() if "/usr/lib/" in line or "/lib/" in line}
    # A package that was only unpacked is unknown to dpkg, but its documents are there: libonig5 for libonig.so.
    names = names or {folder.name for folder in DOCS.glob(f"{library.split('-')[0]}[0-9]*") if (folder / "copyright").exists()}
    return min((name for name in names if not name.endswith("-dev")), default="")


def licences(names):
    """Licence texts by file name, for the files `names` of a wheel. Errors: a library without a licence."""
    libraries = sorted(pathlib.PurePath(name).name for name in names if ".libs/" in name and ".so" in name)
    texts = {}
    for library in libraries:
        package = package_of(library)
        if not package:
            sys.exit(f"finish_wheel: needs the package of {library} for its licence; dpkg knows none")
        texts[package] = DOCS / package / "copyright"
    texts |= {package: DOCS / package / "copyright" for package in HEADERS}
    found = {f"{package}.txt": path.read_bytes() for package, path in texts.items()}
    for file in importlib.metadata.files("nanobind") or []:
        if file.name == "LICENSE":
            found["nanobind.txt"] = file.read_binary()
    return found


def record_line(name, content):
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"


def finished(wheel, name):
    """(file name, [(ZipInfo, content)]) of the finished wheel."""
    with zipfile.ZipFile(wheel) as archive:
        files = [(info, archive.read(info)) for info in archive.infolist() if not info.is_dir()]
    old = next(info.filename.split("/")[0] for info, _ in files if info.filename.endswith(".dist-info/METADATA"))
    new = old if name is None else f"{name.replace('-', '_')}-{old.split('-', 1)[1]}"
    added = licences([info.filename for info, _ in files])
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
    parser.add_argument("--most-megabytes", type=float)
    options = parser.parse_args()
    name, files = finished(options.wheel, options.name)
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

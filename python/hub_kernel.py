"""Lays finished wheels out as a kernel of the package kernels: python hub_kernel.py WHEEL... FOLDER [--backend cu130]

FOLDER/build/VARIANT then holds the package, the libraries beside it, and metadata.json. The wheels are of one version, for
different Pythons: extensions of several binary interfaces lie side by side, and Python loads its own. Torch's interface is
not used, so one variant serves every torch that the package supports.
"""
import argparse
import json
import pathlib
import shutil
import zipfile

LEAST_TORCH = "24"  # 2.4, as in pyproject.toml
ARCHITECTURES = ["8.0", "8.9", "9.0"]  # of the wheel with CUDA's kernels


def version_of(wheels):
    """The version that all wheels have. Errors: several."""
    versions = sorted({wheel.name.split("-")[1] for wheel in wheels})
    if len(versions) != 1:
        raise SystemExit(f"hub_kernel: needs wheels of one version; they have {', '.join(versions)}")
    return versions[0]


def metadata(version, backend):
    kind = "cpu" if backend == "cpu" else "cuda"
    # Modules of two kernels in a process differ by this name, which is also the namespace of torch's operators.
    return {"id": f"_moracle_{backend}_{version.replace('.', '_')}", "name": "moracle", "version": int(version.split(".")[0]) + 1,
            "license": "Apache-2.0", "python-depends": [],
            "backend": {"type": kind} | ({"archs": ARCHITECTURES} if kind == "cuda" else {})}


def lay_out(wheels, folder, backend):
    """Writes the variant. Returns its folder."""
    version = version_of(wheels)
    variant = folder / "build" / f"torch-stable-abi{LEAST_TORCH}-{backend}-x86_64-linux"
    shutil.rmtree(variant, ignore_errors=True)
    variant.mkdir(parents=True)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            # Beside the package: the libraries that extensions find from their own folder, and all licences.
            names = [name for name in archive.namelist() if not name.endswith(".dist-info/RECORD")]
            archive.extractall(variant, names)
    (variant / "metadata.json").write_text(json.dumps(metadata(version, backend), indent=2) + "\n", encoding="utf-8")
    return variant


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("wheels", type=pathlib.Path, nargs="+")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--backend", default="cpu")
    options = parser.parse_args()
    print(lay_out(options.wheels, options.folder, options.backend))


if __name__ == "__main__":
    main()

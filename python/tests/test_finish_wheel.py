"""python/finish_wheel.py: licences, the name and refusals, on wheels with a few bytes of content."""
import importlib.util
import os
import subprocess
import sys
import zipfile

import pytest
from conftest import ROOT

if importlib.util.find_spec("nanobind") is None:
    pytest.skip("nanobind, whose licence goes into the wheel, is not installed", allow_module_level=True)
HEADERS = ("libxxhash-dev", "nlohmann-json3-dev", "libboost-dev", "libcli11-dev")


@pytest.fixture
def finish(tmp_path):
    """finish(library, packages, *options): runs the script on a wheel with this library, where a prefix has documents of these
    packages. Returns (process, {file in the wheel: bytes})."""
    def run(library, packages, *options):
        for package in packages:
            folder = tmp_path / "prefix" / "share" / "doc" / package
            folder.mkdir(parents=True)
            (folder / "copyright").write_text(f"licence of {package}", encoding="ascii")
        wheel = tmp_path / "moracle-0.1.0-cp312-abi3-manylinux_2_35_x86_64.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"moracle.libs/{library}", b"library")
            archive.writestr("moracle-0.1.0.dist-info/METADATA", "Metadata-Version: 2.4\nName: moracle\nVersion: 0.1.0\n\nText\n")
            archive.writestr("moracle-0.1.0.dist-info/RECORD", "")
        out = tmp_path / "out"
        out.mkdir()
        done = subprocess.run([sys.executable, str(ROOT / "python" / "finish_wheel.py"), str(wheel), str(out), *options],
                              capture_output=True, text=True, env=dict(os.environ, CMAKE_PREFIX_PATH=str(tmp_path / "prefix")))
        files = {}
        for path in out.glob("*.whl"):
            with zipfile.ZipFile(path) as archive:
                files = {name: archive.read(name) for name in archive.namelist()}
        return done, files
    return run


def test_licences_of_unpacked_packages_and_of_cuda_are_added(finish, tmp_path):
    (tmp_path / "EULA.txt").write_text("licence of CUDA", encoding="ascii")
    done, files = finish("libmoracletest-1234.so.7", [*HEADERS, "libmoracletest7"], "--name", "moracle-cuda", "--cuda", str(tmp_path))
    assert done.returncode == 0, done.stderr
    folder = "moracle_cuda-0.1.0.dist-info/"
    assert files[folder + "licenses/libraries/libmoracletest7.txt"] == b"licence of libmoracletest7"
    assert files[folder + "licenses/libraries/cuda-runtime.txt"] == b"licence of CUDA"
    metadata = files[folder + "METADATA"].decode()
    assert "Name: moracle-cuda\n" in metadata and "License-File: libraries/libxxhash-dev.txt" in metadata
    assert set(files) == {line.split(",")[0] for line in files[folder + "RECORD"].decode().splitlines()}


@pytest.mark.parametrize("library", ["libcuda-1a2b.so.1", "libcublasLt-1a2b.so.13", "libnccl-1a2b.so.2"])
def test_libraries_of_nvidia_are_refused(finish, library):
    done, _ = finish(library, HEADERS)
    assert done.returncode == 1
    assert f"needs {library} outside of the wheel" in done.stderr


def test_library_without_a_licence_is_refused(finish):
    done, _ = finish("libmoracletest-1234.so.7", HEADERS)
    assert done.returncode == 1
    assert "needs the package of libmoracletest-1234.so.7 for its licence" in done.stderr


def test_wheel_above_the_limit_is_refused(finish):
    done, _ = finish("libmoracletest-1234.so.7", [*HEADERS, "libmoracletest7"], "--most-megabytes", "0.0001")
    assert done.returncode == 1
    assert "needs at most 0.0001 MB" in done.stderr

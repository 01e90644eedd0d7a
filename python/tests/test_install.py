"""Build from source without a system package: one line names the package to install."""
import os
import shutil
import subprocess

import pytest
from conftest import ROOT

CMAKE, NINJA = shutil.which("cmake"), shutil.which("ninja")
if CMAKE is None or NINJA is None or not (ROOT / "CMakeLists.txt").exists():
    pytest.skip("needs cmake, ninja and a clone", allow_module_level=True)
SAYS = "missing packages of Debian and Ubuntu: apt-get install"


def configure(folder, *options, **environment):
    """Lines of CMake's log that name packages."""
    run = subprocess.run([CMAKE, "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={NINJA}",
                          "-DMORACLE_TESTS=OFF", "-DMORACLE_COMMAND=OFF", *options],
                         capture_output=True, text=True, timeout=120, env=dict(os.environ, **environment))
    assert run.returncode != 0
    return [line.strip() for line in run.stderr.splitlines() if SAYS in line]


def test_missing_libraries_are_named_in_one_line(tmp_path):
    lines = configure(tmp_path, "-DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON", "-DCMAKE_DISABLE_FIND_PACKAGE_PkgConfig=ON")
    assert lines == [SAYS + " nlohmann-json3-dev pkg-config libonig-dev libutf8proc-dev libsodium-dev libxxhash-dev"]


def test_missing_compiler_is_named_in_one_line(tmp_path):
    (tmp_path / "bin").mkdir()
    lines = configure(tmp_path / "build", CXX="", PATH=str(tmp_path / "bin"))
    assert lines == [SAYS + " g++ pkg-config nlohmann-json3-dev libonig-dev libutf8proc-dev libsodium-dev libxxhash-dev"]

"""The package: version, type stubs, imports."""
import ast
import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

import moracle

PACKAGE = pathlib.Path(moracle.__file__).parent
ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_version_equals_cmake_version():
    text = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    assert moracle.__version__ == re.search(r"project\(moracle VERSION ([0-9.]+)", text)[1]


def test_stubs_parse_and_describe_every_exported_object():
    assert (PACKAGE / "py.typed").exists()
    tree = ast.parse((PACKAGE / "_moracle.pyi").read_text(encoding="utf-8"))
    described = {node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    exported = {name for name in moracle.__all__ if getattr(moracle._moracle, name, None) is not None}
    assert exported - {"__version__"} <= described
    assert len(exported) > 15


def test_stub_names_are_imported():
    tree = ast.parse((PACKAGE / "_moracle.pyi").read_text(encoding="utf-8"))
    known = {alias.asname or alias.name for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))
             for alias in node.names} | {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    properties = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    built_in = {"str", "int", "float", "bool", "list", "dict", "tuple", "object", "property", "staticmethod"}
    assert used - known - properties <= built_in


def test_import_loads_neither_torch_nor_transformers():
    code = "import sys, moracle; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_every_object_has_a_docstring():
    without = [name for name in moracle.__all__ if name != "__version__" and not getattr(moracle, name).__doc__]
    assert without == []


def test_command_of_the_package_is_of_its_version():
    if not (PACKAGE / "bin" / "moracle").exists():
        pytest.skip("the package was built without the command")
    run = subprocess.run([sys.executable, "-m", "moracle", "--version"], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout.split()[-1]) == (0, moracle.__version__)


def test_command_keeps_arguments_and_exit_status():
    if not (PACKAGE / "bin" / "moracle").exists():
        pytest.skip("the package was built without the command")
    run = subprocess.run([sys.executable, "-m", "moracle", "explain", "a folder that is absent"], capture_output=True, text=True,
                         timeout=60)
    assert run.returncode != 0
    assert "a folder that is absent" in run.stderr


def test_reference_page_matches_the_stubs():
    spec = importlib.util.spec_from_file_location("python_reference", ROOT / "tools" / "python_reference.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    page = (ROOT / "docs" / "python" / "reference.md").read_text(encoding="utf-8")
    # To update: tools/python_reference.py PACKAGE > docs/python/reference.md
    assert tool.reference(PACKAGE, tool.exported(PACKAGE)) == page
    assert all(f"### {name}\n" in page for name in moracle.__all__ if name != "__version__")

"""The package laid out as a kernel of the package kernels, loaded from a folder by a process of its own."""
import pathlib
import subprocess
import sys
import zipfile

import pytest

import moracle

pytest.importorskip("torch")
pytest.importorskip("kernels")

TOOL = pathlib.Path(__file__).resolve().parents[1] / "hub_kernel.py"
# Loads the kernel of the folder sys.argv[1]; beside the installed package if there is a second argument.
PROGRAM = """
import pathlib, sys
import kernels, torch
kernel = kernels.get_local_kernel(pathlib.Path(sys.argv[1]), backend="cpu")
packages = [kernel]
assert "moracle" not in sys.modules, "the kernel is complete"
if len(sys.argv) > 2:
    import moracle
    packages.append(moracle)
    assert moracle.pack is not kernel.pack and moracle.FusedMoe is not kernel.FusedMoe
torch.manual_seed(0)
w1, w2, hidden, topk_weights = torch.randn(4, 64, 32), torch.randn(4, 32, 32), torch.randn(3, 32), torch.rand(3, 2)
topk_ids = torch.tensor([[0, 1], [2, 3], [1, 3]], dtype=torch.int32)
expected = torch.zeros(3, 32)
for token in range(3):
    for weight, expert in zip(topk_weights[token], topk_ids[token]):
        gate, up = (w1[expert] @ hidden[token]).chunk(2)
        expected[token] += weight * (w2[expert] @ (torch.nn.functional.silu(gate) * up))
for package in packages:
    module = package.integrations.torch.Experts(package.pack(w1, w2, top_k=2))
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    for call in (module, compiled):
        torch.testing.assert_close(call(hidden, topk_weights, topk_ids), expected, rtol=1e-3, atol=1e-2)
    try:
        package.pack(w1, w2[:2], top_k=2)
    except package.InvalidArgument as error:
        assert "w2" in error.place
    else:
        raise AssertionError("needs an error")
    assert not hasattr(package.integrations, "nothing")
print("served", len(packages))
"""


def loaded(*arguments):
    done = subprocess.run([sys.executable, "-c", PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_kernel_of_a_folder_serves(tmp_path):
    package = pathlib.Path(moracle.__file__).parent
    wheel = tmp_path / f"moracle-{moracle.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for part in (package, package.with_name("moracle.libs")):
            for file in part.rglob("*"):
                if file.is_file() and "__pycache__" not in file.parts:
                    archive.write(file, file.relative_to(package.parent))
    subprocess.run([sys.executable, str(TOOL), str(wheel), str(tmp_path)], check=True, capture_output=True)
    assert loaded(tmp_path) == "served 1\n"


def test_kernel_and_installed_package_share_a_process():
    folder = TOOL.parents[1] / "build" / "hub"
    if not (folder / "build").exists():
        pytest.skip("./dev hub has not built the kernel")
    assert loaded(folder, "beside") == "served 2\n"

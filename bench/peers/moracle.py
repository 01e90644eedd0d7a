"""This library, through moracle_layers.cc and moracle_limits.cc."""

import ctypes
import os

import numpy as np

from .peer import Absent, Format, Layers, Peer
from .problem import BLOCK, POOL_BLOCKS

TEXT_BYTES = 4096


class _Args(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in (
            "num_experts", "hidden_size", "intermediate_size", "top_k",
            "num_layers", "max_num_tokens", "threads", "pool_rows", "bf16_activations")),
        ("scheme", ctypes.c_char_p),
        *((name, ctypes.c_void_p) for name in ("pool13", "pool2", "blocks13", "blocks2")),
    ]


def library():
    path = os.environ.get("MORACLE_PEERS_LIBRARY", "")
    if not os.path.exists(path):
        raise Absent(f"MORACLE_PEERS_LIBRARY names no file: '{path}'")
    lib = ctypes.CDLL(path)
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    lib.moracle_layers_make.argtypes = [ctypes.POINTER(_Args), ctypes.c_char_p]
    lib.moracle_layers_make.restype = pointer
    lib.moracle_layers_run.argtypes = [pointer, number, pointer, number, *[pointer] * 3,
                                       ctypes.c_char_p]
    lib.moracle_layers_expert_bytes.argtypes = [pointer]
    lib.moracle_layers_expert_bytes.restype = number
    lib.moracle_limits_make.argtypes = [ctypes.c_int, ctypes.c_char_p]
    lib.moracle_limits_make.restype = pointer
    lib.moracle_limits_read_bytes_per_second.argtypes = [pointer]
    lib.moracle_limits_read_bytes_per_second.restype = ctypes.c_double
    lib.moracle_limits_ops_per_second.argtypes = [pointer, ctypes.c_char_p]
    lib.moracle_limits_ops_per_second.restype = ctypes.c_double
    return lib


def onednn_environment():
    """oneDNN reads its tile configuration from a CPUID leaf. A guest with AMX but without that leaf gets an
    empty configuration and dies with SIGILL: limit oneDNN to AVX-512 there."""
    if library().moracle_tile_palettes() > 0:
        return {}
    return {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}


def onednn_note():
    isa = os.environ.get("ONEDNN_MAX_CPU_ISA")
    return f"oneDNN held to {isa}, since CPUID names no tiles" if isa else ""


def _threads():
    return {int(name) for name in os.listdir("/proc/self/task")}


def _pin(pool, threads):
    """Pins one thread per CPU, as OpenMP does for the others. After a halt Linux may otherwise put two threads
    on one CPU."""
    cpus = sorted(os.sched_getaffinity(0))
    if threads > len(cpus) or len(pool) != threads - 1:
        return
    for thread, cpu in zip([0, *pool], cpus):
        os.sched_setaffinity(thread, {cpu})


class MoracleLayers(Layers):
    def __init__(self, format_name, problem, num_layers, max_num_tokens, threads):
        shape = problem.shape
        scheme, _, activations = format_name.partition(":")
        self.lib, self.text = library(), ctypes.create_string_buffer(TEXT_BYTES)
        both = [np.concatenate([problem.blocks(i, "gate"), problem.blocks(i, "up")], axis=1)
                for i in range(num_layers)]
        down = [problem.blocks(i, "down") for i in range(num_layers)]
        self.kept = [np.ascontiguousarray(array) for array in (
            problem.pool("gate"), problem.pool("down"), np.stack(both), np.stack(down))]
        args = _Args(shape.num_experts, shape.hidden_size, shape.intermediate_size, shape.top_k,
                     num_layers, max_num_tokens, threads, POOL_BLOCKS * BLOCK,
                     activations == "x-bf16", scheme.encode(),
                     *(array.ctypes.data for array in self.kept))
        others = _threads()
        self.handle = self.lib.moracle_layers_make(ctypes.byref(args), self.text)
        if not self.handle:
            raise Absent(self.text.value.decode())
        self.note = self.text.value.decode()
        _pin(sorted(_threads() - others), threads)

    def prepare(self, layer, hidden, ids, weights):
        inputs, result = (hidden, ids, weights), np.zeros_like(hidden)
        hidden, ids, weights = (array.ctypes.data for array in inputs)
        args = (self.handle, layer, hidden, len(result), ids, weights, result.ctypes.data,
                self.text)
        return args, inputs, result

    def run(self, job):
        if self.lib.moracle_layers_run(*job[0]):
            raise RuntimeError(self.text.value.decode())

    def output(self, job):
        return job[2]


class Moracle(Peer):
    name = "moracle"

    def formats(self):
        return [
            Format("int8-w8a8", 8, 8),
            Format("fp8-w8a8-block128x128", 8, 8),
            Format("int4-w4a8-g128", 4.25, 4),
            Format("mxfp4-w4a8", 4.25, 4),
            # Floats in their own width, and rounded to bf16, as other engines do by default.
            Format("int4-w4a16-g128", 4.25, 4),
            Format("int4-w4a16-g128:x-bf16", 4.25, 4),
            Format("mxfp4-w4a16", 4.25, 4),
            Format("mxfp4-w4a16:x-bf16", 4.25, 4),
            Format("bf16", 16, 16),
            Format("bf16:x-bf16", 16, 16),
        ]

    def make(self, format_name, problem, num_layers, max_num_tokens, threads):
        return MoracleLayers(format_name, problem, num_layers, max_num_tokens, threads)


class Limits:
    """The machine's limits, measured again on each call."""

    def __init__(self, threads):
        self.lib, text = library(), ctypes.create_string_buffer(TEXT_BYTES)
        self.handle = self.lib.moracle_limits_make(threads, text)
        if not self.handle:
            raise Absent(text.value.decode())
        lines = (line.split("=") for line in text.value.decode().splitlines())
        self.peaks = {name: float(value) for name, value in lines}

    def read(self):
        return self.lib.moracle_limits_read_bytes_per_second(self.handle)

    def ops(self, peak):
        return self.lib.moracle_limits_ops_per_second(self.handle, peak.encode())

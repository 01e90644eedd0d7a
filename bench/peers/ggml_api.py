"""ggml's C functions through ctypes, from the libraries that llama-cpp-python ships."""

import ctypes
import importlib.util
import pathlib

from .peer import Absent

# enum ggml_type, as far as it is needed here.
F32, I32, BF16 = 0, 26, 30
TYPES = {"q8_0": 8, "q4_0": 2, "q4_K": 12, "mxfp4": 39, "bf16": BF16}
NAME_BYTES = 64  # GGML_MAX_NAME: struct ggml_tensor's `extra` lies behind `name`


class _InitParams(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_size_t), ("memory", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


def pointer(address):
    return ctypes.c_void_p(address)


def number(value):
    return ctypes.c_int64(value)


def size(value):
    return ctypes.c_size_t(value)


def _load():
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None:
        raise Absent("llama-cpp-python is not installed")
    folder = pathlib.Path(spec.submodule_search_locations[0]) / "lib"
    libraries = []
    for name in ("libggml-base.so", "libggml-cpu.so", "libggml.so"):
        if not (folder / name).exists():
            raise Absent(f"llama-cpp-python ships no {name}")
        libraries.append(ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL))
    return libraries


class Api:
    """Functions by name without "ggml_", from whichever library holds them. They return addresses unless
    declared otherwise."""

    RESULTS = {"row_size": ctypes.c_size_t, "tensor_overhead": ctypes.c_size_t,
               "graph_overhead": ctypes.c_size_t, "quantize_chunk": ctypes.c_size_t,
               "get_name": ctypes.c_void_p, "backend_buft_name": ctypes.c_char_p,
               "gallocr_alloc_graph": ctypes.c_bool, "backend_graph_compute": ctypes.c_int}

    def __init__(self):
        self.libraries = _load()

    def __getattr__(self, name):
        for library in self.libraries:
            function = getattr(library, f"ggml_{name}", None)
            if function is not None:
                function.restype = self.RESULTS.get(name, ctypes.c_void_p)
                setattr(self, name, function)
                return function
        raise Absent(f"this ggml has no ggml_{name}")

    def context(self, tensors):
        memory = tensors * self.tensor_overhead() + self.graph_overhead()
        return pointer(self.init(_InitParams(memory, None, True)))

    def repack_type(self):
        """The CPU backend's buffer type that interleaves rows."""
        registry = pointer(self.backend_cpu_reg())
        device = pointer(self.backend_reg_dev_get(registry, size(0)))
        address = self.backend_reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
        types = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(address)(device)
        for i in range(16):
            if not types[i]:
                break
            if self.backend_buft_name(pointer(types[i])) == b"CPU_REPACK":
                return pointer(types[i])
        raise Absent("this ggml was built without its repacked buffer type")

    def is_repacked(self, tensor):
        """True if the buffer type took the tensor's format; else the weights are stored plainly."""
        return bool(ctypes.c_void_p.from_address(self.get_name(tensor) + NAME_BYTES).value)

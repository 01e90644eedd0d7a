"""llama.cpp's CPU kernels: ggml's libraries as llama-cpp-python ships them, driven through ctypes.

The graph is the one that llama.cpp builds for a layer of experts: MUL_MAT_ID for gate and up,
SWIGLU, MUL_MAT_ID for down, a product with the routing weights, and additions. `:repack` keeps the
weights in the CPU backend's interleaved buffer type, which is its default where a format has one.
"""

import ctypes
import importlib.util
import pathlib

import numpy as np

from .peer import Absent, Format, Layers, Peer, openmp
from .problem import WEIGHTS, to_bf16

# enum ggml_type, as far as it is needed here.
F32, I32, BF16 = 0, 26, 30
TYPES = {"q8_0": 8, "q4_0": 2, "q4_K": 12, "mxfp4": 39, "bf16": BF16}
NAME_BYTES = 64  # GGML_MAX_NAME: struct ggml_tensor's `extra` lies behind `name`


class _InitParams(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_size_t), ("memory", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


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


class _Api:
    """Functions by name, without their "ggml_", wherever they are; pointers unless said."""

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
        size = tensors * self.tensor_overhead() + self.graph_overhead()
        return ctypes.c_void_p(self.init(_InitParams(size, None, True)))


def _p(address):
    return ctypes.c_void_p(address)


def _n(value):
    return ctypes.c_int64(value)


class GgmlLayers(Layers):
    def __init__(self, format_name, problem, num_layers, threads):
        self.api, self.shape = _Api(), problem.shape
        type_name, _, self.variant = format_name.partition(":")
        self.type = TYPES[type_name]
        self.backend = _p(self.api.backend_cpu_init())
        self.api.backend_cpu_set_n_threads(self.backend, threads)
        self.buffer_type = _p(self._repack_type() if self.variant else
                              self.api.backend_cpu_buffer_type())
        self.pools = {w: self._quantized(problem.pool(w)) for w in WEIGHTS}
        self.layers = [self._make_layer(problem, i) for i in range(num_layers)]
        del self.pools
        self.graphs = {}

    def _repack_type(self):
        api = self.api
        registry = _p(api.backend_cpu_reg())
        device = _p(api.backend_reg_dev_get(registry, ctypes.c_size_t(0)))
        address = api.backend_reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
        types = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(address)(device)
        for i in range(16):
            if not types[i]:
                break
            if api.backend_buft_name(_p(types[i])) == b"CPU_REPACK":
                return types[i]
        raise Absent("this ggml was built without its repacked buffer type")

    def _quantized(self, floats):
        """Rows in the format: u8 [rows, bytes of one]."""
        rows, k = floats.shape
        if self.type == BF16:
            return to_bf16(floats).view(np.uint8).reshape(rows, -1)
        out = np.empty((rows, self.api.row_size(self.type, _n(k))), np.uint8)
        floats = np.ascontiguousarray(floats)
        self.api.quantize_chunk(self.type, _p(floats.ctypes.data), _p(out.ctypes.data), _n(0),
                                _n(rows), _n(k), None)
        return out

    def _make_layer(self, problem, layer):
        api, experts = self.api, self.shape.num_experts
        context = api.context(len(WEIGHTS))
        tensors = {w: _p(api.new_tensor_3d(context, self.type, _n(problem.pool(w).shape[1]),
                                           _n(problem.rows(w)), _n(experts))) for w in WEIGHTS}
        if not api.backend_alloc_ctx_tensors_from_buft(context, self.buffer_type):
            raise Absent("ggml got no memory for its weights")
        for weight, tensor in tensors.items():
            extra = ctypes.c_void_p.from_address(api.get_name(tensor) + NAME_BYTES)
            if self.variant and not extra.value:
                raise Absent("ggml does not repack this format on this CPU")
            data = problem.gather(layer, weight, self.pools[weight])
            api.backend_tensor_set(tensor, _p(data.ctypes.data), ctypes.c_size_t(0),
                                   ctypes.c_size_t(data.nbytes))
        return tensors

    def _make_graph(self, tensors, num_tokens):
        api, shape = self.api, self.shape
        context = api.context(2 * shape.top_k + 16)
        m, top_k, h = _n(num_tokens), _n(shape.top_k), _n(shape.hidden_size)
        x = _p(api.new_tensor_3d(context, F32, h, _n(1), m))
        ids = _p(api.new_tensor_2d(context, I32, top_k, m))
        weights = _p(api.new_tensor_3d(context, F32, _n(1), top_k, m))
        for tensor in (x, ids, weights):
            api.set_input(tensor)
        up = _p(api.mul_mat_id(context, tensors["up"], x, ids))
        gate = _p(api.mul_mat_id(context, tensors["gate"], x, ids))
        down = _p(api.mul_mat_id(
            context, tensors["down"], _p(api.swiglu_split(context, gate, up)), ids))
        weighed = _p(api.mul(context, down, weights))
        graph = _p(api.new_graph(context))
        row = 4 * shape.hidden_size
        views = [_p(api.view_2d(context, weighed, h, m, ctypes.c_size_t(shape.top_k * row),
                                ctypes.c_size_t(j * row))) for j in range(shape.top_k)]
        out = views[0]
        for view in views[1:]:
            out = _p(api.add(context, out, view))
        if shape.top_k == 1:
            out = _p(api.cont(context, out))
        api.set_output(out)
        api.build_forward_expand(graph, out)
        return {"x": x, "ids": ids, "weights": weights, "out": out, "graph": graph,
                "context": context}

    def forget(self):
        # Graphs of one number of tokens share their memory; those of another give theirs back.
        for graph in self.graphs.values():
            self.api.free(graph["context"])
        if self.graphs:
            self.api.gallocr_free(self.allocator)
        self.graphs = {}

    def prepare(self, layer, hidden, ids, weights):
        api = self.api
        if not self.graphs:
            self.allocator = _p(api.gallocr_new(_p(api.backend_cpu_buffer_type())))
        if layer not in self.graphs:
            graph = self._make_graph(self.layers[layer], len(hidden))
            if not api.gallocr_alloc_graph(self.allocator, graph["graph"]):
                raise RuntimeError("ggml got no memory for its graph")
            self.graphs[layer] = graph
        graph, arrays = self.graphs[layer], {"x": hidden, "ids": ids, "weights": weights}
        return graph, arrays, [(graph[name], _p(array.ctypes.data), ctypes.c_size_t(0),
                                ctypes.c_size_t(array.nbytes)) for name, array in arrays.items()]

    def load(self, job):
        # Graphs of all layers lie in the same memory.
        for arguments in job[2]:
            self.api.backend_tensor_set(*arguments)

    def run(self, job):
        if self.api.backend_graph_compute(self.backend, job[0]["graph"]) != 0:
            raise RuntimeError("ggml_backend_graph_compute failed")

    def output(self, job):
        out = np.empty_like(job[1]["x"])
        self.api.backend_tensor_get(job[0]["out"], _p(out.ctypes.data), ctypes.c_size_t(0),
                                    ctypes.c_size_t(out.nbytes))
        return out


class Ggml(Peer):
    name = "llama.cpp"
    packages = ("llama-cpp-python",)
    install_environment = {"CMAKE_ARGS": "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF"}

    def formats(self):
        return [
            Format("q8_0", 8.5, 8, "int8-w8a8"),
            Format("q4_0:repack", 4.5, 4, "int4-w4a8-g128"),
            Format("q4_K:repack", 4.5, 4, "int4-w4a8-g128"),
            Format("q4_K", 4.5, 4, "int4-w4a8-g128"),
            Format("mxfp4:repack", 4.25, 4, "mxfp4-w4a8"),
            Format("bf16", 16, 16, "bf16"),
        ]

    def environment(self, threads):
        return openmp(threads)

    def make(self, format_name, problem, num_layers, max_num_tokens, threads):
        return GgmlLayers(format_name, problem, num_layers, threads)

"""llama.cpp's CPU kernels: ggml's libraries as llama-cpp-python ships them.

The graph is the one that llama.cpp builds for a layer of experts: MUL_MAT_ID for gate and up,
SWIGLU, MUL_MAT_ID for down, a product with the routing weights, and additions. `:repack` keeps the
weights in the CPU backend's interleaved buffer type, which is its default where a format has one.
"""

import numpy as np

from .ggml_api import BF16, F32, I32, TYPES, Api, number, pointer, size
from .peer import Absent, Format, Layers, Peer, openmp
from .problem import WEIGHTS, to_bf16


class GgmlLayers(Layers):
    def __init__(self, format_name, problem, num_layers, threads):
        self.api, self.shape = Api(), problem.shape
        type_name, _, self.variant = format_name.partition(":")
        self.type = TYPES[type_name]
        self.backend = pointer(self.api.backend_cpu_init())
        self.api.backend_cpu_set_n_threads(self.backend, threads)
        self.plain_type = pointer(self.api.backend_cpu_buffer_type())
        buffer_type = self.api.repack_type() if self.variant else self.plain_type
        pools = {w: self._quantized(problem.pool(w)) for w in WEIGHTS}
        self.layers = [self._make_layer(problem, i, pools, buffer_type) for i in range(num_layers)]
        self.graphs = {}

    def _quantized(self, floats):
        """Rows in the format: u8 [rows, bytes of one]."""
        rows, k = floats.shape
        if self.type == BF16:
            return to_bf16(floats).view(np.uint8).reshape(rows, -1)
        out = np.empty((rows, self.api.row_size(self.type, number(k))), np.uint8)
        floats = np.ascontiguousarray(floats)
        self.api.quantize_chunk(self.type, pointer(floats.ctypes.data), pointer(out.ctypes.data),
                                number(0), number(rows), number(k), None)
        return out

    def _make_layer(self, problem, layer, pools, buffer_type):
        api, experts = self.api, number(self.shape.num_experts)
        context = api.context(len(WEIGHTS))
        tensors = {w: pointer(api.new_tensor_3d(
            context, self.type, number(problem.pool(w).shape[1]), number(problem.rows(w)),
            experts)) for w in WEIGHTS}
        if not api.backend_alloc_ctx_tensors_from_buft(context, buffer_type):
            raise Absent("ggml got no memory for its weights")
        for weight, tensor in tensors.items():
            if self.variant and not api.is_repacked(tensor):
                raise Absent("ggml does not repack this format on this CPU")
            self._set(tensor, problem.gather(layer, weight, pools[weight]))
        return tensors

    def _set(self, tensor, array):
        self.api.backend_tensor_set(tensor, pointer(array.ctypes.data), size(0),
                                    size(array.nbytes))

    def _make_graph(self, tensors, num_tokens):
        api, shape = self.api, self.shape
        context = api.context(2 * shape.top_k + 16)
        m, top_k, h = (number(n) for n in (num_tokens, shape.top_k, shape.hidden_size))

        def make(operator, *arguments):
            return pointer(getattr(api, operator)(context, *arguments))

        x = make("new_tensor_3d", F32, h, number(1), m)
        ids = make("new_tensor_2d", I32, top_k, m)
        weights = make("new_tensor_3d", F32, number(1), top_k, m)
        for tensor in (x, ids, weights):
            api.set_input(tensor)
        up = make("mul_mat_id", tensors["up"], x, ids)
        gate = make("mul_mat_id", tensors["gate"], x, ids)
        down = make("mul_mat_id", tensors["down"], make("swiglu_split", gate, up), ids)
        weighed = make("mul", down, weights)
        row = 4 * shape.hidden_size
        views = [make("view_2d", weighed, h, m, size(shape.top_k * row), size(j * row))
                 for j in range(shape.top_k)]
        out = views[0] if len(views) > 1 else make("cont", views[0])
        for view in views[1:]:
            out = make("add", out, view)
        api.set_output(out)
        graph = make("new_graph")
        api.build_forward_expand(graph, out)
        return {"x": x, "ids": ids, "weights": weights, "out": out, "graph": graph,
                "context": context}

    def forget(self):
        # Graphs of one number of tokens share memory; free the memory of other numbers.
        for graph in self.graphs.values():
            self.api.free(graph["context"])
        if self.graphs:
            self.api.gallocr_free(self.allocator)
        self.graphs = {}

    def prepare(self, layer, hidden, ids, weights):
        api = self.api
        if not self.graphs:
            self.allocator = pointer(api.gallocr_new(self.plain_type))
        if layer not in self.graphs:
            graph = self._make_graph(self.layers[layer], len(hidden))
            if not api.gallocr_alloc_graph(self.allocator, graph["graph"]):
                raise RuntimeError("ggml got no memory for its graph")
            self.graphs[layer] = graph
        return self.graphs[layer], {"x": hidden, "ids": ids, "weights": weights}

    def load(self, job):
        # Graphs of all layers share the same memory.
        graph, arrays = job
        for name, array in arrays.items():
            self._set(graph[name], array)

    def run(self, job):
        if self.api.backend_graph_compute(self.backend, job[0]["graph"]) != 0:
            raise RuntimeError("ggml_backend_graph_compute failed")

    def output(self, job):
        out = np.empty_like(job[1]["x"])
        self.api.backend_tensor_get(job[0]["out"], pointer(out.ctypes.data), size(0),
                                    size(out.nbytes))
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
            Format("bf16", 16, 16, "bf16:x-bf16"),
        ]

    def environment(self, threads):
        return openmp(threads)

    def make(self, format_name, problem, num_layers, max_num_tokens, threads):
        return GgmlLayers(format_name, problem, num_layers, threads)

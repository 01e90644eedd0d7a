// Times tiles of cuda-sm80 in the two GEMMs of a layer, on weights that no cache holds: those
// of the backend, or with `all` before the lists more of them, for tuning.
//
//   nvcc -std=c++20 -O2 -arch=sm_90 -Iinclude -Isrc bench/lab/mma_tiles.cu build/cuda/libmoracle.a
//   \
//     -lonig -lutf8proc -lcudart_static -o mma_tiles
//   mma_tiles SHAPES SCHEMES TOKENS       lists with commas: mma_tiles qwen3,mixtral bf16 1,16
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/cuda/gemm_sm80/mma_choice.h"
#include "kernels/cuda/gemm_sm80/mma_linear.cuh"

using namespace moracle;
using namespace moracle::cuda;

namespace {

struct LayerShape {
  const char* name;
  int64_t experts, hidden, intermediate, top_k;
};
constexpr LayerShape kShapes[] = {{"qwen3", 128, 2048, 768, 8}, {"mixtral", 8, 4096, 14336, 2}};
constexpr int kRoutings = 16;  // one after another in a graph

template <class Operand, class... Tiles>
MmaKernels all_of() {
  static const MmaKernel kKernels[] = {MmaKernel{mma_linear<Operand, Tiles>, Tiles::kRows,
                                                 Tiles::kOutputs, Tiles::kThreads,
                                                 Tiles::kSharedBytes, 0}...};
  return kKernels;
}
template <class O>
MmaKernels candidates() {
  return all_of<O, MmaTile<O, 4, 1, 2, 4, 2, 4, 3>, MmaTile<O, 4, 2, 2, 4, 2, 4, 2>,
                MmaTile<O, 2, 2, 4, 4, 2, 4, 2>, MmaTile<O, 4, 1, 2, 8, 2, 4, 2>>();
}
MmaKernels candidates_for(const std::string& scheme) {
  if (scheme == "bf16") return candidates<Bf16Operand>();
  if (scheme == "int4-w4a16-g128") return candidates<Int4Operand>();
  if (scheme == "int8-w8a8") return candidates<Int8Int8Operand<false>>();
  if (scheme == "fp8-w8a8-block128x128") return candidates<Fp8Fp8Operand<true>>();
  return {};
}

void must(cudaError_t code) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(code));
  std::exit(1);
}

__global__ void fill(uint32_t* to, size_t words, uint32_t seed, uint32_t keep, uint32_t set) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < words;
       i += size_t{gridDim.x} * blockDim.x) {
    uint32_t v = static_cast<uint32_t>(i) * 2654435761u + seed;
    v ^= v >> 16, v *= 0x85ebca6bu, v ^= v >> 13, v *= 0xc2b2ae35u, v ^= v >> 16;
    to[i] = (v & keep) | set;
  }
}

struct Memory {
  void* data = nullptr;
  explicit Memory(size_t bytes) { must(cudaMalloc(&data, bytes + 256)); }
  Memory(const Memory&) = delete;
  ~Memory() { cudaFree(data); }
  void random(size_t bytes, uint32_t keep, uint32_t set) {
    fill<<<1024, 256>>>(static_cast<uint32_t*>(data), bytes / 4, 7, keep, set);
  }
};

// Random numbers near 1 of a type.
void pattern(DType type, uint32_t& keep, uint32_t& set) {
  keep = 0xffffffffu, set = 0;
  if (type == DType::kBF16) keep = 0x80ff80ffu, set = 0x3f003f00u;
  if (type == DType::kF16) keep = 0x87ff87ffu, set = 0x38003800u;
  if (type == DType::kF8E4M3) keep = 0xbfbfbfbfu, set = 0;
}

struct Routing {
  std::vector<int32_t> offsets, tokens;
};
Routing route(const LayerShape& s, int64_t num_tokens, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::vector<std::vector<int32_t>> of(s.experts);
  std::vector<int32_t> order(s.experts);
  for (int64_t e = 0; e < s.experts; ++e) order[e] = static_cast<int32_t>(e);
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (int64_t j = 0; j < s.top_k; ++j) {
      std::swap(order[j], order[j + engine() % (s.experts - j)]);
      of[order[j]].push_back(static_cast<int32_t>(t));
    }
  }
  Routing r;
  for (const auto& tokens : of) {
    r.offsets.push_back(static_cast<int32_t>(r.tokens.size()));
    r.tokens.insert(r.tokens.end(), tokens.begin(), tokens.end());
  }
  r.offsets.push_back(static_cast<int32_t>(r.tokens.size()));
  return r;
}

double median_us(cudaGraphExec_t graph, cudaStream_t stream) {
  cudaEvent_t begin, end;
  must(cudaEventCreate(&begin));
  must(cudaEventCreate(&end));
  std::vector<float> times;
  float total = 0;
  must(cudaGraphLaunch(graph, stream));
  while (times.size() < 3 || (total < 5 && times.size() < 25)) {
    must(cudaEventRecord(begin, stream));
    must(cudaGraphLaunch(graph, stream));
    must(cudaEventRecord(end, stream));
    must(cudaEventSynchronize(end));
    float ms = 0;
    must(cudaEventElapsedTime(&ms, begin, end));
    times.push_back(ms), total += ms;
  }
  std::sort(times.begin(), times.end());
  cudaEventDestroy(begin), cudaEventDestroy(end);
  return times[times.size() / 2] * 1000;
}

void measure(const LayerShape& s, const Scheme& scheme, bool second,
             const std::vector<int64_t>& all_tokens, bool all, cudaStream_t stream) {
  const int64_t n = second ? s.hidden : 2 * s.intermediate, k = second ? s.intermediate : s.hidden;
  KernelWeights w;
  w.layout = &kMma16Layout;
  w.scheme = scheme;
  w.shape = {n, k, scheme.weight, false, false};
  w.num_experts = s.experts;
  w.sections = w.layout->sections(w.shape);
  Memory weights(w.sections.bytes * s.experts);
  uint32_t keep, set;
  pattern(scheme.weight.dtype, keep, set);
  weights.random(w.sections.bytes * s.experts, keep, set);
  w.buffer = Buffer(weights.data, w.sections.bytes * s.experts, nullptr);
  const DType x_type = scheme.activation ? scheme.activation->dtype : DType::kBF16;
  for (int64_t m : all_tokens) {
    const int64_t rows = m * s.top_k, x_rows = second ? rows : m;
    const int64_t size = scheme.activation ? 1 : 2, blocks = (k + 31) / 32;
    Memory x(x_rows * k * size), scales(x_rows * blocks * 4), y(rows * n * 2);
    pattern(x_type, keep, set);
    x.random(x_rows * k * size, keep, set);
    scales.random(x_rows * blocks * 4, 0x007fffffu, 0x3f800000u);
    std::vector<std::unique_ptr<Memory>> offsets, tokens;
    const int routings = m >= 1024 ? 2 : kRoutings;
    for (int i = 0; i < routings; ++i) {
      const Routing r = route(s, m, 100 + i);
      offsets.push_back(std::make_unique<Memory>(r.offsets.size() * 4));
      tokens.push_back(std::make_unique<Memory>(r.tokens.size() * 4));
      must(cudaMemcpy(offsets[i]->data, r.offsets.data(), r.offsets.size() * 4,
                      cudaMemcpyHostToDevice));
      must(cudaMemcpy(tokens[i]->data, r.tokens.data(), r.tokens.size() * 4,
                      cudaMemcpyHostToDevice));
    }
    MmaKernels kernels = mma_kernels_for(w.shape, scheme);
    const int choice = all ? -1 : mma_choice(kernels, rows, s.experts);
    if (all) kernels = candidates_for(name(scheme));
    std::printf("%-8s %-22s M=%-5ld gemm%d ", s.name, name(scheme).c_str(), static_cast<long>(m),
                second ? 2 : 1);
    for (size_t v = 0; v < kernels.size(); ++v) {
      const MmaKernel& kernel = kernels[v];
      const bool slow = kernel.rows < 32 && kernel.rows * 6 * s.experts < rows;
      if (slow || (kernel.rows >= 64 && kernel.rows * s.experts > 40 * rows)) {
        std::printf("         -");
        continue;
      }
      const auto* const f = reinterpret_cast<const void*>(kernel.kernel);
      must(cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                kernel.shared_bytes));
      int per_sm = 0;
      must(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, f, kernel.threads,
                                                         kernel.shared_bytes));
      must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
      for (int i = 0; i < routings; ++i) {
        GroupedRows of{{{x.data, x_type, x_rows, k, k}, nullptr, 0}};
        if (scheme.activation) {
          const int64_t group = scheme.activation->group.cols;
          of.x.scales = static_cast<float*>(scales.data);
          of.x.num_scales = group == GroupShape::kAll ? 1 : (k + group - 1) / group;
        }
        of.row_index = second ? nullptr : static_cast<int32_t*>(tokens[i]->data);
        of.expert_offsets = static_cast<int32_t*>(offsets[i]->data);
        of.num_rows = rows;
        const MmaArgs args = mma_args(w, of, {y.data, DType::kBF16, rows, n, n});
        const int64_t grid = std::min<int64_t>(mma_tiles(kernel, args), int64_t{per_sm} * 132);
        kernel.kernel<<<static_cast<unsigned>(grid), kernel.threads, kernel.shared_bytes, stream>>>(
            args);
      }
      cudaGraph_t graph;
      cudaGraphExec_t run;
      must(cudaStreamEndCapture(stream, &graph));
      must(cudaGraphInstantiate(&run, graph, 0));
      std::printf(" %8.1f%s", median_us(run, stream) / routings,
                  static_cast<int>(v) == choice ? "*" : " ");
      std::fflush(stdout);
      cudaGraphExecDestroy(run), cudaGraphDestroy(graph);
    }
    std::printf("\n");
  }
}

std::vector<std::string> list(const char* text) {
  std::vector<std::string> all;
  std::stringstream in(text);
  for (std::string one; std::getline(in, one, ',');) all.push_back(one);
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  const bool all = argc > 4 && std::strcmp(argv[1], "all") == 0;
  if (all) ++argv;
  if (argc < 4) return 2;
  cudaStream_t stream;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  std::vector<int64_t> tokens;
  for (const std::string& one : list(argv[3])) tokens.push_back(std::stol(one));
  for (const std::string& shape : list(argv[1])) {
    for (const LayerShape& s : kShapes) {
      if (shape != s.name) continue;
      for (const std::string& scheme : list(argv[2])) {
        for (bool second : {false, true})
          measure(s, *parse_scheme(scheme), second, tokens, all, stream);
      }
    }
  }
  return 0;
}

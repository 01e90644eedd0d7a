// Times tiles of cuda-sm80 in the two GEMMs of a layer with random codes, as an SM with less shared
// memory would run them: more than a CTA needs is asked for, so that as many run on an SM as there.
// One scheme a program:
//
//   nvcc -std=c++20 -O2 --expt-relaxed-constexpr -gencode arch=compute_80,code=sm_90 -Iinclude
//   -Isrc
//     -DMORACLE_SCHEME=1 bench/lab/mma_tiles.cu -cudart static -o mma_tiles
//   mma_tiles SHAPE TOKENS KIB     mma_tiles qwen3 64,2048 99,163
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/cuda/gemm_sm80/mma_kernel.cuh"

using namespace moracle;
using namespace moracle::cuda;

namespace {

#if MORACLE_SCHEME == 0
const char* const kName = "bf16";
using Operand = Bf16Operand;
constexpr int kGroupCols = 0;
#elif MORACLE_SCHEME == 1
const char* const kName = "int4-w4a16-g128";
using Operand = Int4Operand;
constexpr int kGroupCols = 128;
#elif MORACLE_SCHEME == 2
const char* const kName = "int8-w8a8";
using Operand = Int8Int8Operand<false>;
constexpr int kGroupCols = 0;
#elif MORACLE_SCHEME == 3
const char* const kName = "fp8-w8a8-block128x128";
using Operand = Fp8Fp8Operand<true>;
constexpr int kGroupCols = 128;
#endif

void must(cudaError_t code) {
  if (code == cudaSuccess) return;
  std::printf("%s\n", cudaGetErrorString(code));
  std::exit(1);
}

struct Memory {
  void* data = nullptr;
  explicit Memory(size_t bytes) { must(cudaMalloc(&data, bytes + 4096)); }
  Memory(const Memory&) = delete;
  ~Memory() { cudaFree(data); }
};

__global__ void fill(uint32_t* to, size_t words, uint32_t seed, uint32_t keep, uint32_t set) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < words;
       i += size_t{gridDim.x} * blockDim.x) {
    uint32_t v = static_cast<uint32_t>(i) * 2654435761u + seed;
    v ^= v >> 16, v *= 0x85ebca6bu, v ^= v >> 13, v *= 0xc2b2ae35u, v ^= v >> 16;
    to[i] = (v & keep) | set;
  }
}
// Random codes near 1, or any codes of integers.
void fill_codes(void* to, size_t bytes, bool floats, int element_bytes) {
  const uint32_t keep = !floats ? 0xffffffffu : element_bytes == 2 ? 0x80ff80ffu : 0xbfbfbfbfu;
  const uint32_t set = floats && element_bytes == 2 ? 0x3f003f00u : 0;
  fill<<<1024, 256>>>(static_cast<uint32_t*>(to), bytes / 4, 7, keep, set);
}
void fill_scales(void* to, int64_t count) {
  fill<<<1024, 256>>>(static_cast<uint32_t*>(to), count, 3, 0x00ffffffu, 0x3f000000u);
}

struct LayerShape {
  const char* name;
  int experts, hidden, intermediate, top_k;
};
constexpr LayerShape kShapes[] = {{"qwen3", 128, 2048, 768, 8}, {"mixtral", 8, 4096, 14336, 2}};

struct Routing {
  std::vector<int32_t> offsets, tokens;
};
Routing route(const LayerShape& s, int num_tokens) {
  std::mt19937_64 engine(100);
  std::vector<std::vector<int32_t>> of(s.experts);
  std::vector<int32_t> order(s.experts);
  std::iota(order.begin(), order.end(), 0);
  for (int t = 0; t < num_tokens; ++t) {
    for (int j = 0; j < s.top_k; ++j) {
      std::swap(order[j], order[j + engine() % (s.experts - j)]);
      of[order[j]].push_back(t);
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

ScaleGroups groups_of(int cols, int blocks) {
  ScaleGroups g{std::max(blocks, 1), 1, 0};
  if (cols > 0) g.blocks = std::min(cols / 32, blocks), g.count = (blocks * 32 + cols - 1) / cols;
  if (g.blocks > 1)
    g.inverse = static_cast<unsigned>(((uint64_t{1} << 32) + g.blocks - 1) / g.blocks);
  return g;
}

template <class Tile>
MmaKernel kernel_of() {
  return {mma_linear<Operand, Tile>, Tile::kRows,   Tile::kOutputs,    Tile::kThreads,
          Tile::kStageBytes,         Tile::kStages, Tile::kBlocksPerSm};
}
template <int kOut, int kRow, int kPanels, int kOctets, int kBlocks, int kStages, int kPerSm>
using Tile = MmaTile<Operand, kOut, kRow, kPanels, kOctets, kBlocks, kStages, kPerSm>;

std::vector<MmaKernel> candidates() {
  std::vector<MmaKernel> all;
  for (const MmaKernel& kernel : mma_kernels<Operand>())
    if (kernel.rows >= 32) all.push_back(kernel);
  if constexpr (!Operand::kGroups) all.push_back(kernel_of<Tile<4, 1, 2, 8, 2, 4, 2>>());
  if constexpr (Operand::kCodeBits == 16) all.push_back(kernel_of<Tile<2, 2, 4, 8, 1, 5, 2>>());
  return all;
}

// CTAs of `bytes` that an SM with `sm_bytes` runs, and the bytes that let as many run on this one.
struct Fit {
  int per_sm, bytes;
};
Fit fit(const MmaKernel& kernel, int bytes, int sm_bytes, int here) {
  constexpr int kBeside = 1024 + 256;
  const auto* const f = reinterpret_cast<const void*>(kernel.kernel);
  int by_registers = 0;
  must(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&by_registers, f, kernel.threads, 0));
  const int ctas = std::min(by_registers, sm_bytes / (bytes + kBeside));
  if (ctas == 0) return {0, 0};
  return {ctas, std::max(bytes, std::min(here / ctas - kBeside, 227 * 1024 - 256))};
}

double median_us(cudaStream_t stream, const MmaKernel& kernel, const GemmArgs& args, int stages,
                 const Fit& fits, int sms) {
  const int outputs = args.gated ? kernel.outputs / 2 : kernel.outputs;
  const int64_t of_rows = args.num_rows / kernel.rows + std::min(args.num_experts, args.num_rows);
  const int64_t tiles = of_rows * ((args.columns + outputs - 1) / outputs);
  const auto grid = static_cast<unsigned>(std::min<int64_t>(tiles, int64_t{fits.per_sm} * sms));
  const auto* const f = reinterpret_cast<const void*>(kernel.kernel);
  must(cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, fits.bytes));
  cudaEvent_t begin, end;
  must(cudaEventCreate(&begin));
  must(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < 8; ++i) {
    must(cudaEventRecord(begin, stream));
    kernel.kernel<<<grid, kernel.threads, fits.bytes, stream>>>(args, stages);
    must(cudaEventRecord(end, stream));
    must(cudaEventSynchronize(end));
    float ms = 0;
    must(cudaEventElapsedTime(&ms, begin, end));
    if (i > 0) times.push_back(ms);
  }
  must(cudaGetLastError());
  std::sort(times.begin(), times.end());
  cudaEventDestroy(begin), cudaEventDestroy(end);
  return times[times.size() / 2] * 1000;
}

void measure(const LayerShape& s, int tokens, bool second, const std::vector<int>& kib) {
  constexpr bool kFloats = std::is_same_v<Operand, Bf16Operand> || kGroupCols == 128;
  constexpr int kBits = Operand::kCodeBits, kXBytes = Operand::kXBytes;
  const int n = second ? s.hidden : 2 * s.intermediate, k = second ? s.intermediate : s.hidden;
  GemmArgs a{};
  a.num_experts = s.experts, a.panels = n / 16, a.blocks = k / 32;
  a.weight_groups = groups_of(kGroupCols, a.blocks), a.sub_blocks = 1;
  a.x_groups = groups_of(Operand::kXScales == XScales::kGroup ? 128 : 0, a.blocks);
  a.close_blocks = kGroupCols > 0 ? kGroupCols / 32 : a.blocks;
  const int64_t codes = int64_t{a.panels} * a.blocks * mma16::block_bytes(kBits);
  const int64_t scales = int64_t{a.panels} * a.weight_groups.count * 16;
  a.scales_at = codes, a.expert_bytes = (codes + scales * 4 + 255) / 256 * 256;
  Memory weights(a.expert_bytes * s.experts);
  fill_codes(weights.data, a.expert_bytes * s.experts, kFloats && kBits > 4, kBits / 8);
  for (int e = 0; e < s.experts; ++e)
    fill_scales(static_cast<uint8_t*>(weights.data) + e * a.expert_bytes + codes, scales);
  a.base = static_cast<uint8_t*>(weights.data);
  a.gated = !second, a.sharpness = 1, a.limit = std::numeric_limits<float>::infinity();
  a.columns = second ? n : n / 2;
  const Routing r = route(s, tokens);
  const int rows = tokens * s.top_k, x_rows = second ? rows : tokens;
  a.x_stride = int64_t{k} * kXBytes, a.x_bytes = k * kXBytes, a.x_aligned = true;
  Memory x(x_rows * a.x_stride), x_scales(int64_t{x_rows} * a.x_groups.count * 4);
  Memory offsets(r.offsets.size() * 4), index(r.tokens.size() * 4);
  Memory y(int64_t{rows} * a.columns * 2);
  fill_codes(x.data, x_rows * a.x_stride, kFloats, kXBytes);
  fill_scales(x_scales.data, int64_t{x_rows} * a.x_groups.count);
  must(cudaMemcpy(offsets.data, r.offsets.data(), r.offsets.size() * 4, cudaMemcpyHostToDevice));
  must(cudaMemcpy(index.data, r.tokens.data(), r.tokens.size() * 4, cudaMemcpyHostToDevice));
  a.x = static_cast<uint8_t*>(x.data), a.x_scales = static_cast<float*>(x_scales.data);
  a.offsets = static_cast<int32_t*>(offsets.data), a.num_rows = rows;
  a.row_index = second ? nullptr : static_cast<int32_t*>(index.data);
  a.y = {y.data, DType::kBF16, rows, a.columns, a.columns}, a.y_in_pairs = true;

  cudaStream_t stream;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  int here = 0, sms = 0;
  must(cudaDeviceGetAttribute(&here, cudaDevAttrMaxSharedMemoryPerMultiprocessor, 0));
  must(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  for (int limit : kib) {
    for (const MmaKernel& kernel : candidates()) {
      std::printf("%s %s M=%d gemm%d, %d KiB, tile %dx%d for %d:", kName, s.name, tokens,
                  second ? 2 : 1, limit, kernel.outputs, kernel.rows, kernel.per_sm);
      const int chosen = mma_stages(kernel, (limit + 1) * 1024, 1024 + 128);
      for (int stages = 2; stages <= kernel.most_stages; ++stages) {
        const Fit fits = fit(kernel, stages * kernel.stage_bytes, (limit + 1) * 1024, here);
        if (fits.per_sm == 0) continue;
        std::printf("  %d%s stages, %d CTAs %.1f", stages, stages == chosen ? "*" : "", fits.per_sm,
                    median_us(stream, kernel, a, stages, fits, sms));
        std::fflush(stdout);
      }
      std::printf("\n");
    }
  }
  cudaStreamDestroy(stream);
}

std::vector<int> numbers(const char* text) {
  std::vector<int> all;
  std::stringstream in(text);
  for (std::string one; std::getline(in, one, ',');) all.push_back(std::stoi(one));
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  for (const LayerShape& s : kShapes) {
    if (std::strcmp(argv[1], s.name) != 0) continue;
    for (int tokens : numbers(argv[2]))
      for (bool second : {false, true}) measure(s, tokens, second, numbers(argv[3]));
  }
  return 0;
}

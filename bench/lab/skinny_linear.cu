// Checks and times skinny GEMMs (src/kernels/cuda/gemm_skinny/) on Qwen3-30B-A3B's linear layers.
//
//   nvcc -std=c++20 -O2 --expt-relaxed-constexpr -gencode arch=compute_90a,code=sm_90a -Iinclude
//     -Isrc bench/lab/skinny_linear.cu
//     src/kernels/cuda/{gemm_skinny/skinny_plan,operands/scaling_plan}.cc
//     src/{quant/activation,base/base}.cc -cudart static -o skinny_linear
//   skinny_linear check      against a plain loop
//   skinny_linear sweep      likewise, all splits
//   skinny_linear time       graphs of layers: a small kernel, then the linear layer
#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/gemm_skinny/skinny_kernel.cuh"

using namespace moracle;
using namespace moracle::cuda;

namespace {

#define CHECK(call)                                              \
  do {                                                           \
    const cudaError_t error = (call);                            \
    if (error != cudaSuccess) {                                  \
      std::printf("%s: %s\n", #call, cudaGetErrorString(error)); \
      std::exit(1);                                              \
    }                                                            \
  } while (false)

// Schemes of the lab.
struct Int4 {
  using Operand = Int4Operand;
  static constexpr const char* kName = "int4-w4a16-g128";
  static constexpr int kGroup = 128, kXGroup = 0;  // columns; 0: a whole row
  static QuantKey weight(bool zeros) { return {DType::kI4, per_group(128), false, !zeros}; }
  static std::optional<QuantKey> activation() { return {}; }
};
struct Fp8Blocks {
  using Operand = Fp8Fp8Operand<true>;
  static constexpr const char* kName = "fp8-w8a8-block128x128";
  static constexpr int kGroup = 128, kXGroup = 128;
  static QuantKey weight(bool) { return kFp8Static128BlockSym; }
  static std::optional<QuantKey> activation() { return kFp8Dynamic128Sym; }
};
struct Int8 {
  using Operand = Int8Int8Operand<false>;
  static constexpr const char* kName = "int8-w8a8";
  static constexpr int kGroup = 0, kXGroup = 0;
  static QuantKey weight(bool) { return kInt8StaticChannelSym; }
  static std::optional<QuantKey> activation() { return kInt8DynamicTokenSym; }
};
struct Int8W8A16 {
  using Operand = Int8Operand<true>;
  static constexpr const char* kName = "int8-w8a16-g128";
  static constexpr int kGroup = 128, kXGroup = 0;
  static QuantKey weight(bool zeros) { return {DType::kI8, per_group(128), false, !zeros}; }
  static std::optional<QuantKey> activation() { return {}; }
};

template <class T>
T* device_copy(const std::vector<T>& from) {
  T* to = nullptr;
  CHECK(cudaMalloc(&to, from.size() * sizeof(T)));
  CHECK(cudaMemcpy(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
  return to;
}

int padded(int bytes) {
  return (bytes + 255) / 256 * 256;
}

template <class Scheme>
struct Layer {
  using Operand = typename Scheme::Operand;
  GemmArgs args{};
  int n, k;

  // `matrices`: copies of the weights one after another, of which the n-th is used.
  Layer(int n_, int k_, int tokens, int matrices, bool zeros) : n(n_), k(k_) {
    std::mt19937 engine(1);
    const int panels = (n + 15) / 16, blocks = (k + 31) / 32;
    const int groups = Scheme::kGroup > 0 ? (k + Scheme::kGroup - 1) / Scheme::kGroup : 1;
    const int codes = panels * blocks * mma16::block_bytes(Operand::kCodeBits);
    const int scales_at = padded(codes), zeros_at = scales_at + padded(panels * groups * 64);
    const int bytes = zeros_at + padded(panels * groups * 16);
    std::vector<uint8_t> one(bytes);
    for (int i = 0; i < codes; ++i) {
      one[i] = static_cast<uint8_t>(engine());
      if (std::is_same_v<Scheme, Fp8Blocks>) one[i] &= 0xbf;  // below 2: no NaN
    }
    auto* const scales = reinterpret_cast<float*>(one.data() + scales_at);
    for (int i = 0; i < panels * groups * 16; ++i)
      scales[i] = 0.5f + static_cast<float>(engine() % 1000) / 1000;
    for (int i = 0; i < panels * groups * 16; ++i)
      one[zeros_at + i] = static_cast<uint8_t>(static_cast<int>(engine() % 16) - 8);
    uint8_t* base = nullptr;
    CHECK(cudaMalloc(&base, int64_t{bytes} * matrices));
    for (int m = 0; m < matrices; ++m)
      CHECK(cudaMemcpy(base + int64_t{m} * bytes, one.data(), bytes, cudaMemcpyHostToDevice));
    std::vector<uint8_t> x(int64_t{tokens} * k * Operand::kXBytes);
    if (Operand::kXBytes == 2) {
      auto* const values = reinterpret_cast<uint16_t*>(x.data());
      std::normal_distribution<float> normal;
      for (int64_t i = 0; i < int64_t{tokens} * k; ++i) values[i] = float_to_bf16(normal(engine));
    } else {
      for (uint8_t& value : x) {
        value = static_cast<uint8_t>(engine());
        if (std::is_same_v<Scheme, Fp8Blocks>) value &= 0xbf;
      }
    }
    const int x_groups = Scheme::kXGroup > 0 ? (k + Scheme::kXGroup - 1) / Scheme::kXGroup : 1;
    std::vector<float> x_scales(tokens * x_groups);
    for (float& scale : x_scales) scale = 0.5f + static_cast<float>(engine() % 1000) / 1000;
    GemmArgs& a = args;
    a.base = base, a.expert_bytes = bytes, a.scales_at = scales_at, a.zeros_at = zeros_at;
    a.num_experts = 1, a.panels = panels, a.blocks = blocks, a.sub_blocks = 1;
    const auto of = [&](int cols, int count) {
      ScaleGroups g{cols > 0 ? cols / 32 : blocks, count, 0};
      if (g.blocks > 1)
        g.inverse = static_cast<unsigned>(((uint64_t{1} << 32) + g.blocks - 1) / g.blocks);
      return g;
    };
    a.weight_groups = of(Scheme::kGroup, groups), a.x_groups = of(Scheme::kXGroup, x_groups);
    a.has_zeros = zeros;
    a.close_blocks = Scheme::kGroup > 0 ? Scheme::kGroup / 32 : blocks;
    a.x = device_copy(x), a.x_stride = int64_t{k} * Operand::kXBytes,
    a.x_bytes = k * Operand::kXBytes;
    a.x_scales = device_copy(x_scales);
    a.num_rows = tokens, a.columns = n;
    uint16_t* y = nullptr;
    CHECK(cudaMalloc(&y, int64_t{tokens} * n * 2));
    a.y = Matrix{};
    a.y.data = y, a.y.rows = tokens, a.y.cols = n, a.y.stride = n, a.y.dtype = DType::kBF16;
  }
};

template <class Operand>
__device__ float code_value(const GemmArgs& a, int r, int c, int k, int zero) {
  const int64_t bit = mma16::code_bit(Operand::kCodeBits, k, r, c);
  const uint8_t byte = a.base[bit / 8];
  if constexpr (Operand::kCodeBits == 4) {
    const int nibble = byte >> (bit % 8) & 15;
    return static_cast<float>((nibble ^ 8) - 8 - zero);
  } else if constexpr (std::is_same_v<Operand, Fp8Fp8Operand<true>>) {
    const int s = byte >> 7, e = byte >> 3 & 15, m = byte & 7;
    const float v = e == 0 ? ldexpf(static_cast<float>(m), -9) : ldexpf(8.0f + m, e - 10);
    return s ? -v : v;
  } else {
    return static_cast<float>(static_cast<int8_t>(byte) - zero);
  }
}
template <class Scheme>
__global__ void plain_linear(GemmArgs a, int k, float* y) {
  using Operand = typename Scheme::Operand;
  const int r = blockIdx.x, token = threadIdx.x;
  double sum = 0;
  const int panel = r / 16, groups = a.weight_groups.count;
  for (int c = 0; c < k; ++c) {
    const int group = Scheme::kGroup > 0 ? c / Scheme::kGroup : 0;
    const float scale = reinterpret_cast<const float*>(
        a.base + a.scales_at)[(panel * groups + group) * 16 + r % 16];
    const int zero = a.has_zeros ? reinterpret_cast<const int8_t*>(
                                       a.base + a.zeros_at)[(panel * groups + group) * 16 + r % 16]
                                 : 0;
    const float w = code_value<Operand>(a, r, c, k, zero) * scale;
    float x;
    const int64_t at = int64_t{token} * k + c;
    if constexpr (Operand::kXBytes == 2) {
      x = __uint_as_float(static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(a.x)[at]) << 16);
    } else if constexpr (Scheme::kXGroup > 0) {
      GemmArgs of_x = a;
      const uint8_t byte = a.x[at];
      const int s = byte >> 7, e = byte >> 3 & 15, m = byte & 7;
      const float v = e == 0 ? ldexpf(static_cast<float>(m), -9) : ldexpf(8.0f + m, e - 10);
      x = (s ? -v : v) * a.x_scales[token * a.x_groups.count + c / Scheme::kXGroup];
    } else {
      x = static_cast<float>(static_cast<int8_t>(a.x[at])) * a.x_scales[token];
    }
    sum += static_cast<double>(w) * x;
  }
  y[int64_t{token} * gridDim.x + r] = static_cast<float>(sum);
}

// Stands for the kernel before: few CTAs, which begin early and touch x.
__global__ void small_kernel(uint4* x, int64_t count) {
  pdl_wait();
  pdl_launch_dependents();
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    uint4 value = x[i];
    asm volatile("" : "+r"(value.x));
    x[i] = value;
  }
}

template <class... Params, class... Args>
void start(cudaStream_t stream, void (*kernel)(Params...), int grid, int threads, int bytes,
           int cluster, const Args&... args) {
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(grid), config.blockDim = dim3(threads);
  config.dynamicSmemBytes = bytes, config.stream = stream, config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 2 : 1;
  CHECK(cudaLaunchKernelEx(&config, kernel, args...));
}

template <class Scheme>
struct Run {
  using Operand = typename Scheme::Operand;
  void (*kernel)(SkinnyArgs) = nullptr;
  SkinnyArgs args{};
  int grid = 0, threads = 0;

  explicit Run(const Layer<Scheme>& layer, const SkinnySplit* split = nullptr) {
    const GemmArgs& a = layer.args;
    const int octets = skinny_octets(a.num_rows);
    MatrixShape shape;
    shape.n = layer.n, shape.k = layer.k, shape.key = Scheme::weight(a.has_zeros);
    const moracle::Scheme scheme{shape.key, Scheme::activation()};
    if (!skinny_serves(shape, scheme)) std::printf("not served: ");
    args = {a, split != nullptr ? *split : skinny_split(shape, scheme, octets, 132)};
    kernel = octets == 4 ? skinny_linear<Operand, 4> : skinny_linear<Operand, 8>;
    CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                               cudaFuncAttributeMaxDynamicSharedMemorySize, args.split.bytes));
    grid = (a.panels + args.split.tile_panels - 1) / args.split.tile_panels * args.split.cluster;
    threads = args.split.tile_panels * 32;
  }
  void enqueue(cudaStream_t stream) const {
    start(stream, kernel, grid, threads, args.split.bytes, args.split.cluster, args);
  }
  void print() const {
    cudaFuncAttributes of{};
    CHECK(cudaFuncGetAttributes(&of, reinterpret_cast<const void*>(kernel)));
    int clusters = 0;
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(args.split.cluster), 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(grid), config.blockDim = dim3(threads);
    config.dynamicSmemBytes = args.split.bytes, config.attrs = &attribute, config.numAttrs = 1;
    CHECK(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
    std::printf("%d clusters fit, ", clusters);
    std::printf(
        "panels %d cluster %d share %d blocks, grid %d x %d, %d bytes, %d registers, %zu local\n",
        args.split.tile_panels, args.split.cluster, args.split.share_blocks, grid, threads,
        args.split.bytes, of.numRegs, of.localSizeBytes);
  }
};

template <class Scheme>
void check(int n, int k, int tokens, bool zeros) {
  if (!Scheme::Operand::kXBytes) return;
  Layer<Scheme> layer(n, k, tokens, 1, zeros);
  const Run<Scheme> run(layer);
  float* expected = nullptr;
  CHECK(cudaMalloc(&expected, int64_t{tokens} * n * 4));
  CHECK(cudaMemset(layer.args.y.data, 0xff, int64_t{tokens} * n * 2));
  plain_linear<Scheme><<<n, tokens>>>(layer.args, k, expected);
  CHECK(cudaDeviceSynchronize());
  run.enqueue({});
  CHECK(cudaDeviceSynchronize());
  std::vector<uint16_t> y(int64_t{tokens} * n), again(y.size());
  std::vector<float> e(y.size());
  CHECK(cudaMemcpy(y.data(), layer.args.y.data, y.size() * 2, cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(e.data(), expected, e.size() * 4, cudaMemcpyDeviceToHost));
  bool same = true;
  for (int i = 0; i < 3; ++i) {
    run.enqueue({});
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(again.data(), layer.args.y.data, y.size() * 2, cudaMemcpyDeviceToHost));
    same = same && again == y;
  }
  double worst = 0, square = 0;
  for (float v : e) square += double{v} * v;
  const double rms = std::sqrt(square / e.size());
  for (size_t i = 0; i < y.size(); ++i) {
    const double off = std::abs(bf16_to_float(y[i]) - e[i]) / (rms + std::abs(e[i]));
    worst = std::isnan(off) ? 1e9 : std::max(worst, off);
  }
  std::printf("%s %s %d x %d, %d tokens%s: worst %.2e%s  ", worst < 6e-3 && same ? "ok  " : "FAIL",
              Scheme::kName, n, k, tokens, zeros ? ", zero points" : "", worst,
              same ? "" : " (bits differ)");
  run.print();
}

template <class Scheme>
double time_of(int n, int k, int tokens, bool with, bool zeros, bool print,
               const SkinnySplit* split = nullptr) {
  constexpr int kMatrices = 24;
  Layer<Scheme> layer(n, k, tokens, kMatrices, zeros);
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  Run<Scheme> run(layer, split);
  if (print) run.print();
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int m = 0; m < kMatrices; ++m) {
    start(stream, small_kernel, 64, 256, 0, 1,
          reinterpret_cast<uint4*>(const_cast<uint8_t*>(layer.args.x)),
          int64_t{tokens} * k * Scheme::Operand::kXBytes / 16);
    if (!with) continue;
    run.args.matrix.base = layer.args.base + m * layer.args.expert_bytes;
    run.enqueue(stream);
  }
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t a, b;
  CHECK(cudaEventCreate(&a));
  CHECK(cudaEventCreate(&b));
  double best = 1e9;
  for (int r = 0; r < 40; ++r) {
    CHECK(cudaEventRecord(a, stream));
    for (int i = 0; i < 4; ++i) CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaEventRecord(b, stream));
    CHECK(cudaEventSynchronize(b));
    float ms;
    CHECK(cudaEventElapsedTime(&ms, a, b));
    best = std::min(best, double{ms} * 1e3 / kMatrices / 4);
  }
#if defined(MORACLE_SKINNY_STAMPS)
  if (with) {
    static long long stamps[8][1024];
    CHECK(cudaMemcpyFromSymbol(stamps, skinny_stamps, sizeof stamps));
    const char* names[] = {"init+weights", "pdl wait", "issue x", "multiply", "send", "store"};
    std::printf("   cycles:");
    for (int s = 0; s < 6; ++s) {
      double sum = 0, most = 0;
      for (int c = 0; c < run.grid; ++c) {
        const double d = static_cast<double>(stamps[s + 1][c] - stamps[s][c]);
        sum += d, most = std::max(most, d);
      }
      std::printf(" %s %.0f (%.0f)", names[s], sum / run.grid, most);
    }
    std::printf("\n");
  }
#endif
  CHECK(cudaGraphExecDestroy(exec));
  CHECK(cudaGraphDestroy(graph));
  CHECK(cudaFree(const_cast<uint8_t*>(layer.args.base)));
  return best;
}

template <class Scheme>
void times(bool print) {
  for (const auto& [n, k] : {std::pair{5120, 2048}, std::pair{2048, 4096}, std::pair{6144, 4096},
                             std::pair{24576, 1536}}) {
    for (const int tokens : {32, 64}) {
      const double without = time_of<Scheme>(n, k, tokens, false, false, false);
      const double with = time_of<Scheme>(n, k, tokens, true, false, print);
      std::printf("%s %d x %d, %d tokens: %.2f us with the kernel before, %.2f alone: %.2f\n",
                  Scheme::kName, n, k, tokens, with, without, with - without);
    }
  }
}

// Every split that fits, for 64 tokens.
template <class Scheme>
void sweep() {
  for (const auto& [n, k] : {std::pair{5120, 2048}, std::pair{2048, 4096}}) {
    const double without = time_of<Scheme>(n, k, 64, false, false, false);
    MatrixShape shape;
    shape.n = n, shape.k = k, shape.key = Scheme::weight(false);
    for (const int cluster : {2, 4, 8}) {
      for (int panels = 4; panels <= kMostSkinnyWarps; panels += 2) {
        const SkinnySplit split =
            skinny_split(shape, {shape.key, Scheme::activation()}, 8, 132, cluster, panels);
        if (split.bytes == 0) continue;
        const double with = time_of<Scheme>(n, k, 64, true, false, false, &split);
        std::printf("%s %d x %d: cluster %d, panels %d, grid %d: %.2f us\n", Scheme::kName, n, k,
                    cluster, panels, (n / 16 + panels - 1) / panels * cluster, with - without);
      }
    }
  }
}

template <class Scheme>
void checks() {
  for (const int tokens : {17, 32, 40, 64}) check<Scheme>(5120, 2048, tokens, false);
  check<Scheme>(2048, 4096, 64, false);
  check<Scheme>(2048, 4096, 64, Scheme::Operand::kXBytes == 2);
  check<Scheme>(144, 640, 33, false);
  check<Scheme>(2880, 2944, 64, false);
  check<Scheme>(4096, 512, 64, false);
}

}  // namespace

int main(int count, char** words) {
  const std::string verb = count > 1 ? words[1] : "check";
  if (verb == "check") {
    checks<Int4>();
    checks<Fp8Blocks>();
    checks<Int8>();
    checks<Int8W8A16>();
  } else if (verb == "sweep") {
    sweep<Int4>();
    sweep<Fp8Blocks>();
    sweep<Int8>();
  } else {
    times<Int4>(true);
    times<Fp8Blocks>(true);
    times<Int8>(true);
  }
  return 0;
}

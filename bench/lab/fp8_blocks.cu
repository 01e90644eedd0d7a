// Structures of a grouped GEMM for fp8 in blocks with many rows, on Hopper: weights in blocks of
// 128 x 128, activations in groups of 128 columns. Tokens lie in expert order, so TMA loads them.
// wgmma is issued by the math warpgroups; two warps of a third or fourth one copy.
//
// clang-format off
//   nvcc -O3 -std=c++20 -gencode arch=compute_90a,code=sm_90a bench/lab/fp8_blocks.cu -lcuda -o fp8_blocks
//   fp8_blocks check                every structure against sums in f32
//   fp8_blocks time [SHAPE]         all structures on the shapes whose names begin so
//   fp8_blocks bits [SHAPE]         the same with codes of random bits, as wgmma_tiles has
//   fp8_blocks one STRUCTURE SHAPE  in one process, for a profiler
// clang-format on
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cuda.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "fp8_blocks.cuh"

#define CHECK(call)                                                                   \
  do {                                                                                \
    if (const auto status = (call); static_cast<int>(status) != 0) {                  \
      std::printf("%s:%d: error %d\n", __FILE__, __LINE__, static_cast<int>(status)); \
      std::exit(1);                                                                   \
    }                                                                                 \
  } while (false)

// Bytes of e4m3 like those of normal values that were quantized in groups: largest magnitude 448.
__global__ void fill_codes(uint8_t* to, int64_t count, uint32_t seed, bool bits) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t h = static_cast<uint32_t>(i) * 2654435761u ^ static_cast<uint32_t>(i >> 32) ^ seed;
    float sum = 0;
    for (int j = 0; j < 4; ++j) {
      h ^= h >> 15, h *= 0x2c1b3c6du, h ^= h >> 12;
      sum += static_cast<float>(h & 0xffff) / 65536.0f - 0.5f;
    }
    to[i] = bits ? h & 0xbf : __nv_fp8_e4m3(sum * (448.0f / 2.4f) * 1.1f).__x;
  }
}
__global__ void fill_scales(float* to, int count, float about) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    to[i] = about * (1 + static_cast<float>(i * 7919 % 1009) / 1009.0f);
}

__device__ int64_t weight_at(Layout layout, int64_t row, int outputs, int k_blocks, int k) {
  if (layout == Layout::kRows) return row * k_blocks * 128 + k;
  if (layout == Layout::kAtoms)
    return (row / 64 * k_blocks + k / 128) * 8192 + row % 64 * 128 +
           ((k % 128 / 16 ^ row % 8) << 4) + k % 16;
  return row / 16 * k_blocks * 2048 + k / 32 * 512 + row % 2 * 256 + k % 32 / 16 * 128 +
         row % 16 / 2 * 16 + k % 16;
}
struct Reference {
  const uint8_t *x, *w;
  const float *x_scales, *w_scales;
  const __nv_bfloat16* y;
  const int *offsets, *shifts;
  int scale_rows, rows, experts, outputs, k_blocks, columns, gated;
};
// A block of 128 threads for each sample. The largest difference in units of the RMS that it
// expects.
__global__ void compare(Reference r, Layout layout, float* worst) {
  const int row = blockIdx.x * 977 % r.rows, column = blockIdx.x * 331 % r.columns;
  int expert = 0;
  while (r.offsets[expert + 1] <= row) ++expert;
  __shared__ float parts[4];
  float out[2];
  for (int half = 0; half <= r.gated; ++half) {
    const int n = column + half * r.columns;
    float sum = 0;
    for (int kb = 0; kb < r.k_blocks; ++kb) {
      const int k = kb * 128 + threadIdx.x;
      __nv_fp8_e4m3 a, b;
      a.__x = r.x[int64_t{row} * r.k_blocks * 128 + k];
      b.__x = r.w[weight_at(layout, int64_t{expert} * r.outputs + n, r.outputs, r.k_blocks, k)];
      sum += static_cast<float>(a) * static_cast<float>(b) *
             r.x_scales[kb * r.scale_rows + row + r.shifts[expert]] *
             r.w_scales[(expert * r.k_blocks + kb) * (r.outputs / 128) + n / 128];
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    out[half] = parts[0] + parts[1] + parts[2] + parts[3];
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  const float want = r.gated ? out[0] * out[1] / (1 + __expf(-out[0])) : out[0];
  const float got = __bfloat162float(r.y[int64_t{row} * r.columns + column]);
  float error = fabsf(got - want) / (fabsf(want) + 0.5f);
  if (!(error < 1e30f)) error = 1e30f;
  atomicMax(reinterpret_cast<int*>(worst), __float_as_int(error));
}

struct Shape {
  const char* name;
  int experts, tokens_rows, k, outputs, gated;  // rows of all experts
  bool equal = false;
};
const Shape kShapes[] = {{"mixtral-2048-w13", 8, 4096, 4096, 28672, 1},
                         {"mixtral-2048-w2", 8, 4096, 14336, 4096, 0},
                         {"mixtral-2048-w13-equal", 8, 4096, 4096, 28672, 1, true},
                         {"mixtral-8192-w13", 8, 16384, 4096, 28672, 1},
                         {"mixtral-8192-w2", 8, 16384, 14336, 4096, 0},
                         {"dsv3-2048-w13", 32, 16384, 7168, 4096, 1},
                         {"dsv3-2048-w2", 32, 16384, 2048, 7168, 0},
                         {"dsv3-8192-w13", 32, 65536, 7168, 4096, 1},
                         {"dsv3-8192-w2", 32, 65536, 2048, 7168, 0},
                         {"qwen3-2048-w13", 128, 16384, 2048, 1536, 1},
                         {"qwen3-2048-w2", 128, 16384, 768, 2048, 0},
                         {"qwen3-8192-w13", 128, 65536, 2048, 1536, 1},
                         {"qwen3-8192-w2", 128, 65536, 768, 2048, 0}};
const Shape kChecks[] = {{"w13", 5, 900, 1024, 1024, 1}, {"w2", 5, 900, 1024, 1024, 0}};

struct Memory {
  uint8_t *x, *w;
  float *x_scales, *w_scales, *worst;
  __nv_bfloat16* y;
  int4* tiles;
  int *offsets, *shifts;
  unsigned long long* cycles;
  int sms;
};
Memory m;

TensorMap map(CUtensorMapDataType type, int dims, const void* base, std::vector<cuuint64_t> extent,
              std::vector<cuuint64_t> strides, std::vector<cuuint32_t> box, bool swizzle) {
  CUtensorMap encoded;
  const cuuint32_t ones[5] = {1, 1, 1, 1, 1};
  CHECK(cuTensorMapEncodeTiled(&encoded, type, dims, const_cast<void*>(base), extent.data(),
                               strides.data(), box.data(), ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
                               swizzle ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                               CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  TensorMap result;
  std::memcpy(&result, &encoded, sizeof result);
  return result;
}

std::vector<int> offsets_of(const Shape& s) {
  std::vector<int> rows(s.experts);
  std::mt19937 random(s.tokens_rows);
  for (int i = 0; i < s.tokens_rows; ++i) ++rows[s.equal ? i % s.experts : random() % s.experts];
  std::vector<int> offsets{0};
  for (const int n : rows) offsets.push_back(offsets.back() + n);
  return offsets;
}

struct Options {
  bool copies;
  int store;
};
struct Result {
  float us, sustained, cycles, error;
};

template <class S>
Result run(const Shape& s, bool check, const Options& options) {
  const int kb = s.k / 128, columns = s.gated ? s.outputs / 2 : s.outputs;
  if (S::kWork == Work::kPipelined && kb % Math<S>::kUnrolled != 0) return {};
  const std::vector<int> offsets = offsets_of(s);
  std::vector<int> shifts{0};
  for (int e = 0; e < s.experts; ++e)
    shifts.push_back((offsets[e + 1] + shifts[e] + 3) / 4 * 4 - offsets[e + 1]);
  Args a{};
  using U64 = cuuint64_t;
  const U64 k = s.k, rows = s.tokens_rows, outputs = U64(s.experts) * s.outputs;
  const U64 scale_rows = s.tokens_rows + 4 * s.experts;
  a.x = map(CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, m.x, {k, rows}, {k},
            {128, cuuint32_t(S::kRows / S::kAcross)}, true);
  a.x_scales = map(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, m.x_scales, {scale_rows, U64(kb)},
                   {scale_rows * 4}, {cuuint32_t(S::kRows), 1}, false);
  a.w_scales =
      map(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, m.w_scales,
          {U64(s.outputs / 128), U64(s.experts * kb)}, {U64(s.outputs / 128 * 4)}, {8, 1}, false);
  if (S::kLayout == Layout::kPanels)
    a.w = map(CU_TENSOR_MAP_DATA_TYPE_FLOAT64, 4, m.w,
              {64, U64(s.outputs / 16), U64(s.k / 32), U64(s.experts)},
              {k * 16, 512, k * s.outputs}, {64, S::kHalf / 16, 4, 1}, false);
  else
    a.w = map(CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, m.w, {k, outputs}, {k}, {128, S::kHalf}, true);
  a.atoms = m.w, a.tiles = m.tiles, a.y = m.y, a.k_blocks = kb, a.outputs = s.outputs,
  a.columns = columns;
  a.second = s.gated ? s.outputs / 2 : S::kHalf, a.half = s.gated ? S::kHalf : S::kOutputs,
  a.gated = s.gated, a.copies = options.copies, a.store = options.store, a.cycles = m.cycles;
  // The order of tiles keeps weights and tokens in the second-level cache: CTAs take up to 2,048
  // rows of an expert together, and all of these rows times one tile of outputs before the next
  // tile.
  std::vector<int4> tiles;
  constexpr int kRows = S::kRows * S::kDown;

  const int across = (columns + a.half * S::kAcross - 1) / (a.half * S::kAcross),
            together = 2048 / kRows;
  for (int e = 0; e < s.experts; ++e) {
    const int n = offsets[e + 1] - offsets[e], down = (n + kRows - 1) / kRows;
    for (int group = 0; group < down; group += together) {
      for (int w = 0; w < across; ++w) {
        for (int t = group; t < std::min(group + together, down); ++t)
          tiles.push_back(
              {offsets[e] + t * kRows, std::min(kRows, n - t * kRows), e + 256 * shifts[e], w});
      }
    }
  }
  a.num_tiles = static_cast<int>(tiles.size());
  CHECK(cudaMemcpy(m.tiles, tiles.data(), tiles.size() * sizeof(int4), cudaMemcpyHostToDevice));
  CHECK(
      cudaMemcpy(m.offsets, offsets.data(), offsets.size() * sizeof(int), cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(m.shifts, shifts.data(), shifts.size() * sizeof(int), cudaMemcpyHostToDevice));
  fill_scales<<<512, 256>>>(m.x_scales, static_cast<int>(scale_rows) * kb, 1.0f / 448);
  fill_scales<<<512, 256>>>(m.w_scales, s.experts * kb * (s.outputs / 128), 0.2f / 448);
  CHECK(cudaFuncSetAttribute(gemm<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kShared));
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(m.sms / S::kCluster * S::kCluster), config.blockDim = dim3(S::kThreads),
  config.dynamicSmemBytes = S::kShared;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {S::kCluster, 1, 1};
  config.attrs = &attribute, config.numAttrs = 1;
  int clusters = 0;
  CHECK(cudaOccupancyMaxActiveClusters(&clusters, gemm<S>, &config));
  config.gridDim = dim3(std::min(clusters, m.sms / S::kCluster) * S::kCluster);
  if (clusters < m.sms / S::kCluster) std::printf("(%d clusters) ", clusters);
  if (check) {
    CHECK(cudaMemset(m.y, 0xff, size_t(s.tokens_rows) * columns * 2));
    CHECK(cudaMemset(m.worst, 0, 4));
    CHECK(cudaLaunchKernelEx(&config, gemm<S>, a));
    compare<<<4000, 128>>>(
        {m.x, m.w, m.x_scales, m.w_scales, m.y, m.offsets, m.shifts, static_cast<int>(scale_rows),
         s.tokens_rows, s.experts, s.outputs, kb, columns, s.gated},
        S::kLayout, m.worst);
    float worst;
    CHECK(cudaMemcpy(&worst, m.worst, 4, cudaMemcpyDeviceToHost));
    return {0, 0, 0, worst};
  }
  // Alone, after a rest, and one after another: then power bounds the clock.
  usleep(20000);
  cudaEvent_t events[7];
  for (auto& event : events) CHECK(cudaEventCreate(&event));
  const auto launch = [&](int times) {
    for (int i = 0; i < times; ++i) CHECK(cudaLaunchKernelEx(&config, gemm<S>, a));
  };
  const auto us = [&](int from, int to) {
    float ms = 0;
    CHECK(cudaEventSynchronize(events[to]));
    CHECK(cudaEventElapsedTime(&ms, events[from], events[to]));
    return ms * 1000;
  };
  for (int i = 0; i < 5; ++i) {
    if (i > 0) launch(1);
    CHECK(cudaMemsetAsync(m.cycles, 0, 8));
    CHECK(cudaEventRecord(events[i]));
  }
  launch(1);
  CHECK(cudaEventRecord(events[5]));
  std::vector<float> times;
  for (int i = 1; i < 5; ++i) times.push_back(us(i, i + 1));
  std::sort(times.begin(), times.end());
  unsigned long long cycles = 0;
  CHECK(cudaMemcpy(&cycles, m.cycles, 8, cudaMemcpyDeviceToHost));
  const int more = std::max(6, static_cast<int>(20000 / times[1]));
  launch(more);
  CHECK(cudaEventRecord(events[5]));
  launch(more);
  CHECK(cudaEventRecord(events[6]));
  const float sustained = us(5, 6) / more;
  for (auto& event : events) CHECK(cudaEventDestroy(event));
  return {(times[1] + times[2]) / 2, sustained, static_cast<float>(cycles), 0};
}

struct Entry {
  const char* name;
  Result (*run)(const Shape&, bool, const Options&);
  Options options;
  bool exact;
};
template <class S>
constexpr Entry entry(const char* name, int store = 2, bool copies = true) {
  return {name, run<S>, {copies, store}, S::kWork <= Work::kPipelined && copies && store > 0};
}
constexpr Layout kR = Layout::kRows, kP = Layout::kPanels;
const Entry kEntries[] = {
    // math warpgroups, waves, chunks, n, layout, tokens from registers, cluster, work
    entry<Structure<2, 1, 2, 128, kP, true, 1, Work::kPromote>>("(15), stores of registers", 1),
    entry<Structure<2, 1, 2, 128, kP, true, 1, Work::kPromote>>("(15)"),
    entry<Structure<2, 1, 2, 128, kP, false, 1, Work::kPromote>>("panels, stores of registers", 1),
    entry<Structure<2, 1, 2, 128, kP, false, 1, Work::kPromote>>("panels"),
    entry<Structure<2, 1, 2, 128, kP, false, 1, Work::kPromote>>("panels, no stores", 0),
    entry<Structure<2, 1, 2, 128, kR, false, 1, Work::kPromote>>("rows"),
    entry<Structure<2, 1, 2, 128, kR, false, 2, Work::kPromote>>("rows x2"),
    entry<Structure<2, 1, 2, 128, kP, false, 2, Work::kPromote>>("panels x2"),
    entry<Structure<2, 1, 2, 128, kP, false, 2, Work::kPromote, true>>("panels w2"),
    entry<Structure<2, 1, 1, 128, kR, false, 1, Work::kPromote>>("128x128"),
    entry<Structure<2, 1, 1, 128, kR, false, 2, Work::kPromote>>("128x128 x2"),
    entry<Structure<2, 1, 1, 128, kR, false, 2, Work::kStagger>>("128x128 x2 stagger"),
    entry<Structure<2, 1, 1, 128, kR, false, 2, Work::kPipelined>>("128x128 x2 pipelined"),
    entry<Structure<2, 1, 1, 192, kR, false, 1, Work::kPromote>>("128x192"),
    entry<Structure<2, 2, 1, 128, kR, false, 1, Work::kPromote>>("256x128"),
    entry<Structure<2, 2, 1, 128, kR, false, 2, Work::kPromote>>("256x128 x2"),
    entry<Structure<3, 1, 1, 128, kR, false, 1, Work::kPromote>>("192x128 3wg"),
    entry<Structure<3, 1, 1, 128, kR, false, 2, Work::kPromote>>("192x128 3wg x2"),
    entry<Structure<2, 1, 2, 128, kP, false, 1, Work::kWaits>>("panels, waits", 0),
    entry<Structure<2, 1, 2, 128, kP, false, 1, Work::kBeside>>("panels, beside", 0),
    entry<Structure<2, 1, 2, 128, kP, false, 1, Work::kSumsOnly>>("panels, no promotion", 0),
    entry<Structure<3, 1, 1, 128, kR, false, 1, Work::kWaits>>("192x128 3wg, waits"),
    entry<Structure<2, 1, 2, 128, kP, false, 1, Work::kPromote>>("panels, no copies", 0, false),
    entry<Structure<2, 1, 2, 128, kP, false, 1, Work::kWaits>>("panels, waits, no copies", 0,
                                                               false),
    entry<Structure<2, 1, 2, 128, kP, false, 1, Work::kBeside>>("panels, beside, no copies", 0,
                                                                false),
    entry<Structure<2, 1, 2, 128, kP, false, 1, Work::kSumsOnly>>("panels, no prom., no copies", 0,
                                                                  false),
    entry<Structure<2, 1, 2, 128, kP, false, 1, Work::kCopiesOnly>>("panels, copies only", 0),
    entry<Structure<2, 1, 2, 128, kP, true, 1, Work::kPromote, false, true>>("(15), banks"),
    entry<Structure<2, 1, 2, 128, kP, false, 1, Work::kPromote, false, true>>("panels, banks"),
    entry<Structure<2, 1, 2, 128, kR, false, 1, Work::kPromote, false, true>>("rows, banks"),
    entry<Structure<2, 1, 2, 128, kR, false, 2, Work::kPromote, false, true>>("rows x2, banks"),
};

// Where a child process stands. A structure that fails or hangs ends its process; the next one goes
// on behind it.
struct Progress {
  int shape, structure;
  bool done, failed[64];
};

void allocate(bool bits) {
  CHECK(cudaSetDevice(0));
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, 0));
  m.sms = properties.multiProcessorCount;
  const int64_t weights = int64_t{8} * 28672 * 4096, tokens = int64_t{65536} * 7168;
  CHECK(cudaMalloc(&m.x, tokens));
  CHECK(cudaMalloc(&m.w, weights));
  CHECK(cudaMalloc(&m.x_scales, (65536 + 512) * 56 * 4));
  CHECK(cudaMalloc(&m.w_scales, 4 << 20));
  CHECK(cudaMalloc(&m.worst, 4));
  CHECK(cudaMalloc(&m.y, int64_t{65536} * 7168 * 2));
  CHECK(cudaMalloc(&m.tiles, 4 << 20));
  CHECK(cudaMalloc(&m.offsets, 4096));
  CHECK(cudaMalloc(&m.shifts, 4096));
  CHECK(cudaMalloc(&m.cycles, 8));
  fill_codes<<<2048, 256>>>(m.x, tokens, 1, bits);
  fill_codes<<<2048, 256>>>(m.w, weights, 2, bits);
  CHECK(cudaDeviceSynchronize());
  std::printf("%s, %d SMs\n", properties.name, m.sms);
}

void measure(Progress& at, bool check, bool bits, const std::string& only,
             const std::string& prefix) {
  allocate(bits);
  const auto shapes = check ? std::vector<Shape>(std::begin(kChecks), std::end(kChecks))
                            : std::vector<Shape>(std::begin(kShapes), std::end(kShapes));
  for (; at.shape < static_cast<int>(shapes.size()); ++at.shape, at.structure = 0) {
    const Shape& s = shapes[at.shape];
    if (std::strncmp(s.name, prefix.c_str(), prefix.size()) != 0) continue;
    if (at.structure == 0) std::printf("%s\n", s.name);
    for (; at.structure < static_cast<int>(std::size(kEntries)); ++at.structure) {
      const Entry& e = kEntries[at.structure];
      if (at.failed[at.structure] || (!only.empty() && only != e.name) || (check && !e.exact))
        continue;
      alarm(15);
      std::printf("  %-31s", e.name);
      std::fflush(stdout);
      const Result r = e.run(s, check, e.options);
      const double operations = 2.0 * s.tokens_rows * s.k * s.outputs;
      if (check)
        std::printf(" %.1e\n", r.error);
      else if (r.us == 0)
        std::printf(" -\n");
      else
        std::printf(" %8.1f us %5.0f TFLOP/s %5.2f GHz %5.1f %% of cycles  %8.1f us sustained\n",
                    r.us, operations / r.us * 1e-6, r.cycles / r.us * 1e-3,
                    operations / (r.cycles * m.sms * 8192) * 100, r.sustained);
      std::fflush(stdout);
    }
  }
  at.done = true;
}

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "time";
  const std::string only = mode == "one" && argc > 3 ? argv[2] : "",
                    prefix = argc > 2 ? argv[argc - 1] : "";
  void* const shared =
      mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  Progress& at = *new (shared) Progress{};
  if (only != "") {  // under a profiler: no other process
    measure(at, false, false, only, prefix);
    return 0;
  }
  while (!at.done) {
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      measure(at, mode == "check", mode == "bits", only, prefix);
      std::fflush(stdout);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (at.done || at.structure >= static_cast<int>(std::size(kEntries))) break;
    std::printf(" failed\n");
    at.failed[at.structure++] = true;
  }
  return 0;
}

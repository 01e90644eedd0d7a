// Checks wgmma kernels against cuda-sm80's, and times the two GEMMs of a layer on weights that no
// cache holds. One scheme a program:
//
//   nvcc -std=c++20 -O2 --expt-relaxed-constexpr -gencode arch=compute_90a,code=sm_90a -Iinclude
//     -Isrc -DMORACLE_SCHEME=4 bench/lab/wgmma_tiles.cu src/kernels/cuda/gemm_sm90/weight_tiles.cc
//     src/kernels/cuda/device/{tensor_map,cuda_check}.cc -cudart static
//     -o wgmma_tiles
//   wgmma_tiles check              every kernel, ragged experts
//   wgmma_tiles rounds             with -DMORACLE_VARIANTS, schemes 0, 1, 4, 11, 12: kernels of
//   GEMM 2 and, in scheme 12, of GEMM 1 wgmma_tiles time SHAPE TOKENS  wgmma_tiles time mixtral
//   128,2048; one more word: mma_linear, too
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/gemm_sm80/mma_kernel.cuh"
#include "kernels/cuda/gemm_sm90/scale_rows.h"
#include "kernels/cuda/gemm_sm90/wgmma_kernel.cuh"
#include "kernels/cuda/gemm_sm90/wgmma_token_epilogue.cuh"
#include "kernels/cuda/operands/folded_operands.cuh"

using namespace moracle;
using namespace moracle::cuda;

namespace {

enum class Values { kBf16, kBytes, kE4m3 };

// A scheme: operands, sizes of groups in columns (0: a whole row), and the kinds of random values.
// Tile<kM, kN, kPerSm> is its tile.
template <class Old, class New, int kStageBlocks, int kGroup, bool kExponents = false,
          bool kZeroPoints = false>
struct SchemeOf {
  using Reference = Old;
  using Operand = New;
  static constexpr int kGroupCols = kGroup;
  static constexpr bool kIsExponent = kExponents, kHasZeros = kZeroPoints;
  template <int kM, int kN, int kPerSm = 1>
  using Tile = FullWgmmaTile<New, kM, kN, kStageBlocks, kPerSm>;
};

#if MORACLE_SCHEME == 0
const char* const kName = "bf16";
using Tested = SchemeOf<Bf16Operand, Bf16Wgmma, 2, 0>;
constexpr Values kWeights = Values::kBf16, kX = Values::kBf16;
#elif MORACLE_SCHEME == 1
const char* const kName = "int8-w8a8";
using Tested =
    SchemeOf<Int8Int8Operand<false>, Wgmma<Int8Int8Operand<false>, WgmmaTypes::kInt8>, 4, 0>;
constexpr Values kWeights = Values::kBytes, kX = Values::kBytes;
#elif MORACLE_SCHEME == 2
const char* const kName = "int4-w4a16-g128";
using Tested = SchemeOf<Int4Operand, Wgmma<Int4By64Operand>, 4, 128, false, true>;
constexpr Values kWeights = Values::kBytes, kX = Values::kBf16;
#elif MORACLE_SCHEME == 3
const char* const kName = "fp8-w8a8-block128x128";
using Tested = SchemeOf<Fp8Fp8Operand<true>, Fp8Wgmma<true>, 4, 128>;
constexpr Values kWeights = Values::kE4m3, kX = Values::kE4m3;
#elif MORACLE_SCHEME == 4
const char* const kName = "fp8-w8a8-channel";
using Tested = SchemeOf<Fp8Fp8Operand<false>, Fp8Wgmma<false>, 4, 0>;
constexpr Values kWeights = Values::kE4m3, kX = Values::kE4m3;
#elif MORACLE_SCHEME == 5
const char* const kName = "mxfp4-w4a16";
using Tested = SchemeOf<Fp4Operand, Fp4Folded, 4, 32, true>;
constexpr Values kWeights = Values::kBytes, kX = Values::kBf16;
#elif MORACLE_SCHEME == 6
const char* const kName = "int8-w8a16-channel";
using Tested = SchemeOf<Int8Operand<false>, Wgmma<Int8Operand<false>>, 4, 0>;
constexpr Values kWeights = Values::kBytes, kX = Values::kBf16;
#elif MORACLE_SCHEME == 7
const char* const kName = "fp8-w8a16-channel";
using Tested = SchemeOf<Fp8Operand<false>, Wgmma<Fp8Operand<false>>, 4, 0>;
constexpr Values kWeights = Values::kE4m3, kX = Values::kBf16;
#elif MORACLE_SCHEME == 8
const char* const kName = "mxfp8-w8a16";
using Tested = SchemeOf<Fp8Operand<true>, Fp8Folded, 4, 32, true>;
constexpr Values kWeights = Values::kE4m3, kX = Values::kBf16;
#elif MORACLE_SCHEME == 11
const char* const kName = "fp8-w8a8-block128x128, tokens";
using Tested = SchemeOf<Fp8Fp8Operand<true>, Fp8Tokens, 4, 128>;
constexpr Values kWeights = Values::kE4m3, kX = Values::kE4m3;
#elif MORACLE_SCHEME == 12
const char* const kName = "fp8-w8a8-channel, tokens";
using Tested = SchemeOf<Fp8Fp8Operand<false>, Fp8TokenChannels, 4, 0>;
constexpr Values kWeights = Values::kE4m3, kX = Values::kE4m3;
#elif MORACLE_SCHEME == 10
const char* const kName = "f16";
using Tested = SchemeOf<F16Operand, F16Wgmma, 2, 0>;
constexpr Values kWeights = Values::kBf16, kX = Values::kBf16;
#elif MORACLE_SCHEME == 9
const char* const kName = "int4-w4a16-g32";
using Tested = SchemeOf<Int4Operand, Wgmma<Int4By64Operand>, 4, 32, false, true>;
constexpr Values kWeights = Values::kBytes, kX = Values::kBf16;
#endif
using Old = Tested::Reference;
using New = Tested::Operand;
constexpr bool kInBlocks = New::kTokenRows && New::kXScales == XScales::kGroup;
constexpr int kBits = New::kCodeBits, kXBytes = New::kXBytes;

using OldTile = MmaTile<Old, 4, 1, 2, 8, 2, (Old::kXBytes * Old::kCodeBits > 8 ? 3 : 4), 2>;

#ifdef MORACLE_VARIANTS
template <class Op, int kN>
constexpr auto variant = wgmma_kernel<Op, FullWgmmaTile<Op, 2, kN, Op::kCodeBits == 16 ? 2 : 4>>;
struct Variant {
  const char* name;
  WgmmaKernel kernel;
  bool gates;
};
// Of GEMM 2, with many rows.
const std::vector<Variant>& variants() {
  static const std::vector<Variant> kAll = {
#if MORACLE_SCHEME == 11
    {"lines", variant<WholeLines<Fp8Tokens>, 128>(), false},
    {"ordered", variant<OrderedRows<Fp8Tokens>, 128>(), false},
#elif MORACLE_SCHEME == 12
    {"outputs", variant<Fp8Wgmma<false>, 128>(), true},
    {"tokens", variant<Fp8TokenChannels, 128>(), true},
    {"outputs ordered", variant<OrderedRows<Fp8Wgmma<false>>, 128>(), false},
    {"tokens ordered", variant<OrderedRows<Fp8TokenChannels>, 128>(), false},
#else
    {"128", variant<New, 128>(), true},
    {"128 ordered", variant<OrderedRows<New>, 128>(), false},
#if MORACLE_SCHEME < 2
    {"144", variant<New, 144>(), true},
    {"144 ordered", variant<OrderedRows<New>, 144>(), false},
    {"192", variant<New, 192>(), true},
    {"192 ordered", variant<OrderedRows<New>, 192>(), false},
#endif
#endif
  };
  return kAll;
}
#endif

std::span<const WgmmaKernel> kernels() {
#ifdef MORACLE_VARIANTS
  static const std::vector<WgmmaKernel> kAll = [] {
    std::vector<WgmmaKernel> all;
    for (const Variant& v : variants()) all.push_back(v.kernel);
    return all;
  }();
  return kAll;
#elif defined MORACLE_N  // one tile alone
  static const WgmmaKernel kOne =
      wgmma_kernel<New, Tested::Tile<MORACLE_M, MORACLE_N, MORACLE_PER_SM>>();
  return {&kOne, 1};
#else
  return wgmma_kernels<New>().grouped;
#endif
}
// kM of each kernel: gated layers need 2.
bool gates(const WgmmaKernel& kernel) {
#ifdef MORACLE_VARIANTS
  for (const Variant& v : variants()) {
    if (v.kernel.kernel == kernel.kernel) return v.gates;
  }
#endif
  return kernel.outputs == 256;
}

struct LayerShape {
  const char* name;
  int experts, hidden, intermediate, top_k;
};
constexpr LayerShape kShapes[] = {
    {"qwen3", 128, 2048, 768, 8}, {"mixtral", 8, 4096, 14336, 2}, {"dsv3-ep8", 32, 7168, 2048, 8}};

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
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

__global__ void fill(uint32_t* to, size_t words, uint32_t seed, uint32_t keep, uint32_t set) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < words;
       i += size_t{gridDim.x} * blockDim.x) {
    uint32_t v = static_cast<uint32_t>(i) * 2654435761u + seed;
    v ^= v >> 16, v *= 0x85ebca6bu, v ^= v >> 13, v *= 0xc2b2ae35u, v ^= v >> 16;
    to[i] = (v & keep) | set;
  }
}
void random(void* to, size_t bytes, uint32_t seed, uint32_t keep, uint32_t set) {
  fill<<<1024, 256>>>(static_cast<uint32_t*>(to), bytes / 4, seed, keep, set);
}
void random(void* to, size_t bytes, uint32_t seed, Values values) {
  if (values == Values::kBf16) random(to, bytes, seed, 0x80ff80ffu, 0x3f003f00u);
  if (values == Values::kBytes) random(to, bytes, seed, 0xffffffffu, 0);
  if (values == Values::kE4m3) random(to, bytes, seed, 0xbfbfbfbfu, 0);
}
// Zeroes the columns of [rows, words] from word `begin` on.
__global__ void clear_tail(uint32_t* x, int64_t rows, int64_t words, int64_t begin) {
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    for (int64_t w = begin + threadIdx.x; w < words; w += blockDim.x) x[r * words + w] = 0;
  }
}
// Rows of a block of 128 get the scales of its first row.
__global__ void share_scales(float* scales, int groups) {
  const int panel = static_cast<int>(blockIdx.x);
  for (int i = threadIdx.x; i < groups * 16; i += blockDim.x) {
    const float first = 0.5f + 0.001f * static_cast<float>((panel / 8 * 31 + i / 16 * 17) % 97);
    scales[panel * groups * 16 + i] = first;
  }
}
__global__ void to_fragments(const uint32_t* x, uint32_t* to, int64_t words, int bytes) {
  const int64_t row = blockIdx.x * words;
  for (int64_t w = threadIdx.x; w < words; w += blockDim.x)
    to[row + fragment_order::position(bytes, w)] = x[row + w];
}

// Squares of the difference and of the reference, the largest difference, and unequal words.
struct Difference {
  double difference, reference;
  float largest;
  unsigned long long unequal;
};
__global__ void compare(const uint32_t* y, const uint32_t* wanted, int64_t words, int fragments,
                        Difference* out) {
  double difference = 0, reference = 0;
  unsigned long long unequal = 0;
  const int64_t row = blockIdx.x * words;
  for (int64_t w = threadIdx.x; w < words; w += blockDim.x) {
    const uint32_t got = y[row + (fragments != 0 ? fragment_order::position(2, w) : w)];
    unequal += got != wanted[row + w];
    const float2 a = __bfloat1622float2(as_bf16x2(got));
    const float2 b = __bfloat1622float2(as_bf16x2(wanted[row + w]));
    difference += (a.x - b.x) * (a.x - b.x) + (a.y - b.y) * (a.y - b.y);
    reference += b.x * b.x + b.y * b.y;
  }
  atomicAdd(&out->difference, difference);
  atomicAdd(&out->reference, reference);
  atomicAdd(&out->unequal, unequal);
}

struct Routing {
  std::vector<int32_t> offsets, tokens;
};
// Ragged: no row of expert 0, one of expert 1, and every third row one of expert 2.
Routing route(const LayerShape& s, int num_tokens, uint64_t seed, bool ragged) {
  std::mt19937_64 engine(seed);
  std::vector<std::vector<int32_t>> of(s.experts);
  std::vector<int32_t> order(s.experts);
  std::iota(order.begin(), order.end(), 0);
  for (int t = 0; t < num_tokens; ++t) {
    for (int j = 0; j < s.top_k; ++j) {
      std::swap(order[j], order[j + engine() % (s.experts - j)]);
      int e = order[j];
      if (ragged && e <= 1) e = t == 5 && j == 0 ? 1 : 3;
      if (ragged && t % 3 == 0 && j == 0 && t != 5) e = 2;
      of[e].push_back(t);
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

// One GEMM with random weights.
struct Gemm {
  int experts, n, k, blocks;
  WgmmaArgs args{};
  std::unique_ptr<Memory> weights;

  Gemm(int num_experts, int rows, int cols, bool gated, bool bias)
      : experts(num_experts), n(rows), k(cols), blocks((cols + 31) / 32) {
    WgmmaArgs& a = args;
    a.num_experts = experts, a.panels = (n + 15) / 16, a.blocks = blocks;
    a.weight_groups = groups_of(Tested::kGroupCols, blocks);
    a.x_groups = groups_of(New::kXScales == XScales::kGroup ? 128 : 0, blocks);
    const int part = a.weight_groups.blocks >= blocks ? 0 : a.weight_groups.blocks;
    a.close_blocks = part == 0 ? blocks : part;
    const int64_t codes = int64_t{a.panels} * blocks * mma16::block_bytes(kBits);
    const int64_t groups = int64_t{a.panels} * a.weight_groups.count * 16;
    a.scales_at = codes;
    a.zeros_at = a.scales_at + (groups * (Tested::kIsExponent ? 1 : 4) + 255) / 256 * 256;
    a.bias_at = a.zeros_at + (groups + 255) / 256 * 256;
    a.expert_bytes = a.bias_at + (a.panels * 64 + 255) / 256 * 256;
    weights = std::make_unique<Memory>(a.expert_bytes * experts);
    a.base = weights->as<uint8_t>();
    random(weights->data, a.expert_bytes * experts, 7, kWeights);
    for (int e = 0; e < experts; ++e) {
      uint8_t* const of = weights->as<uint8_t>() + e * a.expert_bytes;
      if (Tested::kIsExponent)
        random(of + a.scales_at, groups, 3 + e, 0x07070707u, 0x78787878u);
      else
        random(of + a.scales_at, groups * 4, 3 + e, 0x00ffffffu, 0x3f000000u);
      if (kInBlocks)
        share_scales<<<a.panels, 32>>>(reinterpret_cast<float*>(of + a.scales_at),
                                       a.weight_groups.count);
      random(of + a.zeros_at, groups, 5 + e, 0x07070707u, 0);
      random(of + a.bias_at, a.panels * 64, 9 + e, 0x83ffffffu, 0x40000000u);
    }
    a.gated = gated, a.sharpness = 1, a.offset = 0;
    a.limit = std::numeric_limits<float>::infinity();
    a.scale_size = Tested::kIsExponent ? 1 : 4;
    a.scale_is_exponent = Tested::kIsExponent, a.has_zeros = Tested::kHasZeros, a.has_bias = bias;
    a.columns = gated ? n / 2 : n;
    a.x_aligned = true, a.y_in_pairs = true;
    a.x_stride = int64_t{blocks} * 32 * kXBytes;
    a.x_bytes = static_cast<int>(a.x_stride);
    const WgmmaKernel kernel = kernels()[0];
    auto tma = weight_tiles(a, kernel.stage_blocks, kernel.block_bytes, kernel.scale_bytes);
    if (!tma.ok()) std::printf("%s\n", tma.error().need.c_str()), std::exit(1);
    a.tma = *tma;
  }
  void set_rows(const Memory& x, const Memory& x_scales, const Memory* index, const Memory& offsets,
                int rows, const Memory& y) {
    args.x = x.as<uint8_t>(), args.x_scales = x_scales.as<float>();
    args.row_index = index == nullptr ? nullptr : index->as<int32_t>();
    args.offsets = offsets.as<int32_t>(), args.num_rows = rows;
    args.y = {y.data, DType::kBF16, rows, args.columns, args.columns};
  }
};

template <class Kernel, class Args, class... More>
void launch_on(const Kernel& kernel, const Args& args, cudaStream_t stream, More... more) {
  const auto* const f = reinterpret_cast<const void*>(kernel.kernel);
  must(cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.shared_bytes));
  int per_sm = 0;
  must(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, f, kernel.threads,
                                                     kernel.shared_bytes));
  const int outputs = args.gated ? kernel.outputs / 2 : kernel.outputs;
  const int64_t of_rows = args.num_rows / kernel.rows + std::min(args.num_experts, args.num_rows);
  const int64_t tiles = of_rows * ((args.columns + outputs - 1) / outputs);
  const auto grid = static_cast<unsigned>(std::min<int64_t>(tiles, int64_t{per_sm} * 132));
  kernel.kernel<<<grid, kernel.threads, kernel.shared_bytes, stream>>>(args, more...);
  must(cudaGetLastError());
}
// The kernel of cuda-sm80, as launch_on takes it.
struct OldKernel {
  void (*kernel)(GemmArgs, int stages);
  int rows, outputs, threads, shared_bytes;
};
OldKernel old_kernel() {
#if defined(MORACLE_N) && !defined(MORACLE_REFERENCE)
  return {};  // times only: compiles faster
#else
  return {mma_linear<Old, OldTile>, OldTile::kRows, OldTile::kOutputs, OldTile::kThreads,
          OldTile::kStages * OldTile::kStageBytes};
#endif
}

// [row][group] to [group][row], as scale_rows says.
__global__ void pad_scales(const float* from, float* to, const int32_t* offsets, int experts,
                           int groups, int scale_rows) {
  const int row = static_cast<int>(blockIdx.x);
  int e = 0;
  while (e + 1 < experts && offsets[e + 1] <= row) ++e;
  const int at = row + 4 * e - offsets[e] % 4;
  for (int g = threadIdx.x; g < groups; g += blockDim.x)
    to[int64_t{g} * scale_rows + at] = from[int64_t{row} * groups + g];
}
void set_map(Gemm& gemm, const WgmmaKernel& kernel) {
  WgmmaArgs& a = gemm.args;
  if (kernel.box_rows == 0) return;
  auto map = make_tensor_map({a.x,
                              1,
                              2,
                              {a.x_bytes, a.num_rows, 1, 1},
                              {a.x_stride, 0, 0},
                              {128, kernel.box_rows, 1, 1},
                              true});
  if (!map.ok()) std::printf("%s\n", map.error().need.c_str()), std::exit(1);
  a.rows = *map;
  a.x_scale_rows = static_cast<int>(scale_rows(a.num_rows, a.num_experts));
}
// Copies scales by row to `by_group`.
void set_tma(Gemm& gemm, const WgmmaKernel& kernel, const Memory& by_group) {
  WgmmaArgs& a = gemm.args;
  set_map(gemm, kernel);
  if (!kernel.scales_by_group) return;
  const float* const from = std::exchange(a.x_scales, by_group.as<float>());
  pad_scales<<<a.num_rows, 64>>>(from, by_group.as<float>(), a.offsets, a.num_experts,
                                 a.x_groups.count, a.x_scale_rows);
}

void check() {
  // The order of the layout: hardware position p of a block holds the column that lane t has there.
  for (int bytes : {1, 2}) {
    const int words = fragment_order::block_words(bytes), each = 4 / bytes;
    for (int p = 0; p < words; ++p) {
      const int t = p % 4, part = p / 4;  // a register holds columns of one lane
      const int code_bits = 8 * bytes, column = 8 * t + part * each;
      const int64_t word = fragment_order::word_at(bytes, p);
      // The register of row 0: bytes [part / 2][part % 2] of the lane's share, or its word of
      // matrix [part].
      const int at = bytes == 2 ? part / 2 * 4096 + t * 128 + part % 2 * 64 : part * 1024 + t * 32;
      if (word * each != column || fragment_order::position(bytes, word) != p ||
          mma16::block_bit(code_bits, 0, column) != at)
        std::printf("fragment order is wrong at %d, %d bytes\n", p, bytes);
    }
  }
  const LayerShape s{"check", 8, 0, 0, 2};
  struct Case {
    int n, k, tokens;
    bool gated, bias, fragments, gather;
  };
  const Case cases[] = {
      {1536, 1024, 700, true, false, true, true},  {672, 736, 301, true, true, false, true},
      {336, 1408, 150, false, true, false, false}, {512, 2048, 40, false, false, true, false},
      {512, 2048, 333, false, true, false, false}, {1536, 1024, 700, true, false, true, false},
      {512, 8192, 90, true, false, false, true}};
  for (const Case& c : cases) {
    if (kInBlocks && c.gated && c.n % 256 != 0) continue;  // blocks across both halves
    Gemm gemm(s.experts, c.n, c.k, c.gated, c.bias);
    const Routing r = route(s, c.tokens, 1, true);
    const int rows = static_cast<int>(r.tokens.size()), x_rows = c.gather ? c.tokens : rows;
    const int64_t words = gemm.args.x_stride / 4;
    Memory x(x_rows * words * 4), permuted(x_rows * words * 4);
    Memory scales(int64_t{x_rows} * gemm.args.x_groups.count * 4),
        by_group(scale_rows(x_rows, s.experts) * gemm.args.x_groups.count * 4);
    Memory y(int64_t{rows} * gemm.args.columns * 2), wanted(int64_t{rows} * gemm.args.columns * 2);
    Memory offsets(r.offsets.size() * 4), tokens(r.tokens.size() * 4), out(sizeof(Difference));
    random(x.data, x_rows * words * 4, 11, kX);
    clear_tail<<<256, 32>>>(x.as<uint32_t>(), x_rows, words, int64_t{c.k} * kXBytes / 4);
    to_fragments<<<x_rows, 256>>>(x.as<uint32_t>(), permuted.as<uint32_t>(), words, kXBytes);
    random(scales.data, int64_t{x_rows} * gemm.args.x_groups.count * 4, 13, 0x00ffffffu,
           0x39000000u);
    must(cudaMemcpy(offsets.data, r.offsets.data(), r.offsets.size() * 4, cudaMemcpyHostToDevice));
    must(cudaMemcpy(tokens.data, r.tokens.data(), r.tokens.size() * 4, cudaMemcpyHostToDevice));
    const int64_t y_bytes = int64_t{rows} * gemm.args.columns * 2;
    must(cudaMemset(wanted.data, 0x3c, y_bytes));
    gemm.set_rows(x, scales, c.gather ? &tokens : nullptr, offsets, rows, wanted);
    launch_on(old_kernel(), static_cast<const GemmArgs&>(gemm.args), nullptr, OldTile::kStages);
    must(cudaDeviceSynchronize());
    for (const WgmmaKernel& kernel : kernels()) {
      if (c.gated && !gates(kernel)) continue;
      if ((c.gather || c.gated || c.fragments) && kernel.box_rows > 0) continue;
      must(cudaMemset(y.data, 0x3c, y_bytes));
      must(cudaMemset(out.data, 0, sizeof(Difference)));
      gemm.set_rows(permuted, scales, c.gather ? &tokens : nullptr, offsets, rows, y);
      gemm.args.y_fragments = c.fragments && !New::kTokenRows;
      set_tma(gemm, kernel, by_group);
      launch_on(kernel, gemm.args, nullptr);
      compare<<<rows, 256>>>(y.as<uint32_t>(), wanted.as<uint32_t>(), gemm.args.columns / 2,
                             gemm.args.y_fragments ? 1 : 0, out.as<Difference>());
      Difference d{};
      must(cudaMemcpy(&d, out.data, sizeof d, cudaMemcpyDeviceToHost));
      std::printf(
          "%-22s %dx%d%s rows %d tile %dx%d: relative %.2e, unequal %llu of %ld, rms %.3g\n", kName,
          c.n, c.k, c.gated ? " gated" : "", rows, kernel.outputs, kernel.rows,
          std::sqrt(d.difference / d.reference), d.unequal, static_cast<long>(y_bytes / 4),
          std::sqrt(d.reference / (y_bytes / 2.0)));
      std::fflush(stdout);
    }
  }
}

double median_us(cudaGraphExec_t graph, cudaStream_t stream) {
  cudaEvent_t begin, end;
  must(cudaEventCreate(&begin));
  must(cudaEventCreate(&end));
  std::vector<float> times;
  float total = 0;
  must(cudaGraphLaunch(graph, stream));
  while (times.size() < 3 || (total < 30 && times.size() < 15)) {
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

template <class Launch>
double time_graph(int routings, cudaStream_t stream, Launch one) {
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < routings; ++i) one(i);
  cudaGraph_t graph;
  cudaGraphExec_t run;
  must(cudaStreamEndCapture(stream, &graph));
  must(cudaGraphInstantiate(&run, graph, 0));
  const double us = median_us(run, stream) / routings;
  cudaGraphExecDestroy(run), cudaGraphDestroy(graph);
  return us;
}

void measure(const LayerShape& s, const std::vector<int>& all_tokens, bool old) {
  cudaStream_t stream;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (bool second : {false, true}) {
    Gemm gemm(s.experts, second ? s.hidden : 2 * s.intermediate, second ? s.intermediate : s.hidden,
              !second, false);
    for (int m : all_tokens) {
#ifdef MORACLE_PERMUTED  // tokens of GEMM 1 lie in the order of the rows
      const int rows = m * s.top_k, x_rows = rows;
#else
      const int rows = m * s.top_k, x_rows = second ? rows : m;
#endif
      Memory x(x_rows * gemm.args.x_stride);
      Memory scales(int64_t{x_rows} * gemm.args.x_groups.count * 4);
      Memory y(int64_t{rows} * gemm.args.columns * 2);
      random(x.data, x_rows * gemm.args.x_stride, 11, kX);
      random(scales.data, int64_t{x_rows} * gemm.args.x_groups.count * 4, 13, 0x00ffffffu,
             0x39000000u);
      const int routings = m >= 1024 ? 2 : 6;
      std::vector<std::unique_ptr<Memory>> offsets, tokens;
      for (int i = 0; i < routings; ++i) {
        const Routing r = route(s, m, 100 + i, false);
        offsets.push_back(std::make_unique<Memory>(r.offsets.size() * 4));
        tokens.push_back(std::make_unique<Memory>(r.tokens.size() * 4));
        must(cudaMemcpy(offsets[i]->data, r.offsets.data(), r.offsets.size() * 4,
                        cudaMemcpyHostToDevice));
        must(cudaMemcpy(tokens[i]->data, r.tokens.data(), r.tokens.size() * 4,
                        cudaMemcpyHostToDevice));
      }
      must(cudaDeviceSynchronize());
      std::printf("%-22s %-8s M=%-5d gemm%d", kName, s.name, m, second ? 2 : 1);
      const auto set = [&](int i) {
        gemm.set_rows(x, scales, x_rows == rows ? nullptr : tokens[i].get(), *offsets[i], rows, y);
      };
      for (const WgmmaKernel& kernel : kernels()) {
        const int mean = rows / s.experts;
        if ((!second && !gates(kernel)) || kernel.rows * 16 < mean ||
            kernel.rows > 8 * std::max(mean, 4))
          continue;
        const double us = time_graph(routings, stream, [&](int i) {
          set(i);
          launch_on(kernel, gemm.args, stream);
        });
        std::printf("  %dx%d/%d %.1f", kernel.outputs, kernel.rows, kernel.per_sm, us);
        std::fflush(stdout);
      }
      if (old) {
        const double us = time_graph(routings, stream, [&](int i) {
          set(i);
          launch_on(old_kernel(), static_cast<const GemmArgs&>(gemm.args), stream,
                    OldTile::kStages);
        });
        std::printf("  sm80 %.1f", us);
      }
      std::printf("\n");
    }
  }
}

#ifdef MORACLE_VARIANTS
// GEMM 1 writes codes with scales by row and by group, and both kernels of GEMM 2 read them.
void check_chain() {
#if MORACLE_SCHEME == 11
  const LayerShape s{"chain", 8, 1024, 512, 2};
  const WgmmaKernel first = variant<Fp8Tokens, 128>();
  Gemm w13(s.experts, 2 * s.intermediate, s.hidden, true, false);
  Gemm w2(s.experts, s.hidden, s.intermediate, false, false);
  const Routing r = route(s, 701, 3, true);
  const int rows = static_cast<int>(r.tokens.size()), groups = s.intermediate / 128;
  Memory x(701 * int64_t{s.hidden}), scales(701 * s.hidden / 32), offsets(r.offsets.size() * 4),
      tokens(r.tokens.size() * 4), codes(int64_t{rows} * s.intermediate),
      code_scales(scale_rows(rows, s.experts) * groups * 4), out(sizeof(Difference));
  random(x.data, 701 * int64_t{s.hidden}, 11, kX);
  random(scales.data, 701 * s.hidden / 32, 13, 0x00ffffffu, 0x39000000u);
  must(cudaMemcpy(offsets.data, r.offsets.data(), r.offsets.size() * 4, cudaMemcpyHostToDevice));
  must(cudaMemcpy(tokens.data, r.tokens.data(), r.tokens.size() * 4, cudaMemcpyHostToDevice));
  const int64_t y_bytes = int64_t{rows} * s.hidden * 2;
  Memory y(y_bytes), wanted(y_bytes);
  for (const bool by_group : {false, true}) {
    must(cudaMemset(code_scales.data, 0xff, scale_rows(rows, s.experts) * groups * 4));
    w13.set_rows(x, scales, &tokens, offsets, rows, codes);
    w13.args.y_scales = code_scales.as<float>();
    w13.args.y_scale_rows = by_group ? static_cast<int>(scale_rows(rows, s.experts)) : 0;
    launch_on(first, w13.args, nullptr);
    const Memory& to = by_group ? y : wanted;
    must(cudaMemset(to.data, 0x3c, y_bytes));
    w2.set_rows(codes, code_scales, nullptr, offsets, rows, to);
    const WgmmaKernel& second = variants()[by_group ? 1 : 0].kernel;
    set_map(w2, second);
    launch_on(second, w2.args, nullptr);
  }
  must(cudaMemset(out.data, 0, sizeof(Difference)));
  compare<<<rows, 256>>>(y.as<uint32_t>(), wanted.as<uint32_t>(), s.hidden / 2, 0,
                         out.as<Difference>());
  Difference d{};
  must(cudaMemcpy(&d, out.data, sizeof d, cudaMemcpyDeviceToHost));
  std::printf("chain, %d rows: unequal %llu, rms %.3g\n", rows, d.unequal,
              std::sqrt(d.reference / (y_bytes / 2.0)));
#endif
}

// The clock of each SM. Shared memory holds one CTA.
__global__ void stamp(long long* to) {
  extern __shared__ uint8_t whole[];
  uint32_t sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  if (threadIdx.x == 0) to[sm] = clock64(), whole[0] = 0;
}

// Each variant for 60 ms, in turns: then power bounds the clock alike. Times of the second half.
void rounds(const LayerShape& s, int m, bool second) {
  constexpr int kRounds = 3, kSms = 132, kStampBytes = 200 << 10;
  Gemm gemm(s.experts, second ? s.hidden : 2 * s.intermediate, second ? s.intermediate : s.hidden,
            !second, false);
  const int rows = m * s.top_k;
  const int64_t groups = gemm.args.x_groups.count;
  Memory x(rows * gemm.args.x_stride), scales(rows * groups * 4),
      by_group(scale_rows(rows, s.experts) * groups * 4);
  Memory y(int64_t{rows} * gemm.args.columns * 2);
  random(x.data, rows * gemm.args.x_stride, 11, kX);
  random(scales.data, rows * groups * 4, 13, 0x00ffffffu, 0x39000000u);
  const Routing r = route(s, m, 100, false);
  Memory offsets(r.offsets.size() * 4), tokens(r.tokens.size() * 4), stamps(2 * 256 * 8);
  must(cudaMemcpy(tokens.data, r.tokens.data(), r.tokens.size() * 4, cudaMemcpyHostToDevice));
  must(cudaMemcpy(offsets.data, r.offsets.data(), r.offsets.size() * 4, cudaMemcpyHostToDevice));
  must(cudaFuncSetAttribute(stamp, cudaFuncAttributeMaxDynamicSharedMemorySize, kStampBytes));
  cudaEvent_t begin, end;
  must(cudaEventCreate(&begin)), must(cudaEventCreate(&end));
  struct Times {
    std::vector<double> us, cycles;
  };
  std::vector<Times> all(variants().size());
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < all.size(); ++i) {
      const WgmmaKernel& kernel = variants()[i].kernel;
      if (!second && !variants()[i].gates) continue;
      if (second && variants()[i].gates && MORACLE_SCHEME == 12) continue;
      gemm.set_rows(x, scales, second ? nullptr : &tokens, offsets, rows, y);
      set_tma(gemm, kernel, by_group);
      const auto launches = [&](int count) {
        must(cudaEventRecord(begin));
        for (int j = 0; j < count; ++j) launch_on(kernel, gemm.args, nullptr);
        must(cudaEventRecord(end));
      };
      const auto elapsed = [&] {
        float ms = 0;
        must(cudaEventSynchronize(end));
        must(cudaEventElapsedTime(&ms, begin, end));
        return ms;
      };
      launches(1);
      launches(2);
      const int times = std::max(2, static_cast<int>(60 / elapsed()));
      launches(times);
      stamp<<<kSms, 32, kStampBytes>>>(stamps.as<long long>());
      launches(times);
      stamp<<<kSms, 32, kStampBytes>>>(stamps.as<long long>() + 256);
      all[i].us.push_back(elapsed() * 1000 / times);
      long long at[512];
      must(cudaMemcpy(at, stamps.data, sizeof at, cudaMemcpyDeviceToHost));
      std::vector<double> cycles;
      for (int sm = 0; sm < kSms; ++sm)
        cycles.push_back(static_cast<double>(at[256 + sm] - at[sm]) / times);
      std::sort(cycles.begin(), cycles.end());
      all[i].cycles.push_back(cycles[kSms / 2]);
    }
  }
  std::printf("%s %s M=%d gemm%d\n", kName, s.name, m, second ? 2 : 1);
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].us.empty()) continue;
    std::sort(all[i].us.begin(), all[i].us.end());
    std::sort(all[i].cycles.begin(), all[i].cycles.end());
    const double us = all[i].us[kRounds / 2], cycles = all[i].cycles[kRounds / 2];
    std::printf("  %-12s %8.1f us (%.1f to %.1f)  %9.0f cycles  %.2f GHz\n", variants()[i].name, us,
                all[i].us.front(), all[i].us.back(), cycles, cycles / us * 1e-3);
  }
  std::fflush(stdout);
  cudaEventDestroy(begin), cudaEventDestroy(end);
}
#endif

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "check") == 0) {
    check();
#ifdef MORACLE_VARIANTS
    check_chain();
#endif
    return 0;
  }
#ifdef MORACLE_VARIANTS
  if (argc == 2 && std::strcmp(argv[1], "rounds") == 0) {
    for (const LayerShape& s : kShapes) {
      for (const int m : {512, 2048, 8192}) {
        if (m * s.top_k / s.experts <= 48) continue;
        rounds(s, m, true);
        if (MORACLE_SCHEME == 12) rounds(s, m, false);
      }
    }
    return 0;
  }
#endif
  if (argc < 4) return 2;
  std::vector<int> tokens;
  std::stringstream in(argv[3]);
  for (std::string one; std::getline(in, one, ',');) tokens.push_back(std::stoi(one));
  for (const LayerShape& s : kShapes) {
    if (std::strcmp(argv[2], s.name) == 0) measure(s, tokens, argc > 4);
  }
  return 0;
}

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
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <string>
#include <vector>

#define CHECK(call)                                                                   \
  do {                                                                                \
    if (const auto status = (call); static_cast<int>(status) != 0) {                  \
      std::printf("%s:%d: error %d\n", __FILE__, __LINE__, static_cast<int>(status)); \
      std::exit(1);                                                                   \
    }                                                                                 \
  } while (false)

enum class Layout { kRows, kAtoms, kPanels };
// What the math warpgroups do with a k-block.
enum class Work {
  kPromote,  // multiply, wait, add the scaled sums to totals
  kTurns,    // the same; named barriers order the products of two warpgroups
  kStagger,  // the same; the second warpgroup begins a tile when the first one's first products are
             // complete
  kPipelined,  // two sets of sums; the next products are on their way during promotion
  kWaits,      // multiply, wait, add one of the sums: no arithmetic beside products
  kBeside,     // as many multiplications and additions, but of numbers that no product has
  kSumsOnly,   // the tensor core adds up all columns: no promotion (wrong without scales)
  kCopiesOnly  // no products
};

constexpr int kMostShared = 227 * 1024;

/// kWaves x kChunks products of 64 tokens and kN outputs for each of kGroups math warpgroups.
template <int kGroups_, int kWaves_, int kChunks_, int kN_, Layout kLayout_, bool kRegisters_,
          int kCluster_, Work kWork_, bool kSharesWeights_ = false, bool kOtherBanks_ = false>
struct Structure {
  static constexpr int kGroups = kGroups_, kWaves = kWaves_, kChunks = kChunks_, kN = kN_,
                       kCluster = kCluster_;
  static constexpr Layout kLayout = kLayout_;
  static constexpr bool kRegisters = kRegisters_;  // tokens come from registers
  static constexpr Work kWork = kWork_;
  static constexpr int kRows = 64 * kGroups * kWaves, kOutputs = kChunks * kN, kHalf = kOutputs / 2;
  static constexpr int kXBytes = kRows * 128, kWBytes = kOutputs * 128;
  static constexpr int kScaleBytes = kRows * 4 + 256;
  static constexpr int kStageBytes = kXBytes + kWBytes + kScaleBytes + 16;
  static constexpr int kStaged = kGroups * 4 * 2048;  // 64 outputs of each warp's 16 tokens
  static constexpr int kFit = (kMostShared - 1024 - kStaged) / kStageBytes;
  static constexpr int kStages = kFit < 8 ? kFit : 8;
  // A cluster shares weights of two tiles of tokens, or tokens of two tiles of outputs.
  static constexpr bool kSharesWeights = kSharesWeights_, kOtherBanks = kOtherBanks_;
  static constexpr int kAcross = kSharesWeights ? 1 : kCluster, kDown = kCluster / kAcross;
  static constexpr int kShared = 1024 + kStages * kStageBytes + kStaged;
  static constexpr int kThreads = 128 * (kGroups + 1);
  static constexpr int kMathRegisters = kGroups == 3 ? 160 : 232,
                       kCopyRegisters = kGroups == 3 ? 32 : 40;
  // Parts of a half that may have different scales of weights: boundaries lie at multiples of 128.
  static constexpr int kParts = kHalf % 64 == 0 ? 1 : kHalf / 32;
  static constexpr int kPartSums = kHalf / 2 / kParts;  // sums of a part in a lane
};

struct alignas(64) TensorMap {
  uint64_t words[16];
};
// TMA copies from multiples of 16 bytes, so the scales of an expert's tokens begin at a multiple of
// four.
struct Args {
  TensorMap x, x_scales, w, w_scales;
  const uint8_t* atoms;
  const int4*
      tiles;  // first row, rows, expert + 256 · (its scales' row - first row), tile of outputs
  __nv_bfloat16* y;
  int num_tiles, k_blocks, outputs, columns,
      second;  // second: from a tile's first half of outputs to the other
  int half, gated, copies;
  int store;  // 0: nothing, 1: from registers, 2: whole lines through shared memory
  unsigned long long* cycles;
};

__device__ uint32_t address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ void barrier_init(uint32_t bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count));
}
__device__ void barrier_wait(uint32_t bar, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra "
      "DONE;\nbra AGAIN;\nDONE:\n}" ::"r"(bar),
      "r"(parity)
      : "memory");
}
__device__ void barrier_arrive(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
// Without .release.cluster, which ptxas implements by MEMBAR.ALL.GPU: the arrival follows reads
// alone.
__device__ void barrier_arrive_at(uint32_t bar, int rank) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(bar),
      "r"(rank)
      : "memory");
}
__device__ void barrier_expect(uint32_t bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
               : "memory");
}
__device__ void load(uint32_t to, const TensorMap& map, int c0, int c1, uint32_t bar) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
      "%3}], [%4];" ::"r"(to),
      "l"(&map), "r"(c0), "r"(c1), "r"(bar)
      : "memory");
}
__device__ void load_shared(uint32_t to, const TensorMap& map, int c0, int c1, uint32_t bar) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
      "cluster [%0], [%1, {%2, %3}], "
      "[%4], %5;" ::"r"(to),
      "l"(&map), "r"(c0), "r"(c1), "r"(bar), "h"(static_cast<uint16_t>(3))
      : "memory");
}
__device__ void load(uint32_t to, const TensorMap& map, int c0, int c1, int c2, int c3,
                     uint32_t bar) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
      "%3, %4, %5}], [%6];" ::"r"(to),
      "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(bar)
      : "memory");
}
__device__ void load_shared(uint32_t to, const TensorMap& map, int c0, int c1, int c2, int c3,
                            uint32_t bar) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
      "cluster [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
      "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(bar), "h"(static_cast<uint16_t>(3))
      : "memory");
}
__device__ void load_bytes(uint32_t to, const void* from, int bytes, uint32_t bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(bar)
      : "memory");
}
__device__ int cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}
__device__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

__device__ void fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ void commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kOpen>
__device__ void wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kOpen) : "memory");
}
template <int kCount>
__device__ void pin(float (&d)[kCount]) {
#pragma unroll
  for (float& sum : d) asm volatile("" : "+f"(sum)::"memory");
}
__device__ uint64_t swizzled(uint32_t at) {
  return (at & 0x3ffff) >> 4 | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}
// Core matrices of 8 rows and 16 bytes: 128 bytes to the next columns, 256 to the next rows.
__device__ uint64_t panels(uint32_t at) {
  return (at & 0x3ffff) >> 4 | uint64_t{128 >> 4} << 16 | uint64_t{256 >> 4} << 32;
}

// A tenth of a list of registers; lists; operands.
#define TEN(a) \
  "%" #a "0,%" #a "1,%" #a "2,%" #a "3,%" #a "4,%" #a "5,%" #a "6,%" #a "7,%" #a "8,%" #a "9,"
#define LIST32 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9," TEN(1) TEN(2) "%30,%31}"
#define LIST30 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9," TEN(1) TEN(2) TEN(3)
#define LIST48 LIST30 "%40,%41,%42,%43,%44,%45,%46,%47}"
#define LIST64 LIST30 TEN(4) TEN(5) "%60,%61,%62,%63}"
#define LIST96 LIST30 TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) "%90,%91,%92,%93,%94,%95}"
#define IO4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define IO16(i) IO4(i), IO4(i + 4), IO4(i + 8), IO4(i + 12)
#define IO32 IO16(0), IO16(16)
#define IO48 IO32, IO16(32)
#define IO64 IO48, IO16(48)
#define IO96 IO64, IO16(64), IO16(80)
#define WGMMA(n) "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 "
// Both operands from shared memory, or tokens from registers. The numbers follow those of the sums.
#define MULTIPLY(n, sums, n0, n1, n2, n3, n4, n5)                                              \
  __device__ __forceinline__ void multiply(float(&d)[sums], uint64_t a, uint64_t b, int add) { \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #n2 ", 0;\n" WGMMA(n) LIST##sums         \
                 ", %" #n0 ", %" #n1 ", p, 1, 1;\n}"                                           \
                 : IO##sums                                                                    \
                 : "l"(a), "l"(b), "r"(add));                                                  \
  }                                                                                            \
  __device__ __forceinline__ void multiply(float(&d)[sums], const uint32_t(&a)[4], uint64_t b, \
                                           int add) {                                          \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #n5 ", 0;\n" WGMMA(n) LIST##sums         \
                 ", {%" #n0 ",%" #n1 ",%" #n2 ",%" #n3 "}, %" #n4 ", p, 1, 1;\n}"              \
                 : IO##sums                                                                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));              \
  }
MULTIPLY(64, 32, 32, 33, 34, 35, 36, 37)
MULTIPLY(96, 48, 48, 49, 50, 51, 52, 53)
MULTIPLY(128, 64, 64, 65, 66, 67, 68, 69)
MULTIPLY(192, 96, 96, 97, 98, 99, 100, 101)

template <class S>
struct Ring {
  int slot = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++slot == S::kStages) slot = 0, parity ^= 1;
  }
};

template <class S>
struct Shared {
  uint32_t base;  // [slot][x, w], [slot][scales], barriers
  __device__ uint32_t x(int slot) const { return base + slot * (S::kXBytes + S::kWBytes); }
  __device__ uint32_t w(int slot) const { return x(slot) + S::kXBytes; }
  __device__ uint32_t scales(int slot) const {
    return base + S::kStages * (S::kXBytes + S::kWBytes) + slot * S::kScaleBytes;
  }
  __device__ uint32_t w_scales(int slot, int half) const {
    return scales(slot) + S::kRows * 4 + half * 128;
  }
  __device__ uint32_t full(int slot) const {
    return base + S::kStages * (S::kStageBytes - 16) + slot * 16;
  }
  __device__ uint32_t empty(int slot) const { return full(slot) + 8; }
  __device__ uint32_t staged(int warp) const {
    return base + S::kStages * S::kStageBytes + warp * 2048;
  }
};
__device__ float shared_float(uint32_t at) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(at));
  return value;
}

// The tile of this CTA.
template <class S>
__device__ int4 own_tile(int4 tile) {
  if constexpr (S::kCluster == 1) return tile;
  const int rank = cluster_rank();
  if constexpr (S::kSharesWeights) {
    tile.x += rank * S::kRows, tile.y = min(tile.y - rank * S::kRows, S::kRows);
    return tile;
  }
  tile.w = tile.w * 2 + rank;
  return tile;
}

// Warp 0 copies tokens with their scales, warp 1 weights with theirs; one lane each.
template <class S>
__device__ void copy_tiles(const Args& a, const Shared<S>& shared, int warp) {
  Ring<S> ring;
  const int rank = S::kCluster > 1 ? cluster_rank() : 0;
  int stages = 0;
  for (int number = blockIdx.x / S::kCluster; number < a.num_tiles;
       number += gridDim.x / S::kCluster) {
    const int4 tile = own_tile<S>(a.tiles[number]);
    const int output = tile.w * a.half, other = output + a.second;
    const int expert = tile.z % 256;
    for (int kb = 0; kb < a.k_blocks; ++kb, ring.advance(), ++stages) {
      barrier_wait(shared.empty(ring.slot), ring.parity ^ 1);
      const uint32_t full = shared.full(ring.slot);
      if (!a.copies && stages >= S::kStages) {
        barrier_arrive(full);
        continue;
      }
      if (warp == 0) {
        barrier_expect(full, S::kXBytes + S::kRows * 4);
        if constexpr (S::kAcross == 1) {
          load(shared.x(ring.slot), a.x, kb * 128, tile.x, full);
        } else {
          constexpr int kOwn = S::kRows / 2;
          load_shared(shared.x(ring.slot) + rank * kOwn * 128, a.x, kb * 128, tile.x + rank * kOwn,
                      full);
        }
        load(shared.scales(ring.slot), a.x_scales, tile.x + tile.z / 256, kb, full);
        continue;
      }
      barrier_expect(full, S::kWBytes + 64);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int n = half == 0 ? output : other;
        const uint32_t to = shared.w(ring.slot) + half * S::kHalf * 128;
        load(shared.w_scales(ring.slot, half), a.w_scales, n / 512 * 4, expert * a.k_blocks + kb,
             full);
        if constexpr (S::kSharesWeights) {
          if (half != rank) continue;
          if constexpr (S::kLayout == Layout::kRows)
            load_shared(to, a.w, kb * 128, expert * a.outputs + n, full);
          else
            load_shared(to, a.w, 0, n / 16, kb * 4, expert, full);
        } else if constexpr (S::kLayout == Layout::kRows) {
          load(to, a.w, kb * 128, expert * a.outputs + n, full);
        } else if constexpr (S::kLayout == Layout::kPanels) {
          load(to, a.w, 0, n / 16, kb * 4, expert, full);
        } else {
#pragma unroll
          for (int part = 0; part < S::kHalf / 64; ++part)
            load_bytes(
                to + part * 8192,
                a.atoms + (int64_t((expert * a.outputs + n) / 64 + part) * a.k_blocks + kb) * 8192,
                8192, full);
        }
      }
    }
  }
}

template <class S>
struct Math {
  static constexpr int kSums = S::kN / 2;
  const Args& a;
  const Shared<S>& shared;
  Ring<S> ring;
  float total[S::kWaves][S::kChunks][kSums];

  __device__ static int group() { return threadIdx.x / 128; }
  __device__ static int lane_row() { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }
  __device__ static int first_row(int wave) { return (wave * S::kGroups + group()) * 64; }

  __device__ void release(int slot) const {
    __syncwarp();
    if (threadIdx.x % 32 < S::kCluster) {
      if constexpr (S::kCluster == 1)
        barrier_arrive(shared.empty(slot));
      else
        barrier_arrive_at(shared.empty(slot), threadIdx.x % 32);
    }
  }
  struct Factors {
    float x[S::kWaves][2], w[2][S::kParts];
  };
  __device__ __forceinline__ Factors factors(int slot, int output) const {
    Factors f;
#pragma unroll
    for (int i = 0; i < S::kWaves * 2; ++i)
      f.x[i / 2][i % 2] =
          shared_float(shared.scales(slot) + (first_row(i / 2) + lane_row() + i % 2 * 8) * 4);
#pragma unroll
    for (int i = 0; i < 2 * S::kParts; ++i) {
      const int part = i % S::kParts, first = output + i / S::kParts * a.second;
      f.w[i / S::kParts][part] =
          shared_float(shared.w_scales(slot, i / S::kParts) +
                       ((first + (S::kParts == 1 ? 0 : part * 32)) / 128 - first / 512 * 4) * 4);
    }
    return f;
  }
  __device__ __forceinline__ void promote(int wave, int chunk, const float (&sums)[kSums],
                                          const Factors& f) {
    float product[2][2 * S::kParts];
#pragma unroll
    for (int i = 0; i < 2 * S::kParts; ++i) {
      product[0][i] = f.x[wave][0] * f.w[i / S::kParts][i % S::kParts];
      product[1][i] = f.x[wave][1] * f.w[i / S::kParts][i % S::kParts];
    }
#pragma unroll
    for (int i = 0; i < kSums; ++i)
      total[wave][chunk][i] += product[i % 4 / 2][(chunk * kSums + i) / S::kPartSums] * sums[i];
  }
  __device__ __forceinline__ void read_tokens(uint32_t (&x)[4][4], int wave) const {
    const int lane = threadIdx.x % 32,
              row = first_row(wave) + threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int s = 0; s < 4; ++s)
      asm volatile(
          "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
          : "=r"(x[s][0]), "=r"(x[s][1]), "=r"(x[s][2]), "=r"(x[s][3])
          : "r"(shared.x(ring.slot) + row * 128 + (((2 * s + lane / 16) ^ (row % 8)) << 4)));
  }
  __device__ uint64_t weights(int chunk) const {
    const uint32_t at = shared.w(ring.slot) + chunk * S::kN * 128;
    return S::kLayout == Layout::kPanels ? panels(at) : swizzled(at);
  }
  static constexpr int kStep = S::kLayout == Layout::kPanels ? S::kN * 32 / 16 : 2;
  __device__ __forceinline__ void issue(float (&sums)[kSums], int wave, int chunk,
                                        const uint32_t (&x)[4][4], bool add) const {
    const uint64_t w = weights(chunk);
    const uint64_t tokens = swizzled(shared.x(ring.slot) + first_row(wave) * 128);
    fence();
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      if constexpr (S::kRegisters)
        multiply(sums, x[s], w + s * kStep, add || s > 0);
      else
        multiply(sums, tokens + s * 2, w + s * kStep, add || s > 0);
    }
    commit();
  }
  __device__ static void turn_wait() {
    asm volatile("bar.sync %0, 256;" ::"r"(1 + group()) : "memory");
  }
  __device__ static void turn_pass() {
    asm volatile("bar.arrive %0, 256;" ::"r"(2 - group()) : "memory");
  }

  __device__ __forceinline__ void run(const int4& tile) {
#pragma unroll
    for (int i = 0; i < S::kWaves * S::kChunks; ++i) {
#pragma unroll
      for (float& sum : total[i / S::kChunks][i % S::kChunks]) sum = 0;
    }
    const int output = tile.w * a.half;
    if (S::kWork == Work::kStagger && group() == 1) asm volatile("bar.sync 1, 256;" ::: "memory");
    if (S::kWork == Work::kCopiesOnly || (S::kWork != Work::kTurns && first_row(0) >= tile.y)) {
      for (int kb = 0; kb < a.k_blocks; ++kb, ring.advance()) {
        barrier_wait(shared.full(ring.slot), ring.parity);
        release(ring.slot);
      }
    } else if constexpr (S::kWork <= Work::kWaits && S::kWork != Work::kPipelined) {
      promoted(tile, output);
    } else if constexpr (S::kWork == Work::kPipelined) {
      pipelined(output);
    } else {
      summed(output);
    }
  }
  __device__ __forceinline__ void promoted(const int4& tile, int output) {
    float sums[kSums];
    uint32_t x[4][4];
    const int waves = S::kWaves == 1 || first_row(1) < tile.y ? S::kWaves : 1;
    for (int kb = 0; kb < a.k_blocks; ++kb) {
      barrier_wait(shared.full(ring.slot), ring.parity);
      const Factors f = factors(ring.slot, output);
#pragma unroll
      for (int wave = 0; wave < S::kWaves; ++wave) {
        if (wave < waves) {
          if constexpr (S::kRegisters) read_tokens(x, wave);
#pragma unroll
          for (int chunk = 0; chunk < S::kChunks; ++chunk) {
            if constexpr (S::kWork == Work::kTurns) turn_wait();
            issue(sums, wave, chunk, x, false);
            if constexpr (S::kWork == Work::kTurns) turn_pass();
            pin(sums);
            wait<0>();
            pin(sums);
            if (S::kWork == Work::kStagger && wave == 0 && chunk == 0 && kb == 0 && group() == 0)
              asm volatile("bar.arrive 1, 256;" ::: "memory");
            if (chunk == S::kChunks - 1 && wave == waves - 1) release(ring.slot);
            if constexpr (S::kWork == Work::kWaits)
              total[wave][chunk][0] += f.x[wave][0] * f.w[0][0] * sums[0];
            else
              promote(wave, chunk, sums, f);
          }
        }
      }
      ring.advance();
    }
    if constexpr (S::kOtherBanks) want_other_banks();
  }
  // A total in the bank of its sum slows products. These stores never run, but ptxas pairs
  // registers for them.
  __device__ __forceinline__ void want_other_banks() const {
    const int never = a.k_blocks < 0;
#pragma unroll
    for (int i = 0; i < S::kWaves * S::kChunks * kSums; i += 2) {
      const float(&sums)[kSums] = total[i / kSums / S::kChunks][i / kSums % S::kChunks];
      asm volatile(
          "{\n.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p st.shared.v2.f32 [%1], {%2, %3};\n}" ::"r"(
              never),
          "r"(shared.base), "f"(sums[i % kSums + 1]), "f"(sums[i % kSums])
          : "memory");
    }
  }
  // Products of a part of the outputs are on their way while those of the part before are promoted.
  // ptxas serializes products on their way from one round of a loop to the next, so a round of
  // several k-blocks ends without any.
  static constexpr int kUnrolled = 8 / S::kChunks;
  __device__ __forceinline__ void pipelined(int output) {
    constexpr int kAll = kUnrolled * S::kChunks;
    float sums[2][kSums];
    uint32_t x[2][4][4];
    for (int first = 0; first < a.k_blocks; first += kUnrolled) {
      int slot[2];
#pragma unroll
      for (int i = 0; i <= kAll; ++i) {
        const int now = i / S::kChunks % 2, chunk = i % S::kChunks;
        if (i < kAll) {
          if (chunk == 0) {
            barrier_wait(shared.full(ring.slot), ring.parity);
            if constexpr (S::kRegisters) read_tokens(x[now], 0);
            slot[now] = ring.slot;
          }
          issue(sums[i % 2], 0, chunk, x[now], false);
          if (chunk == S::kChunks - 1) ring.advance();
        }
        if (i > 0) {
          const int part = (i - 1) % S::kChunks, earlier = (i - 1) / S::kChunks % 2;
          if (i < kAll)
            wait<1>();
          else
            wait<0>();
          pin(sums[(i + 1) % 2]);
          const Factors f = factors(slot[earlier], output);
          if (part == S::kChunks - 1) release(slot[earlier]);
          promote(0, part, sums[(i + 1) % 2], f);
        }
      }
    }
  }
  __device__ __forceinline__ void summed(int output) {
    uint32_t x[4][4];
    int before = -1;
    float beside[kSums];
#pragma unroll
    for (float& sum : beside) sum = 0;
    for (int kb = 0; kb < a.k_blocks; ++kb, ring.advance()) {
      barrier_wait(shared.full(ring.slot), ring.parity);
      if constexpr (S::kRegisters) {
        wait<0>();
        read_tokens(x, 0);
      }
#pragma unroll
      for (int wave = 0; wave < S::kWaves; ++wave) {
#pragma unroll
        for (int chunk = 0; chunk < S::kChunks; ++chunk)
          issue(total[wave][chunk], wave, chunk, x, true);
      }
      if constexpr (S::kWork == Work::kBeside) {
        const Factors f = factors(ring.slot, output);
#pragma unroll
        for (int i = 0; i < S::kWaves * S::kChunks * kSums; ++i)
          asm volatile("fma.rn.f32 %0, %1, %2, %0;"
                       : "+f"(beside[i % kSums])
                       : "f"(f.x[0][i / 2 % 2]), "f"(f.w[0][0]));
      }
      wait<S::kWaves * S::kChunks>();
      if (before >= 0) release(before);
      before = ring.slot;
    }
    wait<0>();
    release(before);
    if constexpr (S::kWork == Work::kBeside) {
      float all = 0;
#pragma unroll
      for (const float sum : beside) all += sum;
      if (all == 1.2345f) a.y[0] = __float2bfloat16(all);
    }
#pragma unroll
    for (int i = 0; i < S::kWaves * S::kChunks; ++i) pin(total[i / S::kChunks][i % S::kChunks]);
  }

  __device__ int column(int i) const {  // of a tile
    if constexpr (S::kLayout == Layout::kPanels)
      return i / 8 * 16 + threadIdx.x % 4 * 4 + i % 2 * 2 + i % 8 / 4;
    return i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
  }
  // Neighbours of the stored row: in panels i and i + 4, otherwise i and i + 1.
  __device__ __forceinline__ void store(const int4& tile) const {
    const int first = tile.w * (a.gated ? S::kHalf : S::kOutputs);
    constexpr bool kPanels = S::kLayout == Layout::kPanels;
#pragma unroll
    for (int wave = 0; wave < S::kWaves; ++wave) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row(wave) + lane_row() + half * 8;
        if (row >= tile.y) continue;
        __nv_bfloat16* const to = a.y + int64_t{tile.x + row} * a.columns + first;
        if (a.gated) {
#pragma unroll
          for (int g = 0; g < S::kHalf / 8; ++g) {
            const int i = kPanels ? g / 2 * 8 + half * 2 + g % 2 : g * 4 + half * 2,
                      j = kPanels ? i + 4 : i + 1;
            pair(to, column(i), column(i), first, gate(wave, i), gate(wave, j));
          }
        } else {
#pragma unroll
          for (int g = 0; g < S::kOutputs / 8; ++g) {
            const int i = kPanels ? g / 2 * 8 + half * 2 + g % 2 : g * 4 + half * 2,
                      j = kPanels ? i + 4 : i + 1;
            pair(to, column(i), column(i), first, sum(wave, i), sum(wave, j));
          }
        }
      }
    }
  }
  // The same through shared memory: 64 outputs of the warp's 16 tokens at a time.
  template <bool kGated>
  __device__ __forceinline__ void store_lines(const int4& tile) const {
    constexpr int kAll = kGated ? S::kHalf : S::kOutputs;
    constexpr int kLine = kAll % 64 == 0 ? 64 : 32, kVectors = kLine / 8;
    constexpr bool kPanels = S::kLayout == Layout::kPanels;
    const int first = tile.w * kAll, lane = threadIdx.x % 32;
    const uint32_t staged = shared.staged(threadIdx.x / 32);
    const auto vector = [staged](int row, int c) {
      return staged + row * kLine * 2 + ((c ^ row / (8 / kVectors) % kVectors) << 4);
    };
#pragma unroll
    for (int part = 0; part < S::kWaves * (kAll / kLine); ++part) {
      const int wave = part / (kAll / kLine), begin = part % (kAll / kLine) * kLine;
#pragma unroll
      for (int g = 0; g < 2 * kVectors; ++g) {
        const int half = g / kVectors, block = begin / 8 + g % kVectors;
        const int i = kPanels ? block / 2 * 8 + half * 2 + block % 2 : block * 4 + half * 2,
                  j = kPanels ? i + 4 : i + 1, c = column(i) % kLine;
        const __nv_bfloat162 two = kGated ? __floats2bfloat162_rn(gate(wave, i), gate(wave, j))
                                          : __floats2bfloat162_rn(sum(wave, i), sum(wave, j));
        asm volatile(
            "st.shared.b32 [%0], %1;" ::"r"(vector(lane / 4 + half * 8, c / 8) + c % 8 * 2),
            "r"(*reinterpret_cast<const uint32_t*>(&two))
            : "memory");
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kVectors / 2; ++i) {
        const int row = 32 / kVectors * i + lane / kVectors;
        const int token = first_row(wave) + threadIdx.x % 128 / 32 * 16 + row;
        uint4 v;
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "r"(vector(row, lane % kVectors))
                     : "memory");
        const int at = first + begin + lane % kVectors * 8;
        if (token < tile.y && at < a.columns)
          *reinterpret_cast<uint4*>(a.y + int64_t{tile.x + token} * a.columns + at) = v;
      }
      __syncwarp();
    }
  }
  // Stores nothing, but the compiler does not know.
  __device__ void keep() const {
    float all = 0;
#pragma unroll
    for (int i = 0; i < S::kOutputs / 2 * S::kWaves; ++i)
      all = fmaxf(all, sum(i / (S::kOutputs / 2), i % (S::kOutputs / 2)));
    if (all == 1.2345f) a.y[0] = __float2bfloat16(all);
  }
  __device__ float sum(int wave, int i) const {
    return total[wave][i / kSums][i % kSums];
  }
  __device__ float gate(int wave, int i) const {
    const float g = sum(wave, i), up = sum(wave, i + S::kHalf / 2);
    return __fdividef(g * up, 1 + __expf(-g));
  }
  __device__ void pair(__nv_bfloat16* to, int column, int, int first, float one,
                       float other) const {
    if (first + column < a.columns)
      *reinterpret_cast<__nv_bfloat162*>(to + column) = __floats2bfloat162_rn(one, other);
  }
};

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1) gemm(const __grid_constant__ Args a) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const long long begin = clock64();
  const Shared<S> shared{(address(memory) + 1023) / 1024 * 1024};
  if (threadIdx.x < S::kStages) {
    barrier_init(shared.full(threadIdx.x), 2);
    barrier_init(shared.empty(threadIdx.x), S::kGroups * 4 * S::kCluster);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if constexpr (S::kCluster > 1) cluster_sync();
  if (threadIdx.x >= 128 * S::kGroups) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::kCopyRegisters));
    const int warp = threadIdx.x / 32 - 4 * S::kGroups;
    if (warp < 2 && threadIdx.x % 32 == 0) copy_tiles<S>(a, shared, warp);
    __syncwarp();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::kMathRegisters));
    Math<S> math{a, shared, {}, {}};
    if constexpr (S::kWork == Work::kTurns) {
      if (threadIdx.x / 128 == 1) Math<S>::turn_pass();
    }
    int number = blockIdx.x / S::kCluster;
    int4 tile = number < a.num_tiles ? own_tile<S>(a.tiles[number]) : int4{};
    while (number < a.num_tiles) {
      number += gridDim.x / S::kCluster;
      const int4 next = number < a.num_tiles ? own_tile<S>(a.tiles[number]) : int4{};
      math.run(tile);
      if (a.store == 2) {
        if (a.gated)
          math.template store_lines<true>(tile);
        else
          math.template store_lines<false>(tile);
      } else if (a.store == 1) {
        math.store(tile);
      } else {
        math.keep();
      }
      tile = next;
    }
    if constexpr (S::kWork == Work::kTurns) {
      if (threadIdx.x / 128 == 0) Math<S>::turn_wait();
    }
    if (threadIdx.x % 128 == 0)
      atomicMax(a.cycles, static_cast<unsigned long long>(clock64() - begin));
  }
  if constexpr (S::kCluster > 1) cluster_sync();
}

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
  // Of an expert, groups of tiles of tokens that touch 2,048 rows meet one tile of outputs after
  // another.
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

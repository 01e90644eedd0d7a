// The kernels of fp8_blocks.cu: warps that copy, and math warpgroups in several structures.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

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

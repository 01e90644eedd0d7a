// What 16 rows of queries find among positions, in the registers of one warp (Dao,
// "FlashAttention-2", 2023): scores are products of tensor cores, and leave them as the weights
// that the next products take. Nothing goes through shared memory: the order of the columns within
// a product is free, so a thread's part of it is what lies side by side in the cache, 16 bytes at a
// time.
#pragma once

#include "base/scalar.h"
#include "kernels/cuda/block.cuh"
#include "kernels/ops.h"

namespace moracle::cuda {

constexpr int kAttendTile = 32;  // positions that a warp takes at once; a page is some of them

/// c += a · b of bf16: [16, 16] · [16, 8].
__device__ inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}
__device__ inline uint32_t to_bf16_pair(float low, float high) {
  uint32_t pair = 0;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#endif
  return pair;
}

/// Eight numbers of a cache as bf16, whose numbers they are: activations are bf16.
template <DType kCache>
__device__ uint4 load_eight(const std::byte* from) {
  if constexpr (kCache == DType::kBF16) {
    return __ldg(reinterpret_cast<const uint4*>(from));
  } else if constexpr (kCache == DType::kF32) {
    const float4 a = __ldg(reinterpret_cast<const float4*>(from)),
                 b = __ldg(reinterpret_cast<const float4*>(from) + 1);
    return {to_bf16_pair(a.x, a.y), to_bf16_pair(a.z, a.w), to_bf16_pair(b.x, b.y),
            to_bf16_pair(b.z, b.w)};
  } else {
    const uint4 halves = __ldg(reinterpret_cast<const uint4*>(from));
    const auto pair = [](uint32_t two) {
      return to_bf16_pair(f16_to_float(static_cast<uint16_t>(two)),
                          f16_to_float(static_cast<uint16_t>(two >> 16)));
    };
    return {pair(halves.x), pair(halves.y), pair(halves.z), pair(halves.w)};
  }
}

/// Keys and values of one head from one position on.
struct Lines {
  const std::byte *keys, *values;
  int64_t key_step, value_step;  // bytes from one position to the next
};

/// Thread (g, j) = (lane / 4, lane % 4) holds rows g and g + 8: of a row's values those of columns
/// 64 b + 16 j + [0, 16).
template <int kHead, int kValue, DType kCache>
struct AttendRows {
  static_assert(kHead % 32 == 0 && kValue % 64 == 0);
  static constexpr int kSize = kCache == DType::kF32 ? 4 : 2, kBlocks = kValue / 64;
  uint32_t query[kHead / 16][4];
  float found[kBlocks][8][4] = {};  // not yet divided by `sum`
  float largest[2], sum[2] = {};    // scores to the base 2
  int32_t begin[2], end[2];         // of what the rows see
  float scale;                      // of scores, to the base 2

  __device__ static int group() { return threadIdx.x % 32 / 4; }
  __device__ static int turn() { return threadIdx.x % 4; }

  /// Row `half` of this thread's two; no query: it is not there and sees nothing.
  __device__ void set(int half, const uint16_t* row, int32_t from, int32_t to) {
    largest[half] = __int_as_float(0xff800000);
    begin[half] = row != nullptr ? from : 0;
    end[half] = row != nullptr ? to : 0;
#pragma unroll
    for (int i = 0; i < kHead / 32; ++i) {
      uint4 eight{};
      if (row != nullptr) eight = *reinterpret_cast<const uint4*>(row + 32 * i + 8 * turn());
      query[2 * i][half] = eight.x, query[2 * i][half + 2] = eight.y;
      query[2 * i + 1][half] = eight.z, query[2 * i + 1][half + 2] = eight.w;
    }
  }

  /// Positions [first, first + kAttendTile). `limit`: of what has been appended; `whole`: every row
  /// sees all of them.
  __device__ void take(const Lines& lines, int32_t first, int32_t limit, bool whole) {
    float scores[4][4] = {};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const std::byte* const key = lines.keys + (8 * n + group()) * lines.key_step;
#pragma unroll
      for (int i = 0; i < kHead / 32; ++i) {
        const uint4 eight = load_eight<kCache>(key + (32 * i + 8 * turn()) * kSize);
        multiply_add(scores[n], query[2 * i], eight.x, eight.y);
        multiply_add(scores[n], query[2 * i + 1], eight.z, eight.w);
      }
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) scores[n][c] *= scale;
    }
    if (!whole) hide(scores, first);
    uint32_t weights[2][4];
    weigh(scores, weights);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = 16 * half + 2 * turn();
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const std::byte* const value =
            lines.values + at * lines.value_step + (64 * b + 8 * group()) * kSize;
        uint4 rows[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const int down = r % 2 + r / 2 * 8;
          rows[r] = uint4{};
          // What was never written weighs nothing, but it may be no number.
          if (first + at + down < limit)
            rows[r] = load_eight<kCache>(value + down * lines.value_step);
        }
        add(found[b][0], found[b][1], weights[half], rows[0].x, rows[1].x, rows[2].x, rows[3].x);
        add(found[b][2], found[b][3], weights[half], rows[0].y, rows[1].y, rows[2].y, rows[3].y);
        add(found[b][4], found[b][5], weights[half], rows[0].z, rows[1].z, rows[2].z, rows[3].z);
        add(found[b][6], found[b][7], weights[half], rows[0].w, rows[1].w, rows[2].w, rows[3].w);
      }
    }
  }

  /// All that the warp's threads know of a row.
  __device__ void finish() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] += __shfl_xor_sync(kAllLanes, sum[half], 1);
      sum[half] += __shfl_xor_sync(kAllLanes, sum[half], 2);
    }
  }

  /// Calls each(half, column, value).
  template <class Each>
  __device__ void each_found(const Each& each) const {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
#pragma unroll
        for (int m = 0; m < 8; ++m)
          each(c / 2, 64 * b + 16 * turn() + c % 2 * 8 + m, found[b][m][c]);
      }
    }
  }

 private:
  __device__ void hide(float (&scores)[4][4], int32_t first) const {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int32_t position = first + 8 * n + 2 * turn() + c % 2;
        const bool seen = position >= begin[c / 2] && position < end[c / 2];
        if (!seen) scores[n][c] = __int_as_float(0xff800000);
      }
    }
  }

  /// Scores become weights beside the largest so far, what was found before shrinks accordingly.
  __device__ void weigh(float (&scores)[4][4], uint32_t (&weights)[2][4]) {
    float base[2];
    bool grown = false;
    float shrink[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = largest[half];
#pragma unroll
      for (int n = 0; n < 4; ++n)
        most = fmaxf(most, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
      // A row that has seen nothing yet has no largest.
      base[half] = most == __int_as_float(0xff800000) ? 0.0f : most;
      shrink[half] = exp2f(largest[half] - base[half]);
      grown = grown || most != largest[half];
      largest[half] = most;
    }
    if (__any_sync(kAllLanes, grown)) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sum[half] *= shrink[half];
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
          for (int m = 0; m < 8; ++m) {
            found[b][m][2 * half] *= shrink[half];
            found[b][m][2 * half + 1] *= shrink[half];
          }
        }
      }
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        scores[n][c] = exp2f(scores[n][c] - base[c / 2]);
        sum[c / 2] += scores[n][c];
      }
      weights[n / 2][n % 2 * 2] = to_bf16_pair(scores[n][0], scores[n][1]);
      weights[n / 2][n % 2 * 2 + 1] = to_bf16_pair(scores[n][2], scores[n][3]);
    }
  }

  /// Two columns of four positions: (a, b) and (c, d) are neighbours.
  __device__ static void add(float (&even)[4], float (&odd)[4], const uint32_t (&weights)[4],
                             uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    multiply_add(even, weights, __byte_perm(a, b, 0x5410), __byte_perm(c, d, 0x5410));
    multiply_add(odd, weights, __byte_perm(a, b, 0x7632), __byte_perm(c, d, 0x7632));
  }
};

}  // namespace moracle::cuda

// Tiles of decode attention on Hopper: 16 positions in a ring slot of a warp. Each warp copies and
// multiplies its own 16 positions of every page, so warps do not wait for each other.
#pragma once

#include "kernels/cuda/attention/decode_heads.cuh"

namespace moracle::cuda {

constexpr int kWarpPositions = kPagePositions / kWarps;  // of a page
static_assert(kWarpPositions == 16, "M of one mma");

/// Keys and values in bf16. Caches of other dtypes are converted on the way to shared memory.
template <int kHeadDim, int kValueDim, DType kCache>
class RingTile {
 public:
  static constexpr int kHead = kHeadDim, kValue = kValueDim, kBlocks = 1;
  static constexpr bool kLazy = true;
  using Slot = KvSlot<kWarpPositions, kHead, kValue, 2>;

  __device__ RingTile(const Slot& slot) : slot_(slot) {}
  __device__ static void copy(Slot& slot, const KvRows& from, int count) {
    copy_bf16<kCache, 32>(slot, from, count);
  }

  __device__ static int query_pair(int i, int half) { return 8 * i + lane_pair() + 4 * half; }
  __device__ static int value_column(int n, int half) { return 16 * n + lane_row() + 8 * half; }
  __device__ __forceinline__ void load_keys(int, int i, uint32_t (&to)[4]) const {
    const int lane = threadIdx.x % 32;
    ldmatrix_x4(to, slot_.keys + swizzled<kHead / 8>(lane % 16, 2 * i + lane / 16));
  }
  __device__ void prefetch_values() const {}
  __device__ __forceinline__ void load_values(int, int n, uint32_t (&to)[4]) const {
    const int lane = threadIdx.x % 32, row = lane % 8 + lane / 16 * 8;
    ldmatrix_x4<true>(to, slot_.values + swizzled<kValue / 8>(row, 2 * n + lane / 8 % 2));
  }

 private:
  const Slot& slot_;
};

/// Keys and values in e4m3: the slot holds the bytes of the cache, so twice as many positions are
/// in flight. A lane widens its own operands. Lane 4 g + k takes 16 adjacent columns of keys g and
/// g + 8 for every four products, and kValue / 8 adjacent columns of values 2 k, 2 k + 1, 2 k + 8
/// and 2 k + 9.
template <int kHeadDim, int kValueDim>
class RingTile<kHeadDim, kValueDim, DType::kF8E4M3> {
 public:
  static constexpr int kHead = kHeadDim, kValue = kValueDim, kBlocks = 1;
  static constexpr bool kLazy = true;
  static_assert(kHead % 64 == 0 && kValue % 64 == 0);
  using Slot = KvSlot<kWarpPositions, kHead, kValue, 1>;

  __device__ RingTile(const Slot& slot) : slot_(slot) {}
  __device__ static void copy(Slot& slot, const KvRows& from, int count) {
    copy_rows<CopyVectors, kWarpPositions, kHead / 16, 32>(slot.keys, from.keys, count, key_index);
    copy_rows<CopyVectors, kWarpPositions, kValue / 16, 32>(slot.values, from.values, count,
                                                            value_index);
  }

  __device__ static int query_pair(int i, int half) {
    return i / 4 * 32 + 8 * lane_pair() + i % 4 * 2 + half;
  }
  __device__ static int value_column(int n, int half) {
    return lane_row() * kLaneBytes + 2 * n + half;
  }
  __device__ __forceinline__ void load_keys(int, int i, uint32_t (&to)[4]) {
    if (i % 4 == 0) {
      const int vec = i + lane_pair();
      load(upper_, slot_.keys + key_index(lane_row(), vec));
      load(lower_, slot_.keys + key_index(lane_row() + 8, vec));
    }
    const uint32_t upper = upper_[i % 4], lower = lower_[i % 4];
    to[0] = e4m3_to_bf16_pair(upper), to[1] = e4m3_to_bf16_pair(lower);
    to[2] = e4m3_to_bf16_pair(upper >> 16), to[3] = e4m3_to_bf16_pair(lower >> 16);
  }
  __device__ void prefetch_values() const {}
  __device__ __forceinline__ void load_values(int, int n, uint32_t (&to)[4]) {
    if (n == 0) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int row = 2 * lane_pair() + r % 2 + r / 2 * 8, at = lane_row() * kLaneBytes;
        const auto* const vec =
            reinterpret_cast<const uint8_t*>(slot_.values + value_index(row, at / 16));
        load(values_[r], vec + at % 16);
      }
    }
    // Two columns of two adjacent positions, position by position.
    const auto pairs = [&](int r) {
      return __byte_perm(values_[r][n / 2], values_[r + 1][n / 2], n % 2 == 0 ? 0x5140 : 0x7362);
    };
    const uint32_t upper = pairs(0), lower = pairs(2);
    to[0] = e4m3_to_bf16_pair(upper), to[1] = e4m3_to_bf16_pair(upper >> 16);
    to[2] = e4m3_to_bf16_pair(lower), to[3] = e4m3_to_bf16_pair(lower >> 16);
  }

 private:
  static constexpr int kLaneBytes = kValue / 8;  // of a value

  // Indices of the 16-byte vectors of a row: a quarter of a warp reads from different banks.
  __device__ static int key_index(int row, int vec) {
    constexpr int kVectors = kHead / 16;
    return row * kVectors + (kVectors == 8 ? vec ^ (row & 1) << 2 : vec);
  }
  __device__ static int value_index(int row, int vec) {
    constexpr int kVectors = kValue / 16;
    return row * kVectors + (vec ^ (kVectors == 8 ? row & 6 : row >> 1 & 3));
  }
  template <int kWords>
  __device__ static void load(uint32_t (&to)[kWords], const void* from) {
    using Words = std::conditional_t<kWords == 4, uint4, uint2>;
    const auto words = *static_cast<const Words*>(from);
    to[0] = words.x, to[1] = words.y;
    if constexpr (kWords == 4) to[2] = words.z, to[3] = words.w;
  }

  const Slot& slot_;
  uint32_t upper_[4], lower_[4];  // keys g and g + 8
  uint32_t values_[4][kLaneBytes / 4];
};

}  // namespace moracle::cuda

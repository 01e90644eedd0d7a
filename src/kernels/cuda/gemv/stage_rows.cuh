// A lane's activations of a stage: eight columns of each k-block, of one row of each octet. Eight
// neighbours, or with groups of half k-blocks four of each half.
#pragma once

#include "kernels/cuda/gemv/weight_ring.cuh"
#include "kernels/cuda/tiles/groups.cuh"

namespace moracle::cuda {

/// Rows of x: bytes from one to the next.
struct RowsOfX {
  const uint8_t* first;
  int64_t stride;
};

template <class Operand, int kOctets>
struct StageRows {
  static constexpr int kBlocks = kStageBlocks<Operand>;
  static constexpr int kWords = 2 * Operand::kXBytes;
  static constexpr bool kScales = Operand::kXScales == XScales::kGroup;
  uint32_t words[kBlocks][kOctets][kWords];
  float scales[kScales ? kBlocks : 1][kOctets][2];  // of rows 2 t and 2 t + 1

  /// Sets the rows of x for the next stages: row r is `row_of(r)`. Absent rows may be any row,
  /// because their sums are not used.
  template <class RowOf>
  __device__ void enter(const GemmArgs& a, RowOf row_of) {
    enter(a, a.x, a.x_stride, row_of);
  }
  /// Overload for activations outside a.x, with their own stride in bytes.
  template <class RowOf>
  __device__ void enter(const GemmArgs& a, const uint8_t* x, int64_t stride, RowOf row_of) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      row_[o] = x + int64_t{row_of(o * 8 + lane / 4)} * stride + lane % 4 * kOwnBytes;
      if constexpr (kScales) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
          row_scales_[o][i] =
              a.x_scales + int64_t{row_of(o * 8 + lane % 4 * 2 + i)} * a.x_groups.count;
      }
    }
  }

  /// Goes to stage `step`.
  __device__ void go(int step) {
    at_ = step * kBlocks * mma16::kCols * Operand::kXBytes, step_ = step;
  }

  /// Loads k-block b of the stage, which lies within the row (see `reload`).
  __device__ void load(const GemmArgs& a, int b) {
    const int at = min(at_, a.x_bytes - kBlocks * mma16::kCols * Operand::kXBytes);
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      get_eight(row_[o] + at + b * mma16::kCols * Operand::kXBytes, words[b][o]);
      load_scales(a, o, b);
    }
  }

  /// Loads all of a stage that goes past the end of the row. Columns there are zero.
  __device__ void reload(const GemmArgs& a) {
    const int end = a.x_bytes - static_cast<int>(threadIdx.x % 4) * kOwnBytes;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const int at = at_ + b * mma16::kCols * Operand::kXBytes;
#pragma unroll
      for (int o = 0; o < kOctets; ++o) {
        if (at + (Operand::kHalves ? kHalfBytes : 0) < end) {
          get_eight(row_[o] + at, words[b][o]);
        } else {
#pragma unroll
          for (uint32_t& word : words[b][o]) word = 0;
          // The row may end after the first half.
          if constexpr (Operand::kHalves) {
            if (at < end) get_half(row_[o] + at, 0, words[b][o]);
          }
        }
        load_scales(a, o, b);
      }
    }
  }

 private:
  // Neighbouring columns of a lane: eight of a k-block, or four of each half.
  static constexpr int kOwnBytes = (Operand::kHalves ? 4 : 8) * Operand::kXBytes;
  static constexpr int kHalfBytes = 16 * Operand::kXBytes;

  __device__ static void get_eight(const uint8_t* from, uint32_t (&to)[kWords]) {
    if constexpr (Operand::kHalves)
      get_half(from, 0, to), get_half(from, 1, to);
    else
      get(from, to);
  }
  __device__ static void get_half(const uint8_t* from, int s, uint32_t (&to)[kWords]) {
    uint32_t four[kWords / 2];
    get(from + s * kHalfBytes, four);
#pragma unroll
    for (int i = 0; i < kWords / 2; ++i) to[s * kWords / 2 + i] = four[i];
  }
  __device__ void load_scales(const GemmArgs& a, int o, int b) {
    if constexpr (kScales) {
      const int group = group_of(a.x_groups, min(step_ * kBlocks + b, a.blocks - 1));
#pragma unroll
      for (int i = 0; i < 2; ++i) scales[b][o][i] = row_scales_[o][i][group];
    }
  }
  __device__ static void get(const uint8_t* from, uint32_t (&to)[4]) {
    const uint4 four = *reinterpret_cast<const uint4*>(from);
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
  }
  __device__ static void get(const uint8_t* from, uint32_t (&to)[2]) {
    const uint2 two = *reinterpret_cast<const uint2*>(from);
    to[0] = two.x, to[1] = two.y;
  }
  __device__ static void get(const uint8_t* from, uint32_t (&to)[1]) {
    to[0] = *reinterpret_cast<const uint32_t*>(from);
  }
  int at_ = 0, step_ = 0;
  const uint8_t* row_[kOctets];
  const float* row_scales_[kScales ? kOctets : 1][2];
};

}  // namespace moracle::cuda

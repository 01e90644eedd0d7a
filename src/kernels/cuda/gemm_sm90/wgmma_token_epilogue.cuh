// Epilogue of tiles whose tokens are the rows of the product: adds the bias, activates, and stores
// bf16 or codes. A lane has four neighbouring outputs of each panel for two tokens.
#pragma once

#include "kernels/cuda/gemm_sm90/scale_rows.h"
#include "kernels/cuda/gemm_sm90/wgmma_kernel.cuh"
#include "kernels/cuda/gemm_sm90/wgmma_token_rows.cuh"
#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/cuda/quantize_values.cuh"
#include "kernels/cuda/tiles/groups.cuh"
#include "kernels/cuda/tiles/tile_finder.cuh"

namespace moracle::cuda {

template <class Operand, class Tile>
class TokenEpilogue {
 public:
  using Sums = TokenMainloop<Operand, Tile>;
  using Info = typename Tile::Info;

  __device__ TokenEpilogue(const WgmmaArgs& args, const WgmmaShared<Tile>& shared, const Info& info)
      : a_(args), shared_(shared), info_(info), panels_(args, info.tile) {}

  __device__ __forceinline__ void store_all(Sums& sums) const {
    complete(sums);
    if constexpr (kStoresLines<Operand>)
      store_lines(sums);
    else
      store_tokens(sums);
  }

 private:
  static constexpr int kLinePanels = 4;  // of 128 bytes

  // Scales the totals and adds the bias, before any store: so loads of several panels overlap.
  __device__ __forceinline__ void complete(Sums& sums) const {
    if constexpr (kScalesOutputs<Operand>) {
      const float* const x = info_.x_scales + threadIdx.x / 32 * 16 + lane_row();
      const float x_scales[] = {x[0], x[8]};
      const auto scale = [&](float& total, int i, float w) { total *= x_scales[i] * w; };
      if (a_.scale_is_exponent) {
        each_output(
            sums,
            [&](int q) {
              const uchar4 four =
                  reinterpret_cast<const uchar4*>(info_.w_scales)[q * 4 + lane_col()];
              return float4{e8m0_to_float(four.x), e8m0_to_float(four.y), e8m0_to_float(four.z),
                            e8m0_to_float(four.w)};
            },
            scale);
      } else {
        each_output(
            sums, [&](int q) { return four_of(info_.w_scales, q); }, scale);
      }
    }
    if (a_.has_bias) {
      each_output(
          sums, [&](int q) { return four_of(info_.bias, q); },
          [](float& total, int, float bias) { total += bias; });
    }
  }
  __device__ static float4 four_of(const float* of_outputs, int q) {
    return reinterpret_cast<const float4*>(of_outputs)[q * 4 + lane_col()];
  }
  // Calls change(total, token, value of the output) for all totals.
  template <class FourOf, class Change>
  __device__ __forceinline__ static void each_output(Sums& sums, FourOf four_of_panel,
                                                     Change change) {
    constexpr int kPanels = Sums::kWidth / 16;  // of a part
#pragma unroll
    for (int q = 0; q < Tile::kAllPanels; ++q) {
      const float4 four = four_of_panel(q);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float(&chunk)[Sums::kWidth / 2] = sums.total[q / kPanels];
        const int even = q % kPanels * 8 + 2 * i, odd = even + 4;
        change(chunk[even], i, four.x), change(chunk[odd], i, four.y);
        change(chunk[even + 1], i, four.z), change(chunk[odd + 1], i, four.w);
      }
    }
  }

  __device__ __forceinline__ void store_tokens(const Sums& sums) const {
    const int first = static_cast<int>(threadIdx.x / 32) * 16 + lane_row();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool there = first + 8 * i < info_.tile.rows;
      if constexpr (!kScalesOutputs<Operand>) {
        if (a_.gated && a_.y_scales != nullptr) {
          store_codes(sums, i, first + 8 * i, there);  // lanes exchange values: all lanes call
          continue;
        }
      }
      if (there) store_token(sums, i, first + 8 * i);
    }
  }

  // A lane has 8 bytes of each panel, so stores from registers touch eight lines each. Through
  // shared memory they write whole lines.
  __device__ __forceinline__ void store_lines(const Sums& sums) const {
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    uint8_t* const staged = shared_.staged(warp);
    auto* const y = static_cast<uint16_t*>(a_.y.data);
    const bool aligned = a_.y.stride % 8 == 0 && reinterpret_cast<uintptr_t>(y) % 16 == 0;
#pragma unroll
    for (int first = 0; first < Tile::kAllPanels; first += kLinePanels) {
      if (!panels_.there(first)) break;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = lane_row() + 8 * i;
#pragma unroll
        for (int p = 0; p < kLinePanels; ++p) {
          if (!panels_.there(first + p)) continue;
          const float4 four = value(sums, first + p, i);
          *reinterpret_cast<uint2*>(vector(staged, row, 2 * p + lane_col() / 2) +
                                    lane_col() % 2 * 8) = {
              as_bits(__float22bfloat162_rn({four.x, four.y})),
              as_bits(__float22bfloat162_rn({four.z, four.w}))};
        }
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = 4 * i + lane / 8, token = warp * 16 + row;
        const uint4 eight = *reinterpret_cast<const uint4*>(vector(staged, row, lane % 8));
        const int column = panels_[first] * 16 + lane % 8 * 8, left = a_.columns - column;
        if (token >= info_.tile.rows) continue;
        uint16_t* const to = y + (info_.tile.first_row + token) * a_.y.stride + column;
        if (aligned && left >= 8) {
          *reinterpret_cast<uint4*>(to) = eight;
          continue;
        }
        const uint32_t pairs[] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
          if (2 * pair < left) *reinterpret_cast<uint32_t*>(to + 2 * pair) = pairs[pair];
        }
      }
      __syncwarp();
    }
  }
  // Vector c of 16 bytes of a staged row; swizzled, so that four rows use all banks.
  __device__ static uint8_t* vector(uint8_t* staged, int row, int c) {
    return staged + row * 128 + ((c ^ row % 4 * 2) << 4);
  }

  __device__ __forceinline__ void store_token(const Sums& sums, int i, int row) const {
    auto* const y = static_cast<uint16_t*>(a_.y.data) + (info_.tile.first_row + row) * a_.y.stride;
    if (!a_.gated) {
#pragma unroll
      for (int q = 0; q < Tile::kAllPanels; ++q) {
        if (panels_.there(q)) store(y + panels_[q] * 16, panels_[q], value(sums, q, i));
      }
      return;
    }
#pragma unroll
    for (int q = 0; q < Tile::kHalf; ++q) {
      if (!panels_.there(q)) continue;
      store(y + panels_[q] * 16, panels_[q], activated(sums, q, i));
    }
  }

  // The tile's activated outputs of a token are a group: 128 columns, or fewer at the end of a row
  // whose columns 32 divides. They are rounded to bf16 as quantize_vectors reads them. Four lanes
  // have them.
  __device__ __forceinline__ void store_codes(const Sums& sums, int i, int row, bool there) const {
    static_assert(Tile::kHalf * 16 == 128);
    uint32_t pairs[Tile::kHalf][2], largest = 0;
#pragma unroll
    for (int q = 0; q < Tile::kHalf; ++q) {
      float4 four{};
      if (kWholeGroups || panels_.there(q)) four = activated(sums, q, i);
      pairs[q][0] = as_bits(__float22bfloat162_rn({four.x, four.y}));
      pairs[q][1] = as_bits(__float22bfloat162_rn({four.z, four.w}));
#pragma unroll
      for (const uint32_t pair : pairs[q])
        largest = max(largest, max(pair << 16 & 0x7fffffffu, pair & 0x7fff0000u));
    }
    largest = max(largest, __shfl_xor_sync(kAllLanes, largest, 1));
    largest = max(largest, __shfl_xor_sync(kAllLanes, largest, 2));
    constexpr QuantKey kKey = kFp8Dynamic128Sym;
    const float scale = scale_of_bits(kKey, largest);
    const bool finite = largest < kInfinityBits;
    const Divisor divide(scale);
    const int64_t at = info_.tile.first_row + row;
    const int group = panels_.first / Tile::kHalf, lane = lane_col();
    // Two panels are a block of fragment order: words t and 4 + t of lane t. Lanes t and t + 2
    // exchange one, so that each stores two neighbours.
    uint8_t* const to = static_cast<uint8_t*>(a_.y.data) + at * a_.y.stride + group * 128 +
                        lane % 2 * 16 + lane / 2 * 8;
#pragma unroll
    for (int q = 0; q < Tile::kHalf; q += 2) {
      uint32_t words[2] = {};
      if (finite)
        words[0] = four_codes(pairs[q], divide), words[1] = four_codes(pairs[q + 1], divide);
      const uint32_t other = __shfl_xor_sync(kAllLanes, lane < 2 ? words[1] : words[0], 2);
      const uint2 two = lane < 2 ? uint2{words[0], other} : uint2{other, words[1]};
      if (there && (kWholeGroups || panels_.there(q))) *reinterpret_cast<uint2*>(to + q * 16) = two;
    }
    if (there && lane == 0) {
      const int64_t of = a_.y_scale_rows > 0
                             ? int64_t{group} * a_.y_scale_rows +
                                   scale_row(info_.tile.first_row, info_.tile.expert) + row
                             : at * groups_of_row() + group;
      a_.y_scales[of] = scale;
    }
  }
  // Gates with one scale of weights for 128 have whole groups.
  static constexpr bool kWholeGroups = kTileScales<Operand> == 1;
  __device__ int groups_of_row() const {
    return (a_.columns + (kWholeGroups ? 0 : 127)) / 128;
  }
  __device__ static uint32_t four_codes(const uint32_t (&pairs)[2], const Divisor& divide) {
    uint32_t codes[2];
#pragma unroll
    for (int p = 0; p < 2; ++p)
      codes[p] = to_e4m3_pair(divide(__uint_as_float(pairs[p] << 16)),
                              divide(__uint_as_float(pairs[p] & 0xffff0000u)));
    return codes[0] | codes[1] << 16;
  }

  __device__ float4 activated(const Sums& sums, int q, int i) const {
    const float4 gate = value(sums, q, i), up = value(sums, q + Tile::kHalf, i);
    return {cuda::activated(a_, gate.x, up.x), cuda::activated(a_, gate.y, up.y),
            cuda::activated(a_, gate.z, up.z), cuda::activated(a_, gate.w, up.w)};
  }

  // The four outputs of panel q of the tile. Its even outputs are eight columns of the product, its
  // odd ones the next eight.
  __device__ __forceinline__ float4 value(const Sums& sums, int q, int i) const {
    constexpr int kPanels = Sums::kWidth / 16;  // of a part
    const float(&chunk)[Sums::kWidth / 2] = sums.total[q / kPanels];
    const int even = q % kPanels * 8 + 2 * i, odd = even + 4;
    return {chunk[even], chunk[odd], chunk[even + 1], chunk[odd + 1]};
  }
  __device__ void store(uint16_t* panel, int number, const float4& four) const {
    uint16_t* const to = panel + 4 * lane_col();
    const uint2 pairs{as_bits(__float22bfloat162_rn({four.x, four.y})),
                      as_bits(__float22bfloat162_rn({four.z, four.w}))};
    const int left = a_.columns - number * 16 - 4 * lane_col();
    if (reinterpret_cast<uintptr_t>(to) % 8 == 0 && left >= 4) {
      *reinterpret_cast<uint2*>(to) = pairs;
      return;
    }
    if (left >= 2) *reinterpret_cast<uint32_t*>(to) = pairs.x;
    if (left >= 4) *reinterpret_cast<uint32_t*>(to + 2) = pairs.y;
  }

  const WgmmaArgs& a_;
  const WgmmaShared<Tile>& shared_;
  const Info& info_;
  const TilePanels<Tile> panels_;
};

template <class Operand, class Tile>
struct TileWork<Operand, Tile, true> {
  __device__ __forceinline__ static void run(const WgmmaArgs& a, const WgmmaShared<Tile>& shared,
                                             RingSlot<Tile>& ring,
                                             const typename Tile::Info& info) {
    TokenMainloop<Operand, Tile> sums(a, shared, ring);
    if (info.tile.rows <= static_cast<int>(threadIdx.x / 128) * 64) {
      sums.skip();
    } else {
      sums.run();
      TokenEpilogue<Operand, Tile>(a, shared, info).store_all(sums);
    }
  }
};

}  // namespace moracle::cuda

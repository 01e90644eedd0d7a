// Mainloops of a consumer warpgroup: the sums of one tile. While products are in flight, the next
// weights are unpacked into other registers, or into those that no product reads any more; mma.sync
// needs no second set. Each sum accumulates the columns in order, independent of the neighbouring
// rows and of kN (batch-invariant).
#pragma once

#include "kernels/cuda/gemm_sm90/wgmma_consumer.cuh"

namespace moracle::cuda {

/// Sums stay in the instruction's registers. A batch is a unit (a k-block, or half of one) of as
/// many m64 as registers allow.
template <class Consumer>
__device__ __forceinline__ void mainloop_unpromoted(Consumer& c) {
  using Tile = typename Consumer::Tile;
  constexpr int kM = Consumer::kM, kBlocks = Consumer::kBlocks;
  using Operand = typename Consumer::Operand;
  constexpr bool kWhole = !Operand::kValues && kM * Consumer::kN <= 256;
  constexpr int kBatch = kWhole ? kM : 1;
  constexpr int kSplit = kM / kBatch;                           // batches of a unit
  constexpr int kBatches = kBlocks * Operand::kUnits * kSplit;  // of a stage
  static_assert(kBatches % 2 == 0);  // the same registers begin each stage
  typename Consumer::Weights w[2][kBatch];
#pragma unroll
  for (int m = 0; m < kBatch; ++m)
    c.unpack(c.stage(), m, 0, c.folded_group(c.own.begin(), 0), w[0][m]);
  for (int first = c.own.begin(); first < c.own.end(); first += kBlocks) {
    const uint64_t x = c.descriptor();
    const uint8_t* const stage = c.stage();
    const int slot = c.slot();
#pragma unroll
    for (int i = 0; i < kBatches; ++i) {
      const int b = i / kSplit, begin = i % kSplit * kBatch;
      wgmma_fence();
#pragma unroll
      for (int m = 0; m < kBatch; ++m) c.multiply(c.total[begin + m], w[i % 2][m], x, b, true);
      wgmma_commit();
      if (i + 1 < kBatches) {
        wgmma_wait<1>();
        if (i == 0 && first > c.own.begin()) c.release(slot == 0 ? Tile::kStages - 1 : slot - 1);
        const int next = (i + 1) / kSplit, next_m = (i + 1) % kSplit * kBatch;
#pragma unroll
        for (int m = 0; m < kBatch; ++m)
          c.unpack(stage, next_m + m, next, c.folded_group(first, next), w[(i + 1) % 2][m]);
      } else {
        c.next_stage(first);
        wgmma_wait<1>();
#pragma unroll
        for (int m = 0; m < kBatch; ++m)
          c.unpack(c.stage(), m, 0, c.folded_group(first + kBlocks, 0), w[0][m]);
      }
    }
  }
  wgmma_wait<0>();
#pragma unroll
  for (int m = 0; m < kM; ++m) pin(c.total[m]);
  c.release(c.slot());
  c.end_tile();
}

/// Sums of kChunk k-blocks are promoted: scaled and added to f32 totals.
template <int kChunk, class Consumer>
__device__ __forceinline__ void mainloop_promoted(Consumer& c) {
  constexpr int kM = Consumer::kM, kBlocks = Consumer::kBlocks;
  // With few rows memory is the bottleneck: promote before waiting for the next stage.
  constexpr bool kAhead = Consumer::kN >= 64;
  typename Consumer::Weights w[2];
  c.prepare(c.stage(), 0, 0, 0, kChunk, w[0]);
  for (int first = c.own.begin(); first < c.own.end(); first += kBlocks) {
    const uint64_t x = c.descriptor();
    const uint8_t* const stage = c.stage();
    const int slot = c.slot();
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      typename Consumer::Sum partial[Consumer::kN / 2];
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const int i = m * kBlocks + b, next = i + 1;
        const bool ends = b % kChunk == kChunk - 1;
        wgmma_fence();
        c.multiply(partial, w[i % 2], x, b, b % kChunk > 0);
        wgmma_commit();
        float2 scale{1, 1};
        if (ends && Consumer::Operand::kGroups)
          scale = c.weight_scale(stage, m, c.group_at(first, b, kChunk));
        if (next < kM * kBlocks) {
          wgmma_wait<1>();
          c.prepare(stage, next / kBlocks, next % kBlocks, first, kChunk, w[next % 2]);
        } else if (kAhead) {
          c.next_stage(first);
          wgmma_wait<1>();
          c.prepare(c.stage(), 0, 0, first + kBlocks, kChunk, w[0]);
        }
        if (ends) {
          if constexpr (Consumer::Operand::kBlockGroups) wgmma_fence();  // as in wait_unpacked
          wgmma_wait<0>();
          pin(partial);
          c.promote(m, 0, partial, stage, scale);
        }
      }
    }
    c.release(slot);
    if constexpr (!kAhead) {
      c.next_stage(first);
      c.prepare(c.stage(), 0, 0, first + kBlocks, kChunk, w[0]);
    }
  }
  c.end_tile();
}

/// Each k-block is a group. While the products of a step are in flight, the sums of the previous
/// step are promoted and the next k-block is unpacked. A step is a k-block of one m64, for at most
/// 64 rows: the sums of two steps then fit beside the totals.
template <class Consumer>
__device__ __forceinline__ void mainloop_steps(Consumer& c) {
  constexpr int kN = Consumer::kN, kBlocks = Consumer::kBlocks;
  constexpr int kSplit = kN > 64 ? 2 : 1, kRows = kN / kSplit;
  constexpr int kUnpacked = Consumer::kM * kBlocks, kSteps = kUnpacked * kSplit;
  constexpr uint64_t kNextRows = kRows * 128 / 16;
  // With few rows memory is the bottleneck: release a stage before waiting for the next one.
  constexpr bool kAhead = kN >= 64;
  typename Consumer::Weights w[2];
  typename Consumer::Sum partial[2][kRows / 2];
  float2 scale{0, 0};  // of the step before
#pragma unroll
  for (auto& sum : partial[1]) sum = 0;  // the first step has none before it
  c.unpack(c.stage(), 0, 0, 0, w[0]);
  for (int first = c.own.begin(); first < c.own.end(); first += kBlocks) {
    const uint64_t x = c.descriptor();
    const uint8_t* const stage = c.stage();
    const int slot = c.slot();
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int block = i / kSplit, half = i % kSplit, before = (i + kSteps - 1) % kSteps;
      wgmma_fence();  // before the wait, as in wait_unpacked
      wgmma_wait<0>();
      pin(partial[(i + 1) % 2]);
      c.multiply(partial[i % 2], w[block % 2], x + half * kNextRows, block % kBlocks, false);
      wgmma_commit();
      if (kAhead && i == 0 && first > c.own.begin())
        c.release(slot == 0 ? Consumer::Tile::kStages - 1 : slot - 1);
      c.promote(before / kSplit / kBlocks, before % kSplit * kRows, partial[(i + 1) % 2], stage,
                scale);
      if (half == 0) scale = c.weight_scale(stage, block / kBlocks, block % kBlocks);
      if (half < kSplit - 1) continue;
      const int next = block + 1;
      if (next < kUnpacked) {
        c.unpack(stage, next / kBlocks, next % kBlocks, 0, w[next % 2]);
        continue;
      }
      if (!kAhead) {
        wgmma_wait<0>();
        pin(partial[i % 2]);
        c.release(slot);
      }
      c.next_stage(first);
      c.unpack(c.stage(), 0, 0, 0, w[0]);
    }
  }
  wgmma_wait<0>();
  pin(partial[1]);
  c.promote(Consumer::kM - 1, kN - kRows, partial[1], c.stage(), scale);
  if (kAhead) c.release(c.slot());
  c.end_tile();
}

/// A chunk of one m64: all k-blocks of a stage.
template <class Consumer>
__device__ __forceinline__ void unpack_chunk(Consumer& c, const uint8_t* stage, int m,
                                             typename Consumer::Weights (&w)[Consumer::kBlocks]) {
  if constexpr (kIsRebased<typename Consumer::Operand>) {
    const auto scales = c.stage_scales(stage, m);
#pragma unroll
    for (int b = 0; b < Consumer::kBlocks; ++b) c.unpack_scaled(stage, m, b, scales, w[b]);
  } else {
#pragma unroll
    for (int b = 0; b < Consumer::kBlocks; ++b) c.prepare(stage, m, b, 0, Consumer::kBlocks, w[b]);
  }
}
template <class Consumer>
__device__ float2 chunk_scale(const Consumer& c, const uint8_t* stage, int m) {
  if constexpr (kIsRebased<typename Consumer::Operand>)
    return c.stage_scales(stage, m).scale;
  else if constexpr (Consumer::Operand::kGroups)
    return c.weight_scale(stage, m, 0);
  return {1, 1};
}
template <class Consumer, class Sum, int kCount>
__device__ __forceinline__ void multiply_chunk(
    Consumer& c, Sum (&partial)[kCount], const typename Consumer::Weights (&w)[Consumer::kBlocks],
    uint64_t x) {
#pragma unroll
  for (int b = 0; b < Consumer::kBlocks; ++b) c.multiply(partial, w[b], x, b, b > 0);
  wgmma_commit();
}
/// Waits for a chunk's products when the next chunk is unpacked. The fence that the next products
/// need stands before the wait, and no branch follows: else ptxas unpacks after the wait. Where two
/// CTAs share an SM, registers do not suffice for that.
template <class Tile, class Sum, int kCount>
__device__ __forceinline__ void wait_unpacked(Sum (&partial)[kCount]) {
  if constexpr (Tile::kPerSm == 1) wgmma_fence();
  wgmma_wait<0>();
  pin(partial);
  if constexpr (Tile::kPerSm > 1) wgmma_fence();
}

/// Few rows, two m64: one chunk is unpacked while another is multiplied, and the previous chunk is
/// promoted while the next is multiplied. After the last chunk, issue the products of its stage
/// once more and discard them.
template <class Consumer>
__device__ __forceinline__ void mainloop_chunks(Consumer& c) {
  using Tile = typename Consumer::Tile;
  typename Consumer::Weights w[2][Consumer::kBlocks];
  typename Consumer::Sum partial[2][Consumer::kN / 2];
  unpack_chunk(c, c.stage(), 0, w[0]);
  wgmma_fence();
  multiply_chunk(c, partial[0], w[0], c.descriptor());
  int used = -1;
  for (int first = c.own.begin(); first < c.own.end(); first += Consumer::kBlocks) {
    const uint64_t x = c.descriptor();
    const uint8_t* const stage = c.stage();
    unpack_chunk(c, stage, 1, w[1]);
    const float2 scales[2] = {chunk_scale(c, stage, 0), chunk_scale(c, stage, 1)};
    wait_unpacked<Tile>(partial[0]);
    multiply_chunk(c, partial[1], w[1], x);
    if (used >= 0) c.release(used);
    c.promote(0, 0, partial[0], stage, scales[0]);
    used = c.slot();
    c.next_stage(first);
    unpack_chunk(c, c.stage(), 0, w[0]);
    wait_unpacked<Tile>(partial[1]);
    multiply_chunk(c, partial[0], w[0], c.descriptor());
    c.promote(1, 0, partial[1], stage, scales[1]);
  }
  wgmma_wait<0>();
  pin(partial[0]);
  c.release(c.slot());
  c.end_tile();
}

/// Many rows, and codes that need no unpacking: one part of the rows is promoted while the next is
/// multiplied.
template <int kParts, class Consumer>
__device__ __forceinline__ void mainloop_parts(Consumer& c) {
  constexpr int kM = Consumer::kM, kRows = Consumer::kN / kParts;
  static_assert(kM * kParts % 2 == 0);              // the same sums begin each stage
  constexpr uint64_t kNextRows = kRows * 128 / 16;  // to the next part of x
  typename Consumer::Weights w[Consumer::kBlocks];
  typename Consumer::Sum partial[2][kRows / 2];
  unpack_chunk(c, c.stage(), 0, w);
  wgmma_fence();
  multiply_chunk(c, partial[0], w, c.descriptor());
  int used = -1;
  for (int first = c.own.begin(); first < c.own.end(); first += Consumer::kBlocks) {
    const uint8_t* const stage = c.stage();
    const uint64_t x = c.descriptor();
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const float2 scale = chunk_scale(c, stage, m);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        auto& sums = partial[(m * kParts + part) % 2];
        auto& others = partial[(m * kParts + part + 1) % 2];
        wgmma_wait<0>();
        pin(sums);
        if (m == 0 && part == 0 && used >= 0) c.release(used);
        if (part < kParts - 1) {
          wgmma_fence();
          multiply_chunk(c, others, w, x + (part + 1) * kNextRows);
        } else {
          unpack_chunk(c, c.stage(), (m + 1) % kM, w);
          wgmma_fence();
          multiply_chunk(c, others, w, c.descriptor());
        }
        c.promote(m, part * kRows, sums, stage, scale);
        if (m == kM - 1 && part == kParts - 2) {
          used = c.slot();
          c.next_stage(first);
        }
      }
    }
  }
  wgmma_wait<0>();
  pin(partial[0]);
  c.release(c.slot());
  c.end_tile();
}

/// Many rows, and codes that take long to unpack. The products of one part of the rows are followed
/// by those of the next part on the same weights, and meanwhile the first part is promoted. Each
/// k-block of the next chunk is unpacked as soon as the last part no longer reads this chunk's. The
/// last part is promoted while the next chunk is multiplied.
template <int kParts, class Consumer>
__device__ __forceinline__ void mainloop_rolling(Consumer& c) {
  constexpr int kM = Consumer::kM, kBlocks = Consumer::kBlocks, kRows = Consumer::kN / kParts;
  static_assert(kBlocks == 4 && kM * kParts % 2 == 0);
  constexpr uint64_t kNextRows = kRows * 128 / 16;  // to the next part of x
  typename Consumer::Weights w[kBlocks];
  typename Consumer::Sum partial[2][kRows / 2];
  auto scales = c.stage_scales(c.stage(), 0);
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) c.unpack_scaled(c.stage(), 0, b, scales, w[b]);
  wgmma_fence();
  multiply_chunk(c, partial[0], w, c.descriptor());
  for (int first = c.own.begin(); first < c.own.end(); first += kBlocks) {
    const uint64_t x = c.descriptor();
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const float2 scale = scales.scale;
      const int slot = c.slot();
#pragma unroll
      for (int part = 1; part < kParts; ++part) {
        auto& sums = partial[(m * kParts + part) % 2];
        auto& before = partial[(m * kParts + part - 1) % 2];
        wgmma_wait<0>();
        pin(before);
        wgmma_fence();
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          c.multiply(sums, w[b], x + part * kNextRows, b, b > 0);
          wgmma_commit();
        }
        c.promote(m, (part - 1) * kRows, before, c.stage(), scale);
      }
      if (m == kM - 1) c.next_stage(first);
      const int next = (m + 1) % kM;
      auto& last = partial[(m * kParts + kParts - 1) % 2];
      auto& first_sums = partial[(m * kParts + kParts) % 2];
      scales = c.stage_scales(c.stage(), next);
      wgmma_wait<3>();
      c.unpack_scaled(c.stage(), next, 0, scales, w[0]);
      wgmma_wait<2>();
      c.unpack_scaled(c.stage(), next, 1, scales, w[1]);
      wgmma_wait<1>();
      c.unpack_scaled(c.stage(), next, 2, scales, w[2]);
      wgmma_wait<0>();
      pin(last);
      c.unpack_scaled(c.stage(), next, 3, scales, w[3]);
      wgmma_fence();
      multiply_chunk(c, first_sums, w, c.descriptor());
      if (m == kM - 1 && first + kBlocks < c.own.end()) c.release(slot);
      c.promote(m, (kParts - 1) * kRows, last, c.stage(), scale);
    }
  }
  wgmma_wait<0>();
  pin(partial[0]);
  c.release(c.slot());
  c.end_tile();
}

/// Unpacks the k-blocks of the current stage before the last one, each as soon as no product in
/// flight reads the registers, then the last one.
template <int kOpen, class Consumer>
__device__ __forceinline__ void unpack_behind(Consumer& c, int m,
                                              typename Consumer::Weights (&w)[Consumer::kBlocks]) {
  constexpr int b = Consumer::kBlocks - 1 - kOpen;
  wgmma_wait<kOpen>();
  c.prepare(c.stage(), m, b, 0, Consumer::kBlocks, w[b]);
  if constexpr (kOpen > 0) unpack_behind<kOpen - 1>(c, m, w);
}

/// As mainloop_rolling, with the sums of one part: chunks in bf16 take twice the registers. The
/// other warpgroup multiplies while a part is promoted.
template <int kParts, class Consumer>
__device__ __forceinline__ void mainloop_one_by_one(Consumer& c) {
  constexpr int kM = Consumer::kM, kBlocks = Consumer::kBlocks, kRows = Consumer::kN / kParts;
  constexpr uint64_t kNextRows = kRows * 128 / 16;  // to the next part of x
  typename Consumer::Weights w[kBlocks];
  unpack_chunk(c, c.stage(), 0, w);
  for (int first = c.own.begin(); first < c.own.end(); first += kBlocks) {
    const uint64_t x = c.descriptor();
    const uint8_t* const stage = c.stage();
    const int slot = c.slot();
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const float2 scale = chunk_scale(c, stage, m);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        typename Consumer::Sum partial[kRows / 2];
        wgmma_fence();
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          c.multiply(partial, w[b], x + part * kNextRows, b, b > 0);
          wgmma_commit();
        }
        if (part == kParts - 1) {
          if (m == kM - 1) c.next_stage(first);
          unpack_behind<kBlocks - 1>(c, (m + 1) % kM, w);
        }
        wgmma_wait<0>();
        pin(partial);
        if (m == kM - 1 && part == kParts - 1) c.release(slot);
        c.promote(m, part * kRows, partial, stage, scale);
      }
    }
  }
  c.end_tile();
}

/// An octet of rows, by mma.sync. Sums of kChunk k-blocks are promoted.
template <int kChunk, class Consumer>
__device__ __forceinline__ void mainloop_octet(Consumer& c) {
  using Operand = typename Consumer::Operand;
  constexpr int kM = Consumer::kM, kBlocks = Consumer::kBlocks;
  for (int first = c.own.begin(); first < c.own.end(); first += kBlocks) {
    const uint8_t* const stage = c.stage();
    const int slot = c.slot();
    typename Consumer::Sum partial[kM][4];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      uint32_t x[4];
      c.load_octet(stage, b, x);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        typename Consumer::Weights w;
        if constexpr (Operand::kPromoted) {
          if (b % kChunk == 0) partial[m][0] = partial[m][1] = partial[m][2] = partial[m][3] = 0;
          c.prepare(stage, m, b, first, kChunk, w);
        } else {
          c.unpack(stage, m, b, c.folded_group(first, b), w);
        }
        auto& sums = Operand::kPromoted ? partial[m] : c.total[m];
#pragma unroll
        for (int s = 0; s < Operand::kSteps; ++s) {
#pragma unroll
          for (int term = 0; term < Operand::kTerms; ++term)
            Operand::multiply(sums, w[term][s], x[2 * s], x[2 * s + 1]);
        }
        if (Operand::kPromoted && b % kChunk == kChunk - 1)
          c.promote(m, 0, partial[m], stage,
                    c.weight_scale(stage, m, c.group_at(first, b, kChunk)));
      }
    }
    c.release(slot);
    c.next_stage(first);
  }
  c.end_tile();
}

/// Multiplies all stages of a tile. The first one is full.
template <class Consumer>
__device__ __forceinline__ void run_mainloop(Consumer& c) {
  using Operand = typename Consumer::Operand;
  constexpr int kM = Consumer::kM;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int i = 0; i < Consumer::kN / 2; ++i) c.total[m][i] = 0;
  }
  // A group of scales may end within a stage.
  [[maybe_unused]] const bool by_block =
      Operand::kBlockGroups ||
      (c.args().close_blocks % Consumer::kBlocks != 0 && c.args().close_blocks < c.args().blocks);
  constexpr bool kSkinny = Consumer::Tile::kRows <= 64 && kM == 2;
  constexpr int kParts = Consumer::kN > 128 ? 3 : 2;  // the sums of two must fit beside the totals
  if constexpr (Consumer::kN == 8) {
    if (Operand::kPromoted && by_block)
      mainloop_octet<1>(c);
    else
      mainloop_octet<Consumer::kBlocks>(c);
  } else if constexpr (!Operand::kPromoted)
    mainloop_unpromoted(c);
  else if constexpr (Operand::kBlockGroups && Operand::kCodeBits > 4 && Consumer::kN > 96)
    mainloop_promoted<1>(c);  // no registers are left for the sums of two steps: 5 % faster
  else if constexpr (Operand::kBlockGroups)
    mainloop_steps(c);
  else if constexpr (!Operand::kSmallGroups && kSkinny)
    mainloop_chunks(c);
  else if constexpr (kIsFourBitFp8<Operand>)
    mainloop_rolling<kParts>(c);
  else if constexpr (!Operand::kSmallGroups)
    mainloop_parts<kParts>(c);
  else if constexpr (Consumer::kN > 128)
    mainloop_one_by_one<kParts>(c);  // no group ends within a stage (wgmma_plan.cc)
  else if (by_block)
    mainloop_promoted<1>(c);
  else if constexpr (kSkinny)
    mainloop_chunks(c);
  else
    mainloop_promoted<Consumer::kBlocks>(c);
}

}  // namespace moracle::cuda

// Attention for sequences with few tokens in a step. Each token's view is split into parts, one
// block per part, whose results are merged in order (Dao et al., "Flash-Decoding", 2023). The
// number of parts depends only on the token's view, so its bits do not depend on the batch
// (batch-invariant).
#include "kernels/cuda/attention/decode_heads.cuh"
#include "kernels/cuda/attention/split_kv.cuh"
#include "kernels/cuda/ptx/pdl.cuh"

namespace moracle::cuda {
namespace {

template <int kHead, int kValue, DType kCache, int kTiles>
__global__ void __launch_bounds__(kThreads, kTiles == 1 ? 3 : 2) attend_few(FewArgs f) {
  pdl_wait();
  pdl_launch_dependents();
  constexpr int kRows = 8 * kTiles;
  // Results of each warp, merged in warp order.
  __shared__ float values[kWarps][kRows][kValue + 1];  // padded: heads begin at different banks
  __shared__ float shrinks[kWarps][kRows], all_top_k[kRows], all_sums[kRows];
  __shared__ float largest[kWarps][kRows], sums[kWarps][kRows];
  const AttendArgs& a = f.attend;
  const AttentionShape& shape = a.shape;
  const auto heads = static_cast<uint32_t>(heads_per_kv(shape));
  const uint32_t row_tiles = (heads + kRows - 1) / kRows;
  const auto kv_heads = static_cast<uint32_t>(shape.num_kv_heads);
  const auto parts_at_most = static_cast<uint32_t>(f.parts), of_part = kv_heads * row_tiles;
  const uint32_t warp = threadIdx.x / 32, blocks = of_part * parts_at_most * f.tokens;
  for (uint32_t b = blockIdx.x; b < blocks; b += gridDim.x) {
    // Consecutive blocks take heads that are adjacent in memory.
    const uint32_t kv = b % kv_heads, first_head = b / kv_heads % row_tiles * kRows;
    const uint32_t part = b / of_part % parts_at_most, slot = b / of_part / parts_at_most;
    const int64_t token = f.first_token + slot;
    const int32_t sequence = a.batch.sequences[token];
    const View view = view_of(a.batch, shape, token);
    const Parts parts = parts_of(view);
    if (part >= static_cast<uint32_t>(parts.count) ||
        (!shape.batch_invariant && !is_few(a.batch, sequence)))
      continue;
    HeadFinds<kHead, kValue, kCache, kTiles> finds(a, token, first_head, heads, kv);
    const Heads<kHead, kValue, kCache> of(a, sequence);
    const int32_t first = parts.first + static_cast<int32_t>(part) * parts.size;
    const int32_t end = min(first + parts.size, parts.end);
    for (int32_t tile = first + static_cast<int32_t>(warp); tile < end; tile += kWarps)
      finds.take(of, of.at(kv, tile * kTile), tile * kTile, view, shape.scale * kLog2E);
    finds.finish();
    __syncthreads();  // wait until the previous iteration has been merged
    finds.each_found([&](int head, int c, float value) { values[warp][head][c] = value; });
    if (finds.row() == 0) {
#pragma unroll
      for (int i = 0; i < 2 * kTiles; ++i) {
        const int head = i / 2 * 8 + 2 * finds.turn() + i % 2;
        largest[warp][head] = finds.largest[i / 2][i % 2];
        sums[warp][head] = finds.sum[i / 2][i % 2];
      }
    }
    __syncthreads();
    const uint32_t rows = min(static_cast<uint32_t>(kRows), heads - first_head);
    if (threadIdx.x < rows) {
      const uint32_t row = threadIdx.x;
      float most = largest[0][row], sum = 0;
#pragma unroll
      for (int w = 1; w < kWarps; ++w) most = fmaxf(most, largest[w][row]);
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        shrinks[w][row] = exp2f(largest[w][row] - most);
        sum += sums[w][row] * shrinks[w][row];
      }
      all_top_k[row] = most, all_sums[row] = sum;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < rows * kValue; i += kThreads) {
      const uint32_t row = i / kValue, c = i % kValue, head = kv * heads + first_head + row;
      float value = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) value += values[w][row][c] * shrinks[w][row];
      if (parts.count == 1) {
        const WithSink all = with_sink(shape, head, all_top_k[row], all_sums[row]);
        store_bf16(a.out, token, head * kValue + c, value * all.shrink / all.sum);
        continue;
      }
      const Found to = found_at(f, slot, head, part);
      to.values[c] = value;
      if (c == 0) to.largest_and_sum[0] = all_top_k[row], to.largest_and_sum[1] = all_sums[row];
    }
  }
}

template <int kHead, int kValue, DType kCache, int kTiles>
Status attend_tiles(const AttendArgs& a, const Queue& queue, Stream stream) {
  const AttentionShape& shape = a.shape;
  // A view that begins within a tile takes up to two tiles more.
  const int64_t seen = std::min(a.batch.longest, shape.most_seen(a.batch.longest) + 2 * kTile);
  const int64_t parts = most_parts(seen);
  const auto scratch = static_cast<int64_t>(attend_scratch_bytes(shape, a.q.rows, DType::kBF16));
  const int64_t together = parts == 1 ? a.q.rows : scratch / found_bytes(shape, parts);
  const int64_t row_tiles = (shape.num_heads / shape.num_kv_heads + 8 * kTiles - 1) / (8 * kTiles);
  for (int64_t first = 0; first < a.q.rows; first += together) {
    const FewArgs few{a, first, std::min(together, a.q.rows - first), parts};
    MORACLE_CHECK(
        launch_early(queue, stream, "attend_few", attend_few<kHead, kValue, kCache, kTiles>,
                     parts * row_tiles * shape.num_kv_heads * few.tokens, kThreads, 0, few));
    if (parts == 1) continue;
    MORACLE_CHECK(launch_early(queue, stream, "merge_parts", merge_parts<kValue>,
                               few.tokens * shape.num_heads, kThreads, 0, few));
  }
  return {};
}

}  // namespace

Status attend_few_tokens(const AttendArgs& args, const Queue& queue, Stream stream) {
  return visit_heads(args.shape, [&]<int kHead, int kValue, DType kCache>() -> Status {
    if (args.shape.num_heads / args.shape.num_kv_heads <= 8)
      return attend_tiles<kHead, kValue, kCache, 1>(args, queue, stream);
    return attend_tiles<kHead, kValue, kCache, 2>(args, queue, stream);
  });
}

}  // namespace moracle::cuda

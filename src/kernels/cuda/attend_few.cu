// Few tokens of a sequence in a step: what each sees is shared out in parts, a block for each,
// whose finds are merged in their order (Dao et al., "Flash-Decoding", 2023). How many parts there
// are follows from what the token sees and from nothing else: its bits do not depend on the batch.
// Heads that share keys lie side by side in the products: scores are Kᵀ's rows by 8 heads, and so
// is what they find. Nothing of K and V goes through shared memory: the order of columns within a
// product is free, so a thread's part of it is what lies side by side in the cache.
#include "kernels/cuda/attend_tensor.cuh"

namespace moracle::cuda {
namespace {

constexpr int kTile = 32;  // positions that a warp takes at once

/// What up to 8 · kTiles heads of a token find, in the registers of a warp. Lane 4 g + k has the
/// heads 2 k and 2 k + 1 of each tile of 8, at positions and of columns that follow from g.
template <int kHead, int kValue, DType kCache, int kTiles>
struct Finds {
  static_assert(kHead % 32 == 0 && kValue % 64 == 0);
  using Of = Heads<kHead, kValue, kCache>;
  uint32_t query[kTiles][kHead / 16][2];
  float found[kTiles][kValue / 16][4] = {};       // not yet divided by `sum`
  float largest[kTiles][2], sum[kTiles][2] = {};  // scores to the base 2

  __device__ static int row() { return threadIdx.x % 32 / 4; }
  __device__ static int turn() { return threadIdx.x % 4; }

  /// Heads [first, first + 8 kTiles) below `heads`, of a token.
  __device__ Finds(const AttendArgs& a, int64_t token, int64_t first, int64_t heads, int64_t kv) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      largest[t][0] = largest[t][1] = nothing();
      const int64_t head = first + 8 * t + row();
      const uint16_t* const from = query_of(a, token, kv * heads + min(head, heads - 1));
#pragma unroll
      for (int i = 0; i < kHead / 32; ++i) {
        const uint4 eight = *reinterpret_cast<const uint4*>(from + 32 * i + 8 * turn());
        query[t][2 * i][0] = eight.x, query[t][2 * i][1] = eight.y;
        query[t][2 * i + 1][0] = eight.z, query[t][2 * i + 1][1] = eight.w;
      }
    }
  }

  /// Positions [first, first + kTile), those that are in the view.
  __device__ void take(const Of& of, const Lines& lines, int32_t first, const View& view,
                       float scale) {
    float scores[kTiles][2][4] = {};
#pragma unroll
    for (int i = 0; i < kHead / 32; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::byte* const key =
            lines.keys + (16 * half + row()) * of.key_step + (32 * i + 8 * turn()) * Of::kSize;
        const uint4 a = load_eight<kCache>(key), b = load_eight<kCache>(key + 8 * of.key_step);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          multiply_add(scores[t][half], {a.x, b.x, a.y, b.y}, query[t][2 * i][0],
                       query[t][2 * i][1]);
          multiply_add(scores[t][half], {a.z, b.z, a.w, b.w}, query[t][2 * i + 1][0],
                       query[t][2 * i + 1][1]);
        }
      }
    }
    // Asked for before it is known what they weigh.
    uint4 values[2][kValue / 64][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = 16 * half + 2 * turn();
#pragma unroll
      for (int b = 0; b < kValue / 64; ++b) {
        const std::byte* const value =
            lines.values + at * of.value_step + (64 * b + 8 * row()) * Of::kSize;
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const int down = r % 2 + r / 2 * 8;
          values[half][b][r] = uint4{};
          // What was never written weighs nothing, but it may be no number.
          if (first + at + down < view.end)
            values[half][b][r] = load_eight<kCache>(value + down * of.value_step);
        }
      }
    }
    uint32_t weights[kTiles][2][2];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) weigh(t, scores[t], weights[t], first, view, scale);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int b = 0; b < kValue / 64; ++b) {
        const uint4(&rows)[4] = values[half][b];
        add(4 * b, weights, half, rows[0].x, rows[1].x, rows[2].x, rows[3].x);
        add(4 * b + 1, weights, half, rows[0].y, rows[1].y, rows[2].y, rows[3].y);
        add(4 * b + 2, weights, half, rows[0].z, rows[1].z, rows[2].z, rows[3].z);
        add(4 * b + 3, weights, half, rows[0].w, rows[1].w, rows[2].w, rows[3].w);
      }
    }
  }

  /// Sums over all lanes.
  __device__ void finish() {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        for (int step = 4; step < 32; step *= 2)
          sum[t][h] += __shfl_xor_sync(kAllLanes, sum[t][h], step);
      }
    }
  }

  /// Calls each(head, column, value).
  template <class Each>
  __device__ void each_found(const Each& each) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int n = 0; n < kValue / 16; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          each(8 * t + 2 * turn() + c % 2, n / 4 * 64 + 8 * row() + n % 4 * 2 + c / 2,
               found[t][n][c]);
        }
      }
    }
  }

 private:
  /// Scores become weights beside the largest so far, what was found before shrinks accordingly.
  __device__ void weigh(int t, float (&scores)[2][4], uint32_t (&weights)[2][2], int32_t first,
                        const View& view, float scale) {
    float base[2], shrink[2];
    bool grown = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int32_t position = first + 16 * half + row() + c / 2 * 8;
        const bool seen = position >= view.begin && position < view.end;
        scores[half][c] = seen ? scores[half][c] * scale : nothing();
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most =
          fmaxf(fmaxf(scores[0][h], scores[0][h + 2]), fmaxf(scores[1][h], scores[1][h + 2]));
      for (int step = 4; step < 32; step *= 2)
        most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, step));
      most = fmaxf(most, largest[t][h]);
      // A head that has seen nothing yet has no largest.
      base[h] = most == nothing() ? 0.0f : most;
      shrink[h] = exp2f(largest[t][h] - base[h]);
      grown = grown || most != largest[t][h];
      largest[t][h] = most;
    }
    if (__any_sync(kAllLanes, grown)) {
#pragma unroll
      for (int n = 0; n < kValue / 16; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) found[t][n][c] *= shrink[c % 2];
      }
      sum[t][0] *= shrink[0], sum[t][1] *= shrink[1];
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        scores[half][c] = exp2f(scores[half][c] - base[c % 2]);
        sum[t][c % 2] += scores[half][c];
      }
      weights[half][0] = transposed(to_bf16_pair(scores[half][0], scores[half][1]));
      weights[half][1] = transposed(to_bf16_pair(scores[half][2], scores[half][3]));
    }
  }

  /// Two neighbouring columns of four positions: (a, b) and (c, d) are neighbours.
  __device__ void add(int n, const uint32_t (&weights)[kTiles][2][2], int half, uint32_t a,
                      uint32_t b, uint32_t c, uint32_t d) {
    const uint32_t columns[4] = {__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632),
                                 __byte_perm(c, d, 0x5410), __byte_perm(c, d, 0x7632)};
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
      multiply_add(found[t][n], columns, weights[t][half][0], weights[t][half][1]);
  }
};

/// The parts of what a token sees, in tiles.
struct Parts {
  int32_t first, end, size, count;  // the first tile and the last, those of a part, parts
};
// Of so many positions until there are 16 of them, then of twice as many until there are
// kAttendParts: more parts keep a large GPU busy with one sequence, but cost each block's start.
constexpr int64_t kLeastPart = kTile * kWarps;
__device__ Parts parts_of(const View& view) {
  const int32_t first = view.begin / kTile, end = (view.end + kTile - 1) / kTile;
  const int32_t tiles = end - first;
  constexpr int32_t kMost = static_cast<int32_t>(kAttendParts) * kWarps;
  int32_t size = tiles <= 16 * kWarps ? kWarps : 2 * kWarps;
  size = max(size, (tiles + kMost - 1) / kMost * kWarps);
  return {first, end, size, (tiles + size - 1) / size};
}
/// No view of up to `seen` positions has more.
int64_t most_parts(int64_t seen) {
  const int64_t least = (seen + kLeastPart - 1) / kLeastPart;
  if (least <= 16) return std::max<int64_t>(least, 1);
  return least <= 2 * kAttendParts ? std::max<int64_t>(16, (least + 1) / 2) : kAttendParts;
}

/// What parts find, in the room: [tokens, heads, kAttendParts, value_dim], then the largest score
/// and the sum of each.
struct Found {
  float *values, *largest_and_sum;
};
__device__ Found found_at(const AttendArgs& a, int64_t tokens, int64_t token, int64_t head,
                          int64_t part) {
  auto* const all = reinterpret_cast<float*>(a.room);
  const int64_t at = (token * a.shape.num_heads + head) * kAttendParts + part;
  return {all + at * a.shape.value_dim,
          all + tokens * a.shape.num_heads * kAttendParts * a.shape.value_dim + at * 2};
}

/// Tokens [first_token, first_token + tokens) of the batch; so many parts at most.
struct FewArgs {
  AttendArgs attend;
  int64_t first_token, tokens, parts;
};

template <int kHead, int kValue, DType kCache, int kTiles>
__global__ void __launch_bounds__(kThreads, kTiles == 1 ? 3 : 2) attend_few(FewArgs f) {
  constexpr int kRows = 8 * kTiles;
  // Of each warp, to be merged in their order.
  __shared__ float values[kWarps][kRows][kValue + 1];  // heads begin at different banks
  __shared__ float shrinks[kWarps][kRows], all_largest[kRows], all_sums[kRows];
  __shared__ float largest[kWarps][kRows], sums[kWarps][kRows];
  const AttendArgs& a = f.attend;
  const AttentionShape& shape = a.shape;
  const auto heads = static_cast<uint32_t>(heads_per_kv(shape));
  const uint32_t row_tiles = (heads + kRows - 1) / kRows;
  const auto kv_heads = static_cast<uint32_t>(shape.num_kv_heads);
  const auto parts_at_most = static_cast<uint32_t>(f.parts), of_part = kv_heads * row_tiles;
  const uint32_t warp = threadIdx.x / 32, blocks = of_part * parts_at_most * f.tokens;
  for (uint32_t b = blockIdx.x; b < blocks; b += gridDim.x) {
    // Heads that lie side by side in memory follow each other.
    const uint32_t kv = b % kv_heads, first_head = b / kv_heads % row_tiles * kRows;
    const uint32_t part = b / of_part % parts_at_most, slot = b / of_part / parts_at_most;
    const int64_t token = f.first_token + slot;
    const int32_t sequence = a.batch.sequences[token];
    const View view = view_of(a.batch, shape.window, token);
    const Parts parts = parts_of(view);
    if (part >= static_cast<uint32_t>(parts.count) || (!shape.alone && !is_few(a.batch, sequence)))
      continue;
    Finds<kHead, kValue, kCache, kTiles> finds(a, token, first_head, heads, kv);
    const Heads<kHead, kValue, kCache> of(a, sequence);
    const int32_t first = parts.first + static_cast<int32_t>(part) * parts.size;
    const int32_t end = min(first + parts.size, parts.end);
    for (int32_t tile = first + static_cast<int32_t>(warp); tile < end; tile += kWarps)
      finds.take(of, of.at(kv, tile * kTile), tile * kTile, view, shape.scale * kLog2E);
    finds.finish();
    __syncthreads();  // the block before has been merged
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
      all_largest[row] = most, all_sums[row] = sum;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < rows * kValue; i += kThreads) {
      const uint32_t row = i / kValue, c = i % kValue, head = kv * heads + first_head + row;
      float value = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) value += values[w][row][c] * shrinks[w][row];
      if (parts.count == 1) {
        const WithSink all = with_sink(shape, head, all_largest[row], all_sums[row]);
        store_bf16(a.out, token, head * kValue + c, value * all.shrink / all.sum);
        continue;
      }
      const Found to = found_at(a, f.tokens, slot, head, part);
      to.values[c] = value;
      if (c == 0) to.largest_and_sum[0] = all_largest[row], to.largest_and_sum[1] = all_sums[row];
    }
  }
}

/// By the first warp: what each part weighs beside the largest score, and their sum.
struct Weighed {
  float largest, sum;
};
__device__ Weighed weigh_parts(const Found& found, int count, float* weights) {
  constexpr int kEach = kAttendParts / 32;
  const int lane = threadIdx.x;
  float largest[kEach], sums[kEach], most = nothing(), sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int part = lane + 32 * i;
    largest[i] = part < count ? found.largest_and_sum[2 * part] : nothing();
    sums[i] = part < count ? found.largest_and_sum[2 * part + 1] : 0.0f;
    most = fmaxf(most, largest[i]);
  }
  for (int step = 16; step > 0; step /= 2)
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, step));
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const float weight = exp2f(largest[i] - most);
    weights[lane + 32 * i] = weight;
    sum += sums[i] * weight;
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  return {most, sum};
}

// A block for each head of each token. Warps take every fourth part, and are merged in their order.
template <int kValue>
__global__ void __launch_bounds__(kThreads) merge_parts(FewArgs f) {
  __shared__ float weights[kAttendParts], factor;
  __shared__ float4 values[kWarps][kValue / 4];
  const AttendArgs& a = f.attend;
  const AttentionShape& shape = a.shape;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int64_t b = blockIdx.x; b < f.tokens * shape.num_heads; b += gridDim.x) {
    const int64_t slot = b / shape.num_heads, head = b % shape.num_heads;
    const int64_t token = f.first_token + slot;
    const int32_t sequence = a.batch.sequences[token];
    const Parts parts = parts_of(view_of(a.batch, shape.window, token));
    if (parts.count == 1 || (!shape.alone && !is_few(a.batch, sequence))) continue;
    const Found found = found_at(a, f.tokens, slot, head, 0);
    __syncthreads();  // what was here before has been used
    if (warp == 0) {
      const Weighed own = weigh_parts(found, parts.count, weights);
      const WithSink all = with_sink(shape, head, own.largest, own.sum);
      if (lane == 0) factor = all.shrink / all.sum;
    }
    __syncthreads();
    if (lane < kValue / 4) {
      float4 sum{};
#pragma unroll 8
      for (int p = warp; p < parts.count; p += kWarps) {
        const float4 four = reinterpret_cast<const float4*>(found.values + p * kValue)[lane];
        const float weight = weights[p];
        sum.x += four.x * weight, sum.y += four.y * weight;
        sum.z += four.z * weight, sum.w += four.w * weight;
      }
      values[warp][lane] = sum;
    }
    __syncthreads();
    for (int c = threadIdx.x; c < kValue; c += kThreads) {
      float value = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) value += reinterpret_cast<const float*>(values[w])[c];
      store_bf16(a.out, token, head * kValue + c, value * factor);
    }
  }
}

template <int kHead, int kValue, DType kCache, int kTiles>
Status attend_tiles(const AttendArgs& a, const Queue& queue, Stream stream) {
  const AttentionShape& shape = a.shape;
  const int64_t seen =
      shape.window > 0 ? std::min(a.batch.longest, shape.window + 2 * kTile) : a.batch.longest;
  const int64_t parts = most_parts(seen);
  const auto of_token = static_cast<int64_t>(attend_room_bytes(shape, 1, DType::kBF16));
  const auto room = static_cast<int64_t>(attend_room_bytes(shape, a.q.rows, DType::kBF16));
  const int64_t together = parts == 1 ? a.q.rows : room / of_token;
  const int64_t row_tiles = (shape.num_heads / shape.num_kv_heads + 8 * kTiles - 1) / (8 * kTiles);
  for (int64_t first = 0; first < a.q.rows; first += together) {
    const FewArgs few{a, first, std::min(together, a.q.rows - first), parts};
    MORACLE_CHECK(launch(queue, stream, "attend_few", attend_few<kHead, kValue, kCache, kTiles>,
                         parts * row_tiles * shape.num_kv_heads * few.tokens, kThreads, 0, few));
    if (parts == 1) continue;
    MORACLE_CHECK(launch(queue, stream, "merge_parts", merge_parts<kValue>,
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

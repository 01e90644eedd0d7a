// Attention on tensor cores, in two ways. Sequences with few tokens in a step: the context of each
// token is shared out in parts, a block for each, whose finds are merged in their order (Dao et
// al., "Flash-Decoding", 2023). How many parts there are follows from what the token sees and from
// nothing else: its bits do not depend on the batch. Sequences with many: a warp for each 16
// queries, which goes through all that they see. Heads that share keys lie in the same 16 rows.
#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/attend_rows.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pages.cuh"

namespace moracle::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps, kRows = 16;
constexpr float kLog2E = 1.44269504f;

__device__ int64_t heads_per_kv(const AttentionShape& shape) {
  return shape.num_heads / shape.num_kv_heads;
}

/// Row r of a sequence's tokens from first_token on: its query, or nothing from `rows` on.
template <class Rows>
__device__ void set_row(Rows& to, int half, const AttendArgs& a, int64_t kv, int64_t first_token,
                        int64_t row, int64_t rows) {
  if (row >= rows) return to.set(half, nullptr, 0, 0);
  const int64_t heads = heads_per_kv(a.shape), token = first_token + row / heads;
  const View view = view_of(a.batch, a.shape.window, token);
  const auto* const queries = static_cast<const uint16_t*>(a.q.data) + token * a.q.stride;
  to.set(half, queries + (kv * heads + row % heads) * a.shape.head_dim, view.begin, view.end);
}

/// Where the keys and values of a head lie from a position on, the first of a tile.
__device__ Lines lines_at(const AttendArgs& a, int32_t sequence, int64_t kv, int32_t position,
                          int64_t size) {
  const AttentionShape& shape = a.shape;
  const std::byte* const page = page_of(a.batch, sequence, position);
  const int64_t in_page = position % static_cast<int32_t>(a.batch.page);
  const int64_t key_step = shape.num_kv_heads * shape.head_dim * size;
  const int64_t value_step = shape.num_kv_heads * shape.value_dim * size;
  return {page + shape.cache.keys + in_page * key_step + kv * shape.head_dim * size,
          page + shape.cache.values + in_page * value_step + kv * shape.value_dim * size, key_step,
          value_step};
}

__device__ void store_bf16(const Matrix& out, int64_t token, int64_t column, float value) {
  static_cast<uint16_t*>(out.data)[token * out.stride + column] = float_to_bf16(value);
}

/// What a sum of weights is beside a sink: the largest score of both, and what shrinks to it.
struct WithSink {
  float shrink, sum;
};
__device__ WithSink with_sink(const AttentionShape& shape, int64_t head, float largest, float sum) {
  if (shape.sinks == nullptr) return {1, sum};
  const float sink = shape.sinks[head] * kLog2E, most = fmaxf(largest, sink);
  const float shrink = exp2f(largest - most);
  return {shrink, sum * shrink + exp2f(sink - most)};
}

// ---- many tokens ----

template <int kHead, int kValue, DType kCache>
__global__ void __launch_bounds__(kThreads) attend_many(AttendArgs a, int64_t tiles) {
  using Rows = AttendRows<kHead, kValue, kCache>;
  const AttentionShape& shape = a.shape;
  const int64_t heads = heads_per_kv(shape), warp = threadIdx.x / 32;
  for (int64_t b = blockIdx.x; b < tiles * shape.num_kv_heads * a.batch.num_sequences;
       b += gridDim.x) {
    // Those that see most go first.
    const int64_t tile = tiles - 1 - b / (shape.num_kv_heads * a.batch.num_sequences);
    const int64_t kv = b % shape.num_kv_heads;
    const auto sequence = static_cast<int32_t>(b / shape.num_kv_heads % a.batch.num_sequences);
    if (is_few(a.batch, sequence)) continue;
    const int64_t first_token = a.batch.first_token[sequence];
    const int64_t rows = (a.batch.first_token[sequence + 1] - first_token) * heads;
    const int64_t first = (tile * kWarps + warp) * kRows;
    if (first >= rows) continue;
    Rows found;
    found.scale = shape.scale * kLog2E;
    set_row(found, 0, a, kv, first_token, first + Rows::group(), rows);
    set_row(found, 1, a, kv, first_token, first + Rows::group() + 8, rows);
    const View least = view_of(a.batch, shape.window, first_token + first / heads);
    const View most =
        view_of(a.batch, shape.window, first_token + (min(first + kRows, rows) - 1) / heads);
    for (int32_t at = least.begin / kAttendTile * kAttendTile; at < most.end; at += kAttendTile) {
      const bool whole = at >= most.begin && at + kAttendTile <= least.end;
      found.take(lines_at(a, sequence, kv, at, Rows::kSize), at, most.end, whole);
    }
    found.finish();
    float factor[2];
    int64_t token[2], column[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = first + Rows::group() + 8 * half, head = kv * heads + row % heads;
      token[half] = row < rows ? first_token + row / heads : -1;
      column[half] = head * kValue;
      if (row >= rows) continue;
      const WithSink all = with_sink(shape, head, found.largest[half], found.sum[half]);
      factor[half] = all.shrink / all.sum;
    }
    found.each_found([&](int half, int c, float value) {
      if (token[half] >= 0) store_bf16(a.out, token[half], column[half] + c, value * factor[half]);
    });
  }
}

// ---- few tokens ----

/// The parts of what a token sees, in tiles.
struct Parts {
  int32_t first, end, size, count;  // the first and the last tile, those of a part, parts
};
__device__ Parts parts_of(const View& view) {
  const int32_t first = view.begin / kAttendTile;
  const int32_t end = (view.end + kAttendTile - 1) / kAttendTile, tiles = end - first;
  constexpr int32_t kMost = static_cast<int32_t>(kAttendParts) * kWarps;
  const int32_t size = (tiles + kMost - 1) / kMost * kWarps;
  return {first, end, size, (tiles + size - 1) / size};
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

template <int kHead, int kValue, DType kCache>
__global__ void __launch_bounds__(kThreads) attend_few(FewArgs f) {
  using Rows = AttendRows<kHead, kValue, kCache>;
  // Of each warp, to be merged in their order.
  __shared__ float values[kWarps][kRows][kValue];
  __shared__ float largest[kWarps][kRows], sums[kWarps][kRows];
  const AttendArgs& a = f.attend;
  const AttentionShape& shape = a.shape;
  const int64_t heads = heads_per_kv(shape), row_tiles = (heads + kRows - 1) / kRows;
  const int warp = threadIdx.x / 32;
  for (int64_t b = blockIdx.x; b < f.parts * row_tiles * shape.num_kv_heads * f.tokens;
       b += gridDim.x) {
    const int64_t part = b % f.parts, first_head = b / f.parts % row_tiles * kRows;
    const int64_t kv = b / (f.parts * row_tiles) % shape.num_kv_heads;
    const int64_t slot = b / (f.parts * row_tiles * shape.num_kv_heads);
    const int64_t token = f.first_token + slot;
    const int32_t sequence = a.batch.sequences[token];
    if (!shape.alone && !is_few(a.batch, sequence)) continue;
    const View view = view_of(a.batch, shape.window, token);
    const Parts parts = parts_of(view);
    if (part >= parts.count) continue;
    Rows found;
    found.scale = shape.scale * kLog2E;
    // Rows of one token are its heads.
    set_row(found, 0, a, kv, token, first_head + Rows::group(), heads);
    set_row(found, 1, a, kv, token, first_head + Rows::group() + 8, heads);
    const int32_t first = parts.first + static_cast<int32_t>(part) * parts.size;
    const int32_t end = min(first + parts.size, parts.end);
    for (int32_t tile = first + warp; tile < end; tile += kWarps) {
      const int32_t at = tile * kAttendTile;
      const bool whole = at >= view.begin && at + kAttendTile <= view.end;
      found.take(lines_at(a, sequence, kv, at, Rows::kSize), at, view.end, whole);
    }
    found.finish();
    __syncthreads();  // the block before has been merged
    found.each_found(
        [&](int half, int c, float value) { values[warp][Rows::group() + 8 * half][c] = value; });
    if (Rows::turn() == 0) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        largest[warp][Rows::group() + 8 * half] = found.largest[half];
        sums[warp][Rows::group() + 8 * half] = found.sum[half];
      }
    }
    __syncthreads();
    const int rows = static_cast<int>(min(static_cast<int64_t>(kRows), heads - first_head));
    for (int i = threadIdx.x; i < rows * kValue; i += kThreads) {
      const int row = i / kValue, c = i % kValue;
      const int64_t head = kv * heads + first_head + row;
      float most = largest[0][row];
      for (int w = 1; w < kWarps; ++w) most = fmaxf(most, largest[w][row]);
      float value = 0, sum = 0;
      for (int w = 0; w < kWarps; ++w) {
        const float shrink = exp2f(largest[w][row] - most);
        value += values[w][row][c] * shrink;
        sum += sums[w][row] * shrink;
      }
      if (parts.count == 1) {
        const WithSink all = with_sink(shape, head, most, sum);
        store_bf16(a.out, token, head * kValue + c, value * all.shrink / all.sum);
        continue;
      }
      const Found to = found_at(a, f.tokens, slot, head, part);
      to.values[c] = value;
      if (c == 0) to.largest_and_sum[0] = most, to.largest_and_sum[1] = sum;
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
  float largest[kEach], sums[kEach], most = __int_as_float(0xff800000), sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int part = lane + 32 * i;
    largest[i] = part < count ? found.largest_and_sum[2 * part] : __int_as_float(0xff800000);
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

// A block for each head of each token, parts in their order.
__global__ void __launch_bounds__(kThreads) merge_parts(FewArgs f) {
  __shared__ float weights[kAttendParts], factor;
  const AttendArgs& a = f.attend;
  const AttentionShape& shape = a.shape;
  for (int64_t b = blockIdx.x; b < f.tokens * shape.num_heads; b += gridDim.x) {
    const int64_t slot = b / shape.num_heads, head = b % shape.num_heads;
    const int64_t token = f.first_token + slot;
    if (!shape.alone && !is_few(a.batch, a.batch.sequences[token])) continue;
    const Parts parts = parts_of(view_of(a.batch, shape.window, token));
    if (parts.count == 1) continue;
    const Found found = found_at(a, f.tokens, slot, head, 0);
    __syncthreads();  // the weights before have been used
    if (threadIdx.x < 32) {
      const Weighed own = weigh_parts(found, parts.count, weights);
      const WithSink all = with_sink(shape, head, own.largest, own.sum);
      if (threadIdx.x == 0) factor = all.shrink / all.sum;
    }
    __syncthreads();
    for (int64_t c = threadIdx.x; c < shape.value_dim; c += kThreads) {
      float value = 0;
#pragma unroll 8
      for (int p = 0; p < parts.count; ++p)
        value += found.values[p * shape.value_dim + c] * weights[p];
      store_bf16(a.out, token, head * shape.value_dim + c, value * factor);
    }
  }
}

template <int kHead, int kValue, DType kCache>
Status attend_few_tokens(const AttendArgs& a, const Queue& queue, Stream stream) {
  const AttentionShape& shape = a.shape;
  const int64_t seen = shape.window > 0 ? std::min(a.batch.longest, shape.window + 2 * kAttendTile)
                                        : a.batch.longest;
  constexpr int64_t kLeast = kAttendTile * kWarps;
  const int64_t parts = std::clamp<int64_t>((seen + kLeast - 1) / kLeast, 1, kAttendParts);
  const int64_t of_token = static_cast<int64_t>(attend_room_bytes(shape, 1, DType::kBF16));
  const int64_t room = static_cast<int64_t>(attend_room_bytes(shape, a.q.rows, DType::kBF16));
  const int64_t together = parts == 1 ? a.q.rows : room / of_token;
  const int64_t row_tiles = (shape.num_heads / shape.num_kv_heads + kRows - 1) / kRows;
  for (int64_t first = 0; first < a.q.rows; first += together) {
    const FewArgs few{a, first, std::min(together, a.q.rows - first), parts};
    MORACLE_CHECK(launch(queue, stream, "attend_few", attend_few<kHead, kValue, kCache>,
                         parts * row_tiles * shape.num_kv_heads * few.tokens, kThreads, 0, few));
    if (parts == 1) continue;
    MORACLE_CHECK(launch(queue, stream, "merge_parts", merge_parts, few.tokens * shape.num_heads,
                         kThreads, 0, few));
  }
  return {};
}

template <int kHead, int kValue, DType kCache>
Status attend_as(const AttendArgs& a, const Queue& queue, Stream stream) {
  const AttentionShape& shape = a.shape;
  const Batch& batch = a.batch;
  if (shape.alone || batch.fewest_tokens <= kFewTokens)
    MORACLE_CHECK((attend_few_tokens<kHead, kValue, kCache>(a, queue, stream)));
  if (shape.alone || batch.most_tokens <= kFewTokens) return {};
  const int64_t rows = batch.most_tokens * (shape.num_heads / shape.num_kv_heads);
  const int64_t tiles = (rows + kRows * kWarps - 1) / (kRows * kWarps);
  return launch(queue, stream, "attend_many", attend_many<kHead, kValue, kCache>,
                tiles * shape.num_kv_heads * batch.num_sequences, kThreads, 0, a, tiles);
}

template <int kHead, int kValue>
Status attend_sized(const AttendArgs& a, const Queue& queue, Stream stream) {
  switch (a.shape.cache.dtype) {
    case DType::kF32:
      return attend_as<kHead, kValue, DType::kF32>(a, queue, stream);
    case DType::kBF16:
      return attend_as<kHead, kValue, DType::kBF16>(a, queue, stream);
    default:
      return attend_as<kHead, kValue, DType::kF16>(a, queue, stream);
  }
}

bool are_sizes(const AttentionShape& shape, int64_t head_dim, int64_t value_dim) {
  return shape.head_dim == head_dim && shape.value_dim == value_dim;
}

}  // namespace

bool attends_on_tensor_cores(const AttendArgs& args, const Queue& queue) {
  const AttentionShape& shape = args.shape;
  const bool sized =
      are_sizes(shape, 64, 64) || are_sizes(shape, 128, 128) || are_sizes(shape, 192, 128);
  const bool aligned = reinterpret_cast<uintptr_t>(args.q.data) % 16 == 0 &&
                       args.q.stride % 8 == 0 && shape.cache.keys % 16 == 0 &&
                       shape.cache.values % 16 == 0 && args.batch.page % kAttendTile == 0;
  return queue.capability >= 80 && sized && aligned && args.q.dtype == DType::kBF16 &&
         args.out.dtype == DType::kBF16;
}

Status attend_on_tensor_cores(const AttendArgs& args, const Queue& queue, Stream stream) {
  if (args.q.rows == 0) return {};
  if (args.shape.head_dim == 64) return attend_sized<64, 64>(args, queue, stream);
  if (args.shape.head_dim == 128) return attend_sized<128, 128>(args, queue, stream);
  return attend_sized<192, 128>(args, queue, stream);
}

}  // namespace moracle::cuda

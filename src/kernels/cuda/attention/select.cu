// The indexer of sparse attention: scores of all visible positions, then the top-k of each token.
//
// Heads and positions of bf16 are multiplied by tensor cores. A warp keeps the keys of its
// positions in registers for several tokens of a sequence. A CTA finds the k-th largest score by
// its bits, 11 at a time, and then writes the positions in order.
//
// With blocks, each head has scores of its own: the largest product of each block of positions.
//
// The same kernels select the entries of compressed attention, whose index keys have pages of their
// own.
#include "base/try.h"
#include "kernels/cuda/attention/pages.cuh"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/each_element.cuh"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ptx/mma.cuh"
#include "kernels/top_k_key.h"

namespace moracle {
namespace cuda {
namespace {

struct SelectArgs {
  Matrix q, weights;
  Batch batch;
  IndexShape shape;
  int32_t* selected;
  float* scores;   // [tokens, rows, stride], of tokens [first_token, first_token + tokens)
  int64_t stride;  // at least the longest context in blocks; of positions a multiple of kScoreTile
  int64_t first_token, tokens;
  int64_t rows = 1;  // selections of a token
  int64_t rate = 0;  // positions of an entry; 0: positions are chosen
};

// Positions, or complete entries, up to a token's own position.
__device__ int32_t seen_from(const SelectArgs& a, int32_t position) {
  return a.rate == 0 ? position + 1 : (position + 1) / static_cast<int32_t>(a.rate);
}

constexpr int kScoreThreads = 256, kScoreWarps = kScoreThreads / 32;
constexpr int kScoreTile = 256;   // positions of a CTA
constexpr int kTokensOfTile = 8;  // tokens that a CTA multiplies by the same positions

// The scores of one CTA: some tokens of a step, and a tile of positions.
struct ScoreTile {
  int64_t first_slot;
  int32_t begin;
};
__device__ ScoreTile score_tile(const SelectArgs& a, int64_t b) {
  const int64_t tiles = a.stride / kScoreTile;
  return {b / tiles * kTokensOfTile, static_cast<int32_t>(b % tiles) * kScoreTile};
}
__host__ __device__ int64_t num_score_tiles(const SelectArgs& a) {
  return (a.tokens + kTokensOfTile - 1) / kTokensOfTile * (a.stride / kScoreTile);
}
// The same for all threads of a CTA.
__device__ bool has_scores(const SelectArgs& a, const ScoreTile& tile, int64_t slot) {
  const int32_t seen = seen_from(a, a.batch.positions[a.first_token + slot]);
  return seen > a.shape.top_k && tile.begin < seen;
}

// The key of a position, or of an entry.
__device__ Matrix index_key(const SelectArgs& a, int32_t sequence, int32_t at) {
  const LayerCache& cache = a.shape.cache;
  const int64_t dim = a.shape.head_dim, bytes = cache.index_dtype == DType::kF32 ? 4 : 2;
  const int32_t position = a.rate == 0 ? at : at * static_cast<int32_t>(a.rate);
  int64_t row = row_in_page(a.batch, 0, position);
  if (a.rate > 0) row = static_cast<int32_t>(row) / static_cast<int32_t>(a.rate);
  return {page_of(a.batch, sequence, position) + cache.index_keys + row * dim * bytes,
          cache.index_dtype, 1, dim, dim};
}

__device__ float positive(float product) {
  return product < 0 ? 0 : product;  // a NaN stays
}

// Any sizes and dtypes: a thread per position.
__global__ void __launch_bounds__(kScoreThreads) score_positions_generic(SelectArgs a) {
  extern __shared__ float numbers[];  // queries of a token, then the weights of its heads
  float* const queries = numbers;
  const int64_t heads = a.shape.num_heads, dim = a.shape.head_dim;
  float* const weights = queries + heads * dim;
  for (int64_t b = blockIdx.x; b < num_score_tiles(a); b += gridDim.x) {
    const ScoreTile tile = score_tile(a, b);
    const int64_t end = min(a.tokens, tile.first_slot + kTokensOfTile);
    for (int64_t slot = tile.first_slot; slot < end; ++slot) {
      if (!has_scores(a, tile, slot)) continue;
      const int64_t token = a.first_token + slot;
      __syncthreads();  // wait until the previous token's queries have been read
      for (int64_t i = threadIdx.x; i < heads * dim; i += kScoreThreads)
        queries[i] = load(a.q, token, i);
      for (int64_t h = threadIdx.x; h < heads; h += kScoreThreads)
        weights[h] = load(a.weights, token, h);
      __syncthreads();
      const int32_t position = tile.begin + static_cast<int32_t>(threadIdx.x);
      if (position >= seen_from(a, a.batch.positions[token])) continue;
      const Matrix key = index_key(a, a.batch.sequences[token], position);
      float sum = 0;
      for (int64_t h = 0; h < heads; ++h) {
        float product = 0;
        for (int64_t d = 0; d < dim; ++d) product += queries[h * dim + d] * load(key, 0, d);
        sum += weights[h] * positive(product);
      }
      a.scores[slot * a.stride + position] = sum * a.shape.scale;
    }
  }
}

// Heads of kDim columns in bf16, a multiple of 16 of them. Rows of a product are heads, columns are
// positions.
template <int kDim>
__global__ void __launch_bounds__(kScoreThreads) score_positions_mma(SelectArgs a) {
  constexpr int kSteps = kDim / 16, kVectors = kDim / 8;
  constexpr int kRow = kDim / 2 + 4;  // words of a row in shared memory, without bank conflicts
  constexpr int kTiles = kScoreTile / kScoreWarps / 8;  // of 8 positions, of a warp
  extern __shared__ uint32_t queries[];                 // [heads, kRow], then the weights
  const int heads = static_cast<int>(a.shape.num_heads);
  float* const weights = reinterpret_cast<float*>(queries + heads * kRow);
  const int warp = threadIdx.x / 32, row = threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
  for (int64_t b = blockIdx.x; b < num_score_tiles(a); b += gridDim.x) {
    const ScoreTile tile = score_tile(a, b);
    const int64_t end = min(a.tokens, tile.first_slot + kTokensOfTile);
    const int32_t first = tile.begin + warp * (kScoreTile / kScoreWarps);
    int32_t loaded = -1;  // the sequence whose keys are in registers
    uint32_t keys[kTiles][kSteps][2];
    for (int64_t slot = tile.first_slot; slot < end; ++slot) {
      if (!has_scores(a, tile, slot)) continue;
      const int64_t token = a.first_token + slot;
      const int32_t sequence = a.batch.sequences[token];
      const int32_t seen = seen_from(a, a.batch.positions[token]);
      __syncthreads();  // wait until the previous token's queries have been read
      const auto* const from = static_cast<const uint16_t*>(a.q.data) + token * a.q.stride;
      for (int i = threadIdx.x; i < heads * kVectors; i += kScoreThreads) {
        const uint4 eight = reinterpret_cast<const uint4*>(from)[i];
        *reinterpret_cast<uint4*>(queries + i / kVectors * kRow + i % kVectors * 4) = eight;
      }
      for (int h = threadIdx.x; h < heads; h += kScoreThreads)
        weights[h] = load(a.weights, token, h);
      if (loaded != sequence) {
        loaded = sequence;
        const int32_t all = seen_from(a, a.batch.positions[a.batch.first_token[sequence + 1] - 1]);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          const int32_t own = first + n * 8 + row;
          // Memory past the context was never written, and has no page.
          const uint32_t* const key =
              own < all ? static_cast<const uint32_t*>(index_key(a, sequence, own).data) : nullptr;
#pragma unroll
          for (int s = 0; s < kSteps; ++s) {
            keys[n][s][0] = key != nullptr ? __ldg(key + s * 8 + pair) : 0u;
            keys[n][s][1] = key != nullptr ? __ldg(key + s * 8 + pair + 4) : 0u;
          }
        }
      }
      __syncthreads();
      float sums[kTiles][2] = {};
      for (int head = 0; head < heads; head += 16) {
        float products[kTiles][4] = {};
        const uint32_t* const upper = queries + (head + row) * kRow + pair;
        const uint32_t* const lower = upper + 8 * kRow;
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          const uint32_t q[4] = {upper[s * 8], lower[s * 8], upper[s * 8 + 4], lower[s * 8 + 4]};
#pragma unroll
          for (int n = 0; n < kTiles; ++n) mma_bf16(products[n], q, keys[n][s][0], keys[n][s][1]);
        }
        const float first_weight = weights[head + row], second_weight = weights[head + row + 8];
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            sums[n][c] += first_weight * positive(products[n][c]) +
                          second_weight * positive(products[n][c + 2]);
          }
        }
      }
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float sum = sums[n][c];
          for (int lanes = 4; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(kAllLanes, sum, lanes);
          const int32_t own = first + n * 8 + pair * 2 + c;
          if (row == 0 && own < seen) a.scores[slot * a.stride + own] = sum * a.shape.scale;
        }
      }
    }
  }
}

// ---- scores of blocks ----

constexpr int kBlockThreads = 128;
constexpr int kTokensOfBlock = 8;  // tokens that a CTA multiplies by the same positions

__device__ float larger(float a, float b) {
  return isnan(a) || a > b ? a : b;  // a NaN stays
}

// Any sizes and dtypes: a CTA takes a block of positions and some tokens, a thread a position.
__global__ void __launch_bounds__(kBlockThreads) score_blocks(SelectArgs a) {
  extern __shared__ float numbers[];  // queries of a token
  float* const queries = numbers;
  __shared__ float most[kBlockThreads / 32];
  const int64_t heads = a.shape.num_heads, dim = a.shape.head_dim;
  const int64_t groups = (a.tokens + kTokensOfBlock - 1) / kTokensOfBlock;
  for (int64_t b = blockIdx.x; b < groups * a.stride; b += gridDim.x) {
    const int64_t block = b % a.stride, first = b / a.stride * kTokensOfBlock;
    const int64_t end = min(a.tokens, first + kTokensOfBlock);
    for (int64_t slot = first; slot < end; ++slot) {
      const int64_t token = a.first_token + slot;
      const int32_t last = a.batch.positions[token];
      const int64_t own = last / a.shape.block;
      if (last < a.shape.top_k || block > own) continue;  // the same for all threads of a CTA
      float* const to = a.scores + slot * heads * a.stride + block;
      if (block > own - a.shape.local_blocks) {
        for (int64_t h = threadIdx.x; h < heads; h += kBlockThreads) to[h * a.stride] = INFINITY;
        continue;
      }
      __syncthreads();  // wait until the previous token's queries have been read
      for (int64_t i = threadIdx.x; i < heads * dim; i += kBlockThreads)
        queries[i] = load(a.q, token, i);
      const int32_t begin = static_cast<int32_t>(block * a.shape.block);
      const int32_t until = min(begin + static_cast<int32_t>(a.shape.block), last + 1);
      for (int64_t h = 0; h < heads; ++h) {
        __syncthreads();  // wait for the queries, and until the previous head has been reduced
        float best = -INFINITY;
        for (int32_t p = begin + static_cast<int32_t>(threadIdx.x); p < until; p += kBlockThreads) {
          const Matrix key = index_key(a, a.batch.sequences[token], p);
          float product = 0;
          for (int64_t d = 0; d < dim; ++d) product += queries[h * dim + d] * load(key, 0, d);
          best = larger(best, product);
        }
        for (int lanes = 16; lanes > 0; lanes /= 2)
          best = larger(best, __shfl_xor_sync(kAllLanes, best, lanes));
        if (threadIdx.x % 32 == 0) most[threadIdx.x / 32] = best;
        __syncthreads();
        if (threadIdx.x == 0) {
          for (int warp = 1; warp < kBlockThreads / 32; ++warp) best = larger(best, most[warp]);
          to[h * a.stride] = best;
        }
      }
    }
  }
}

// ---- top-k ----

constexpr int kSelectThreads = 1024, kBins = 2048, kScoresEach = 4;
static_assert(kBins == 2 * kSelectThreads, "a thread sums two bins");

__device__ uint32_t order_of(float score) {
  return static_cast<uint32_t>(top_k_key(score, 0) >> 32);
}

// The k-th largest order of a row of scores, and how many of those that tie are wanted.
struct Threshold {
  uint32_t order;
  int32_t ties;
};
__device__ Threshold find_threshold(const float* scores, int32_t count, int32_t k) {
  __shared__ int32_t bins[kBins], chosen, left;
  const int thread = static_cast<int>(threadIdx.x);
  Threshold found{0, k};
  int fixed = 32;  // bits from this one on are known
  for (int round = 0; round < 3; ++round) {
    const int shift = round == 0 ? 21 : round == 1 ? 10 : 0;
    __syncthreads();  // wait until the previous bins have been read
    for (int i = thread; i < kBins; i += kSelectThreads) bins[i] = 0;
    __syncthreads();
    const uint32_t mask = (1u << (fixed - shift)) - 1;
    for (int32_t i = thread; i < count; i += kSelectThreads) {
      const uint32_t order = order_of(scores[i]);
      const bool candidate = fixed == 32 || order >> fixed == found.order >> fixed;
      if (candidate) atomicAdd(&bins[order >> shift & mask], 1);
    }
    __syncthreads();
    // Threads sum the bins in descending order.
    const int bin = kBins - 1 - 2 * thread;
    const int32_t high = bins[bin], both = high + bins[bin - 1];
    const Rank rank = block_scan(both);
    if (rank.before < found.ties && found.ties <= rank.before + both) {
      const bool in_high = found.ties <= rank.before + high;
      chosen = in_high ? bin : bin - 1;
      left = found.ties - rank.before - (in_high ? 0 : high);
    }
    __syncthreads();
    found.order |= static_cast<uint32_t>(chosen) << shift;
    found.ties = left;
    fixed = shift;
  }
  return found;
}

// A CTA per row of scores. Positions are blocks of one position.
__global__ void __launch_bounds__(kSelectThreads) select_positions(SelectArgs a) {
  const auto block = static_cast<int32_t>(a.shape.block);
  const int32_t k = static_cast<int32_t>(a.shape.top_k) / block;
  for (int64_t slot = blockIdx.x; slot < a.tokens * a.rows; slot += gridDim.x) {
    const int64_t token = a.first_token + slot / a.rows;
    const int32_t position = a.batch.positions[token];
    const int32_t count = a.rate == 0 ? position / block + 1 : seen_from(a, position);
    if (count <= k) continue;
    const float* const scores = a.scores + slot * a.stride;
    const Threshold least = find_threshold(scores, count, k);
    int32_t* const to = a.selected + (token * a.rows + slot % a.rows) * k;
    int32_t above = 0, equal = 0;  // before this round
    for (int32_t from = 0; from < count; from += kSelectThreads * kScoresEach) {
      const int32_t first = from + static_cast<int32_t>(threadIdx.x) * kScoresEach;
      uint32_t orders[kScoresEach];
      int32_t own = 0;  // those above, and 2^16 times those that tie
#pragma unroll
      for (int i = 0; i < kScoresEach; ++i) {
        orders[i] = first + i < count ? order_of(scores[first + i]) : 0u;
        if (first + i >= count) continue;
        own += orders[i] > least.order ? 1 : orders[i] == least.order ? 1 << 16 : 0;
      }
      const Rank rank = block_scan(own);
      int32_t own_above = above + (rank.before & 0xffff), own_equal = equal + (rank.before >> 16);
#pragma unroll
      for (int i = 0; i < kScoresEach; ++i) {
        if (first + i >= count) continue;
        const int32_t place = own_above + min(own_equal, least.ties);
        if (orders[i] > least.order) {
          to[place] = first + i;
          ++own_above;
        } else if (orders[i] == least.order) {
          if (own_equal < least.ties) to[place] = first + i;
          ++own_equal;
        }
      }
      above += rank.total & 0xffff;
      equal += rank.total >> 16;
    }
  }
}

constexpr int64_t kMostShared = 12'000;  // floats of shared memory that every GPU has

Status refuse_heads(int64_t floats) {
  return Error{ErrorKind::kUnsupported, "", "indexer",
               str("heads of at most ", kMostShared, " columns together on cuda"),
               str("they have ", floats)};
}

constexpr int kMmaDim = 128;

bool uses_mma(const SelectArgs& a, const Queue& queue) {
  const bool aligned = reinterpret_cast<uintptr_t>(a.q.data) % 16 == 0 && a.q.stride % 8 == 0 &&
                       a.shape.cache.index_keys % 16 == 0;
  return queue.capability >= 80 && aligned && a.q.dtype == DType::kBF16 &&
         a.shape.cache.index_dtype == DType::kBF16 && a.shape.head_dim == kMmaDim &&
         a.shape.num_heads % 16 == 0 && a.shape.num_heads <= 128;
}

Status score(const SelectArgs& a, const Queue& queue, Stream stream) {
  const int64_t tiles = num_score_tiles(a);
  if (uses_mma(a, queue)) {
    const size_t bytes = static_cast<size_t>(a.shape.num_heads) * (kMmaDim / 2 + 5) * 4;
    return launch(queue, stream, "score_positions_mma", score_positions_mma<kMmaDim>, tiles,
                  kScoreThreads, bytes, a);
  }
  const int64_t floats = a.shape.num_heads * (a.shape.head_dim + 1);
  if (floats > kMostShared) return refuse_heads(floats);
  return launch(queue, stream, "score_positions_generic", score_positions_generic, tiles,
                kScoreThreads, static_cast<size_t>(floats) * sizeof(float), a);
}

// The tokens whose scores, so many of each, fit the scratch.
Result<int64_t> tokens_together(int64_t scores, int64_t longest) {
  const auto all = static_cast<int64_t>(select_scratch_bytes(DType::kBF16) / sizeof(float));
  if (scores <= all) return all / scores;
  return Error{ErrorKind::kUnsupported, "", "indexer",
               str("contexts of at most ", all, " scores of a token"),
               str("one has up to ", longest, " tokens")};
}

// The top-k of all tokens, as many at a time as the scratch has scores for. `args` has no stride.
Status select_of_all(SelectArgs args, const Queue& queue, Stream stream) {
  MORACLE_CHECK(check_floats({&args.q, &args.weights}));
  const int64_t longest = args.batch.longest, seen = args.rate == 0 ? longest : longest / args.rate;
  args.stride = std::max<int64_t>(1, (seen + kScoreTile - 1) / kScoreTile) * kScoreTile;
  MORACLE_TRY(const int64_t most, tokens_together(args.stride, longest));
  for (int64_t first = 0; first < args.q.rows; first += most) {
    args.first_token = first, args.tokens = std::min(most, args.q.rows - first);
    MORACLE_CHECK(score(args, queue, stream));
    MORACLE_CHECK(launch(queue, stream, "select_positions", select_positions, args.tokens,
                         kSelectThreads, 0, args));
  }
  return {};
}

}  // namespace
}  // namespace cuda

Status CudaOps::select_positions(const Matrix& q, const Matrix& weights, const Batch& batch,
                                 const IndexShape& shape, int32_t* selected, std::byte* scratch,
                                 Stream stream) {
  return cuda::select_of_all(
      {q, weights, batch, shape, selected, reinterpret_cast<float*>(scratch), 0, 0, 0}, queue_,
      stream);
}

Status CudaOps::select_entries(const Matrix& q, const Matrix& weights, const Batch& batch,
                               const EntryIndexShape& shape, int32_t* selected, std::byte* scratch,
                               Stream stream) {
  IndexShape of_entries{shape.num_heads, shape.head_dim, shape.top_k,
                        shape.scale,     shape.cache,    shape.batch_invariant};
  of_entries.cache.index_keys = shape.cache.entry_keys;
  cuda::SelectArgs args{q, weights, batch, of_entries, selected, reinterpret_cast<float*>(scratch),
                        0, 0,       0};
  args.rate = shape.rate;
  return cuda::select_of_all(args, queue_, stream);
}

Status CudaOps::select_blocks(const Matrix& q, const Batch& batch, const IndexShape& shape,
                              int32_t* selected, std::byte* scratch, Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&q}));
  const int64_t heads = shape.num_heads, floats = heads * shape.head_dim;
  if (floats > cuda::kMostShared) return cuda::refuse_heads(floats);
  const int64_t stride = (batch.longest + shape.block - 1) / shape.block;
  MORACLE_TRY(const int64_t most, cuda::tokens_together(heads * stride, batch.longest));
  for (int64_t first = 0; first < q.rows; first += most) {
    const cuda::SelectArgs args{q,      {},       batch,
                                shape,  selected, reinterpret_cast<float*>(scratch),
                                stride, first,    std::min(most, q.rows - first),
                                heads};
    const int64_t groups = (args.tokens + cuda::kTokensOfBlock - 1) / cuda::kTokensOfBlock;
    MORACLE_CHECK(cuda::launch(queue_, stream, "score_blocks", cuda::score_blocks, groups * stride,
                               cuda::kBlockThreads, static_cast<size_t>(floats) * sizeof(float),
                               args));
    MORACLE_CHECK(cuda::launch(queue_, stream, "select_positions", cuda::select_positions,
                               args.tokens * heads, cuda::kSelectThreads, 0, args));
  }
  return {};
}

}  // namespace moracle

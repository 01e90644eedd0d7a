// Sparse attention: tokens that see only selected positions, of any head sizes and dtypes. A CTA
// takes a split of a head's positions, with an online softmax; a second kernel merges the splits.
// Splits depend on the number of positions alone, so the bits do not depend on the batch
// (batch-invariant).
#include "kernels/cuda/attention/cached_rows.cuh"
#include "kernels/cuda/attention/split_kv.cuh"
#include "kernels/cuda/each_element.cuh"

namespace moracle::cuda {
namespace {

constexpr int32_t kSelectedStep = 128;   // positions between two updates of the softmax
constexpr int32_t kSelectedSplit = 512;  // positions of a split, unless there would be too many
static_assert(kThreads == kSelectedStep, "a thread for each score");

__host__ __device__ inline int32_t split_size(int64_t most_seen) {
  const auto size = static_cast<int32_t>((most_seen + kMaxSplits - 1) / kMaxSplits);
  const int32_t steps = (size + kSelectedStep - 1) / kSelectedStep * kSelectedStep;
  return steps > kSelectedSplit ? steps : kSelectedSplit;
}
// Positions that a token sees with a head of keys.
__device__ inline int32_t seen_by(const AttendArgs& a, int64_t token, int64_t kv_head) {
  const AttentionShape& shape = a.shape;
  const int32_t position = a.batch.positions[token];
  if (position < shape.first_selecting()) return position + 1;
  if (shape.block == 1) return static_cast<int32_t>(shape.top_k);
  const int64_t last = shape.selection_at(token, kv_head) + shape.top_k / shape.block - 1;
  return static_cast<int32_t>(shape.seen_of_selection(position, shape.selected[last]));
}
// One of these `seen` positions, of a token that selects. Divides 32-bit numbers.
__device__ inline int32_t selected_position(const AttentionShape& shape, const int32_t* entries,
                                            int32_t position, int32_t seen, int32_t at) {
  const auto block = static_cast<int32_t>(shape.block);
  // The positions behind the selected pools end with the token.
  if (at >= shape.top_k) return position + 1 - seen + at;
  return block == 1 ? entries[at] : entries[at / block] * block + at % block;
}

template <DType kCache>
__global__ void __launch_bounds__(kThreads) attend_selected(SplitArgs f) {
  extern __shared__ float scratch[];  // query, sums of values
  __shared__ struct { const std::byte *keys[kSelectedStep], *values[kSelectedStep]; } rows;
  __shared__ float scores[kSelectedStep];
  const AttendArgs& a = f.attend;
  const AttentionShape& shape = a.shape;
  const LayerCache& cache = shape.cache;
  float* const query = scratch;
  float* const acc = query + shape.head_dim;
  const int32_t size = split_size(shape.first_selecting()),
                thread = static_cast<int32_t>(threadIdx.x);
  for (int64_t b = blockIdx.x; b < f.tokens * shape.num_heads * f.splits; b += gridDim.x) {
    const int64_t split = b % f.splits, head = b / f.splits % shape.num_heads;
    const int64_t slot = b / f.splits / shape.num_heads, token = f.first_token + slot;
    const int64_t kv = head / heads_per_kv(shape);
    const int32_t seen = seen_by(a, token, kv), begin = static_cast<int32_t>(split) * size;
    if (begin >= seen) continue;
    const int32_t end = min(begin + size, seen), sequence = a.batch.sequences[token];
    // A token that does not select sees all positions up to its own.
    const int32_t own_position = a.batch.positions[token];
    const bool chosen = own_position >= shape.first_selecting();
    const int32_t* const entries = shape.selected + shape.selection_at(token, kv);
    __syncthreads();  // wait until the previous head's query has been read
    for (int64_t d = thread; d < shape.head_dim; d += kThreads)
      query[d] = load(a.q, token, head * shape.head_dim + d) * (shape.scale * kLog2E);
    for (int64_t d = thread; d < shape.value_dim; d += kThreads) acc[d] = 0;
    float largest = kMinusInfinity, sum = 0;
    for (int32_t from = begin; from < end; from += kSelectedStep) {
      const int32_t count = min(kSelectedStep, end - from);
      __syncthreads();  // wait until the previous scores have been used
      if (thread < count) {
        const int32_t at = from + thread;
        const int32_t position =
            chosen ? selected_position(shape, entries, own_position, seen, at) : at;
        const std::byte* const page = page_of(a.batch, sequence, position);
        const int64_t row = row_in_page(a.batch, kv, position) * cache_element(kCache);
        rows.keys[thread] = page + cache.keys + row * shape.head_dim;
        rows.values[thread] = page + cache.values + row * shape.value_dim;
      }
      __syncthreads();
      score_keys<kCache>(rows.keys, query, shape.head_dim, count, scores);
      __syncthreads();
      const float own = thread < count ? scores[thread] : kMinusInfinity;
      const float most = fmaxf(
          largest, block_reduce(own, kMinusInfinity, [](float x, float y) { return fmaxf(x, y); }));
      const float shrink = exp2f(largest - most);
      const float weight = thread < count ? exp2f(own - most) : 0.0f;
      sum = sum * shrink + block_sum(weight);
      if (thread < count) scores[thread] = weight;
      largest = most;
      __syncthreads();
      for (int64_t d = thread; d < shape.value_dim; d += kThreads) {
        float value = acc[d] * shrink;
#pragma unroll 8
        for (int32_t j = 0; j < count; ++j)
          value += scores[j] * load_one<kCache>(rows.values[j], d);
        acc[d] = value;
      }
    }
    const SplitResults to = results_of(f, slot, head, split);
    for (int64_t d = thread; d < shape.value_dim; d += kThreads) to.values[d] = acc[d];
    if (thread == 0) to.states[0] = largest, to.states[1] = sum;
  }
}

// A CTA per head of a token.
__global__ void __launch_bounds__(kThreads) merge_selected(SplitArgs f) {
  __shared__ float shrinks[kMaxSplits], factor;
  const AttendArgs& a = f.attend;
  const AttentionShape& shape = a.shape;
  const int32_t size = split_size(shape.first_selecting());
  for (int64_t b = blockIdx.x; b < f.tokens * shape.num_heads; b += gridDim.x) {
    const int64_t slot = b / shape.num_heads, head = b % shape.num_heads;
    const int64_t token = f.first_token + slot;
    const int count = (seen_by(a, token, head / heads_per_kv(shape)) + size - 1) / size;
    const SplitResults results = results_of(f, slot, head, 0);
    __syncthreads();  // wait until the previous iteration has been used
    if (threadIdx.x < 32) {
      const SplitState own = rescale_splits(results, count, shrinks);
      const WithSink all = with_sink(shape, head, own.reference, own.sum);
      if (threadIdx.x == 0) factor = all.shrink / all.sum;
    }
    __syncthreads();
    for (int64_t d = threadIdx.x; d < shape.value_dim; d += kThreads) {
      float value = 0;
      for (int p = 0; p < count; ++p) value += results.values[p * shape.value_dim + d] * shrinks[p];
      store(a.out, token, head * shape.value_dim + d, value * factor);
    }
  }
}

}  // namespace

Status launch_selected(const AttendArgs& args, const Queue& queue, Stream stream) {
  constexpr int64_t kMost = 8'000;  // floats of shared memory beside the rows and scores
  const AttentionShape& shape = args.shape;
  const int64_t floats = shape.head_dim + shape.value_dim;
  if (floats > kMost)
    return Error{ErrorKind::kUnsupported, "", "attention",
                 str("heads of at most ", kMost, " columns on cuda"),
                 str("they have ", shape.head_dim, " and ", shape.value_dim)};
  const int64_t size = split_size(shape.first_selecting());
  const int64_t splits = (shape.most_seen(args.batch.longest) + size - 1) / size;
  // As many tokens at a time as the scratch has splits for.
  const auto all = static_cast<int64_t>(attend_scratch_bytes(shape, args.q.rows, DType::kBF16));
  const int64_t together = all / result_bytes(shape, splits);
  const auto kernel = [&] {
    switch (shape.cache.dtype) {
      case DType::kF32:
        return attend_selected<DType::kF32>;
      case DType::kBF16:
        return attend_selected<DType::kBF16>;
      case DType::kF8E4M3:
        return attend_selected<DType::kF8E4M3>;
      default:
        return attend_selected<DType::kF16>;
    }
  }();
  for (int64_t first = 0; first < args.q.rows; first += together) {
    const SplitArgs some{args, first, std::min(together, args.q.rows - first), splits};
    MORACLE_CHECK(launch(queue, stream, "attend_selected", kernel,
                         some.tokens * shape.num_heads * splits, kThreads,
                         static_cast<size_t>(floats) * sizeof(float), some));
    MORACLE_CHECK(launch(queue, stream, "merge_selected", merge_selected,
                         some.tokens * shape.num_heads, kThreads, 0, some));
  }
  return {};
}

}  // namespace moracle::cuda

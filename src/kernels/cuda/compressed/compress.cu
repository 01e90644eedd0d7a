// Entries of compressed attention. A CTA per token: if the token completes an entry, the CTA sums
// it, a thread per column, and then applies the norm and RoPE in shared memory. The CTAs of the
// last tokens of a sequence also write its new state.
#include "base/text.h"
#include "kernels/cuda/attention/pages.cuh"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/each_element.cuh"
#include "kernels/cuda/keep.cuh"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ptx/pdl.cuh"

namespace moracle {
namespace cuda {
namespace {

constexpr int kCompressThreads = 256;

struct CompressArgs {
  Matrix rows;
  CompressWeights weights;
  CompressShape shape;
  Batch batch;
  DeviceErrorCell* device_error;
};

// The tokens of a sequence: those of the step in `rows`, earlier ones in the state.
struct SequenceRows {
  const CompressArgs& a;
  int64_t first, count;  // of the step
  int64_t position;      // of the step's first token
  const float* before;
  float* after;

  __device__ SequenceRows(const CompressArgs& args, int32_t sequence) : a(args) {
    const Batch& batch = args.batch;
    first = batch.first_token[sequence];
    count = batch.first_token[sequence + 1] - first;
    position = batch.positions[first];
    const std::byte* const state = batch.states[2 * sequence];
    before = state == nullptr ? nullptr : reinterpret_cast<const float*>(state + args.shape.state);
    after = reinterpret_cast<float*>(batch.states[2 * sequence + 1] + args.shape.state);
  }
  __device__ int64_t slot(int64_t p) const { return p % a.shape.rows() * a.shape.row_size(); }
  __device__ float at(int64_t p, int64_t c) const {
    return p >= position ? load(a.rows, first + p - position, c) : before[slot(p) + c];
  }
};

// Σ softmax(gate + bias) · value of one column of an entry.
__device__ float sum_column(const SequenceRows& rows, int64_t entry, int64_t c) {
  const CompressShape& shape = rows.a.shape;
  const float* const bias = rows.a.weights.bias;
  const int64_t begin = entry * shape.rate, columns = shape.columns();
  const auto series = [&](int64_t first, int64_t column, const auto& work) {
#pragma unroll 4
    for (int64_t j = 0; j < shape.rate; ++j)
      work(first + j, column, rows.at(first + j, columns + column) + bias[j * columns + column]);
  };
  const auto each_row = [&](const auto& work) {
    if (shape.overlap && begin >= shape.rate) series(begin - shape.rate, c, work);
    series(begin, shape.overlap ? shape.dim + c : c, work);
  };
  float largest = __int_as_float(0xff800000), sum = 0, out = 0;
  each_row([&](int64_t, int64_t, float gate) { largest = fmaxf(largest, gate); });
  each_row([&](int64_t p, int64_t column, float gate) {
    const float weight = expf(gate - largest);
    sum += weight;
    out += weight * rows.at(p, column);
  });
  return out / sum;
}

// The mean of one column.
__device__ float average_column(const SequenceRows& rows, int64_t entry, int64_t c) {
  const int64_t rate = rows.a.shape.rate;
  float sum = 0;
#pragma unroll 4
  for (int64_t j = 0; j < rate; ++j) sum += rows.at(entry * rate + j, c);
  return sum / static_cast<float>(rate);
}

// Keeps the last rows() tokens of a sequence. The first token of a short step also copies the rows
// that no token of the step replaces.
__device__ void write_state(const SequenceRows& rows, int64_t token) {
  const int64_t size = rows.a.shape.row_size(), kept = rows.a.shape.rows(),
                number = token - rows.first;
  if (rows.count - number <= kept) {
    float* const to = rows.after + rows.slot(rows.position + number);
    for (int64_t c = threadIdx.x; c < size; c += kCompressThreads)
      to[c] = load(rows.a.rows, token, c);
  }
  if (number > 0 || rows.before == nullptr) return;
  for (int64_t j = rows.count; j < kept; ++j) {
    const int64_t at = rows.slot(rows.position + j);
    for (int64_t c = threadIdx.x; c < size; c += kCompressThreads)
      rows.after[at + c] = rows.before[at + c];
  }
}

__device__ void norm_and_rotate(const CompressArgs& a, float* entry, int64_t position) {
  const CompressShape& shape = a.shape;
  const RotaryShape& rotary = shape.rotary;
  if (a.weights.norm != nullptr) {
    float squares = 0;
    for (int64_t c = threadIdx.x; c < shape.dim; c += kCompressThreads)
      squares += entry[c] * entry[c];
    const float mean = block_sum(squares) / static_cast<float>(shape.dim);
    const float scale = 1.0f / sqrtf(mean + shape.epsilon);
    for (int64_t c = threadIdx.x; c < shape.dim; c += kCompressThreads)
      entry[c] *= scale * a.weights.norm[c];
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < rotary.num_pairs; i += kCompressThreads) {
    float* const first = entry + rotary.first + (rotary.interleaved ? 2 * i : i);
    float* const second = first + (rotary.interleaved ? 1 : rotary.num_pairs);
    float sine, cosine;
    sincosf(static_cast<float>(position) * a.weights.frequencies[i], &sine, &cosine);
    sine *= rotary.factor, cosine *= rotary.factor;
    const float x = *first, y = *second;
    *first = x * cosine - y * sine;
    *second = y * cosine + x * sine;
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kCompressThreads) compress(const CompressArgs a) {
  pdl_wait();
  pdl_launch_dependents();
  extern __shared__ float entry[];  // [dim]
  const CompressShape& shape = a.shape;
  const LayerCache& cache = shape.cache;
  for (int64_t token = blockIdx.x; token < a.batch.num_tokens; token += gridDim.x) {
    const int32_t sequence = a.batch.sequences[token], position = a.batch.positions[token];
    const SequenceRows rows(a, sequence);
    write_state(rows, token);
    const auto rate = static_cast<int32_t>(shape.rate);
    if ((position + 1) % rate != 0) continue;  // the same for all threads of a CTA
    const int32_t number = position / rate;
    __syncthreads();  // wait until the previous entry has been stored
    for (int64_t c = threadIdx.x; c < shape.dim; c += kCompressThreads)
      entry[c] = shape.average ? average_column(rows, number, c) : sum_column(rows, number, c);
    norm_and_rotate(a, entry, int64_t{number} * rate);
    const EntryPlace place = entry_place(number, shape.rate, a.batch.page);
    std::byte* const page = a.batch.pages[a.batch.first_page[sequence] + place.page];
    std::byte* const to = page + (shape.index_keys ? cache.entry_keys : cache.entries);
    const DType dtype = shape.index_keys ? cache.index_dtype : cache.dtype;
    for (int64_t c = threadIdx.x; c < shape.dim; c += kCompressThreads)
      keep(to, dtype, place.row * shape.dim + c, entry[c], token, a.device_error);
  }
}

}  // namespace
}  // namespace cuda

Status CudaOps::compress(const Matrix& rows, const CompressWeights& weights,
                         const CompressShape& shape, const Batch& batch, Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&rows}));
  constexpr int64_t kMost = 12'000;  // floats of shared memory that every GPU has
  if (shape.dim > kMost) {
    return Error{ErrorKind::kUnsupported, "", "compressed attention",
                 str("entries of at most ", kMost, " columns on cuda"),
                 str("they have ", shape.dim)};
  }
  DeviceErrorCell* const device_error = device_errors_.cell(DeviceErrorKind::kKvCache);
  return cuda::launch_early(queue_, stream, "compress", cuda::compress, batch.num_tokens,
                            cuda::kCompressThreads, static_cast<size_t>(shape.dim) * sizeof(float),
                            cuda::CompressArgs{rows, weights, shape, batch, device_error});
}

}  // namespace moracle

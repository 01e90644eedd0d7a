// Backend "cuda-reference": multiplies every scheme from canonical weights, without tensor cores.
// It runs on any GPU from compute capability 7.5 on. A CTA dequantizes tiles of kCols rows of one
// expert's matrix into shared memory, and multiplies them by kRows rows of activations.
//
//   int8 activations, integer or fp4 weights   exact i32 sums of each group: Σ (sum · s_x) · s;
//   without minimums
//   everything else                            Σ x · ((code - zero) · scale - minimum) in f32
//
// Each sum accumulates the columns in order, independent of the neighbouring rows. Results are
// always deterministic.
#include "kernels/cuda/cuda_makers.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/each_element.cuh"
#include "kernels/cuda/weight_codes.cuh"
#include "kernels/integer_sums.h"
#include "kernels/kernel_watch.h"
#include "quant/activation.h"

namespace moracle {
namespace cuda {
namespace {

constexpr int kRows = 16, kCols = 64, kDepth = 32;  // tile size: activation rows, outputs, columns
constexpr int kThreads = 128;
// A thread accumulates rows r + 8 i and outputs c + 16 j of the tile.
constexpr int kOwnRows = 2, kOwnCols = 4, kRowStep = kRows / kOwnRows, kColStep = kCols / kOwnCols;
static_assert(kRowStep * kColStep == kThreads);

struct LinearArgs {
  // Weights of expert e begin at base + e · expert_bytes.
  const uint8_t* base;
  int64_t num_experts, expert_bytes, row_bytes;
  Sections sections;
  MatrixShape shape;
  int64_t group_rows, group_cols, scale_cols;
  // Activations; x_group_cols of their columns share a scale.
  GroupedRows rows;
  int64_t x_group_cols;
  Matrix y;
  int64_t strips;  // CTAs that share an expert's row tiles round-robin
};

// One expert's matrix.
struct Expert {
  const LinearArgs& a;
  const uint8_t* base;

  template <class T>
  __device__ const T* section(size_t at) const {
    return reinterpret_cast<const T*>(base + at);
  }
  __device__ const uint8_t* row(int64_t n) const {
    return base + a.sections.codes + n * a.row_bytes;
  }
  __device__ int64_t group(int64_t k) const {
    if (a.shape.group_index) return section<int32_t>(a.sections.group_index)[k];
    return static_cast<uint32_t>(k) / static_cast<uint32_t>(a.group_cols);
  }
  __device__ int64_t index(int64_t n, int64_t g) const {
    return n / a.group_rows * a.scale_cols + g;
  }
  __device__ float scale(int64_t n, int64_t g) const {
    return section<float>(a.sections.scales)[index(n, g)];
  }
  __device__ int32_t zero_point(int64_t n, int64_t g) const {
    return a.shape.key.symmetric ? 0 : section<int8_t>(a.sections.zero_points)[index(n, g)];
  }
  __device__ float minimum(int64_t n, int64_t g) const {
    return a.shape.key.minimums ? section<float>(a.sections.minimums)[index(n, g)] : 0.0f;
  }
};

template <DType kType, bool kWhole>
__device__ auto weight(const Expert& w, int64_t n, int64_t k) {
  using Code = WeightCode<kType>;
  if constexpr (kWhole) {
    return Code::whole(w.row(n), k) - w.zero_point(n, w.group(k));
  } else if constexpr (QuantKey{kType}.quantized()) {
    const int64_t g = w.group(k);
    const float code = Code::decode(w.row(n), k) - static_cast<float>(w.zero_point(n, g));
    return code * w.scale(n, g) - w.minimum(n, g);
  } else {
    return Code::decode(w.row(n), k);
  }
}

template <bool kWhole>
__device__ auto activation(const LinearArgs& a, int64_t source, int64_t k) {
  const Rows& x = a.rows.x;
  const int64_t at = source * x.values.stride + k;
  if constexpr (kWhole) {
    return static_cast<int32_t>(static_cast<const int8_t*>(x.values.data)[at]);
  } else {
    const bool bytes = x.values.dtype == DType::kI8 || x.values.dtype == DType::kF8E4M3;
    if (!bytes) return load(x.values, source, k);
    const uint8_t code = static_cast<const uint8_t*>(x.values.data)[at];
    const float value = x.values.dtype == DType::kI8 ? static_cast<float>(static_cast<int8_t>(code))
                                                     : e4m3_to_float(code);
    const int64_t group = static_cast<uint32_t>(k) / static_cast<uint32_t>(a.x_group_cols);
    return value * x.scales[source * x.num_scales + group];
  }
}

// Accumulators of one thread. close() scales them and adds them to `result`: integer sums at the
// end of each group, float sums at the end of the row.
template <DType kType, bool kWhole>
struct Sums {
  using Value = std::conditional_t<kWhole, int32_t, float>;
  float result[kOwnRows][kOwnCols] = {};
  Value sum[kOwnRows][kOwnCols] = {};

  __device__ void close(const Expert& w, int64_t first_col, int64_t g,
                        const float (&row_scale)[kOwnRows]) {
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
#pragma unroll
      for (int j = 0; j < kOwnCols; ++j) {
        if constexpr (kWhole) {
          const int64_t n = min(first_col + j * kColStep, w.a.shape.n - 1);
          const float whole = static_cast<float>(sum[i][j]) * WeightCode<kType>::kUnit;
          result[i][j] += whole * row_scale[i] * w.scale(n, g);
        } else {
          result[i][j] += sum[i][j];
        }
        sum[i][j] = 0;
      }
    }
  }
};

// Computes rows [first_row, end) of y, at most kRows, for outputs from first_col on.
template <DType kType, bool kWhole>
__device__ void multiply_tile(const Expert& w, int64_t first_row, int64_t end, int64_t first_col) {
  using Value = typename Sums<kType, kWhole>::Value;
  // Pad each row by one column to avoid bank conflicts: threads read the same column of
  // neighbouring rows.
  __shared__ Value x_tile[kRows][kDepth + 1], w_tile[kCols][kDepth + 1];
  __shared__ int64_t sources[kRows];
  const LinearArgs& a = w.a;
  const int thread = static_cast<int>(threadIdx.x), r = thread / kColStep, c = thread % kColStep;
  const int64_t n_end = a.shape.n, k_end = a.shape.k;

  __syncthreads();  // wait until the previous tile has been read
  if (thread < kRows) {
    const int64_t row = first_row + thread;
    sources[thread] = row >= end ? -1 : (a.rows.row_index != nullptr ? a.rows.row_index[row] : row);
  }
  __syncthreads();
  float row_scale[kOwnRows] = {};
  if constexpr (kWhole) {
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const int64_t source = sources[r + i * kRowStep];
      if (source >= 0) row_scale[i] = a.rows.x.scales[source * a.rows.x.num_scales];
    }
  }
  Sums<kType, kWhole> sums;
  int64_t group = 0, group_end = kWhole ? a.group_cols : k_end;
  for (int64_t k = 0; k < k_end; k += kDepth) {
    if (k > 0) __syncthreads();
    for (int i = thread; i < kCols * kDepth; i += kThreads) {
      const int64_t n = first_col + i / kDepth, column = k + i % kDepth;
      const bool there = n < n_end && column < k_end;
      w_tile[i / kDepth][i % kDepth] = there ? weight<kType, kWhole>(w, n, column) : Value{};
    }
    for (int i = thread; i < kRows * kDepth; i += kThreads) {
      const int64_t source = sources[i / kDepth], column = k + i % kDepth;
      const bool there = source >= 0 && column < k_end;
      x_tile[i / kDepth][i % kDepth] = there ? activation<kWhole>(a, source, column) : Value{};
    }
    __syncthreads();
    for (int depth = 0; depth < kDepth; ++depth) {
      if (kWhole && k + depth == group_end) {
        sums.close(w, first_col + c, group++, row_scale);
        group_end += a.group_cols;
        if (group_end > k_end) group_end = k_end;  // columns past the end are 0
      }
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) {
#pragma unroll
        for (int j = 0; j < kOwnCols; ++j)
          sums.sum[i][j] += x_tile[r + i * kRowStep][depth] * w_tile[c + j * kColStep][depth];
      }
      if (kWhole && k + depth + 1 == k_end) break;
    }
  }
  if (k_end > 0) sums.close(w, first_col + c, group, row_scale);
  const auto* const bias = w.section<float>(a.sections.bias);
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
#pragma unroll
    for (int j = 0; j < kOwnCols; ++j) {
      const int64_t row = first_row + r + i * kRowStep, n = first_col + c + j * kColStep;
      if (row < end && n < n_end)
        store(a.y, row, n, sums.result[i][j] + (a.shape.bias ? bias[n] : 0.0f));
    }
  }
}

template <DType kType, bool kWhole>
__global__ void __launch_bounds__(kThreads) grouped_linear(LinearArgs a) {
  const int64_t col_tiles = (a.shape.n + kCols - 1) / kCols;
  for (int64_t b = blockIdx.x; b < col_tiles * a.strips * a.num_experts; b += gridDim.x) {
    const int64_t e = b / (col_tiles * a.strips), strip = b / col_tiles % a.strips;
    const int64_t first_col = b % col_tiles * kCols;
    const int32_t* const offsets = a.rows.expert_offsets;
    const int64_t begin = offsets != nullptr ? offsets[e] : 0;
    const int64_t end =
        offsets != nullptr ? min(int64_t{offsets[e + 1]}, a.rows.num_rows) : a.rows.num_rows;
    const Expert w{a, a.base + e * a.expert_bytes};
    for (int64_t row = begin + strip * kRows; row < end; row += a.strips * kRows)
      multiply_tile<kType, kWhole>(w, row, min(row + kRows, end), first_col);
  }
}

using Kernel = void (*)(LinearArgs);
Kernel kernel_for(const MatrixShape& shape, const Scheme& scheme) {
  const bool whole = sums_integers(shape, scheme);
  switch (shape.key.dtype) {
    case DType::kBF16:
      return grouped_linear<DType::kBF16, false>;
    case DType::kF16:
      return grouped_linear<DType::kF16, false>;
    case DType::kF32:
      return grouped_linear<DType::kF32, false>;
    case DType::kF8E4M3:
      return grouped_linear<DType::kF8E4M3, false>;
    case DType::kI8:
      return whole ? grouped_linear<DType::kI8, true> : grouped_linear<DType::kI8, false>;
    case DType::kI4:
      return whole ? grouped_linear<DType::kI4, true> : grouped_linear<DType::kI4, false>;
    case DType::kF4E2M1:
      return whole ? grouped_linear<DType::kF4E2M1, true> : grouped_linear<DType::kF4E2M1, false>;
    default:
      return nullptr;
  }
}

class CudaReferenceLinear : public LinearKernel {
 public:
  CudaReferenceLinear(const KernelWeights& weights, const PlannedKernel& planned,
                      const Queue& queue)
      : weights_(weights), form_(planned.form), queue_(queue) {}

  Status run(const LinearCall& call, Stream stream) override {
    const GroupedRows& rows = *call.from<GroupedRows>();
    const Matrix& y = call.out;
    MORACLE_CHECK(check_floats({&y}));
    const MatrixShape& shape = weights_.shape;
    const std::optional<QuantKey>& key = weights_.scheme.activation;
    if (!key) MORACLE_CHECK(check_floats({&rows.x.values}));
    CanonicalMatrix outline;
    outline.n = shape.n, outline.k = shape.k, outline.key = shape.key;
    const int64_t row_tiles = (rows.num_rows + kRows - 1) / kRows;
    const int64_t blocks = (shape.n + kCols - 1) / kCols * weights_.num_experts;
    // Enough CTAs to fill a large GPU, with few rows for many experts or many rows for one.
    constexpr int64_t kWanted = 4096;
    const int64_t strips = std::clamp<int64_t>(kWanted / std::max<int64_t>(blocks, 1), 1,
                                               std::max<int64_t>(row_tiles, 1));
    const bool quantized = shape.key.quantized();
    const LinearArgs args{weights_.buffer.as<uint8_t>(),
                          weights_.num_experts,
                          static_cast<int64_t>(weights_.sections.bytes),
                          outline.row_bytes(),
                          weights_.sections,
                          shape,
                          shape.key.group.rows == GroupShape::kAll ? shape.n : shape.key.group.rows,
                          std::max<int64_t>(outline.group_cols(), 1),
                          quantized ? outline.scale_cols() : 0,
                          rows,
                          std::max<int64_t>(key ? group_cols(*key, shape.k) : 1, 1),
                          y,
                          strips};
    if (rows.num_rows == 0) return {};
    if (kernels_are_watched()) report({name(form_), shape});
    return launch(queue_, stream, "cuda_reference", kernel_for(shape, weights_.scheme),
                  blocks * strips, kThreads, 0, args);
  }

 private:
  const KernelWeights& weights_;
  const KernelForm form_;
  const Queue& queue_;  // owned by the device, which outlives its layers
};

}  // namespace

Result<std::unique_ptr<GroupedLinear>> make_reference(KernelWeights&& weights,
                                                      const KernelPlan& plan, Device& device) {
  auto* gpu = dynamic_cast<CudaDevice*>(&device);
  if (gpu == nullptr) {
    return Error{ErrorKind::kInvalidArgument, "", "backend cuda-reference", "a cuda device",
                 "it is " + device.name()};
  }
  // Load the kernel now: a failure is reported here, and graph capture could not load it.
  MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(gpu->queue().index));
  cudaFuncAttributes attributes{};
  MORACLE_CUDA(cudaFuncGetAttributes(
      &attributes, reinterpret_cast<const void*>(kernel_for(weights.shape, weights.scheme))));
  auto linear = std::make_unique<GroupedLinear>(std::move(weights));
  linear->add<CudaReferenceLinear>(plan.kernels.front(), gpu->queue());
  return Result<std::unique_ptr<GroupedLinear>>(std::move(linear));
}

}  // namespace cuda
}  // namespace moracle

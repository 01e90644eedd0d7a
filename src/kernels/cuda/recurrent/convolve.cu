#include "kernels/cuda/recurrent/convolve.cuh"

#include <algorithm>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/each_element.cuh"
#include "kernels/cuda/ops/norm_rows.cuh"
#include "kernels/cuda/ptx/pdl.cuh"

namespace moracle::cuda {
namespace {

// The quotient is exact to 2 units in the last place of f32. An exact division takes most of the
// kernel's instructions.
__device__ float silu(float x) {
  return __fdividef(x, expf(-x) + 1.0f);
}

// One column of one token.
struct ConvolveElement {
  ConvolveArgs a;
  __device__ void operator()(int64_t r, int64_t c) const {
    const int32_t sequence = a.batch.sequences[r];
    const int64_t first = a.batch.first_token[sequence], t = r - first;
    const int64_t count = a.batch.first_token[sequence + 1] - first;
    const int64_t apart = a.shape.dilation, past = (a.shape.kernel - 1) * apart;  // rows
    const int64_t from = a.shape.split.from(c), cols = a.out.cols;
    const float* const before = a.state_before(sequence);
    const auto row = [&](int64_t at) {
      if (at >= 0) return load(a.x, first + at, from);
      return before != nullptr ? before[(past + at) * cols + c] : 0.0f;
    };
    float sum = a.shape.bias != nullptr ? a.shape.bias[c] : 0.0f;
    for (int64_t j = 0; j < a.shape.kernel; ++j)
      sum += a.weight[j * cols + c] * row(t - past + j * apart);
    store(a.out, r, c, a.shape.silu ? silu(sum) : sum);
    float* const after = a.state_after(sequence);
    // Row i of the new state is the step's row count - past + i. The first token keeps older rows.
    if (count - t <= past) after[(past - (count - t)) * cols + c] = row(t);
    for (int64_t i = 0; t == 0 && i < past - count; ++i)
      after[i * cols + c] = row(count - past + i);
  }
};

struct EightFloats {
  float values[8];

  __device__ static EightFloats of(const float* from) {
    const float4 low = *reinterpret_cast<const float4*>(from),
                 high = *reinterpret_cast<const float4*>(from + 4);
    return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
  }
  __device__ static EightFloats of(const Eight& bits) {
    EightFloats to;
#pragma unroll
    for (int i = 0; i < 8; ++i) to.values[i] = bits[i];
    return to;
  }
  __device__ void keep(float* to) const {
    reinterpret_cast<float4*>(to)[0] = {values[0], values[1], values[2], values[3]};
    reinterpret_cast<float4*>(to)[1] = {values[4], values[5], values[6], values[7]};
  }
};

constexpr int kThreads = 128, kRowsAtOnce = 4;

// The last rows of eight columns, oldest first.
template <int kTaps>
struct ConvolveWindow {
  EightFloats rows[kTaps];

  // Fills the rows before row r of the step: rows of the sequence from `first` on, then those of
  // its state. The last entry stays free for row r.
  __device__ void start(const ConvolveArgs& a, const uint16_t* x, int64_t c, int32_t sequence,
                        int64_t first, int64_t r) {
    const float* const before = a.state_before(sequence);
#pragma unroll
    for (int j = 1; j < kTaps; ++j) {
      const int64_t at = r - kTaps + j;
      rows[j] = EightFloats{};
      if (at >= first)
        rows[j] = EightFloats::of(Eight{*reinterpret_cast<const uint4*>(x + at * a.x.stride)});
      else if (before != nullptr)
        rows[j] = EightFloats::of(before + (kTaps - 1 + at - first) * a.out.cols + c);
    }
  }
  __device__ void add(const Eight& row) {
#pragma unroll
    for (int j = 0; j < kTaps - 1; ++j) rows[j] = rows[j + 1];
    rows[kTaps - 1] = EightFloats::of(row);
  }
  __device__ Eight sums(const EightFloats (&weight)[kTaps], const EightFloats& bias,
                        bool with_silu) const {
    float sums[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i] = bias.values[i];
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[i] += weight[j].values[i] * rows[j].values[i];
    }
    if (with_silu) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[i] = silu(sums[i]);
    }
    return eight_of(sums);
  }
  __device__ void keep(float* after, int64_t cols) const {
#pragma unroll
    for (int j = 1; j < kTaps; ++j) rows[j].keep(after + (j - 1) * cols);
  }
};

// A thread goes through `tile` tokens with eight columns. It loads several rows at once, and keeps
// the last ones in registers.
template <int kTaps>
__global__ void __launch_bounds__(kThreads) convolve_rows(const ConvolveArgs a, int tile) {
  pdl_wait();
  pdl_launch_dependents();
  const int64_t cols = a.out.cols;
  const auto blocks = static_cast<unsigned>((cols / 8 + kThreads - 1) / kThreads),
             tiles = static_cast<unsigned>((a.x.rows + tile - 1) / tile);
  for (unsigned b = blockIdx.x; b < tiles * blocks; b += gridDim.x) {
    const int64_t c = (b % blocks * kThreads + threadIdx.x) * 8;
    if (c >= cols) continue;
    const int64_t begin = int64_t{b / blocks} * tile, end = min(a.x.rows, begin + tile);
    const auto* const x = static_cast<const uint16_t*>(a.x.data) + a.shape.split.from(c);
    EightFloats weight[kTaps];
#pragma unroll
    for (int j = 0; j < kTaps; ++j) weight[j] = EightFloats::of(a.weight + j * cols + c);
    EightFloats bias{};
    if (a.shape.bias != nullptr) bias = EightFloats::of(a.shape.bias + c);
    ConvolveWindow<kTaps> window;
    int32_t sequence = -1;
    int64_t first = 0, last = 0;
    for (int64_t row = begin; row < end; row += kRowsAtOnce) {
      Eight bits[kRowsAtOnce];
      int32_t sequences[kRowsAtOnce];
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        if (row + i >= end) break;
        bits[i].bits = *reinterpret_cast<const uint4*>(x + (row + i) * a.x.stride);
        sequences[i] = a.batch.sequences[row + i];
      }
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        const int64_t r = row + i;
        if (r >= end) break;
        if (sequences[i] != sequence) {
          sequence = sequences[i];
          first = a.batch.first_token[sequence], last = a.batch.first_token[sequence + 1];
          window.start(a, x, c, sequence, first, r);
        }
        window.add(bits[i]);
        eights(a.out, r)[c / 8] = window.sums(weight, bias, a.shape.silu);
        // The window holds the last rows of the step, and older ones if the step has fewer.
        if (r + 1 == last) window.keep(a.state_after(sequence) + c, cols);
      }
    }
  }
}

}  // namespace

bool convolves_eights(const ConvolveArgs& a) {
  const auto fits = [](const Matrix& m) {
    return m.dtype == DType::kBF16 && m.stride % 8 == 0 &&
           reinterpret_cast<uintptr_t>(m.data) % 16 == 0;
  };
  const HeadSplit& split = a.shape.split;
  return fits(a.x) && fits(a.out) && a.out.cols % 8 == 0 && a.shape.state % 16 == 0 &&
         reinterpret_cast<uintptr_t>(a.weight) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(a.shape.bias) % 16 == 0 && a.shape.kernel >= 2 &&
         a.shape.kernel <= 4 && a.shape.dilation == 1 && split.head_dim % 8 == 0 &&
         std::all_of(split.sizes, split.sizes + 3, [](int64_t size) { return size % 8 == 0; });
}

Status convolve_eights(const ConvolveArgs& args, const Queue& queue, Stream stream) {
  constexpr int64_t kMostTile = 16;
  const int64_t blocks = (args.out.cols / 8 + kThreads - 1) / kThreads;
  // Enough blocks for every SM, then longer tiles: each reads kernel - 1 rows twice.
  const int64_t tile =
      std::clamp<int64_t>(args.x.rows * blocks / (4 * std::max(queue.num_sms, 1)), 1, kMostTile);
  const auto kernel = args.shape.kernel == 4   ? convolve_rows<4>
                      : args.shape.kernel == 3 ? convolve_rows<3>
                                               : convolve_rows<2>;
  return launch_early(queue, stream, "convolve", kernel, (args.x.rows + tile - 1) / tile * blocks,
                      kThreads, 0, args, static_cast<int>(tile));
}

Status convolve_simply(const ConvolveArgs& args, const Queue& queue, Stream stream) {
  return launch_elements(queue, stream, "convolve", args.x.rows, args.out.cols,
                         ConvolveElement{args});
}

}  // namespace moracle::cuda

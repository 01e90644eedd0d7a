// Layout vnni16 to layout mma16. Both have panels of 16 rows, and both order their codes in words
// of 32 bits, each of one row and consecutive columns. A word therefore moves as a whole; only
// nibbles change places within it.
#include "kernels/cuda/staging/repack.h"

#include "base/scalar.h"
#include "kernels/cuda/device/launch.cuh"
#include "layout/mma16.h"
#include "layout/vnni16.h"
#include "quant/e4m3_scales.h"

namespace moracle::cuda {
namespace {

struct Packed {
  const std::byte* from;  // a whole expert; the others follow
  std::byte* to[kTransferExperts];
  Sections from_at, to_at;
  MatrixShape shape;  // as vnni16 packs it
  int64_t panels, panel_bytes;
  int64_t groups, group_cols;
  int64_t step_bytes, factor_bytes;  // vnni16: of a panel
  float factor_unit;
  int lanes;  // of scales in vnni16
  bool quantized, exponents, row_factors, steps, zero_points;
};

// The expert of a block of threads.
struct Expert {
  const std::byte* from;
  std::byte* to;
};
__device__ Expert expert_of_block(const Packed& p) {
  return {p.from + blockIdx.y * p.from_at.bytes, p.to[blockIdx.y]};
}

__device__ uint32_t load_word(const std::byte* at) {
  return *reinterpret_cast<const uint32_t*>(at);
}
__device__ void store_code_word(const Packed& p, std::byte* to, int bits, int64_t row, int64_t c,
                                uint32_t word) {
  reinterpret_cast<uint32_t*>(to)[mma16::code_bit(bits, p.shape.k, row, c) / 32] = word;
}

// Eight 4-bit columns: column j from bit 8·(j % 4) + 4·(j / 4) to bit 4·nibble(j).
__device__ uint32_t reordered(uint32_t word) {
  uint32_t to = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j)
    to |= (word >> (j % 4 * 8 + j / 4 * 4) & 15u) << (4 * mma16::nibble(j));
  return to;
}

// Each thread moves words of a panel as they lie in vnni16: word w of row r is word 16 w + r.
template <int kBits>
__global__ void repack_words(Packed p) {
  constexpr int kWordCols = 32 / kBits;
  const int64_t words = p.panel_bytes / 4;
  const int64_t cols = mma16::num_blocks(p.shape.k) * mma16::kCols;
  const Expert expert = expert_of_block(p);
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < p.panels * words;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t panel = i / words, w = i % words;
    const int64_t row = panel * 16 + w % 16, c = w / 16 * kWordCols;
    if (c >= cols) continue;
    const uint32_t word = load_word(expert.from + i * 4);
    store_code_word(p, expert.to, kBits, row, c, kBits == 4 ? reordered(word) : word);
  }
}

// Numbers of 4 to 6 bits (vnni16.h) to codes of 8 bits. Each thread makes the words of 4 columns.
__global__ void repack_code_set(Packed p, CodeSet set, CodeBook book, int unit_cols,
                                int unit_blocks) {
  const int high = code_bits(set) - 4;
  const int64_t cols = mma16::num_blocks(p.shape.k) * mma16::kCols, words = cols / 4 * 16;
  const Expert expert = expert_of_block(p);
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < p.panels * words;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t panel = i / words, r = i % 16, c = i % words / 16 * 4;
    const int in = static_cast<int>(c % unit_cols);
    const std::byte* const unit = expert.from + panel * p.panel_bytes +
                                  c / unit_cols * unit_blocks * vnni16::kRowBlockBytes + r * 4;
    uint32_t numbers =
        load_word(unit + in / 8 * vnni16::kRowBlockBytes) >> (in / 4 % 2 * 4) & 0x0f0f0f0fu;
    if (high > 0) {
      const uint32_t upper = load_word(unit + (unit_blocks - 1) * vnni16::kRowBlockBytes);
      numbers |= (upper >> (in / 4 * high) & 0x01010101u * ((1u << high) - 1)) << 4;
    }
    uint32_t codes = 0;
    // Padding has the code 0, which need not be the number 0.
    for (int j = 0; j < 4 && panel * 16 + r < p.shape.n && c + j < p.shape.k; ++j) {
      const int number = static_cast<int>(numbers >> (8 * j) & 255u);
      const int8_t code = has_code_book(set) ? book[number] : integer_code(set, number);
      codes |= static_cast<uint32_t>(static_cast<uint8_t>(code)) << (8 * j);
    }
    store_code_word(p, expert.to, 8, panel * 16 + r, c, codes);
  }
}

// Scale or minimum of a group from integers and their factors.
__device__ float step_value(const Packed& p, const std::byte* values, int64_t panel, int64_t g,
                            int64_t r) {
  const std::byte* const at = values + panel * p.step_bytes;
  const int64_t f = g * p.group_cols / kFactorCols;
  const uint16_t factor = reinterpret_cast<const uint16_t*>(at)[f * 16 + r];
  const auto* const steps = reinterpret_cast<const int8_t*>(at + p.factor_bytes);
  return static_cast<float>(steps[g * 16 + r]) * f16_to_float(factor) * p.factor_unit;
}

// f32 scales to e4m3 numbers and factors. Each thread has a row.
__global__ void repack_e4m3_scales(Packed p) {
  const Expert expert = expert_of_block(p);
  auto* const factors = reinterpret_cast<float*>(expert.to + p.to_at.row_factors);
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < p.panels * 16;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t panel = i / 16, r = i % 16, lane = p.lanes == 1 ? 0 : r;
    const auto* const scales =
        reinterpret_cast<const float*>(expert.from + p.from_at.scales) + panel * p.groups * p.lanes;
    std::byte* const to = expert.to + p.to_at.scales + panel * p.groups * 16 + r;
    const auto scale_of = [&](int64_t g) {
      return i < p.shape.n ? scales[g * p.lanes + lane] : 0.0f;
    };
    const float factor = factors[i] = row_factor(p.groups, scale_of).factor;
    for (int64_t g = 0; g < p.groups; ++g)
      to[g * 16] = static_cast<std::byte>(e4m3_scale(scale_of(g), factor));
  }
}

// Everything except the codes. Element (panel, g, r) of the groups, then biases and column orders.
__global__ void repack_beside(Packed p) {
  const int64_t groups = p.groups, count = p.panels * groups * 16;
  const bool minimums = p.shape.key.minimums, steps = p.steps;
  const Expert expert = expert_of_block(p);
  const std::byte* const from = expert.from;
  std::byte* const to = expert.to;
  const int64_t first = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  // repack_e4m3_scales has what comes beside row factors.
  for (int64_t i = first; p.quantized && !p.row_factors && i < count; i += stride) {
    const int64_t r = i % 16, g = i / 16 % groups, panel = i / 16 / groups;
    const bool there = panel * 16 + r < p.shape.n;
    const int64_t at = (panel * groups + g) * p.lanes + (p.lanes == 1 ? 0 : r);
    const std::byte* const scales = from + p.from_at.scales;
    if (p.exponents) {
      to[p.to_at.scales + i] = there ? scales[at] : std::byte{0};
    } else {
      float scale = 0;
      if (there && steps) scale = step_value(p, scales, panel, g, r);
      if (there && !steps) {
        scale = p.shape.key.scale_dtype == DType::kF16
                    ? f16_to_float(reinterpret_cast<const uint16_t*>(scales)[at])
                    : reinterpret_cast<const float*>(scales)[at];
      }
      reinterpret_cast<float*>(to + p.to_at.scales)[i] = scale;
      if (minimums) {
        float minimum = 0;
        if (there && steps) {
          minimum = step_value(p, from + p.from_at.minimums, panel, g, r);
          if (!p.shape.key.symmetric)
            minimum = fmaf(static_cast<float>(kStepZeroPoint), scale, minimum);
        } else if (there) {
          minimum = reinterpret_cast<const float*>(from + p.from_at.minimums)[i];
        }
        reinterpret_cast<float*>(to + p.to_at.minimums)[i] = minimum;
      }
    }
    if (p.zero_points) {
      const std::byte stored = from[p.from_at.zero_points + i];
      const auto of_steps = static_cast<std::byte>(there ? kStepZeroPoint : 0);
      to[p.to_at.zero_points + i] = steps ? of_steps : stored;
    }
  }
  const auto copy_words = [first, stride, &expert](size_t at, size_t to_at, int64_t words) {
    for (int64_t i = first; i < words; i += stride)
      reinterpret_cast<uint32_t*>(expert.to + to_at)[i] = load_word(expert.from + at + i * 4);
  };
  if (p.shape.bias) copy_words(p.from_at.bias, p.to_at.bias, p.panels * 16);
  if (p.shape.group_index) copy_words(p.from_at.group_index, p.to_at.group_index, p.shape.k);
}

}  // namespace

bool repacks_here(const ExpertMatrix& m) {
  if (m.from == m.to && *m.from_shape == *m.to_shape) return true;
  const bool widens = m.from_shape->key.codes != CodeSet::kAny;
  return m.from == &kVnni16Layout && m.to == &kMma16Layout &&
         m.to_shape->key.codes == CodeSet::kAny && bits(m.from_shape->key.dtype) <= 16 &&
         (!widens || bits(m.from_shape->key.dtype) == 8);
}

Status repack_here(const Queue& queue, std::span<const ExpertMatrix> experts,
                   const std::byte* arrived, Stream stream) {
  const ExpertMatrix& m = experts.front();
  const MatrixShape& shape = *m.from_shape;
  const Sections from_at = m.from->sections(shape), to_at = m.to->sections(*m.to_shape);
  if (m.from == m.to) {
    for (const ExpertMatrix& one : experts) {
      MORACLE_CUDA(cudaMemcpyAsync(one.out, arrived, to_at.bytes, cudaMemcpyDeviceToDevice,
                                   queue.of(stream)));
      arrived += from_at.bytes;
    }
    return {};
  }
  const bool quantized = shape.key.quantized(), steps = vnni16::scale_is_step(shape);
  Packed p{.from = arrived,
           .from_at = from_at,
           .to_at = to_at,
           .shape = shape,
           .panels = vnni16::num_panels(shape),
           .panel_bytes = vnni16::panel_bytes(shape),
           .groups = quantized ? num_groups(shape) : 0,
           .group_cols = group_cols(shape),
           .step_bytes = steps ? vnni16::step_bytes(shape) : 0,
           .factor_bytes = steps ? vnni16::factor_bytes(shape) : 0,
           .factor_unit = factor_unit(shape.key.codes),
           .lanes = static_cast<int>(vnni16::scale_lanes(shape)),
           .quantized = quantized,
           .exponents = scale_is_exponent(shape),
           .row_factors = mma16::has_row_factors(shape),
           .steps = steps,
           .zero_points = panels_have_zero_points(shape)};
  for (size_t e = 0; e < experts.size(); ++e) p.to[e] = experts[e].out;
  constexpr int kThreads = 256, kEach = 8;
  const auto start = [&](const char* name, auto kernel, int64_t count, auto... args) -> Status {
    const int64_t blocks = (count + kThreads * kEach - 1) / (kThreads * kEach);
    MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue.index));
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(experts.size()));
    kernel<<<grid, kThreads, 0, queue.of(stream)>>>(p, args...);
    return launched(name);
  };
  const int64_t words = p.panels * p.panel_bytes / 4;
  const CodeSet set = shape.key.codes;
  if (set != CodeSet::kAny) {
    const vnni16::Unit unit = vnni16::unit_of(shape);
    const CodeBook book = has_code_book(set) ? code_book(set) : CodeBook{};
    MORACLE_CHECK(start("repack_code_set", repack_code_set, p.panels * shape.k * 4, set, book,
                        static_cast<int>(unit.cols), static_cast<int>(unit.blocks)));
  } else if (bits(shape.key.dtype) == 4) {
    MORACLE_CHECK(start("repack_words", repack_words<4>, words));
  } else if (bits(shape.key.dtype) == 8) {
    MORACLE_CHECK(start("repack_words", repack_words<8>, words));
  } else {
    MORACLE_CHECK(start("repack_words", repack_words<16>, words));
  }
  if (p.row_factors) MORACLE_CHECK(start("repack_e4m3_scales", repack_e4m3_scales, p.panels * 16));
  if (!quantized && !shape.bias && !shape.group_index) return {};
  const int64_t beside = std::max(p.panels * 16 * std::max<int64_t>(p.groups, 1),
                                  shape.group_index ? shape.k : int64_t{0});
  return start("repack_beside", repack_beside, beside);
}

}  // namespace moracle::cuda

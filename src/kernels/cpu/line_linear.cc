// One walk for every way of multiplying. Each thread takes the same share of every expert's panels,
// two at a time: even work whatever the routing, no barrier between experts, and columns of the
// result that are its own, so that it may add up a token's rows itself.

#if defined(__x86_64__)

#include "kernels/cpu/line_linear.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/text.h"
#include "base/try.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/line_panels.h"
#include "kernels/cpu/packed_rows.h"
#include "kernels/cpu/vector_ops.h"
#include "quant/activation.h"

namespace moracle::cpu {
namespace {

// Rows that meet a decoded stretch before the next one is decoded.
constexpr int kPassRows = 128;

int64_t x_group_cols(const KernelWeights& weights) {
  const auto& key = weights.scheme.activation;
  const bool grouped =
      key && !vnni16::scale_is_exponent({0, 0, *key}) && key->group.cols != GroupShape::kAll;
  return grouped ? key->group.cols : 0;
}

using Multiply = void (*)(const LineBlock&);

Multiply multiply_by(const LineKernels& kernels, Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::kInt8:
      return kernels.int8;
    case Arithmetic::kBf16:
      return kernels.bf16;
    default:
      return kernels.f32;
  }
}

// Null: codes become lines first, however few the rows.
Multiply multiply_codes_by(const LineKernels& kernels, Arithmetic arithmetic, DType codes) {
  if (arithmetic != Arithmetic::kInt8) return nullptr;
  return codes == DType::kI4       ? kernels.int8_by_i4
         : codes == DType::kF4E2M1 ? kernels.int8_by_e2m1
                                   : nullptr;
}

class LineLinear : public GroupedLinear {
 public:
  LineLinear(KernelWeights weights, Arithmetic arithmetic, const LineKernels& kernels,
             CpuDevice& device)
      : weights_(std::move(weights)),
        arithmetic_(arithmetic),
        kernels_(kernels),
        device_(device),
        panels_(weights_, arithmetic, x_group_cols(weights_)),
        multiply_(multiply_by(kernels, arithmetic)),
        by_codes_(multiply_codes_by(kernels, arithmetic, weights_.shape.key.dtype)),
        x_group_is_unit_(x_group_cols(weights_) == panels_.unit_cols()) {}

  const KernelWeights& weights() const override { return weights_; }
  Status run(const GroupedRows& rows, const Matrix& y, Stream) override;
  Status run_activated(const GroupedRows& rows, const ActivationSpec& activation, const Matrix& out,
                       Stream) override;
  Status run_combined(const GroupedRows& rows, const Combination& combination, const Matrix& out,
                      Stream) override;

 private:
  // Where a pair of panels goes: the second one lies `distance` panels behind the first.
  struct Job {
    int64_t expert, panel, distance;
    int panels() const { return distance > 0 ? 2 : 1; }
  };
  struct Room {
    alignas(64) float sums[2][kPassRows * kLineRows];
    alignas(64) std::byte lines[2][LinePanels::kRoomBytes];
    alignas(64) float unit_scales[2][LinePanels::kMaxUnits * kLineRows];
    alignas(64) int8_t unit_zeros[2][LinePanels::kMaxUnits * kLineRows];
    alignas(64) float scales[2][kLineRows];
  };
  struct Pass {
    const PackedRows& x;
    int64_t first;
    int count;
    Job next;  // what to ask for meanwhile
    bool prefetch;
  };

  template <class Finish>
  void walk(const GroupedRows& rows, int64_t pairs, int64_t distance, const Finish& finish);
  void multiply(const Job& job, const Pass& pass, Room& room) const;
  LineResult result(const Job& job, int p, const Pass& pass, Room& room) const;

  KernelWeights weights_;
  Arithmetic arithmetic_;
  const LineKernels& kernels_;
  CpuDevice& device_;
  LinePanels panels_;
  Multiply multiply_, by_codes_;
  bool x_group_is_unit_;
};

void LineLinear::multiply(const Job& job, const Pass& pass, Room& room) const {
  const int count = job.panels();
  // Every block of rows asks for its share of what comes next.
  const int blocks = (pass.count + kernels_.row_block - 1) / kernels_.row_block;
  const int every = std::min(16, static_cast<int>(std::bit_floor(static_cast<unsigned>(blocks))));
  // A few rows take codes as they lie: lines of them would be written and read once.
  const bool codes = by_codes_ != nullptr && pass.count <= kFewRows;
  const bool direct = codes || panels_.direct();
  const int per_line = codes ? 2 : 1;  // lines of int8 in one of codes
  const Multiply kernel = codes ? by_codes_ : multiply_;
  LineBlock block;
  block.panels = count;
  block.x_stride = pass.x.stride;
  block.x_rest = pass.x.rest;
  for (const LinePanels::Stretch& s : panels_.stretches()) {
    block.units = s.units;
    block.unit_lines = s.unit_lines / per_line;
    block.overwrite = s.first_line == 0;
    const int64_t first_line = s.first_line / per_line;
    const int64_t num_lines = block.units * block.unit_lines;
    const std::byte* prefetch[2] = {};
    for (int p = 0; p < count; ++p) {
      const int64_t panel = job.panel + p * job.distance;
      if (pass.prefetch) {
        prefetch[p] = panels_.codes(pass.next.expert, pass.next.panel + p * pass.next.distance);
      }
      block.lines[p] = codes ? panels_.codes(job.expert, panel) + first_line * kLineBytes
                             : panels_.lines(job.expert, panel, s, room.lines[p],
                                             direct ? nullptr : prefetch[p]);
      block.w_scale[p] = panels_.unit_scales(job.expert, panel, s, room.unit_scales[p]);
      block.w_zero[p] = panels_.unit_zeros(job.expert, panel, s, room.unit_zeros[p]);
    }
    for (int row = 0, b = 0; row < pass.count; row += kernels_.row_block, ++b) {
      const int64_t at = pass.first + row;
      block.rows = std::min(kernels_.row_block, pass.count - row);
      block.x = pass.x.values + at * pass.x.stride + s.first_line * 4;
      block.prefetch_every = direct && pass.prefetch && b < every ? every : 0;
      const int64_t share = (first_line + b * (num_lines / every)) * kLineBytes;
      for (int p = 0; p < count; ++p) {
        block.sum[p] = room.sums[p] + row * kLineRows;
        if (block.prefetch_every > 0) block.prefetch[p] = prefetch[p] + share;
      }
      if (arithmetic_ == Arithmetic::kInt8) {
        block.x_sum = pass.x.sums + at * pass.x.num_sums + s.unit;
        block.x_sum_stride = pass.x.num_sums;
      }
      if (pass.x.num_scales > 1) {
        block.x_scale = pass.x.scales + at * pass.x.num_scales + s.x_group;
        block.x_scale_stride = pass.x.num_scales;
        block.x_scale_unit = x_group_is_unit_ ? 1 : 0;
      }
      kernel(block);
    }
  }
}

LineResult LineLinear::result(const Job& job, int p, const Pass& pass, Room& room) const {
  const int64_t panel = job.panel + p * job.distance;
  LineResult f;
  f.sum = room.sums[p];
  f.rows = pass.count;
  f.columns = static_cast<int>(std::min<int64_t>(kLineRows, weights_.shape.n - panel * kLineRows));
  if (pass.x.num_scales == 1) {
    f.x_scale = pass.x.scales + pass.first;
    f.x_scale_stride = 1;
  }
  f.w_scale = panels_.row_scales(job.expert, panel, room.scales[p]);
  f.bias = panels_.bias(job.expert, panel);
  return f;
}

// finish(job, pass, room) takes what was computed. `distance` 0: pairs are neighbours.
template <class Finish>
void LineLinear::walk(const GroupedRows& rows, int64_t pairs, int64_t distance,
                      const Finish& finish) {
  const int64_t panels = panels_.num_panels();
  const int32_t one_expert[] = {0, static_cast<int32_t>(rows.num_rows)};
  const int32_t* offsets = rows.expert_offsets ? rows.expert_offsets : one_expert;
  const int64_t experts = weights_.num_experts;
  if (offsets[experts] == 0) return;
  ThreadPool& pool = device_.pool();
  const PackedRows x =
      pack_rows(arithmetic_, in_two_parts(arithmetic_, weights_.scheme), rows, weights_.shape.k,
                panels_.unit_cols(), offsets[experts], device_.scratch(), pool);
  auto job_of = [&](int64_t expert, int64_t pair) {
    if (distance > 0) return Job{expert, pair, distance};
    return Job{expert, 2 * pair, 2 * pair + 1 < panels ? 1 : 0};
  };
  auto after = [&](int64_t expert) {
    do ++expert;
    while (expert < experts && offsets[expert] == offsets[expert + 1]);
    return expert;
  };
  pool.run([&](int thread) {
    const int64_t first = pairs * thread / pool.size(), last = pairs * (thread + 1) / pool.size();
    if (first == last) return;
    if (kernels_.begin != nullptr) kernels_.begin();
    Room room;
    for (int64_t e = after(-1); e < experts;) {
      const int64_t next_expert = after(e);
      for (int64_t pair = first; pair < last; ++pair) {
        const Job job = job_of(e, pair);
        const bool more = pair + 1 < last || next_expert < experts;
        const Job next = pair + 1 < last ? job_of(e, pair + 1) : job_of(next_expert, first);
        for (int64_t row = offsets[e]; row < offsets[e + 1]; row += kPassRows) {
          const int count = static_cast<int>(std::min<int64_t>(kPassRows, offsets[e + 1] - row));
          const Pass pass{x, row, count, next, more && row == offsets[e] && next.distance > 0};
          multiply(job, pass, room);
          finish(job, pass, room);
        }
      }
      e = next_expert;
    }
    if (kernels_.end != nullptr) kernels_.end();
  });
}

Status LineLinear::run(const GroupedRows& rows, const Matrix& y, Stream) {
  walk(rows, (panels_.num_panels() + 1) / 2, 0, [&](const Job& job, const Pass& pass, Room& room) {
    for (int p = 0; p < job.panels(); ++p) {
      LineResult f = result(job, p, pass, room);
      f.to = static_cast<float*>(y.data) + pass.first * y.stride +
             (job.panel + p * job.distance) * kLineRows;
      f.to_stride = y.stride;
      kernels_.finish(f);
    }
  });
  return {};
}

Status LineLinear::run_activated(const GroupedRows& rows, const ActivationSpec& activation,
                                 const Matrix& out, Stream) {
  MORACLE_CHECK(check_activation(activation));
  const bool gated = is_gated(activation.function);
  const int64_t half = panels_.num_panels() / 2;
  walk(rows, gated ? half : (panels_.num_panels() + 1) / 2, gated ? half : 0,
       [&](const Job& job, const Pass& pass, Room& room) {
         for (int p = 0; p < job.panels(); ++p) {
           LineResult f = result(job, p, pass, room);
           f.to = room.sums[p];
           f.to_stride = kLineRows;
           f.columns = kLineRows;
           kernels_.finish(f);
         }
         const int64_t values = int64_t{pass.count} * kLineRows;
         for (int p = 0; p < (gated ? 1 : job.panels()); ++p) {
           const float* up = room.sums[gated ? 1 : p];
           vector_ops().activate(activation_args(activation), room.sums[gated ? 0 : p], up, values,
                                 room.sums[p]);
           LineResult f;
           f.sum = room.sums[p];
           f.rows = pass.count;
           const int64_t first = (job.panel + p * job.distance) * kLineRows;
           f.columns = static_cast<int>(std::min<int64_t>(kLineRows, out.cols - first));
           f.to = static_cast<float*>(out.data) + pass.first * out.stride + first;
           f.to_stride = out.stride;
           kernels_.finish(f);
         }
       });
  return {};
}

Status LineLinear::run_combined(const GroupedRows& rows, const Combination& combination,
                                const Matrix& out, Stream) {
  device_.pool().split(out.rows, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t)
      std::memset(static_cast<float*>(out.data) + t * out.stride, 0, out.cols * sizeof(float));
  });
  walk(rows, (panels_.num_panels() + 1) / 2, 0, [&](const Job& job, const Pass& pass, Room& room) {
    float weights[kPassRows];
    const float* all = combination.weights;
    for (int r = 0; all != nullptr && r < pass.count; ++r)
      weights[r] = all[combination.row_slot[pass.first + r]];
    for (int p = 0; p < job.panels(); ++p) {
      LineResult f = result(job, p, pass, room);
      f.to = static_cast<float*>(out.data) + (job.panel + p * job.distance) * kLineRows;
      f.to_stride = out.stride;
      f.to_row = combination.row_token + pass.first;
      f.add = true;
      f.weight = all == nullptr ? nullptr : weights;
      kernels_.finish(f);
    }
  });
  return {};
}

}  // namespace

Arithmetic arithmetic_for(const MatrixShape& shape, const Scheme& scheme, bool bf16,
                          int64_t group_multiple) {
  const DType dtype = shape.key.dtype;
  const bool whole =
      vnni16::num_groups(shape) <= 1 || vnni16::group_cols(shape) % group_multiple == 0;
  if (scheme.activation == kInt8DynamicTokenSym && whole) return Arithmetic::kInt8;
  const bool exact = dtype != DType::kF16 && dtype != DType::kF32;
  return bf16 && exact ? Arithmetic::kBf16 : Arithmetic::kF32;
}

KernelPlan plan_lines(const KernelRequest& request, Arithmetic arithmetic,
                      const LineKernels& kernels) {
  const MatrixShape& shape = request.shape;
  const auto& key = request.scheme.activation;
  KernelPlan plan;
  plan.deterministic = true;
  const bool codes =
      key && arithmetic != Arithmetic::kF32 && !vnni16::scale_is_exponent({0, 0, *key});
  plan.input_dtype = codes ? key->dtype : DType::kF32;
  const bool two_parts = in_two_parts(arithmetic, request.scheme);
  if (two_parts) plan.product_bits = 16;
  const std::string_view type = name(shape.key.dtype);
  const char* const products[] = {
      "i8 x i8, exact sums",
      two_parts ? "products of two bf16 parts, f32 sums" : "bf16 products, f32 sums",
      "f32 products and sums"};
  plan.kernels = {{1, str(type, " lines, ", products[static_cast<int>(arithmetic)], ", ",
                          kernels.instructions[static_cast<int>(arithmetic)])}};
  const int64_t num_scales = codes ? num_groups(*key, shape.k) : 0;
  plan.scratch_bytes = static_cast<int64_t>(packed_bytes(arithmetic, two_parts, shape.k,
                                                         unit_cols(shape, arithmetic, 0),
                                                         request.max_rows, num_scales));
  if (request.activation != nullptr) {
    const bool gated = is_gated(request.activation->function);
    plan.activates = !gated || shape.n % (2 * kLineRows) == 0;
  }
  plan.combines = true;
  return plan;
}

Result<std::unique_ptr<GroupedLinear>> make_lines(KernelWeights&& weights, const KernelPlan& plan,
                                                  Arithmetic arithmetic, const LineKernels& kernels,
                                                  Device& device) {
  auto* cpu = dynamic_cast<CpuDevice*>(&device);
  if (cpu == nullptr) {
    return Error{ErrorKind::kInvalidArgument, "", "kernels of lines", "the cpu device",
                 "it is " + device.name()};
  }
  MORACLE_CHECK(cpu->reserve_scratch(plan.scratch_bytes));
  return std::unique_ptr<GroupedLinear>(
      new LineLinear(std::move(weights), arithmetic, kernels, *cpu));
}

}  // namespace moracle::cpu

#endif

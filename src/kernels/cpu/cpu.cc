// Backend "cpu": grouped GEMMs on panels of 16 rows (layout panel16), with AVX2 or portable tiles
// as the CPU supports. Three ways share one walk:
//
//   int8 x int8   exact i32 sums over the whole row, one f32 product with both scales
//   tiles         float weights, symmetric int4 and int8: f32 sums, scales at each group's end
//   decoded       every other format: a panel is decoded to f32 once for all rows of its expert;
//                 quantized activations arrive as the floats of their codes
//
// Few rows are bound by reading the panels once; many rows by the tiles' arithmetic. Work is split
// by panels: each thread streams its own part of every expert, and no two threads write the same
// column.
#include <algorithm>
#include <vector>

#include "base/text.h"
#include "base/try.h"
#include "kernels/cpu/decode/decode_panel.h"
#include "kernels/cpu/device/cpu_device.h"
#include "kernels/cpu/gemm/tile.h"
#include "kernels/kernel_watch.h"
#include "kernels/kernels.h"
#include "layout/panel16.h"

namespace moracle {
namespace cpu_row {
namespace {

using cpu::kMaxRows;
using cpu::kPanel;
using cpu::TileKernels;

using Method = CpuPanelForm::Method;

Method method_for(const MatrixShape& shape, const Scheme& scheme) {
  const QuantKey& key = shape.key;
  if (!key.quantized()) return Method::kTiles;
  const bool integers = key.dtype == DType::kI8 || key.dtype == DType::kI4;
  const bool even_groups = panel16::num_groups(shape) == 1 || key.group.cols % 2 == 0;
  if (!integers || !key.symmetric || shape.group_index || !even_groups) return Method::kDecoded;
  // Integer products need int8 with one scale per row on both sides.
  const bool both = has_int8_rows(scheme) && shape.key == kInt8StaticChannelSym;
  return both ? Method::kIntegers : Method::kTiles;
}

// One decoded panel per thread.
int64_t panel_floats(const MatrixShape& shape) {
  return panel16::padded_cols(shape) * kPanel;
}

KernelPlan plan(const KernelRequest& request, const Machine& machine) {
  KernelPlan plan{DType::kF32, {}, 0, request.deterministic};
  const Method method = method_for(request.shape, request.scheme);
  if (method == Method::kIntegers) plan.input_dtype = DType::kI8;
  if (method == Method::kDecoded) {
    plan.scratch_bytes =
        machine.cpu.threads * panel_floats(request.shape) * static_cast<int64_t>(sizeof(float));
  }
  const bool avx2 = missing(Isa::kAvx2, machine.cpu.isa) == Isa::kNone;
  plan.kernels = {{CpuPanelForm{method, request.shape.key.dtype, avx2, request.deterministic}}};
  return plan;
}

const TileKernels& tile_kernels([[maybe_unused]] const CpuPanelForm& form) {
#if defined(__x86_64__)
  if (form.avx2) return cpu::kAvx2Tiles;
#endif
  return cpu::kPortableTiles;
}

class CpuLinear : public LinearKernel {
 public:
  CpuLinear(const KernelWeights& weights, const CpuPanelForm& form, CpuDevice& device)
      : weights_(weights),
        form_(form),
        device_(device),
        pool_(device.pool()),
        tiles_(tile_kernels(form)) {}

  Status run(const LinearCall& call, Stream) override;

 private:
  void run_panel(const GroupedRows& rows, int thread, int64_t expert, int64_t panel, int64_t begin,
                 int64_t end, const Matrix& y);
  void report_run(const int32_t* offsets) const;
  void run_tile(const GroupedRows& rows, const int64_t* sources, int count, const std::byte* panel,
                const float* scales, float* out) const;

  const KernelWeights& weights_;
  const CpuPanelForm form_;
  CpuDevice& device_;
  ThreadPool& pool_;
  const TileKernels& tiles_;
};

Status CpuLinear::run(const LinearCall& call, Stream) {
  const GroupedRows& rows = *call.from<GroupedRows>();
  const int64_t panels = panel16::num_panels(weights_.shape), threads = pool_.size();
  const int32_t one_expert[] = {0, static_cast<int32_t>(rows.num_rows)};
  const int32_t* offsets = rows.expert_offsets ? rows.expert_offsets : one_expert;
  if (kernels_are_watched()) report_run(offsets);
  // Every thread walks all experts and takes the same share of each expert's panels. So work is
  // even for any routing, without a barrier between experts.
  pool_.run([&](int thread) {
    const int64_t first = panels * thread / threads, last = panels * (thread + 1) / threads;
    for (int64_t e = 0; e < weights_.num_experts; ++e) {
      if (offsets[e] == offsets[e + 1]) continue;
      for (int64_t p = first; p < last; ++p)
        run_panel(rows, thread, e, p, offsets[e], offsets[e + 1], call.out);
    }
  });
  return {};
}

void CpuLinear::report_run(const int32_t* offsets) const {
  const std::string name = moracle::name(form_);
  for (int64_t e = 0; e < weights_.num_experts; ++e) {
    const int64_t count = offsets[e + 1] - offsets[e];
    if (count > 0) report({name, weights_.shape, count});
  }
}

void CpuLinear::run_panel(const GroupedRows& rows, int thread, int64_t expert, int64_t panel,
                          int64_t begin, int64_t end, const Matrix& y) {
  const MatrixShape& shape = weights_.shape;
  const std::byte* base = weights_.expert(expert);
  const std::byte* codes = base + weights_.sections.codes + panel * panel16::panel_bytes(shape);
  if (form_.method == Method::kDecoded) {
    float* const decoded =
        reinterpret_cast<float*>(device_.scratch()) + thread * panel_floats(shape);
    cpu::decode_panel(weights_, expert, panel, decoded);
    codes = reinterpret_cast<const std::byte*>(decoded);
  }
  const int64_t groups = shape.key.quantized() ? panel16::num_groups(shape) : 0;
  const auto* scales =
      reinterpret_cast<const float*>(base + weights_.sections.scales) + panel * groups * kPanel;
  const auto* bias = reinterpret_cast<const float*>(base + weights_.sections.bias) + panel * kPanel;
  const int64_t columns = std::min<int64_t>(kPanel, shape.n - panel * kPanel);

  alignas(64) float out[kMaxRows * kPanel];
  for (int64_t row = begin; row < end; row += kMaxRows) {
    const int count = static_cast<int>(std::min<int64_t>(kMaxRows, end - row));
    int64_t sources[kMaxRows];
    for (int r = 0; r < count; ++r) sources[r] = rows.row_index ? rows.row_index[row + r] : row + r;
    run_tile(rows, sources, count, codes, scales, out);
    for (int r = 0; r < count; ++r) {
      float* to = static_cast<float*>(y.data) + (row + r) * y.stride + panel * kPanel;
      for (int64_t c = 0; c < columns; ++c) {
        to[c] = out[r * kPanel + c] + (shape.bias ? bias[c] : 0.0f);
      }
    }
  }
}

void CpuLinear::run_tile(const GroupedRows& rows, const int64_t* sources, int count,
                         const std::byte* panel, const float* scales, float* out) const {
  const MatrixShape& shape = weights_.shape;
  const Matrix& x = rows.x.values;
  if (form_.method == Method::kIntegers) {
    const int8_t* at[kMaxRows];
    float row_scales[kMaxRows];
    for (int r = 0; r < count; ++r) {
      at[r] = static_cast<const int8_t*>(x.data) + sources[r] * x.stride;
      row_scales[r] = rows.x.scales[sources[r]];
    }
    tiles_.int8_int8(at, row_scales, count, reinterpret_cast<const int8_t*>(panel), scales,
                     panel16::padded_cols(shape), out);
    return;
  }
  const float* at[kMaxRows];
  for (int r = 0; r < count; ++r) at[r] = static_cast<const float*>(x.data) + sources[r] * x.stride;
  for (; form_.full_tiles && count < kMaxRows; ++count) at[count] = at[0];
  const int64_t k = panel16::padded_cols(shape);
  // A single group also covers the padding; otherwise a padded column would start a second group.
  const int64_t group = panel16::num_groups(shape) == 1 ? k : panel16::group_cols(shape);
  switch (form_.method == Method::kDecoded ? DType::kF32 : shape.key.dtype) {
    case DType::kBF16:
      tiles_.bf16(at, count, reinterpret_cast<const uint16_t*>(panel), k, out);
      break;
    case DType::kF16:
      tiles_.f16(at, count, reinterpret_cast<const uint16_t*>(panel), k, out);
      break;
    case DType::kI8:
      tiles_.int8(at, count, reinterpret_cast<const int8_t*>(panel), scales, k, group, out);
      break;
    case DType::kI4:
      tiles_.int4(at, count, reinterpret_cast<const uint8_t*>(panel), scales, k, group, out);
      break;
    default:
      tiles_.f32(at, count, reinterpret_cast<const float*>(panel), k, out);
      break;
  }
}

Result<std::unique_ptr<GroupedLinear>> make(KernelWeights&& weights, const KernelPlan& plan,
                                            Device& device) {
  auto* cpu = dynamic_cast<CpuDevice*>(&device);
  if (cpu == nullptr) {
    return Error{ErrorKind::kInvalidArgument, "", "backend cpu", "the cpu device",
                 "it is " + device.name()};
  }
  const CpuPanelForm& form = std::get<CpuPanelForm>(plan.kernels.front().form);
  MORACLE_CHECK(cpu::check_isa(form.avx2 ? Isa::kAvx2 : Isa::kNone));
  if (form.method == Method::kDecoded) {
    const int64_t floats = cpu->pool().size() * panel_floats(weights.shape);
    MORACLE_CHECK(cpu->reserve_scratch(floats * static_cast<int64_t>(sizeof(float))));
  }
  auto linear = std::make_unique<GroupedLinear>(std::move(weights));
  linear->add<CpuLinear>(form, *cpu);
  return linear;
}

}  // namespace
}  // namespace cpu_row

const Kernels kCpuKernels = {cpu_row::plan, cpu_row::make};

}  // namespace moracle

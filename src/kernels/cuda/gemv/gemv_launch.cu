#include "kernels/cuda/gemv/gemv_launch.h"

#include <algorithm>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/operands/scaling_plan.h"
#include "kernels/cuda/ops/norm_in_block.cuh"
#include "kernels/cuda/tiles/arguments.h"
#include "kernels/kernel_watch.h"
#include "layout/mma16.h"

namespace moracle::cuda {
namespace {

// Codes of activations: i8, or e4m3 beside 4-bit weights. Null: floats.
GemvKernels kernels_in_halves(const QuantKey& key, const DType* codes) {
  const bool fp8 = codes != nullptr && *codes == DType::kF8E4M3;
  if (key.dtype == DType::kF4E2M1) {  // gemv_serves: no other e2m1 has such groups
    if (fp8) return gemv_nvfp4_fp8();
    return codes != nullptr ? gemv_nvfp4_int8() : gemv_nvfp4();
  }
  if (key.dtype == DType::kI4) {
    if (fp8) return key.minimums ? gemv_int4_fp8_halves_minimums() : gemv_int4_fp8_halves();
    if (codes != nullptr)
      return key.minimums ? gemv_int4_int8_halves_minimums() : gemv_int4_int8_halves();
    return key.minimums ? gemv_int4_halves_minimums() : gemv_int4_halves();
  }
  if (codes != nullptr)
    return key.minimums ? gemv_int8_int8_halves_minimums() : gemv_int8_int8_halves();
  return key.minimums ? gemv_int8_halves_minimums() : gemv_int8_halves();
}

GemvKernels kernels_with_minimums(const QuantKey& key, const DType* codes) {
  const bool four = key.dtype == DType::kI4;
  if (codes != nullptr && *codes == DType::kF8E4M3) return gemv_int4_fp8_minimums();
  if (codes != nullptr) return four ? gemv_int4_int8_minimums() : gemv_int8_int8_minimums();
  return four ? gemv_int4_minimums() : gemv_int8_minimums();
}

GemvKernels gemv_kernels_for(const MatrixShape& shape, const Scheme& scheme) {
  const bool in_groups = scales_in_groups(shape, scheme);
  const auto& key = scheme.activation;
  const DType* const codes = key ? &key->dtype : nullptr;
  if (mma16::groups_in_halves(shape)) return kernels_in_halves(shape.key, codes);
  if (shape.key.minimums) return kernels_with_minimums(shape.key, codes);
  if (key && key->dtype == DType::kI8) {
    if (shape.key.dtype == DType::kI8)
      return in_groups ? gemv_int8_int8_groups() : gemv_int8_int8();
    return shape.key.dtype == DType::kI4 ? gemv_int4_int8() : gemv_fp4_int8();
  }
  if (key && shape.key.dtype == DType::kI4) return gemv_int4_fp8();
  const bool exponents = mma16::scale_is_exponent(shape);
  if (key && shape.key.dtype == DType::kF4E2M1)
    return exponents ? gemv_mxfp4_fp8() : gemv_fp4_fp8();
  if (key) return in_groups ? gemv_fp8_fp8_groups() : gemv_fp8_fp8();
  switch (shape.key.dtype) {
    case DType::kF16:
      return gemv_f16();
    case DType::kI8:
      return in_groups ? gemv_int8_groups() : gemv_int8();
    case DType::kI4:
      return gemv_int4();
    case DType::kF8E4M3:
      if (exponents) return gemv_mxfp8();
      return in_groups ? gemv_fp8_groups() : gemv_fp8();
    case DType::kF4E2M1:
      return exponents ? gemv_mxfp4() : gemv_fp4();
    default:
      return gemv_bf16();
  }
}

// True if a stage of `blocks` k-blocks has several groups.
bool in_stage(const ScaleGroups& groups, int blocks) {
  return groups.count > 1 && groups.blocks < blocks;
}

// Sizes of a stage, and how its k-blocks share scales.
void describe_stage(const KernelWeights& weights, const Scheme& scheme, int panels,
                    GemvArgs& args) {
  const GemmArgs& a = args.matrix;
  const int blocks = gemv_stage_blocks(weights.shape, scheme);
  const int sub_blocks = mma16::groups_in_halves(weights.shape) ? 2 * blocks : blocks;
  const int groups =
      in_stage(a.weight_groups, sub_blocks) ? sub_blocks / a.weight_groups.blocks : 1;
  if (weights.shape.key.quantized()) {
    args.scale_bytes = groups * 16 * a.scale_size;
    args.zero_bytes = weights.shape.key.minimums ? groups * 64 : a.has_zeros ? groups * 16 : 0;
  }
  while (blocks >> args.scale_shift > groups) ++args.scale_shift;
  const int codes = blocks * mma16::block_bytes(static_cast<int>(bits(weights.shape.key.dtype)));
  args.stage_bytes = panels * (codes + args.scale_bytes + args.zero_bytes);
}

// Sets the stages of a ring: as many as fit in `bytes` beside the tables, up to `most`. Returns a
// CTA's shared memory, or 0 if there are too few.
int64_t share_out(const GemvKernel& kernel, int64_t bytes, int most, GemvArgs& args) {
  const int64_t of_stages = int64_t{kernel.warps} * args.stage_bytes;
  args.stages = static_cast<int>(std::min<int64_t>((bytes - kernel.fixed_bytes) / of_stages, most));
  return args.stages < kLeastRingStages ? 0 : kernel.fixed_bytes + args.stages * of_stages;
}

// True if groups of fewer than 128 columns need the kernel that scales sums more often.
bool is_narrow(const GemmArgs& a) {
  constexpr int kWide = 4;  // k-blocks
  return in_stage(a.weight_groups, kWide) || in_stage(a.x_groups, kWide);
}

}  // namespace

LinearShare share_dense(GemvArgs& args, const MatrixShape& shape, const Scheme& scheme,
                        int num_sms) {
  const int tokens = args.slots.num_tokens;
  const int panels = (args.matrix.panels + num_sms - 1) / num_sms;
  args.sum_panels = std::min(panels, kLinearSumBytes / linear_sum_bytes(1, tokens));
  const int blocks = gemv_stage_blocks(shape, scheme);
  const int steps = (args.matrix.blocks + blocks - 1) / blocks;
  const int stages = (panels * steps + kGemvWarps<1> - 1) / kGemvWarps<1>;
  return {linear_sum_bytes(args.sum_panels, tokens),
          std::clamp(stages, kLeastRingStages, kMostRingStages)};
}

Result<GemvLaunch> GemvLaunch::make(const KernelWeights& weights, const Queue& queue) {
  GemvLaunch launch;
  launch.scheme_ = product_scheme(weights.shape, weights.scheme);
  launch.kernels_ = gemv_kernels_for(weights.shape, launch.scheme_);
  launch.queue_ = &queue;
  MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue.index));
  int most_shared = 0;
  MORACLE_CUDA(
      cudaDeviceGetAttribute(&most_shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, queue.index));
  const auto allow = [&](const auto kernel) {
    return check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared),
                 "cudaFuncSetAttribute");
  };
  launch.most_shared_ = most_shared;
  for (const auto* kernels :
       {&launch.kernels_.dense, &launch.kernels_.normed, &launch.kernels_.one}) {
    for (const GemvKernel& kernel : *kernels) {
      if (kernel.kernel != nullptr) MORACLE_CHECK(allow(kernel.kernel));
    }
  }
  for (const auto* kernels : {&launch.kernels_.rows, &launch.kernels_.tokens}) {
    for (const auto& pair : *kernels) {
      for (const GemvKernel& kernel : pair) MORACLE_CHECK(allow(kernel.kernel));
    }
  }
  return launch;
}

Status GemvLaunch::run_rows(const KernelWeights& weights, const Rows& x, bool x_of_tokens,
                            const Matrix& y, const ActivationSpec* activation,
                            const GemvSlots& slots, int choice, bool ids_are_there,
                            Stream stream) const {
  GemvArgs args{};
  args.matrix = gemm_args(weights, {x, nullptr, nullptr, slots.num_slots}, y, activation);
  args.slots = slots;
  args.x_of_tokens = x_of_tokens;
  args.ids_are_there = ids_are_there;
  const int64_t most_hits = std::min(slots.num_slots, slots.num_local);
  const int64_t units = most_hits * ((args.matrix.panels + 1) / 2);
  // gemv_token has one row of x for all slots.
  const bool one_row = slots.num_tokens == 1 && x_of_tokens;
  const int64_t most_units = (units + queue_->num_sms - 1) / queue_->num_sms;
  if (one_row && slots.num_slots <= kMostTokenSlots && most_units <= kMostTokenUnits)
    return run(kernels_.one, false, args, weights, units, stream, most_units * kTokenUnitBytes);
  return run(kernels_.rows[choice], false, args, weights, units, stream);
}

int GemvLaunch::cluster_of(int panels) const {
  const int alone = queue_->num_sms, pairs = alone / 2;
  if (pairs == 0) return 1;
  const int of_block = (panels + alone - 1) / alone, of_pair = (panels + pairs - 1) / pairs;
  return of_pair < 2 * of_block && of_pair <= kMostClusterPanels ? 2 : 1;
}

Status GemvLaunch::run_tokens(const KernelWeights& weights, const Rows& x, const Matrix& y,
                              const GemvSlots& slots, Stream stream) const {
  GemvArgs args{};
  args.matrix = gemm_args(weights, {x, nullptr, nullptr, slots.num_slots}, y);
  args.slots = slots;
  args.ids_are_there = true;
  args.cluster = cluster_of(args.matrix.panels);
  return run(kernels_.tokens[slots.num_tokens <= 8 ? 0 : 1], true, args, weights,
             args.matrix.panels, stream);
}

bool GemvLaunch::serves_dense(const KernelWeights& weights, int64_t tokens) const {
  if (tokens > kMostLinearTokens) return false;
  // Pairs of panels read activations half as often. In large layers this counts for more than equal
  // shares: 151,936 outputs in int4, 8 tokens, take 80 instead of 99 us (H100), and 74 instead of
  // 71 for one token. Activations of 8 bits have half of the bytes.
  const int64_t panels = (weights.shape.n + 15) / 16;
  return tokens <= kMostNormedTokens || weights.scheme.activation ||
         panels <= int64_t{8} * queue_->num_sms;
}

Status GemvLaunch::run_dense(const KernelWeights& weights, const Rows& x, const Matrix& y,
                             const GemvSlots& slots, Stream stream) const {
  GemvArgs args{};
  args.matrix = gemm_args(weights, {x, nullptr, nullptr, slots.num_slots}, y);
  args.slots = slots;
  const LinearShare share = share_dense(args, weights.shape, scheme_, queue_->num_sms);
  return run(kernels_.dense, false, args, weights, args.matrix.panels, stream, share.sum_bytes,
             share.most_stages);
}

bool GemvLaunch::serves_norm(const KernelWeights& weights, const NormedInput& x) const {
  const AddRmsNorm& norm = x.norm;
  const int64_t rows = norm.x.rows, cols = norm.x.cols;
  if (weights.scheme.activation || kernels_.normed[0].kernel == nullptr || rows < 1 ||
      rows > kMostNormedTokens || cols > kMostNormedCols || cols % 16 != 0 ||
      !are_eights({&norm.x, &norm.y, &x.sum}, norm.weight))
    return false;
  GemvArgs args{};
  args.matrix = gemm_args(weights, {Rows{norm.out, nullptr, 0}, nullptr, nullptr, rows}, norm.out);
  const GemvKernel& kernel = kernels_.normed[is_narrow(args.matrix) ? 1 : 0];
  describe_stage(weights, scheme_, kernel.panels, args);
  return share_out(kernel, most_shared_ - kLinearSumBytes - normed_bytes(rows, cols),
                   kMostRingStages, args) > 0;
}

Status GemvLaunch::run_normed(const KernelWeights& weights, const NormedInput& x, const Matrix& y,
                              const GemvSlots& slots, Stream stream) const {
  GemvArgs args{};
  args.matrix =
      gemm_args(weights, {Rows{x.norm.out, nullptr, 0}, nullptr, nullptr, slots.num_slots}, y);
  args.slots = slots;
  args.normed = x;
  const LinearShare share = share_dense(args, weights.shape, scheme_, queue_->num_sms);
  return run(kernels_.normed, false, args, weights, args.matrix.panels, stream,
             share.sum_bytes + normed_bytes(x.norm.x.rows, x.norm.x.cols), share.most_stages);
}

Status GemvLaunch::run(const GemvKernel (&kernels)[2], bool adds, GemvArgs args,
                       const KernelWeights& weights, int64_t units, Stream stream,
                       int64_t more_bytes, int most_stages) const {
  const GemvKernel& kernel = kernels[is_narrow(args.matrix) ? 1 : 0];
  describe_stage(weights, scheme_, kernel.panels, args);
  if (kernels_are_watched())
    report({name(gemv_form(weights.shape, scheme_, kernel.tokens, adds)), weights.shape});
  const int64_t shared =
      share_out(kernel, most_shared_ - more_bytes, most_stages, args) + more_bytes;
  args.cluster = std::max(args.cluster, 1);
  const int64_t clusters = std::clamp<int64_t>(units, 1, queue_->num_sms / args.cluster);
  return launch_clusters(*queue_, stream, "gemv", kernel.kernel, clusters * args.cluster,
                         args.cluster, kernel.warps * 32, static_cast<size_t>(shared), args);
}

}  // namespace moracle::cuda

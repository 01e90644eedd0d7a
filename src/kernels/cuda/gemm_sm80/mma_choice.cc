#include "kernels/cuda/gemm_sm80/mma_choice.h"

#include "kernels/cuda/operands/scaling_plan.h"
#include "layout/mma16.h"

namespace moracle::cuda {
namespace {

MmaKernels kernels_in_halves(const MatrixShape& shape, const std::optional<QuantKey>& activation) {
  const bool minimums = shape.key.minimums;
  if (activation && activation->dtype == DType::kF8E4M3) {
    switch (shape.key.dtype) {
      case DType::kI4:
        return minimums ? mma_int4_fp8_halves_minimums() : mma_int4_fp8_halves();
      case DType::kF8E4M3:
        return mma_fp8_fp8_halves();
      case DType::kF4E2M1:
        return mma_fp4_fp8_halves();
      default:
        return {};
    }
  }
  switch (shape.key.dtype) {
    case DType::kI8:
      if (activation) return minimums ? mma_int8_int8_halves_minimums() : mma_int8_int8_halves();
      return minimums ? mma_int8_halves_minimums() : mma_int8_halves();
    case DType::kI4:
      if (activation) return minimums ? mma_int4_int8_halves_minimums() : mma_int4_int8_halves();
      return minimums ? mma_int4_halves_minimums() : mma_int4_halves();
    case DType::kF8E4M3:
      return activation ? MmaKernels{} : mma_fp8_halves();
    case DType::kF4E2M1:
      return activation ? mma_fp4_int8_halves() : mma_fp4_halves();
    default:
      return {};
  }
}

}  // namespace

MmaKernels mma_kernels_for(const MatrixShape& shape, const Scheme& scheme) {
  const bool in_groups = scales_in_groups(shape, scheme);
  const auto& key = scheme.activation;
  if (mma16::groups_in_halves(shape)) return kernels_in_halves(shape, key);
  if (shape.key.minimums) {
    const bool four = shape.key.dtype == DType::kI4;
    if (!key) return four ? mma_int4_minimums() : mma_int8_minimums();
    if (key->dtype == DType::kF8E4M3) return four ? mma_int4_fp8_minimums() : MmaKernels{};
    if (key->dtype != DType::kI8) return {};
    return four ? mma_int4_int8_minimums() : mma_int8_int8_minimums();
  }
  if (key && key->dtype == DType::kI8) {
    if (shape.key.dtype == DType::kI8) return in_groups ? mma_int8_int8_groups() : mma_int8_int8();
    if (shape.key.dtype == DType::kI4) return mma_int4_int8();
    if (shape.key.dtype == DType::kF4E2M1) return mma_fp4_int8();
    return {};
  }
  if (key) {
    if (key->dtype != DType::kF8E4M3) return {};
    if (shape.key.dtype == DType::kI4) return mma_int4_fp8();
    if (shape.key.dtype == DType::kF4E2M1) return mma_fp4_fp8();
    if (shape.key.dtype != DType::kF8E4M3) return {};
    return in_groups ? mma_fp8_fp8_groups() : mma_fp8_fp8();
  }
  switch (shape.key.dtype) {
    case DType::kBF16:
      return mma_bf16();
    case DType::kF16:
      return mma_f16();
    case DType::kI8:
      return in_groups ? mma_int8_groups() : mma_int8();
    case DType::kI4:
      return mma_int4();
    case DType::kF8E4M3:
      return in_groups ? mma_fp8_groups() : mma_fp8();
    case DType::kF4E2M1:
      return mma_fp4();
    default:
      return {};
  }
}

}  // namespace moracle::cuda

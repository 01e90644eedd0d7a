#include "kernels/cuda/gemm_sm80/mma_plan.h"

#include <algorithm>

#include "kernels/cuda/cuda_makers.h"
#include "kernels/cuda/gemm_sm90/row_exponents_plan.h"
#include "kernels/kernels.h"
#include "layout/mma16.h"
#include "quant/activation.h"

namespace moracle {
namespace cuda {

bool mma_in_groups(const MatrixShape& shape, const Scheme& scheme) {
  const bool weights_in_groups = mma16::num_groups(shape) > 1;
  const auto& key = scheme.activation;
  switch (shape.key.dtype) {
    case DType::kI8:
      return weights_in_groups || !shape.key.symmetric;
    case DType::kI4:
    case DType::kF4E2M1:
      return true;
    case DType::kF8E4M3: {
      const bool fp8 = key && key->dtype == DType::kF8E4M3;
      return weights_in_groups || (fp8 && num_groups(*key, shape.k) > 1);
    }
    default:
      return false;
  }
}

int mma_choice(const MmaTiles& tiles, int64_t rows, int64_t experts) {
  const double mean =
      static_cast<double>(rows) / static_cast<double>(std::max<int64_t>(experts, 1));
  for (size_t i = 0; i + 1 < tiles.size(); ++i) {
    if (mean <= tiles[i].most_rows) return static_cast<int>(i);
  }
  return static_cast<int>(tiles.size()) - 1;
}

CudaProducts mma_products(const Scheme& scheme) {
  const auto& activation = scheme.activation;
  if (!activation) return CudaProducts::kBf16;
  return activation->dtype == DType::kI8 ? CudaProducts::kInt8 : CudaProducts::kF16;
}

CudaForm mma_form(const MatrixShape& shape, const Scheme& scheme, int tile_rows) {
  return {CudaForm::Kernel::kMma, mma_products(scheme), tile_rows,
          has_one_exponent(product_scheme(shape, scheme))};
}

bool mma_activates(const MatrixShape& shape, const ActivationSpec& activation) {
  const Activation function = activation.function;
  return shape.n % (2 * mma16::kRows) == 0 &&
         (function == Activation::kSilu || function == Activation::kSwigluOai);
}

namespace {

// Returns the last number of tokens at which `tile` or a smaller one is chosen, at most
// request.max_num_tokens; 0 if there is none.
int64_t last_tokens(const MmaTiles& tiles, int tile, const KernelRequest& request) {
  int64_t below = 0, above = request.max_num_tokens + 1;
  while (above - below > 1) {
    const int64_t tokens = below + (above - below) / 2;
    const int choice = mma_choice(tiles, tokens * request.rows_per_token, request.num_experts);
    (choice <= tile ? below : above) = tokens;
  }
  return below;
}

}  // namespace

KernelPlan plan_mma(const KernelRequest& request, const Machine&) {
  const auto& activation = request.scheme.activation;
  KernelPlan plan;
  plan.input_dtype = activation ? activation->dtype : DType::kBF16;
  const MmaTiles& tiles =
      mma_in_groups(request.shape, request.scheme) ? kTilesInGroups : kTilesOfRows;
  int64_t from = 1;
  for (size_t i = 0; i < tiles.size(); ++i) {
    const int64_t last = last_tokens(tiles, static_cast<int>(i), request);
    if (last < std::max(from, request.min_num_tokens)) continue;
    plan.kernels.push_back(
        {mma_form(request.shape, request.scheme, tiles[i].rows),
         {.from_tokens = from, .to_tokens = last < request.max_num_tokens ? last : 0}});
    from = last + 1;
  }
  plan.deterministic = true;
  plan.activates =
      request.activation != nullptr && mma_activates(request.shape, *request.activation);
  return plan;
}

}  // namespace cuda

const Kernels kCudaSm80Kernels = {cuda::plan_mma, cuda::kMakeSm80};

}  // namespace moracle

// Plans backend cuda-sm90: GEMV for few tokens, skinny GEMMs for up to 64 tokens of linear layers,
// wgmma for more, and the kernels of cuda-sm80 for all other calls. cuBLASLt multiplies many tokens
// of linear layers in block-scaled fp8.
#include <algorithm>

#include "kernels/cuda/cuda_cublaslt_plan.h"
#include "kernels/cuda/cuda_makers.h"
#include "kernels/cuda/gemm_skinny/skinny_plan.h"
#include "kernels/cuda/gemm_sm80/mma_plan.h"
#include "kernels/cuda/gemm_sm90/wgmma_plan.h"
#include "kernels/cuda/gemv/gemv_plan.h"
#include "kernels/cuda/operands/scaling_plan.h"
#include "kernels/kernels.h"
#include "oracle/machine/libraries.h"

namespace moracle {
namespace cuda {
namespace {

using Planned = std::vector<PlannedKernel>;

// Extends the last kernel to `tokens` tokens, or appends a kernel of another form for them.
void extend(Planned& kernels, int64_t tokens, const CudaForm& form, bool fused) {
  if (kernels.empty() || std::get<CudaForm>(kernels.back().form) != form)
    kernels.push_back({form, {.from_tokens = tokens}, fused});
  kernels.back().range.to_tokens = tokens;
}

// GEMM 2 has no activation.
void add_gemv(const KernelRequest& request, int64_t last, Planned& kernels) {
  for (int64_t tokens = 1; tokens <= last; ++tokens) {
    const bool adds = request.activation == nullptr &&
                      gemv_combines(tokens, request.rows_per_token, request.shape.n);
    const int choice = adds ? (tokens <= 8 ? 0 : 1)
                            : gemv_choice(tokens, request.rows_per_token, request.num_experts);
    extend(kernels, tokens, gemv_form(request.shape, request.scheme, choice == 0 ? 8 : 16, adds),
           true);
  }
}

void add_wgmma(const KernelRequest& request, int64_t first, int64_t end, KernelPlan& plan,
               Planned& kernels) {
  if (wgmma_multiplies_values(request.shape)) plan.product_bits = kWgmmaValueBits;
  const auto choice = [&](int64_t tokens) {
    if (request.linear) return wgmma_dense_choice(tokens);
    return wgmma_choice(request.shape, request.scheme, tokens * request.rows_per_token,
                        request.num_experts);
  };
  const int64_t per_token = request.linear ? 1 : request.rows_per_token;
  for (int64_t tokens = first; tokens <= end;) {
    const auto [tiles, most_rows] = choice(tokens);
    extend(kernels, tokens, wgmma_form(request.shape, request.scheme, tiles), !request.linear);
    kernels.back().range.to_tokens = std::min(end, most_rows / per_token);
    tokens = kernels.back().range.to_tokens + 1;
  }
}

// Adds the kernels of `plan` for the tokens from `first` to `last`.
void add_rest(Planned& kernels, int64_t first, int64_t last, KernelPlan& plan) {
  for (PlannedKernel& kernel : plan.kernels) {
    KernelRange& range = kernel.range;
    range.from_tokens = std::max(range.from_tokens, first);
    range.to_tokens = range.to_tokens == 0 ? last : std::min(range.to_tokens, last);
    if (range.from_tokens <= range.to_tokens) kernels.push_back(std::move(kernel));
  }
}

// GEMV serves few tokens of a linear layer, a skinny GEMM up to 64, wgmma more tokens, and cuBLASLt
// many tokens in block-scaled fp8.
KernelPlan plan_linear(const KernelRequest& request, const Machine& machine, KernelPlan plan) {
  if (request.deterministic || !gemv_serves(request.shape, request.scheme)) return plan;
  Planned kernels;
  const int64_t most_gemv = std::min(kMostGemvLinearTokens, request.max_num_tokens);
  for (int64_t tokens = 1; tokens <= most_gemv; ++tokens)
    extend(kernels, tokens, gemv_form(request.shape, request.scheme, tokens <= 8 ? 8 : 16, false),
           false);
  int64_t done = most_gemv;
  if (skinny_serves(request.shape, request.scheme)) {
    for (; done < std::min<int64_t>(kMostSkinnyTokens, request.max_num_tokens); ++done)
      extend(kernels, done + 1, skinny_form(request.scheme, done + 1), false);
  }
  const bool many = wgmma_serves(request.shape, request.scheme) &&
                    wgmma_input(request.shape, request.scheme) == WgmmaInput::kCodes;
  if (many && done < request.max_num_tokens) {
    int64_t last = request.max_num_tokens;
    const bool library = missing(kCublasLtBlocks, machine.libraries) == Library::kNone &&
                         last >= kLeastCublasLtBlockTokens &&
                         cublaslt_block_products(request.shape, request.scheme);
    if (library) last = kLeastCublasLtBlockTokens - 1;
    add_wgmma(request, done + 1, last, plan, kernels);
    if (library) {
      kernels.push_back({kCublasLtBlocksForm, {.from_tokens = last + 1}});
      plan.scratch_bytes = std::max(
          plan.scratch_bytes, kCublasLtWorkspace + cublaslt_block_scratch(request.shape).bytes);
    }
  } else {
    add_rest(kernels, done + 1, request.max_num_tokens, plan);
  }
  kernels.back().range.to_tokens = 0;
  plan.kernels = std::move(kernels);
  plan.deterministic = false;  // more tokens add in another order
  return plan;
}

// Kernels for all stages of a layer of experts. `plan`: those of cuda-sm80.
KernelPlan plan_fused(const KernelRequest& request, KernelPlan plan) {
  Planned kernels;
  int64_t least = wgmma_least_tokens(request), most_gemv = 0;
  const bool streams = gemv_serves(request.shape, request.scheme) &&
                       (request.other == nullptr || gemv_serves(*request.other, request.scheme));
  if (streams) {
    if (least > 0) least = std::max(least, gemv_before_wgmma(request) + 1);
    most_gemv = gemv_most_tokens(request, least);
    add_gemv(request, most_gemv, kernels);
  }
  const bool many = least > 0 && least <= request.max_num_tokens;
  // Token counts between GEMV and wgmma run as cuda-sm80 plans them.
  add_rest(kernels, most_gemv + 1, many ? least - 1 : request.max_num_tokens, plan);
  if (many) add_wgmma(request, least, request.max_num_tokens, plan, kernels);
  kernels.back().range.to_tokens = 0;
  plan.kernels = std::move(kernels);
  // The experts of other tokens decide which warp adds which columns of a token.
  if (plan.fuses()) plan.deterministic = false;
  return plan;
}

KernelPlan plan_sm90(const KernelRequest& request, const Machine& machine) {
  KernelPlan plan = plan_mma(request, machine);
  if (request.linear) return plan_linear(request, machine, std::move(plan));
  // GEMM 1 must apply the activation.
  if (!request.fuses || (request.activation != nullptr && !plan.activates)) return plan;
  if (!has_row_exponents(request.shape, request.scheme, request.activation != nullptr))
    return plan_fused(request, std::move(plan));
  // mma.sync tiles read the same prepared weights, but quantize activations in groups of 32
  // columns.
  KernelRequest moved = request;
  moved.shape = with_row_exponents(request.shape);
  moved.other = nullptr;  // has the same key
  KernelPlan tiles = plan_mma(moved, machine);
  moved.scheme = product_scheme(moved.shape, request.scheme);
  KernelPlan fused = plan_fused(moved, std::move(tiles));
  if (!fused.fuses()) return plan;  // the weights stay as they are
  fused.product_bits = kRowExponentBits, fused.product_group = moved.shape.k;
  return fused;
}

}  // namespace
}  // namespace cuda

#if defined(MORACLE_WITH_SM90A)
const Kernels kCudaSm90Kernels = {cuda::plan_sm90, cuda::make_sm90, cuda::make_sm90_experts};
#else  // for other architectures these kernels compile to empty bodies
const Kernels kCudaSm90Kernels = {cuda::plan_sm90, nullptr, nullptr};
#endif

}  // namespace moracle

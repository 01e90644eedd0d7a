#include "oracle/plan.h"

#include <algorithm>

#include "base/text.h"
#include "layout/layout.h"
#include "oracle/workspace.h"
#include "quant/code_set.h"

namespace moracle {
namespace {

// The dtype of activations between stages. A CPU always uses f32, which is exact enough and equally
// fast. On a GPU f32 would double the memory traffic.
DType activation_dtype(Platform platform) {
  return platform == Platform::kCpu ? DType::kF32 : DType::kBF16;
}

std::string size_text(int64_t bytes) {
  if (bytes < 1'000'000) return str((bytes + 500) / 1000, " kB");
  const int64_t tenths = (bytes + 50'000) / 100'000;
  return str(tenths / 10, ".", tenths % 10, " MB");
}

// "1 to 4 rows", "up to 4 rows", "5 rows or more"; "" means any number.
std::string range_text(int64_t from, int64_t to, const char* unit) {
  if (from <= 1 && to == 0) return "";
  if (to == 0) return str(from, " ", unit, "s or more");
  if (from == to) return str(from, " ", unit, from == 1 ? "" : "s");
  return from <= 1 ? str("up to ", to, " ", unit, "s") : str(from, " to ", to, " ", unit, "s");
}

// The intermediate activations of this many rows fit into the last-level cache of a server. Fewer
// rows cost more in thread synchronization than they save.
constexpr int64_t kChunkRows = 32768;

bool takes_chunks(const Plan& plan) {
  if (plan.layer.linear || is_static(plan.layer.scheme)) return false;
  const KernelPlan &w13 = *plan.matrices[0].kernel, &w2 = *plan.matrices[1].kernel;
  return w13.in_chunks && w13.activates && w2.in_chunks && w2.combines;
}

// True if kernels may take the layer from its input to its output at once.
bool fuses(const Plan& plan, const Request& request) {
  const LayerSpec& layer = plan.layer;
  return !layer.linear && plan.format == ActivationFormat::kStandard && plan.lora_rank == 0 &&
         !request.deterministic && !is_static(layer.scheme) && !layer.routing.weight_on_input;
}

// True if fused kernels of both matrices run the same numbers of tokens: these change only where
// the range of a kernel begins.
bool fuse_alike(const KernelPlan& a, const KernelPlan& b) {
  const auto alike = [&](const PlannedKernel& kernel) {
    return a.fuses(kernel.range.from_tokens) == b.fuses(kernel.range.from_tokens);
  };
  return std::all_of(a.kernels.begin(), a.kernels.end(), alike) &&
         std::all_of(b.kernels.begin(), b.kernels.end(), alike);
}

// What people read of a matrix.
MatrixPlan described(const MatrixShape& shape, int64_t weight_bytes, int64_t max_num_tokens,
                     KernelPlan&& kernel) {
  MatrixPlan matrix{shape,         weight_bytes, kernel.input_dtype, {}, kernel.product_bits,
                    kernel.reason, nullptr};
  for (const PlannedKernel& one : kernel.kernels) {
    if (one.range.from_tokens <= max_num_tokens)
      matrix.kernels.push_back({name(one.form), one.range});
  }
  matrix.kernel = std::make_shared<const KernelPlan>(std::move(kernel));
  return matrix;
}

// Fills matrices, weight_bytes and scratch_bytes.
void plan_matrices(Plan& plan, const Request& request, const Machine& machine, bool may_fuse) {
  const LayerSpec& layer = request.layer;
  const Backend& backend = *plan.backend;
  plan.matrices.clear();
  plan.weight_bytes = plan.scratch_bytes = 0;
  const bool batched = plan.format == ActivationFormat::kBatched;
  std::vector<MatrixShape> shapes = layer.matrices();
  // Only kernels of the CPU read codes in fewer bits than their type has.
  for (MatrixShape& shape : shapes) {
    if (backend.platform != Platform::kCpu) shape.key = with_any_codes(shape.key);
  }
  const QuantKey &first = shapes.front().key, &last = shapes.back().key;
  // Quantized activations may depend on the scheme of the weights.
  const bool alike = first.dtype == last.dtype && first.group.cols == last.group.cols;
  may_fuse = may_fuse && (alike || !layer.scheme.activation);
  std::vector<KernelPlan> kernels;
  for (const MatrixShape& shape : shapes) {
    const Scheme scheme{shape.key, layer.scheme.activation};
    KernelRequest wanted{shape, scheme, request.deterministic, request.bf16_activations,
                         plan.chunk_rows};
    wanted.max_num_tokens = plan.max_num_tokens;
    if (batched) wanted.min_num_tokens = plan.max_num_tokens;
    wanted.num_experts = plan.experts.num_local();
    wanted.rows_per_token = batched ? wanted.num_experts : plan.top_k();
    wanted.expert_rows = std::max<int64_t>(plan.top_k(), 1);
    wanted.fuses = may_fuse;
    wanted.linear = layer.linear;
    if (!layer.linear) wanted.other = kernels.empty() ? &shapes.back() : &shapes.front();
    if (!layer.linear && kernels.empty()) wanted.activation = &layer.activation;
    KernelPlan& kernel = kernels.emplace_back(backend.kernels->plan(wanted, machine));
    // An adapter's output is added before any later step, so the epilogue must not run these steps.
    if (layer.linear || plan.lora_rank > 0)
      kernel.activates = kernel.quantizes = kernel.combines = false;
  }
  if (may_fuse && !fuse_alike(kernels.front(), kernels.back()))
    return plan_matrices(plan, request, machine, false);  // one matrix has no such kernels
  // Stored scales belong to the next matrix. Also, the next matrix may not read codes.
  const auto& key = layer.scheme.activation;
  if (!key || is_static(layer.scheme) || kernels.back().input_dtype != key->dtype)
    kernels.front().quantizes = false;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const int64_t bytes =
        plan.experts.num_local() * static_cast<int64_t>(backend.layout->sections(shapes[i]).bytes);
    plan.weight_bytes += bytes;
    plan.scratch_bytes = std::max(plan.scratch_bytes, kernels[i].scratch_bytes);
    plan.matrices.push_back(
        described(shapes[i], bytes, plan.max_num_tokens, std::move(kernels[i])));
  }
}

}  // namespace

bool KernelPlan::fuses(int64_t num_tokens) const {
  return std::any_of(kernels.begin(), kernels.end(), [&](const PlannedKernel& kernel) {
    return kernel.fused && kernel.range.may_run(num_tokens);
  });
}

bool KernelPlan::fuses() const {
  return std::any_of(kernels.begin(), kernels.end(),
                     [](const PlannedKernel& kernel) { return kernel.fused; });
}

int64_t Plan::max_slots() const {
  return format == ActivationFormat::kBatched ? experts.num_local() * max_num_tokens
                                              : max_num_tokens;
}

int64_t Plan::largest_allocation() const {
  int64_t largest = std::max({adapter_bytes, workspace_bytes, scratch_bytes});
  for (const MatrixPlan& matrix : matrices) largest = std::max(largest, matrix.weight_bytes);
  return largest;
}

Plan make_plan(const Backend& backend, const Request& request, const Machine& machine) {
  const LayerSpec& layer = request.layer;
  Plan plan;
  plan.backend = &backend;
  plan.layer = layer;
  plan.layout = backend.layout->name;
  plan.experts = layer.linear ? ExpertMap::all(1) : *request.parallel.map(layer.num_experts);
  if (!layer.linear) plan.format = request.parallel.format;
  plan.max_num_tokens = request.max_num_tokens;
  plan.activation_dtype = activation_dtype(backend.platform);
  if (!layer.linear && request.lora_rank > 0) {
    plan.lora_rank = request.lora_rank;
    plan.max_adapters = request.max_adapters;
    plan.adapter_bytes = static_cast<int64_t>(carve_adapters(plan, nullptr).bytes);
  }
  const int64_t all_rows = plan.max_slots() * plan.top_k();
  plan.chunk_rows = std::min(all_rows, kChunkRows);
  const bool may_fuse = fuses(plan, request);
  plan_matrices(plan, request, machine, may_fuse);
  if (plan.chunk_rows < all_rows && !takes_chunks(plan)) {
    plan.chunk_rows = all_rows;
    plan_matrices(plan, request, machine, may_fuse);
  }
  plan.workspace_bytes = static_cast<int64_t>(
      request.layer.linear ? carve_linear(plan, nullptr).bytes : carve_moe(plan, nullptr).bytes);
  return plan;
}

std::string describe(const KernelUse& use) {
  const KernelRange& range = use.range;
  const std::string rows = range_text(range.from_rows, range.to_rows, "row");
  const std::string tokens = range_text(range.from_tokens, range.to_tokens, "token");
  return str(use.name, rows.empty() ? "" : "; experts with " + rows,
             tokens.empty() ? "" : "; " + tokens);
}

std::vector<std::string> reasons(std::span<const MatrixPlan> matrices) {
  std::vector<std::string> reasons;
  for (const MatrixPlan& matrix : matrices) {
    const std::string& reason = matrix.reason;
    if (!reason.empty() && std::find(reasons.begin(), reasons.end(), reason) == reasons.end())
      reasons.push_back(reason);
  }
  return reasons;
}

std::string describe(const Plan& plan) {
  std::string text = str("plan  layout ", plan.layout, ", ", size_text(plan.weight_bytes),
                         " of weights, ", size_text(plan.workspace_bytes),
                         " of workspace for up to ", plan.max_num_tokens, " tokens");
  if (plan.adapter_bytes > 0)
    text +=
        str(", ", size_text(plan.adapter_bytes), " for ", plan.max_adapters,
            plan.max_adapters == 1 ? " adapter" : " adapters", " of rank up to ", plan.lora_rank);
  if (plan.scratch_bytes > 0) text += ", " + size_text(plan.scratch_bytes) + " of kernel scratch";
  text += "\n";
  if (!plan.experts.is_identity())
    text += str("      ", plan.experts.num_local(), " of ", plan.experts.num_experts(),
                " experts lie on this device\n");
  for (size_t i = 0; i < plan.matrices.size(); ++i) {
    const MatrixPlan& matrix = plan.matrices[i];
    const char* const label = plan.layer.linear ? "" : (i == 0 ? "w13 " : "w2  ");
    std::string start = str("      ", label, "[", matrix.shape.n, ", ", matrix.shape.k, "]  ");
    for (const KernelUse& use : matrix.kernels) {
      text += start + describe(use) + "\n";
      start.assign(start.size(), ' ');
    }
  }
  for (const std::string& reason : reasons(plan.matrices)) text += str("      ", reason, "\n");
  return text;
}

}  // namespace moracle

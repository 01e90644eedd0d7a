#include "parallel/dispatch/gathered_experts.h"

#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "kernels/kernel_device.h"
#include "kernels/ops.h"
#include "moe/moe_access.h"
#include "oracle/carve.h"
#include "oracle/kernel_plan.h"

namespace moracle {
namespace {

// The tokens of all ranks and their sums, sized for the largest call, so that graphs keep them.
struct GatheredRows {
  std::byte *rows, *sums, *ids, *weights, *scales;
  std::byte *own_codes, *own_scales;
  Exchange::RowOrder order;
  size_t bytes;

  static GatheredRows carve(const Plan& plan, std::byte* base) {
    const int64_t most = plan.max_num_tokens, hidden = plan.layer.hidden_size;
    const int64_t row = hidden * bits(plan.activation_dtype) / 8;
    const int64_t scales = (hidden / 32 + 1) * 4;  // at most one for each 32 codes
    Carver carver(base);
    GatheredRows memory{};
    memory.rows = carver.take<std::byte>(most * row);
    memory.sums = carver.take<std::byte>(most * row);
    memory.ids = carver.take<std::byte>(most * plan.layer.top_k * 4);
    memory.weights = carver.take<std::byte>(most * plan.layer.top_k * 4);
    if (plan.layer.scheme.activation) {
      memory.scales = carver.take<std::byte>(most * scales);
      memory.own_codes = carver.take<std::byte>(most * row);
      memory.own_scales = carver.take<std::byte>(most * scales);
    }
    memory.order = {carver.take<int32_t>(most * plan.layer.top_k),
                    carver.take<float>(most * plan.layer.top_k)};
    memory.bytes = carver.bytes();
    return memory;
  }
};

}  // namespace

int64_t GatheredExperts::memory_bytes(const Plan& plan) {
  return static_cast<int64_t>(GatheredRows::carve(plan, nullptr).bytes);
}

Status GatheredExperts::run(FusedMoe& moe, const ExpertCopies& copies, const Matrix& hidden,
                            TopkIds topk_ids, TopkWeights topk_weights, const Matrix& output,
                            Stream stream) {
  const Plan& plan = moe.plan();
  const int64_t size = group_.size(), top_k = plan.layer.top_k;
  const int64_t chunk = plan.max_num_tokens / size;
  if (hidden.stride != hidden.cols || output.stride != output.cols ||
      output.dtype != plan.activation_dtype || hidden.dtype != output.dtype || chunk == 0) {
    return Error{
        ErrorKind::kInvalidArgument, "", plan.layer.name,
        str("a plan for at least ", size, " tokens, and tokens in ", name(plan.activation_dtype),
            " without gaps"),
        str("the plan is for ", plan.max_num_tokens, ", and they are in ", name(hidden.dtype))};
  }
  if (const auto bytes = static_cast<size_t>(memory_bytes(plan)); memory_.bytes() < bytes) {
    MORACLE_CHECK(device_.synchronize());  // earlier work may read the old memory
    MORACLE_TRY(memory_, device_.allocate(bytes));
  }
  const GatheredRows to = GatheredRows::carve(plan, memory_.as<std::byte>());
  for (int64_t first = 0; first < hidden.rows; first += chunk) {
    const int64_t count = std::min(chunk, hidden.rows - first), all = count * size;
    Rows own{hidden.slice(first, count), nullptr, 0};
    const Rows form = MoeAccess::prepared_form(moe, all);
    const bool codes = form.values.cols > 0;
    if (codes) {
      own = {{to.own_codes, form.values.dtype, count, form.values.cols, form.values.cols},
             reinterpret_cast<float*>(to.own_scales),
             form.num_scales};
      MORACLE_CHECK(MoeAccess::prepare(moe, hidden.slice(first, count), all, own, stream));
    }
    const auto bytes = [count](int64_t of_token) { return static_cast<size_t>(count * of_token); };
    std::vector<Exchange::Gathered> gathered{
        {own.values.data, bytes(own.values.cols * bits(own.values.dtype) / 8), to.rows},
        {topk_ids.data + first * top_k, bytes(top_k * 4), to.ids},
        {topk_weights.data + first * top_k, bytes(top_k * 4), to.weights}};
    if (codes) gathered.push_back({own.scales, bytes(own.num_scales * 4), to.scales});
    MORACLE_CHECK(exchange_.all_gather(gathered, stream));
    auto* const all_ids = reinterpret_cast<int32_t*>(to.ids);
    if (copies.has_several())
      MORACLE_CHECK(
          copies.keep_own(all_ids, all, top_k, all_ids, kernel_device(device_).ops(), stream));
    ExpertsCall call{.input = {{to.rows, own.values.dtype, all, own.values.cols, own.values.cols},
                               codes ? reinterpret_cast<float*>(to.scales) : nullptr,
                               own.num_scales},
                     .form = codes ? ExpertsCall::Input::kPrepared : ExpertsCall::Input::kTokens,
                     .topk_ids = all_ids,
                     .topk_weights = reinterpret_cast<const float*>(to.weights)};
    const Matrix mine = output.slice(first, count);
    if (!plan.matrices[1].kernel->combines && exchange_.fuses_combine(mine)) {
      call.add = [&](const ExpertRows& found) {
        return exchange_.combine_scatter(found, to.order, mine, stream);
      };
      MORACLE_CHECK(MoeAccess::run(moe, std::move(call), stream));
      continue;
    }
    const Matrix sums{to.sums, output.dtype, all, output.cols, output.cols};
    call.output = sums;
    MORACLE_CHECK(MoeAccess::run(moe, std::move(call), stream));
    MORACLE_CHECK(exchange_.reduce_scatter(sums, mine, stream));
  }
  return {};
}

}  // namespace moracle

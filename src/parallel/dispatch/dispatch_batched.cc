// Every rank gets the tokens of its experts, sorted by expert, with sizes that are fixed: the host
// decides nothing. An exchange that has batches() moves them.
#include "base/text.h"
#include "base/try.h"
#include "kernels/ops.h"
#include "moe/moe_access.h"
#include "oracle/carve.h"
#include "oracle/workspace.h"
#include "parallel/dispatch/dispatch.h"

namespace moracle {
namespace {

// Tokens of one rank in a call that batches of `batch_tokens` can take.
int64_t most_tokens_of(int64_t batch_tokens, const Plan& plan, int64_t ranks) {
  return std::min(batch_tokens, plan.max_num_tokens / ranks);
}

BatchShape shape_of(int64_t batch_tokens, const Rows& form, const Plan& plan, int64_t ranks) {
  BatchShape shape;
  shape.num_experts = plan.layer.num_experts, shape.top_k = plan.layer.top_k;
  shape.hidden_size = plan.layer.hidden_size;
  shape.max_tokens = most_tokens_of(batch_tokens, plan, ranks);
  shape.result = plan.activation_dtype;
  shape.row = form.values.dtype, shape.cols = form.values.cols, shape.num_scales = form.num_scales;
  return shape;
}

}  // namespace

struct Dispatch::Batch {
  BatchShape shape;
  Rows own;         // the tokens of this rank, quantized
  Rows arrived;     // [slots]
  Matrix returned;  // [slots], the results
  int32_t* counts;
  RowPlan plan;
  Matrix results;  // one after another
  size_t bytes;

  static Batch carve(const BatchShape& shape, int64_t ranks, std::byte* base) {
    const int64_t slots = shape.slots(ranks), rows = shape.most_rows(ranks);
    const bool codes = shape.num_scales > 0;
    Carver carver(base);
    const auto take_rows = [&](int64_t count) {
      return Rows{carver.take_matrix(shape.row, count, shape.cols),
                  codes ? carver.take<float>(count * shape.num_scales) : nullptr, shape.num_scales};
    };
    Batch batch{};
    batch.shape = shape;
    if (codes) batch.own = take_rows(shape.max_tokens);
    batch.arrived = take_rows(slots);
    // GEMM 1 has read the floats that arrived before GEMM 2 is done.
    batch.returned =
        codes ? carver.take_matrix(shape.result, slots, shape.hidden_size) : batch.arrived.values;
    batch.counts = carver.take<int32_t>(shape.num_local(ranks));
    batch.plan = {carver.take<int32_t>(shape.num_local(ranks) + 1), carver.take<int32_t>(rows),
                  carver.take<int32_t>(slots), carver.take<int32_t>(rows)};
    batch.results = carver.take_matrix(shape.result, rows, shape.hidden_size);
    batch.bytes = carver.bytes();
    return batch;
  }
};

int64_t Dispatch::batch_bytes(const Plan& plan, int64_t batch_tokens, int64_t ranks) {
  const Rows form = carve_moe(plan, nullptr).input;
  return static_cast<int64_t>(
      Batch::carve(shape_of(batch_tokens, form, plan, ranks), ranks, nullptr).bytes);
}

Result<Dispatch::Batch> Dispatch::batch_of(const FusedMoe& moe) {
  if (exchange_.batches() == nullptr)
    return Error{ErrorKind::kUnsupported, "", str("exchange '", exchange_.name(), "'"),
                 "an exchange with batches", "it has none"};
  const int64_t ranks = group_.size();
  MORACLE_TRY(const Rows form, sorted_form(moe.plan()));
  const BatchShape shape = shape_of(exchange_.batches()->max_tokens(), form, moe.plan(), ranks);
  const size_t bytes = Batch::carve(shape, ranks, nullptr).bytes;
  MORACLE_TRY(std::byte* const base, memory(batch_, static_cast<int64_t>(bytes)));
  return Batch::carve(shape, ranks, base);
}

Status Dispatch::prepare(FusedMoe& moe, const ExpertCopies& copies) {
  if (exchange_.batches() == nullptr) return {};
  const Plan& plan = moe.plan();
  const auto refuse = [&](std::string need, std::string fact) {
    return Error{ErrorKind::kUnsupported, "", str("exchange '", exchange_.name(), "'"),
                 std::move(need), str(plan.layer.name, ": ", fact)};
  };
  if (same_bits_) return refuse("deterministic off", "results are added in its own order");
  const int64_t ranks = group_.size(), num_experts = plan.layer.num_experts;
  if (num_experts % ranks != 0)
    return refuse("equally many experts on each rank",
                  str("there are ", num_experts, " on ", ranks, " ranks"));
  for (int64_t e = 0; e < num_experts; ++e) {
    const std::vector<int32_t>& holders = copies.ranks(e);
    if (holders.size() != 1 || holders[0] != e / (num_experts / ranks))
      return refuse(
          "placement linear, one copy of each expert",
          str("expert ", e, " is on rank ", holders[0], holders.size() > 1 ? " and others" : ""));
  }
  if (plan.max_num_tokens < ranks)
    return refuse("a plan for a token of each rank", str("the plan is for ", plan.max_num_tokens));
  MORACLE_TRY(const Batch batch, batch_of(moe));
  MORACLE_CHECK(exchange_.batches()->prepare(batch.shape));
  // A first call without tokens. The exchange may connect or compile, and its errors come here. The
  // GPU loads the kernels: later, while a kernel waits for another rank, loading would wait, too.
  const size_t ids_bytes = plan.layer.top_k * sizeof(int32_t);
  MORACLE_TRY(const Buffer ids, device_.allocate(ids_bytes));
  MORACLE_TRY(const Buffer weights, device_.allocate(ids_bytes));
  MORACLE_TRY(const Buffer rows,
              device_.allocate(2 * plan.layer.hidden_size * bits(batch.shape.result) / 8));
  const std::vector<int32_t> none(plan.layer.top_k, -1);
  const std::vector<float> zeros(2 * plan.layer.hidden_size);
  MORACLE_CHECK(device_.upload(ids.data(), none.data(), ids_bytes));
  MORACLE_CHECK(device_.upload(rows.data(), zeros.data(), rows.bytes()));
  const int64_t cols = plan.layer.hidden_size;
  const Matrix both{rows.data(), batch.shape.result, 2, cols, cols};
  MORACLE_CHECK(apply_batch(moe, both.slice(0, 1), {ids.as<int32_t>()}, {weights.as<float>()},
                            both.slice(1, 1), {}));
  return device_.synchronize();
}

bool Dispatch::takes_batch(const Plan& plan, int64_t num_tokens) const {
  return exchange_.batches() != nullptr &&
         num_tokens <= most_tokens_of(exchange_.batches()->max_tokens(), plan, group_.size());
}

Status Dispatch::dispatch_batch(FusedMoe& moe, const Batch& batch, const Matrix& hidden,
                                TopkIds topk_ids, Stream stream) {
  Rows own{hidden, nullptr, 0};
  if (batch.shape.num_scales > 0) {
    own = batch.own.first(hidden.rows);
    const QuantKey& key = *moe.plan().layer.scheme.activation;
    MORACLE_CHECK(kernel_device(device_).ops().quantize(hidden, key, own, stream));
  }
  return exchange_.batches()->dispatch(batch.shape, own, topk_ids, batch.arrived, batch.counts,
                                       stream);
}

Status Dispatch::send_batch(FusedMoe& moe, const Matrix& hidden, TopkIds topk_ids,
                            TopkWeights topk_weights, const Matrix& output, Stream stream) {
  MORACLE_TRY(const Batch batch, batch_of(moe));
  MORACLE_CHECK(dispatch_batch(moe, batch, hidden, topk_ids, stream));
  return exchange_.batches()->combine(batch.shape, {}, topk_ids, topk_weights, batch.returned,
                                      output, stream);
}

Status Dispatch::apply_batch(FusedMoe& moe, const Matrix& hidden, TopkIds topk_ids,
                             TopkWeights topk_weights, const Matrix& output, Stream stream) {
  MORACLE_TRY(const Batch batch, batch_of(moe));
  MORACLE_CHECK(dispatch_batch(moe, batch, hidden, topk_ids, stream));
  const int64_t ranks = group_.size();
  // Fewer tokens than the shape holds give fewer results.
  const Matrix results =
      batch.results.slice(0, std::min(batch.results.rows, ranks * hidden.rows * batch.shape.top_k));
  MORACLE_CHECK(MoeAccess::run(moe,
                               {.input = batch.arrived,
                                .form = ExpertsCall::Input::kReady,
                                .routing = ExpertsCall::Routing::kCounts,
                                .expert_num_tokens = batch.counts,
                                .expert_rows = batch.shape.expert_rows(ranks),
                                .sorted = batch.plan,
                                .output = results,
                                .result = ExpertsCall::Output::kSorted},
                               stream));
  const ExpertResults found{results, batch.plan.row_slot,
                            batch.plan.expert_offsets + batch.shape.num_local(ranks)};
  return exchange_.batches()->combine(batch.shape, found, topk_ids, topk_weights, batch.returned,
                                      output, stream);
}

}  // namespace moracle

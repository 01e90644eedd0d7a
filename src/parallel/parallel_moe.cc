// The public experts over ranks, for both spreads of tokens.
#include <algorithm>

#include "base/out_of_memory.h"
#include "base/text.h"
#include "base/try.h"
#include "moe/checks.h"
#include "parallel/dispatch/all_to_all_experts.h"
#include "parallel/dispatch/gathered_experts.h"
#include "parallel/replicated_moe.h"

namespace moracle {

struct ExpertParallel::State {
  std::shared_ptr<Group> group;
  std::shared_ptr<Exchange> exchange;
  std::shared_ptr<Device> device;
  Spread spread = Spread::kReplicated;
  ReplicatedMoe replicated;
  Buffer sums, own_ids;                         // of the largest replicated layer
  std::unique_ptr<AllToAllExperts> all_to_all;  // of dispatched tokens
  std::unique_ptr<GatheredExperts> gathered;    // likewise

  Status grow(Buffer& buffer, size_t bytes) const {
    if (buffer.bytes() >= bytes) return {};
    MORACLE_TRY(buffer, device->allocate(bytes));
    return {};
  }
};

ExpertParallel::ExpertParallel(std::shared_ptr<Group> group, std::shared_ptr<Exchange> exchange,
                               std::shared_ptr<Device> device, Spread spread, bool same_bits)
    : state_(std::make_unique<State>()) {
  State& state = *state_;
  state.replicated = {exchange.get(), same_bits, nullptr, device.get()};
  if (spread == Spread::kDispatched) {
    state.all_to_all = std::make_unique<AllToAllExperts>(*group, *exchange, *device, same_bits);
    state.gathered = std::make_unique<GatheredExperts>(*group, *exchange, *device);
  }
  state.group = std::move(group);
  state.exchange = std::move(exchange);
  state.device = std::move(device);
  state.spread = spread;
}
ExpertParallel::~ExpertParallel() = default;
Spread ExpertParallel::spread() const {
  return state_->spread;
}

struct ParallelMoe::State {
  FusedMoe moe;
  std::shared_ptr<ExpertParallel> ranks;
  ExpertCopies copies;

  ExpertParallel::State& shared() const { return *ranks->state_; }
  Status reserve();
  Status check(const Matrix& hidden, const Matrix& output) const;
};

ParallelMoe::ParallelMoe(std::unique_ptr<State> state) : state_(std::move(state)) {}
ParallelMoe::ParallelMoe(ParallelMoe&&) noexcept = default;
ParallelMoe& ParallelMoe::operator=(ParallelMoe&&) noexcept = default;
ParallelMoe::~ParallelMoe() = default;
FusedMoe& ParallelMoe::experts() {
  return state_->moe;
}
const Plan& ParallelMoe::plan() const {
  return state_->moe.plan();
}

Result<ParallelMoe> ParallelMoe::make(FusedMoe moe, std::shared_ptr<ExpertParallel> ranks) {
  const std::string layer = moe.plan().layer.name;
  return or_out_of_memory(layer, [&]() -> Result<ParallelMoe> {
    auto state = std::make_unique<State>(State{std::move(moe), std::move(ranks), {}});
    const Plan& plan = state->moe.plan();
    ExpertParallel::State& shared = state->shared();
    // Every rank gathers before it checks its own layer, or the others would wait for it.
    MORACLE_TRY(state->copies, ExpertCopies::gather(*shared.group, plan.experts, false));
    if (plan.format == ActivationFormat::kBatched)
      return Error{ErrorKind::kInvalidArgument, "", layer, "a plan for tokens with ids",
                   "it is for batched activations"};
    MORACLE_CHECK(state->copies.upload(shared.group->rank(), *shared.device));
    if (shared.spread == Spread::kReplicated) MORACLE_CHECK(state->reserve());
    return ParallelMoe(std::move(state));
  });
}

Status ParallelMoe::State::reserve() {
  ExpertParallel::State& s = shared();
  const Plan& plan = moe.plan();
  if (s.replicated.same_bits) {
    MORACLE_CHECK(s.grow(s.sums, ReplicatedMoe::scratch_bytes(plan.layer, plan.max_num_tokens,
                                                              plan.activation_dtype)));
    s.replicated.scratch = s.sums.as<std::byte>();
  }
  const size_t ids = plan.max_num_tokens * plan.layer.top_k * sizeof(int32_t);
  return copies.has_several() ? s.grow(s.own_ids, ids) : Status();
}

// Exchanges move whole rows of the device's activations. FusedMoe checks the rest.
Status ParallelMoe::State::check(const Matrix& hidden, const Matrix& output) const {
  const Plan& plan = moe.plan();
  const auto fits = [&](const Matrix& m) {
    return m.dtype == plan.activation_dtype && m.cols == plan.layer.hidden_size &&
           m.stride == m.cols && m.rows == hidden.rows && m.rows <= plan.max_num_tokens;
  };
  if (fits(hidden) && fits(output)) return {};
  return Error{ErrorKind::kInvalidArgument, "", plan.layer.name,
               str("hidden and output in ", name(plan.activation_dtype), " [at most ",
                   plan.max_num_tokens, ", ", plan.layer.hidden_size, "] without gaps"),
               str("they are ", name(hidden.dtype), " [", hidden.rows, ", ", hidden.cols, "] and ",
                   name(output.dtype), " [", output.rows, ", ", output.cols, "] with strides ",
                   hidden.stride, " and ", output.stride)};
}

Status ParallelMoe::apply(const ConstMatrix& input, TopkIds topk_ids, TopkWeights topk_weights,
                          const Matrix& output, Stream stream, LoraIds lora_ids) {
  State& state = *state_;
  ExpertParallel::State& shared = state.shared();
  const Matrix hidden = as_operand(input);
  MORACLE_CHECK(state.check(hidden, output));
  if (shared.spread == Spread::kReplicated) {
    return shared.replicated.apply(state.moe, state.copies, shared.own_ids.as<int32_t>(), hidden,
                                   topk_ids, topk_weights, output, stream, lora_ids);
  }
  if (lora_ids.data != nullptr)
    return Error{ErrorKind::kUnsupported, "", plan().layer.name,
                 "replicated tokens, where adapters run", "tokens are dispatched"};
  return shared.all_to_all->run(state.moe, state.copies, hidden, topk_ids, topk_weights, output,
                                stream);
}

Status ParallelMoe::apply_even(const ConstMatrix& input, TopkIds topk_ids, TopkWeights topk_weights,
                               const Matrix& output, Stream stream) {
  State& state = *state_;
  ExpertParallel::State& shared = state.shared();
  const Matrix hidden = as_operand(input);
  MORACLE_CHECK(state.check(hidden, output));
  if (shared.spread == Spread::kReplicated)
    return Error{ErrorKind::kInvalidArgument, "", plan().layer.name, "dispatched tokens",
                 "they are replicated"};
  return shared.gathered->run(state.moe, state.copies, hidden, topk_ids, topk_weights, output,
                              stream);
}

}  // namespace moracle

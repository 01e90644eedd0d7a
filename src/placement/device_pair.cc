#include "placement/device_pair.h"

#include "base/text.h"
#include "base/try.h"

namespace moracle {
namespace {

template <class Allocate>
Status grow(Buffer& buffer, int64_t bytes, const Allocate& allocate) {
  if (static_cast<int64_t>(buffer.bytes()) >= bytes) return {};
  MORACLE_TRY(buffer, allocate(static_cast<size_t>(bytes)));
  return {};
}

}  // namespace

DevicePair::DevicePair(std::shared_ptr<Workspace> host, std::shared_ptr<Workspace> slots,
                       int64_t bytes_in_flight)
    : state_(std::make_unique<State>()) {
  state_->host = std::move(host);
  state_->slots = std::move(slots);
  state_->budget = MoveBudget(bytes_in_flight);
}
DevicePair::~DevicePair() = default;

Status DevicePair::State::reserve(const Plan& plan, int64_t slot_bytes) {
  const auto on_host = [this](size_t bytes) { return device().allocate_host(bytes); };
  const int64_t tokens = plan.max_num_tokens, choices = tokens * plan.layer.top_k;
  const int64_t rows = tokens * plan.layer.hidden_size * bits(plan.activation_dtype) / 8;
  MORACLE_CHECK(grow(hidden, rows, on_host));
  MORACLE_CHECK(grow(sum, rows, on_host));
  MORACLE_CHECK(grow(ids, choices * static_cast<int64_t>(sizeof(int32_t)), on_host));
  MORACLE_CHECK(grow(weights, choices * static_cast<int64_t>(sizeof(float)), on_host));
  MORACLE_CHECK(grow(packed, slot_bytes, on_host));
  return grow(sum_arrived, rows, [this](size_t bytes) { return device().allocate(bytes); });
}

Result<Parallelism> slots_of(int64_t num_experts, int64_t num_slots) {
  if (num_experts < 0 || num_experts > kMaxLayerSize || num_slots < 0 || num_slots > num_experts) {
    return Error{ErrorKind::kInvalidArgument, "", "slots",
                 str("0 to ", num_experts, ", the number of experts"), str("it is ", num_slots)};
  }
  std::vector<int32_t> local(num_experts, -1);
  for (int64_t slot = 0; slot < num_slots; ++slot) local[slot] = static_cast<int32_t>(slot);
  Parallelism parallel;
  MORACLE_TRY(parallel.expert_map, ExpertMap::from(std::move(local)));
  return parallel;
}

}  // namespace moracle

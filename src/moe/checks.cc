#include "moe/checks.h"

#include "base/text.h"
#include "base/try.h"

namespace moracle {
namespace {

Error wrong(std::string place, std::string need, std::string fact) {
  return {ErrorKind::kInvalidArgument, "", std::move(place), std::move(need), std::move(fact)};
}

// Checks activations as the caller has them.
Status check_floats(const Matrix& m, const char* argument, const Plan& plan) {
  const LayerSpec& layer = plan.layer;
  const int64_t least = plan.format == ActivationFormat::kBatched ? plan.max_slots() : 0;
  const bool is_float = m.dtype == DType::kF32 || m.dtype == DType::kBF16 || m.dtype == DType::kF16;
  if (is_float && m.cols == layer.hidden_size && m.rows >= least && m.rows <= plan.max_slots() &&
      m.stride >= m.cols) {
    return {};
  }
  return wrong(
      str(layer.name, ": ", argument),
      str(least > 0 ? "" : "at most ", plan.max_slots(), " rows of ", layer.hidden_size,
          " columns in f32, bf16 or f16"),
      str("it is ", name(m.dtype), " [", m.rows, ", ", m.cols, "] with stride ", m.stride));
}

// Checks the rows of each slot.
Status check_slots(const Matrix& rows, int64_t num_rows, const Plan& plan) {
  const int64_t hidden = plan.layer.hidden_size;
  if (rows.dtype == plan.activation_dtype && rows.cols == hidden && rows.stride == hidden &&
      rows.rows == num_rows) {
    return {};
  }
  return wrong(
      plan.layer.name,
      str("rows of ", name(plan.activation_dtype), " [", num_rows, ", ", hidden, "] without gaps"),
      str("they are ", name(rows.dtype), " [", rows.rows, ", ", rows.cols, "]"));
}

}  // namespace

Status check_call(const ExpertsCall& call, const Plan& plan) {
  const std::string& layer = plan.layer.name;
  const bool batched = plan.format == ActivationFormat::kBatched;
  if (batched != (call.routing == ExpertsCall::Routing::kCounts))
    return wrong(layer,
                 batched ? "a call of apply_batched, as planned" : "a call of apply, as planned",
                 batched ? "apply was called" : "apply_batched was called");
  if (call.form == ExpertsCall::Input::kTokens)
    MORACLE_CHECK(check_floats(call.input.values, "hidden", plan));
  if (call.result == ExpertsCall::Output::kSlots) {
    MORACLE_CHECK(check_slots(call.output, call.num_tokens() * plan.top_k(), plan));
  } else if (!call.add) {
    MORACLE_CHECK(check_floats(call.output, "output", plan));
    if (call.output.rows != call.num_tokens())
      return wrong(layer, "the same number of rows in output and hidden",
                   str("they have ", call.output.rows, " and ", call.num_tokens()));
  }
  if (call.lora_ids == nullptr || plan.lora_rank > 0) return {};
  return wrong(layer, "a plan with adapters", "the plan has none");
}

Status check_pointers(const ExpertsCall& call, const Plan& plan) {
  if (call.routing == ExpertsCall::Routing::kIds) {
    MORACLE_CHECK(check_pointer(call.topk_ids, alignof(int32_t), plan, "topk_ids"));
    MORACLE_CHECK(check_pointer(call.topk_weights, alignof(float), plan, "topk_weights"));
  } else {
    MORACLE_CHECK(check_pointer(call.expert_num_tokens, alignof(int32_t), plan, "num_tokens"));
  }
  if (call.form == ExpertsCall::Input::kTokens)
    MORACLE_CHECK(check_pointer(call.input.values, plan, "hidden"));
  if (!call.add && call.output.rows > 0) MORACLE_CHECK(check_pointer(call.output, plan, "output"));
  if (call.lora_ids == nullptr) return {};
  return check_pointer(call.lora_ids, alignof(int32_t), plan, "lora_ids");
}

Status check_routing_known(const LayerSpec& layer) {
  if (layer.routing.score != Score::kUnknown) return {};
  return wrong(layer.name,
               "its routing: set DescribedWeights::spec.routing before select and FusedMoe::make",
               "it is unknown, because the checkpoint's architecture is unknown");
}

Status check_device(const Plan& plan, const Device& device) {
  if (plan.backend->platform == device.platform() &&
      plan.activation_dtype == device.activation_dtype()) {
    return {};
  }
  return wrong(plan.layer.name,
               str("a ", name(plan.backend->platform), " device with activations in ",
                   name(plan.activation_dtype), ", as planned"),
               str("it is ", device.name(), " with ", name(device.activation_dtype())));
}

Status check_pointer(const void* data, size_t align, const Plan& plan, const char* argument) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  if (data != nullptr && address % align == 0) return {};
  return wrong(str(plan.layer.name, ": ", argument),
               str("an address that is a multiple of ", align, " bytes"),
               data == nullptr ? "it is null"
                               : str("it is ", address % align, " bytes past such an address"));
}

Status check_pointer(const Matrix& matrix, const Plan& plan, const char* argument) {
  return check_pointer(matrix.data, static_cast<size_t>(bits(matrix.dtype) / 8), plan, argument);
}

Status check_workspace(const Workspace& workspace, const Plan& plan) {
  if (workspace.bytes() >= static_cast<size_t>(plan.workspace_bytes)) return {};
  return Error{ErrorKind::kOutOfMemory, "", plan.layer.name,
               str("a workspace of ", plan.workspace_bytes, " bytes, as planned"),
               str("it has ", workspace.bytes(), " bytes, because the device refused more")};
}

Status check_swap(const PackedWeights::State* packed, const Plan& plan, const Device& device) {
  const std::string& layer = plan.layer.name;
  if (packed == nullptr)
    return wrong(layer, "packed weights", "an earlier swap or move has consumed them");
  if (!packed->layer.same_but_name(plan.layer)) {
    return wrong(layer, "weights packed for this layer, " + describe(plan.layer),
                 "they were packed for " + packed->layer.name + ", " + describe(packed->layer));
  }
  if (packed->experts != plan.experts) {
    return wrong(layer, "weights packed for the experts of this rank",
                 "they were packed for other experts");
  }
  if (packed->backend->layout != plan.backend->layout) {
    return wrong(layer, str("weights packed for backend ", plan.backend->name),
                 str("they were packed for ", packed->backend->name));
  }
  if (packed->device == device.name()) return {};
  return wrong(layer, str("weights packed on ", device.name()),
               str("they were packed on ", packed->device));
}

}  // namespace moracle

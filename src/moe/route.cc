// The router as a public call: checks, then the operations of the device.
#include <cstdint>

#include "base/text.h"
#include "base/try.h"
#include "kernels/ops.h"
#include "moracle/moe.h"

namespace moracle {
namespace {

Error refused(std::string place, std::string need, std::string fact) {
  return {ErrorKind::kInvalidArgument, "", std::move(place), std::move(need), std::move(fact)};
}

// Errors: a null or unaligned pointer.
Status check_aligned(const void* data, size_t align, const char* argument) {
  if (data == nullptr) return refused(argument, "device memory", "it is null");
  const size_t past = reinterpret_cast<uintptr_t>(data) % align;
  if (past == 0) return {};
  return refused(argument, str("an address that is a multiple of ", align, " bytes"),
                 str("it is ", past, " bytes past such an address"));
}

Status check_logits(const Matrix& logits, const Device& device) {
  if (logits.dtype == device.activation_dtype() && logits.rows >= 0 && logits.cols >= 1 &&
      logits.cols <= kMaxLayerSize && logits.stride >= logits.cols) {
    return {};
  }
  return refused("logits",
                 str(name(device.activation_dtype()), " [num_tokens, num_experts] of at most ",
                     kMaxLayerSize, " experts on ", device.name()),
                 str("it is ", name(logits.dtype), " [", logits.rows, ", ", logits.cols,
                     "] with stride ", logits.stride));
}

Status check_scales(const Routing& routing, const float* scales) {
  if (routing.expert_scales == (scales != nullptr)) return {};
  return refused("expert_scales",
                 routing.expert_scales ? "a scale for each expert" : "no scales of experts",
                 scales == nullptr ? "it is null" : "it is not null");
}

}  // namespace

Status route(Device& device, const Matrix& logits, const Routing& routing, int64_t top_k,
             const RouterVectors& vectors, int32_t* topk_ids, float* topk_weights, Stream stream) {
  MORACLE_CHECK(check_logits(logits, device));
  MORACLE_CHECK(check_scales(routing, vectors.expert_scales));
  if (logits.rows == 0) return {};
  MORACLE_CHECK(check_aligned(logits.data, bits(logits.dtype) / 8, "logits"));
  MORACLE_CHECK(check_aligned(topk_ids, alignof(int32_t), "topk_ids"));
  MORACLE_CHECK(check_aligned(topk_weights, alignof(float), "topk_weights"));
  const DeviceLock lock = device.lock();
  Ops& ops = kernel_device(device).ops();
  MORACLE_CHECK(
      ops.route(logits, routing, vectors.correction_bias, top_k, topk_ids, topk_weights, stream));
  if (vectors.expert_scales == nullptr) return {};
  return ops.scale_by_expert(topk_ids, logits.rows * top_k, vectors.expert_scales, topk_weights,
                             stream);
}

}  // namespace moracle

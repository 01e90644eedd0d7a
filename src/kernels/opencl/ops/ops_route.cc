// Router logits to experts and their weights.
#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "kernels/check_ops.h"
#include "kernels/opencl/device/launch_elements.h"
#include "kernels/opencl/ops/check_matrices.h"
#include "kernels/opencl/ops/opencl_ops.h"

namespace moracle {
namespace opencl::ops_route {
namespace {

const KernelName kRoute{"ops/route.cl", "route"};
const KernelName kMixSparsely{"ops/sparse_mixer.cl", "mix_sparsely"};

constexpr int64_t kThreads = 64;     // MOST_ITEMS in route.cl
constexpr int64_t kOwnBytes = 1024;  // of local memory, at most, besides the arguments

LocalBytes floats(int64_t count) {
  return {static_cast<size_t>(count) * sizeof(float)};
}

}  // namespace
}  // namespace opencl::ops_route

Status OpenClOps::route(const Matrix& logits, const Routing& routing, const float* correction_bias,
                        int64_t top_k, int32_t* topk_ids, float* topk_weights, Stream stream) {
  using opencl::ops_route::floats, opencl::ops_route::kRoute, opencl::ops_route::kThreads;
  MORACLE_CHECK(check_routing(routing, logits.cols, correction_bias != nullptr, top_k));
  MORACLE_CHECK(opencl::check_floats({&logits}));
  if (routing.score == Score::kSparseMixer)
    return opencl::launch_elements(queue_, stream, opencl::ops_route::kMixSparsely, 1, logits.rows,
                                   logits, routing.jitter, routing.scaling_factor, topk_ids,
                                   topk_weights, logits.rows, logits.cols);
  const int64_t most =
      (queue_.local_bytes - opencl::ops_route::kOwnBytes) / static_cast<int64_t>(sizeof(float));
  const int64_t numbers = logits.cols + top_k + routing.num_groups;
  if (numbers > most) {
    return Error{ErrorKind::kUnsupported, "", "router",
                 str("at most ", most, " experts, choices and groups on this opencl device"),
                 str("there are ", numbers)};
  }
  const auto i32 = [](int64_t value) { return static_cast<int32_t>(value); };
  return opencl::launch(queue_, stream, kRoute, logits.rows, std::min(kThreads, queue_.max_group),
                        logits, logits.rows, i32(logits.cols), routing.score, routing.renormalize,
                        i32(routing.num_groups), i32(routing.top_groups), routing.scaling_factor,
                        correction_bias, i32(top_k), topk_ids, topk_weights, floats(logits.cols),
                        floats(top_k), floats(routing.num_groups));
}

}  // namespace moracle

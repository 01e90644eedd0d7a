// The gated delta rule. Every token takes one pass over the state (gated_delta.cl).
#include <algorithm>

#include "base/text.h"
#include "kernels/opencl/device/launch.h"
#include "kernels/opencl/ops/check_matrices.h"
#include "kernels/opencl/ops/opencl_ops.h"

namespace moracle {
namespace opencl::ops_gated_delta {
namespace {

// As Sizes in gated_delta.cl.
struct Sizes {
  cl_long num_key_heads, num_value_heads, value_dim, ba_group, state;
  cl_float lower_bound;
};

constexpr int64_t kColumns = 32;    // COLUMNS in gated_delta.cl
constexpr int64_t kMostSlices = 8;  // 16 rows of a key of 128 columns in each work-item

}  // namespace
}  // namespace opencl::ops_gated_delta

Status OpenClOps::gated_delta(const Matrix& qkv, const Matrix& ba, const float* a_log,
                              const float* dt_bias, const GatedDeltaShape& shape,
                              const Batch& batch, const Matrix& out, std::byte*, Stream stream) {
  using namespace opencl::ops_gated_delta;
  MORACLE_CHECK(opencl::check_floats({&qkv, &ba, &out}));
  const int64_t slices = std::clamp<int64_t>(queue_.max_group / kColumns, 1, kMostSlices);
  const int64_t threads = slices * kColumns;
  const opencl::KernelName name{.file = "recurrent/gated_delta.cl",
                                .kernel = "gated_delta",
                                .options = str("-D KEYS=", shape.key_dim, " -D SLICES=", slices,
                                               shape.by_channel ? " -D BY_CHANNEL" : ""),
                                .follows_pointers = true};
  MORACLE_TRY(const cl_kernel kernel, queue_.programs->make(name));
  const Sizes sizes{shape.num_key_heads, shape.num_value_heads, shape.value_dim,
                    shape.ba_group,      shape.state,           shape.lower_bound};
  const int64_t tiles = (shape.value_dim + kColumns - 1) / kColumns;
  return opencl::launch_kernel(
      queue_, stream, name, kernel, batch.num_sequences * shape.num_value_heads * tiles, threads,
      qkv, ba, a_log, dt_bias, sizes, batch.first_token, batch.states, out, batch.num_sequences);
}

}  // namespace moracle

// Mamba-2. Every token takes one pass over the state (mamba2.cl).
#include <algorithm>

#include "base/text.h"
#include "kernels/opencl/device/launch.h"
#include "kernels/opencl/ops/check_matrices.h"
#include "kernels/opencl/ops/opencl_ops.h"

namespace moracle {
namespace opencl::ops_mamba2 {
namespace {

// As Sizes in mamba2.cl.
struct Sizes {
  cl_long num_heads, num_groups, head_dim, state;
  cl_float least_step, most_step;
};

constexpr int64_t kColumns = 32;    // COLUMNS in mamba2.cl
constexpr int64_t kMostSlices = 8;  // 16 rows of a state of 128 rows in each work-item

}  // namespace
}  // namespace opencl::ops_mamba2

Status OpenClOps::mamba2(const Matrix& xbc, const Matrix& dt, const float* a_log,
                         const float* dt_bias, const float* d, const Mamba2Shape& shape,
                         const Batch& batch, const Matrix& out, Stream stream) {
  using namespace opencl::ops_mamba2;
  MORACLE_CHECK(opencl::check_floats({&xbc, &dt, &out}));
  const int64_t slices = std::clamp<int64_t>(queue_.max_group / kColumns, 1, kMostSlices);
  const int64_t threads = slices * kColumns;
  const opencl::KernelName name{
      .file = "recurrent/mamba2.cl",
      .kernel = "mamba2",
      .options = str("-D STATES=", shape.state_dim, " -D SLICES=", slices),
      .follows_pointers = true};
  MORACLE_TRY(const cl_kernel kernel, queue_.programs->make(name));
  const Sizes sizes{shape.num_heads, shape.num_groups, shape.head_dim,
                    shape.state,     shape.least_step, shape.most_step};
  const int64_t tiles = (shape.head_dim + kColumns - 1) / kColumns;
  return opencl::launch_kernel(
      queue_, stream, name, kernel, batch.num_sequences * shape.num_heads * tiles, threads, xbc, dt,
      a_log, dt_bias, d, sizes, batch.first_token, batch.states, out, batch.num_sequences);
}

}  // namespace moracle

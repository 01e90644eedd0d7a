// Lightning attention. Every token takes one pass over the state (lightning.cl).
#include <algorithm>

#include "base/text.h"
#include "kernels/opencl/device/launch.h"
#include "kernels/opencl/ops/check_matrices.h"
#include "kernels/opencl/ops/opencl_ops.h"

namespace moracle {

Status OpenClOps::lightning(const Matrix& qkv, const float* decays, const LightningShape& shape,
                            const Batch& batch, const Matrix& out, Stream stream) {
  constexpr int64_t kColumns = 32;    // COLUMNS in lightning.cl
  constexpr int64_t kMostSlices = 8;  // 16 rows of a head of 128 columns in each work-item
  MORACLE_CHECK(opencl::check_floats({&qkv, &out}));
  const int64_t slices = std::clamp<int64_t>(queue_.max_group / kColumns, 1, kMostSlices);
  const opencl::KernelName name{.file = "recurrent/lightning.cl",
                                .kernel = "lightning",
                                .options = str("-D DIM=", shape.head_dim, " -D SLICES=", slices),
                                .follows_pointers = true};
  MORACLE_TRY(const cl_kernel kernel, queue_.programs->make(name));
  const int64_t tiles = (shape.head_dim + kColumns - 1) / kColumns;
  return opencl::launch_kernel(queue_, stream, name, kernel,
                               batch.num_sequences * shape.num_heads * tiles, slices * kColumns,
                               qkv, decays, shape.num_heads, shape.state, batch.first_token,
                               batch.states, out, batch.num_sequences);
}

}  // namespace moracle

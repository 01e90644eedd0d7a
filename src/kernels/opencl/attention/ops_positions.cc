// Rotary position embedding (RoPE), and new keys and values of the cache.
#include "kernels/opencl/device/launch_elements.h"
#include "kernels/opencl/ops/check_matrices.h"
#include "kernels/opencl/ops/opencl_ops.h"

namespace moracle {
namespace opencl::ops_positions {
namespace {

const KernelName kRotate{"attention/positions.cl", "rotate_pairs"};
const KernelName kTemper{"attention/positions.cl", "temper"};
const KernelName kAppend{"attention/positions.cl", "append_rows", "", true};

}  // namespace
}  // namespace opencl::ops_positions

Status OpenClOps::rotate(const Matrix& x, const RotaryShape& shape, const float* frequencies,
                         const int32_t* positions, Stream stream) {
  MORACLE_CHECK(opencl::check_floats({&x}));
  const int64_t pairs = x.cols / shape.head_dim * shape.num_pairs;
  return opencl::launch_elements(queue_, stream, opencl::ops_positions::kRotate, x.rows, pairs, x,
                                 shape.head_dim, shape.num_pairs, shape.first, shape.interleaved,
                                 shape.factor, frequencies, positions, x.rows, pairs);
}

Status OpenClOps::temper(const Matrix& x, const int32_t* positions, int32_t offset, float scale,
                         float strength, Stream stream) {
  MORACLE_CHECK(opencl::check_floats({&x}));
  return opencl::launch_elements(queue_, stream, opencl::ops_positions::kTemper, x.rows, x.cols, x,
                                 positions, offset, scale, strength, x.rows, x.cols);
}

Status OpenClOps::append(const Matrix& k, const Matrix& v, const Batch& batch,
                         const LayerCache& cache, Stream stream) {
  MORACLE_CHECK(opencl::check_floats({&k, &v}));
  const auto append = [&](const Matrix& from, int64_t offset) {
    return opencl::launch_elements(
        queue_, stream, opencl::ops_positions::kAppend, batch.num_tokens, from.cols, from,
        batch.positions, batch.sequences, batch.first_page, batch.pages,
        static_cast<int32_t>(batch.page), cache.dtype, offset,
        device_errors_.cell(DeviceErrorKind::kKvCache), batch.num_tokens, from.cols);
  };
  MORACLE_CHECK(append(k, cache.keys));
  return append(v, cache.values);
}

}  // namespace moracle

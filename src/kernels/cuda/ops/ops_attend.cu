// Paged attention: append() writes keys and values, attend() reads them.
#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/attention/pages.cuh"
#include "kernels/cuda/each_element.cuh"
#include "kernels/cuda/keep.cuh"
#include "kernels/cuda/ops/cuda_ops.h"

namespace moracle {
namespace cuda {
namespace {

struct Append {
  Matrix from;
  Batch batch;
  DType dtype;
  int64_t offset, dim;
  float factor;
  DeviceErrorCell* device_error;
  __device__ void operator()(int64_t t, int64_t c) const {
    const int32_t position = batch.positions[t];
    std::byte* const page = page_of(batch, batch.sequences[t], position);
    const int64_t at = row_in_page(batch, c / dim, position) * dim + c % dim;
    keep(page + offset, dtype, at, load(from, t, c) * factor, t, device_error);
  }
};

}  // namespace
}  // namespace cuda

Status CudaOps::append(const Matrix& k, const Matrix& v, const Batch& batch,
                       const LayerCache& cache, Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&k, &v}));
  DeviceErrorCell* const device_error = device_errors_.cell(DeviceErrorKind::kKvCache);
  MORACLE_CHECK(cuda::launch_elements(
      queue_, stream, "append keys", batch.num_tokens, k.cols,
      cuda::Append{k, batch, cache.dtype, cache.keys, k.cols / cache.num_heads,
                   1.0f / cache.key_scale, device_error}));
  return cuda::launch_elements(
      queue_, stream, "append values", batch.num_tokens, v.cols,
      cuda::Append{v, batch, cache.dtype, cache.values, v.cols / cache.num_heads,
                   1.0f / cache.value_scale, device_error});
}

Status CudaOps::attend(const Matrix& q, const Batch& batch, const AttentionShape& shape,
                       const Matrix& out, std::byte* scratch, Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&q, &out}));
  cuda::AttendArgs args{q, out, batch, shape, scratch};
  args.shape.scale *= shape.cache.key_scale;
  return cuda::attend(args, queue_, stream);
}

}  // namespace moracle

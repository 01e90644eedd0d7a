// Quantizes activations to the same bits as quant/activation.h.
#include "base/text.h"
#include "kernels/opencl/device/launch.h"
#include "kernels/opencl/ops/check_matrices.h"
#include "kernels/opencl/ops/opencl_ops.h"
#include "quant/activation.h"

namespace moracle {
namespace opencl::ops_quantize {
namespace {

const KernelName kQuantize{"ops/quantize.cl", "quantize"};
const KernelName kQuantizeStatic{"ops/quantize.cl", "quantize_static"};

/// Kinds of codes, as quantize.cl names them.
enum class Codes : int { kInt8, kFp8, kMxfp8 };

Codes codes_of(const QuantKey& key) {
  if (key.dtype == DType::kI8) return Codes::kInt8;
  return key.scale_dtype == DType::kF8E8M0 ? Codes::kMxfp8 : Codes::kFp8;
}

Error unsupported(const QuantKey& key) {
  return {ErrorKind::kUnsupported, "", "activations", "int8 or fp8 per token, fp8 per group, mxfp8",
          str("the scheme has another kind of ", name(key.dtype))};
}

Status check_types(const Matrix& from, const QuantKey& key, const Matrix& to) {
  if (to.dtype == key.dtype) return check_floats({&from});
  return check_floats({&from, &to});
}

/// Few columns need few work-items: a group of 32 columns wastes none.
int64_t threads_for(const Queue& queue, int64_t columns) {
  return std::min<int64_t>(columns <= 256 ? 32 : 256, queue.max_group);
}

}  // namespace
}  // namespace opencl::ops_quantize

Status OpenClOps::quantize(const Matrix& from, const QuantKey& key, const Rows& to, Stream stream) {
  using namespace opencl::ops_quantize;
  if (!can_quantize(key)) return unsupported(key);
  MORACLE_CHECK(check_types(from, key, to.values));
  const int64_t group = group_cols(key, from.cols), groups = num_groups(key, from.cols);
  return opencl::launch(queue_, stream, kQuantize, from.rows * groups, threads_for(queue_, group),
                        from, codes_of(key), group, groups, to.values, to.values.dtype != key.dtype,
                        to.scales, to.num_scales, from.rows, from.cols, to.values.cols);
}

Status OpenClOps::quantize_static(const Matrix& from, const int32_t* row_index,
                                  const int32_t* expert_offsets, int64_t num_experts,
                                  const float* scales, const QuantKey& key, const Rows& to,
                                  Stream stream) {
  using namespace opencl::ops_quantize;
  if (key != kFp8StaticTensorSym) return unsupported(key);
  MORACLE_CHECK(check_types(from, key, to.values));
  return opencl::launch(queue_, stream, kQuantizeStatic, to.values.rows,
                        threads_for(queue_, from.cols), from, row_index, expert_offsets,
                        num_experts, scales, to.values, to.values.dtype != key.dtype, to.scales,
                        to.values.rows, from.cols, to.values.cols);
}

}  // namespace moracle

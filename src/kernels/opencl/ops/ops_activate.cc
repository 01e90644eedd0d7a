// Activation functions between the experts' GEMMs.
#include "kernels/check_ops.h"
#include "kernels/opencl/device/launch_elements.h"
#include "kernels/opencl/ops/check_matrices.h"
#include "kernels/opencl/ops/opencl_ops.h"

namespace moracle {
namespace opencl::ops_activate {
namespace {

const KernelName kActivate{"ops/activate.cl", "activate"};

}  // namespace
}  // namespace opencl::ops_activate

Status OpenClOps::activate(const ActivationSpec& activation, int64_t intermediate_size,
                           const Matrix& gate_up, const Matrix& out, Stream stream) {
  MORACLE_CHECK(check_activation(activation));
  MORACLE_CHECK(opencl::check_floats({&gate_up, &out}));
  const int64_t up = is_gated(activation.function) ? intermediate_size : 0;
  return opencl::launch_elements(queue_, stream, opencl::ops_activate::kActivate, gate_up.rows,
                                 out.cols, activation.function, activation.alpha, activation.beta,
                                 activation.limit, intermediate_size, up, gate_up, out,
                                 gate_up.rows, out.cols);
}

}  // namespace moracle

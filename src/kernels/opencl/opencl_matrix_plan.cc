#include "kernels/opencl/opencl_matrix_plan.h"

#include <atomic>

#include "kernels/kernels.h"
#include "kernels/opencl/opencl_makers.h"

namespace moracle {
namespace opencl {
namespace {

std::atomic<int> lanes_of_emulation = 16;

KernelPlan plan_matrix(const KernelRequest&, const Machine&) {
  KernelPlan plan;
  plan.input_dtype = DType::kBF16;
  plan.kernels = {{1, kMatrixKernelName}};
  plan.deterministic = true;
  return plan;
}

}  // namespace

void emulate_matrix_engines(int lanes) {
  lanes_of_emulation = lanes;
}
int emulated_lanes() {
  return lanes_of_emulation;
}

}  // namespace opencl

const Kernels kOpenClMatrixKernels = {opencl::plan_matrix, opencl::kMakeMatrix};
const Kernels kOpenClMatrixWideKernels = {opencl::plan_matrix, opencl::kMakeMatrixWide};

}  // namespace moracle

// Backend "cuda-sm90". Few tokens run in decode/, which streams the weights of each expert once, in
// two kernels. All else runs in the kernels of cuda-sm80.
#include "kernels/cuda/cuda_makers.h"

namespace moracle::cuda {

Result<std::unique_ptr<GroupedLinear>> make_sm90(KernelWeights&& weights, const KernelPlan& plan,
                                                 Device& device) {
  return make_sm80(std::move(weights), plan, device);
}

}  // namespace moracle::cuda

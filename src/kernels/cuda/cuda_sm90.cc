// Backend "cuda-sm90". Few tokens run in decode/, which streams the weights of each expert once.
// All else runs in the kernels of cuda-sm80, which read the same layout: more tokens, other
// schemes, adapters, batched activations, act-order, linear layers.
#include "kernels/cuda/cuda_makers.h"
#include "kernels/cuda/decode/few_experts.h"

namespace moracle::cuda {

Result<std::unique_ptr<FusedExperts>> make_sm90_experts(const GroupedLinear& w13,
                                                        const GroupedLinear& w2, const Plan& plan,
                                                        Device& device) {
  if (auto* gpu = dynamic_cast<CudaDevice*>(&device)) return make_few_experts(w13, w2, plan, *gpu);
  return Error{ErrorKind::kInvalidArgument, "", "backend cuda-sm90", "a cuda device",
               "it is " + device.name()};
}

}  // namespace moracle::cuda

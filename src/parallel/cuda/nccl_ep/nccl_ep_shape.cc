#include "parallel/cuda/nccl_ep/nccl_ep_shape.h"

#include "base/text.h"

namespace moracle {

Error ep_refusal(std::string need, std::string fact) {
  return {ErrorKind::kUnsupported, "", "exchange 'nccl-ep'", std::move(need), std::move(fact)};
}

// Kernels of nccl_ep move 16 bytes per thread, and go through a row in steps of 512 values.
Status check_ep_shape(const BatchShape& shape) {
  if (shape.hidden_size % 512 != 0 || shape.hidden_size > 8192)
    return ep_refusal("a hidden size that is a multiple of 512, at most 8192",
                      str("it is ", shape.hidden_size));
  if (shape.top_k > 16)
    return ep_refusal("at most 16 experts per token", str("there are ", shape.top_k));
  if (shape.num_experts > 1024)
    return ep_refusal("at most 1024 experts", str("there are ", shape.num_experts));
  if (shape.num_scales * 4 % 16 != 0)
    return ep_refusal("scales of a token in a multiple of 16 bytes",
                      str("the scheme has ", shape.num_scales * 4, " bytes of them"));
  if (shape.cols * bits(shape.row) / 8 % 16 != 0)
    return ep_refusal("rows of a multiple of 16 bytes",
                      str("they have ", shape.cols * bits(shape.row) / 8));
  return {};
}

}  // namespace moracle

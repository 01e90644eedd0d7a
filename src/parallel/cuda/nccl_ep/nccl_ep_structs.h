// The structures of nccl_ep's C interface.
#pragma once

#include <nccl_ep.h>

#include <algorithm>
#include <array>

#include "moracle/base.h"

namespace moracle::nccl {

/// Every structure begins with its size and a mark.
template <class S>
S ep_struct() {
  S made{};
  made.size = sizeof(S);
  made.magic = NCCL_EP_MAGIC;
  return made;
}

/// A tensor with its sizes. nccl_ep may read both until the handle's next call.
struct EpTensor {
  ncclEpTensor_t tensor{};
  std::array<size_t, 3> sizes{};

  ncclEpTensor_t* set(ncclDataType_t type, const void* data, std::initializer_list<int64_t> dims) {
    std::copy(dims.begin(), dims.end(), sizes.begin());
    tensor = {};
    tensor.size = sizeof(tensor);
    tensor.magic = NCCL_EP_TENSOR_MAGIC;
    tensor.ndim = static_cast<unsigned>(dims.size());
    tensor.datatype = type;
    tensor.data = const_cast<void*>(data);
    tensor.sizes = sizes.data();
    return &tensor;
  }
};

/// Codes are copied as bytes: any type of their size serves.
inline ncclDataType_t ep_type(DType type) {
  switch (bits(type)) {
    case 8:
      return ncclFloat8e4m3;
    case 16:
      return type == DType::kF16 ? ncclFloat16 : ncclBfloat16;
    default:
      return ncclFloat32;
  }
}

/// What a handle keeps: its own structures, and the tensors of its last calls.
struct EpHandle {
  ncclEpGroup_t group = nullptr;
  ncclEpHandle_t handle = nullptr;
  size_t kind = 0;  ///< the number of its shape
  EpTensor ids, tokens, scales, batch, batch_scales, counts, results, weights, output;
};

}  // namespace moracle::nccl

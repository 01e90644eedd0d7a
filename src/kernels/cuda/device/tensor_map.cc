#include "kernels/cuda/device/tensor_map.h"

#include <cuda.h>

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "kernels/cuda/device/cuda_check.h"

namespace moracle::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// The runtime finds the function, so that nothing links against the driver.
Status find(Encode& encode) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  MORACLE_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess || function == nullptr)
    return Error{ErrorKind::kIo, "", "cuda", "a driver with cuTensorMapEncodeTiled",
                 "it has no such function"};
  encode = reinterpret_cast<Encode>(function);
  return {};
}

CUtensorMapDataType type_of(int element_bytes) {
  if (element_bytes == 8) return CU_TENSOR_MAP_DATA_TYPE_UINT64;
  return element_bytes == 4 ? CU_TENSOR_MAP_DATA_TYPE_UINT32 : CU_TENSOR_MAP_DATA_TYPE_UINT8;
}

}  // namespace

Result<TensorMap> make_tensor_map(const TiledTensor& tensor) {
  static_assert(sizeof(TensorMap) == sizeof(CUtensorMap));
  Encode encode = nullptr;
  MORACLE_CHECK(find(encode));
  std::array<cuuint64_t, 4> size{};
  std::array<cuuint64_t, 3> stride{};
  std::array<cuuint32_t, 4> box{}, step{1, 1, 1, 1};
  std::copy(tensor.size.begin(), tensor.size.end(), size.begin());
  std::copy(tensor.stride.begin(), tensor.stride.end(), stride.begin());
  std::copy(tensor.tile.begin(), tensor.tile.end(), box.begin());
  CUtensorMap map;
  const CUresult code =
      encode(&map, type_of(tensor.element_bytes), static_cast<cuuint32_t>(tensor.rank),
             const_cast<void*>(tensor.data), size.data(), stride.data(), box.data(), step.data(),
             CU_TENSOR_MAP_INTERLEAVE_NONE,
             tensor.swizzle ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (code != CUDA_SUCCESS)
    return Error{ErrorKind::kIo, "", "cuda", "a tensor that cuTensorMapEncodeTiled describes",
                 str("it returned ", static_cast<int>(code), " for ", size[0], " x ", size[1],
                     " elements of ", tensor.element_bytes, " bytes")};
  TensorMap result;
  std::memcpy(&result, &map, sizeof result);
  return result;
}

}  // namespace moracle::cuda

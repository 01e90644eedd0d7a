// Transfers of experts over the bus, beside other work of the GPU.
#pragma once

#include "kernels/weights/expert_transfers.h"

namespace moracle {
class CudaDevice;
}

namespace moracle::cuda {

/// Packed bytes of an expert arrive in one of several buffers on a stream of their own; kernels on
/// another stream pack them again. Matrices that the GPU does not pack go as in plain_transfers().
/// Errors: memory.
Result<std::unique_ptr<ExpertTransfers>> open_transfers(CudaDevice& device, int64_t from_bytes,
                                                        int64_t to_bytes);

/// Registers host memory with CUDA until the result ends; null if CUDA refuses.
std::shared_ptr<void> pin(int index, void* data, size_t bytes);

}  // namespace moracle::cuda

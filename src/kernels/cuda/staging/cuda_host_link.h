// A link on which the GPU itself signals and waits, so that a graph may record both.
#pragma once

#include "kernels/host_link.h"

namespace moracle {
class CudaDevice;
}

namespace moracle::cuda {

/// Errors: memory.
Result<std::unique_ptr<HostLink>> open_host_link(CudaDevice& device, const HostLinkSize& size);

}  // namespace moracle::cuda

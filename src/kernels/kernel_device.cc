#include "kernels/kernel_device.h"

#include "kernels/host_link.h"
#include "kernels/weights/expert_transfers.h"

namespace moracle {

Result<std::unique_ptr<HostLink>> KernelDevice::host_link(const HostLinkSize& size) {
  return plain_host_link(*this, size);
}

Result<std::unique_ptr<ExpertTransfers>> KernelDevice::transfers(int64_t, int64_t to_bytes) {
  return plain_transfers(*this, to_bytes);
}

}  // namespace moracle

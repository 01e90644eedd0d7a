// The makers of exchanges.inc: one function and one file for each row.
#pragma once

#include "moracle/parallel.h"

namespace moracle {

Result<std::unique_ptr<Exchange>> make_one(std::shared_ptr<Group> group,
                                           std::shared_ptr<Device> device);
Result<std::unique_ptr<Exchange>> make_host(std::shared_ptr<Group> group,
                                            std::shared_ptr<Device> device);

#if defined(MORACLE_WITH_NCCL)
Result<std::unique_ptr<Exchange>> make_nccl(std::shared_ptr<Group> group,
                                            std::shared_ptr<Device> device);
std::string nccl_lacks();
/// make_nccl on the engine's ncclComm_t.
Result<std::unique_ptr<Exchange>> make_nccl_on(std::shared_ptr<Group> group,
                                               std::shared_ptr<Device> device, void* communicator);
Result<std::unique_ptr<Exchange>> make_peer(std::shared_ptr<Group> group,
                                            std::shared_ptr<Device> device);
std::string peer_lacks();
#endif

}  // namespace moracle

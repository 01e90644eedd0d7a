// Why nccl_ep cannot be loaded. Tests call it without NVIDIA's headers.
#pragma once

#include <string>

namespace moracle::nccl {

/// Empty: `library` serves beside an NCCL of this version (23007 for 2.30.7). Else what is found
/// instead, as a fact for an error. Never loads `library` beside an older NCCL, whose functions it
/// would miss.
std::string ep_lacks(int nccl_version, const char* library);

}  // namespace moracle::nccl

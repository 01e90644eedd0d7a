// The GPUs for which this build has code.
#pragma once

#include <string>
#include <vector>

namespace moracle::cuda {

/// "8.0, 8.9, 9.0" for 80, 89, 90.
std::string capability_list(const std::vector<int>& capabilities);

}  // namespace moracle::cuda

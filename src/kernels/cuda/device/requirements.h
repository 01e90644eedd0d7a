// Why a GPU does not serve: its driver, or code that this build lacks.
#pragma once

#include <string>
#include <vector>

namespace moracle::cuda {

/// Why CUDA counts no GPUs. CUDA reports an absent driver (`driver` is 0) like one that is too old.
/// Versions as cudaDriverGetVersion gives them, 13000; `said` is CUDA's message, for all other
/// reasons.
std::string no_gpu(int driver, int runtime, std::string said);

/// "8.0, 8.9, 9.0" for 80, 89, 90.
std::string capability_list(const std::vector<int>& capabilities);

}  // namespace moracle::cuda

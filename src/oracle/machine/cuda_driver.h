// Why CUDA finds no GPU on this machine.
#pragma once

#include <string>

namespace moracle::cuda {

/// Why CUDA counts no GPUs. CUDA reports an absent driver (`driver` is 0) like one that is too old.
/// Versions as cudaDriverGetVersion gives them, 13000; `said` is CUDA's message, for all other
/// reasons.
std::string no_gpu(int driver, int runtime, std::string said);

}  // namespace moracle::cuda

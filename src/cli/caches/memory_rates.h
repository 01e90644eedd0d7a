// Measured rates of memory, for the estimates of plans: given, or measured once and cached.
#pragma once

#include <string>

#include "moracle/model.h"

namespace moracle::cli {

inline constexpr const char* kRatesHelp =
    "With --gpu-memory: measured rates in GB/s, for the plan's estimate: host=80,gpu=3000,bus=50 "
    "and "
    "files=2 where files have some experts; default: what moracle tune measured here";

/// Parses "host=80,gpu=3000,bus=50,files=2", each at most once. Errors: any other text.
Result<MemoryRates> parse_rates(const std::string& text);
/// Measures them, about 2 s. The files' rate is that of pieces of `checkpoint` that the page cache
/// has dropped. Errors: those of the devices and files; kCancelled.
Result<MemoryRates> measure_rates(const std::shared_ptr<Device>& device, int threads,
                                  const Checkpoint& checkpoint, const Progress& progress);
/// "host 80 GB/s, GPU 3,000, bus 50"
std::string describe(const MemoryRates& rates);

}  // namespace moracle::cli

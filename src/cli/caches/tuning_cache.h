// The tuning cache: `tune` writes measurements, all other verbs read them.
#pragma once

#include <string>
#include <vector>

#include "moracle/device.h"
#include "moracle/model.h"
#include "moracle/oracle.h"

namespace moracle::cli {

/// $XDG_CACHE_HOME/moracle, else ~/.cache/moracle; empty if neither variable is set.
std::string cache_folder();

/// $XDG_CACHE_HOME/moracle/tuning.json, else ~/.cache/…; empty if neither variable is set.
std::string default_tuning_cache();

/// Returns the measurements of this version on this machine: same CPU, features and threads; for a
/// device other than the CPU, the same model. Returns nothing without a file. Empty path: the
/// default path. `threads` < 1: all usable threads. Errors: a file in another format.
Result<std::vector<TunedLayer>> read_tuning(const std::string& path, int threads,
                                            const DeviceName& device);
/// Checks that write_tuning can write there, before time is spent on measuring.
Status check_tuning_writable(const std::string& path);
/// Replaces the layers of the same name, and keeps entries of other machines. Replaces the file
/// atomically, under a lock. Errors: as read_tuning; system errors.
Status write_tuning(const std::string& path, int threads, const DeviceName& device,
                    const std::vector<TunedLayer>& layers);

/// The measured rates of this machine and device in the same file; zeros: none. Errors: as
/// read_tuning.
Result<MemoryRates> read_rates(const std::string& path, int threads, const DeviceName& device);
/// Errors: as write_tuning.
Status write_rates(const std::string& path, int threads, const DeviceName& device,
                   const MemoryRates& rates);

}  // namespace moracle::cli

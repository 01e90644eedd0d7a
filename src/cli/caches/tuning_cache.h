// The file in which `tune` stores its measurements, and from which all other verbs read them.
#pragma once

#include <string>
#include <vector>

#include "moracle/device.h"
#include "moracle/oracle.h"

namespace moracle::cli {

/// $XDG_CACHE_HOME/moracle, else ~/.cache/moracle; empty if neither variable is set.
std::string cache_folder();

/// $XDG_CACHE_HOME/moracle/tuning.json, else ~/.cache/…; empty if neither variable is set.
std::string default_tuning_cache();

/// Returns the measurements of this version on this machine: same CPU, features and threads; for a
/// device other than the CPU, the same model. Nothing if there is no such file. An empty path means
/// the default path. `threads` < 1: all usable threads. Errors: a file that is not in the format of
/// `tune`.
Result<std::vector<TunedLayer>> read_tuning(const std::string& path, int threads,
                                            const DeviceName& device);
/// Checks that write_tuning could write there, so that no measuring time is lost.
Status check_tuning_writable(const std::string& path);
/// Replaces the layers of the same name; entries of other machines stay. The file is replaced as a
/// whole, under a lock. Errors: as read_tuning; the system refuses.
Status write_tuning(const std::string& path, int threads, const DeviceName& device,
                    const std::vector<TunedLayer>& layers);

}  // namespace moracle::cli

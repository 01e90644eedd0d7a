// Where `tune` keeps what it measured, and where every other verb finds it.
#pragma once

#include <string>
#include <vector>

#include "moracle/oracle.h"

namespace moracle::cli {

/// $XDG_CACHE_HOME/moracle/tuning.json, else ~/.cache/…; empty where neither variable is set.
std::string default_tuning_cache();

/// What was measured on this machine (same CPU, features and threads; for another device than the
/// CPU the same model of it) by this version; nothing where there is no such file. An empty path:
/// the default's. `threads` < 1: all that may be used. Errors: a file that is not what `tune`
/// writes; a device's name that is none.
Result<std::vector<TunedLayer>> read_tuning(const std::string& path, int threads,
                                            const std::string& device = "cpu");
/// Whether write_tuning could write there, so that no time is spent on what is lost then.
Status check_tuning_writable(const std::string& path);
/// Puts the layers in place of those of the same name; entries of other machines stay. The file is
/// replaced as a whole, under a lock. Errors: as read_tuning; the system refuses.
Status write_tuning(const std::string& path, int threads, const std::string& device,
                    const std::vector<TunedLayer>& layers);

}  // namespace moracle::cli

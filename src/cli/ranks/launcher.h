// Reads a launcher's environment variables.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "moracle/parallel.h"

namespace moracle::cli {

using Environment = std::function<std::optional<std::string>(const char* name)>;

/// Rank and size of this process, from the variables of Open MPI, MPICH and Intel MPI (PMI),
/// torchrun, or Slurm. Without any: a single process. Errors: a variable that is not a number.
Result<RankOptions> launched_as(const Environment& environment);
/// The environment of this process.
Environment process_environment();

}  // namespace moracle::cli

// What launchers say in the environment.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "moracle/parallel.h"

namespace moracle::cli {

using Environment = std::function<std::optional<std::string>(const char* name)>;

/// This process's place among the ranks. Known are the variables of Open MPI, of MPICH and Intel
/// MPI (PMI), of torchrun and of Slurm. A process alone if there are none. Errors: a variable that
/// is not a number.
Result<RankOptions> launched_as(const Environment& environment);
/// The process's own environment.
Environment process_environment();

}  // namespace moracle::cli

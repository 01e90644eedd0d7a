// Finds and loads the module of MPI.
#pragma once

#include "moracle/base.h"
#include "parallel/mpi/mpi_api.h"

namespace moracle {

/// Searches libmoracle_mpi.so beside the file that contains this library, in ../lib, and where the
/// loader searches. Loaded once per process. Errors: the build has no module, with the package that
/// it needs; the module or MPI does not load, with the loader's reason.
const Result<const MpiApi*>& mpi_api();

}  // namespace moracle

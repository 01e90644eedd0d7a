// Checks that all ranks run the same job.
#pragma once

#include <string>
#include <vector>

#include "moracle/parallel.h"

namespace moracle {

/// A named value that must be equal on every rank: "version", "0.1.0".
struct Fact {
  std::string what;
  std::string value;
};

/// Compares the facts of all ranks; each rank passes the same list of names. Errors
/// (kInvalidArgument), the same on every rank: the first fact that differs, with the rank that has
/// another value than most, and both values.
Status agree(Group& group, const std::vector<Fact>& facts);

/// Compares the outcome of work that every rank did by itself. Errors (kInvalidArgument), the same
/// on every rank: that of the first rank whose work failed, with its number. `need`: the work's
/// result.
Status all_succeed(Group& group, const Status& own, const std::string& need);

}  // namespace moracle

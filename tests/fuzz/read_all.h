// Runs every library operation on a checkpoint. Aborts if results contradict each other. Errors are
// fine if they have a message.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include "moracle/base.h"

namespace moracle::testing {

/// clang 14 has no std::source_location.
inline void require(bool holds, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (holds) return;
  std::fprintf(stderr, "%s:%d does not hold\n", file, line);
  std::abort();
}

/// True for a value. An error has to be one line that is not all of a file.
template <class T>
bool passes(const Result<T>& result) {
  if (result) return true;
  const std::string line = result.error().to_string();
  require(!line.empty() && line.size() < 1 << 16 && line.find('\n') == line.npos);
  return false;
}

/// Opens the folder; outlines it; runs the model; describes every module by itself, attention
/// stacked, and the experts of every layer; reads each matrix, packs it into every layout and runs
/// the experts.
void read_all(const std::string& folder);

}  // namespace moracle::testing

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

/// True for a value. The text of an error must be one short line.
template <class T>
bool passes(const Result<T>& result) {
  if (result) return true;
  const std::string line = result.error().to_string();
  require(!line.empty() && line.size() < 1 << 16 && line.find('\n') == line.npos);
  return false;
}

/// Opens and outlines the folder, and runs the model. Describes every module, stacked attention,
/// and the experts of every layer. Reads each matrix, packs it into every layout, and runs the
/// experts.
void read_all(const std::string& folder);

}  // namespace moracle::testing

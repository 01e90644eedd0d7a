// Reads stdin line by line; Ctrl-C interrupts it.
#pragma once

#include <optional>
#include <string>

#include "moracle/base.h"

namespace moracle::cli {

class LineReader {
 public:
  /// Returns the next line without its line end. Empty: end of input, or interrupted(), which also
  /// drops an incomplete line. Errors: kIo; kBadFile for a line above 64 MiB.
  Result<std::optional<std::string>> next();

 private:
  std::string held_;  // data not returned yet
  size_t searched_ = 0;
  bool ended_ = false;
};

}  // namespace moracle::cli

// Reads standard input line by line, and stays responsive to Ctrl-C.
#pragma once

#include <optional>
#include <string>

#include "moracle/base.h"

namespace moracle::cli {

class LineReader {
 public:
  /// The next line without its end; a last line may lack one. Empty: the input has ended, or
  /// interrupted() became true, which also drops a started line. Errors: kIo; kBadFile for a line
  /// above 64 MiB.
  Result<std::optional<std::string>> next();

 private:
  std::string held_;  // read, and not yet returned
  size_t searched_ = 0;
  bool ended_ = false;
};

}  // namespace moracle::cli

#pragma once

#include <string>

#include "base/small_file.h"
#include "moracle/base.h"

namespace moracle::cli {

/// The whole file that an option names. A file that cannot be read is a wrong option, not failed
/// work.
inline Result<std::string> read_text(const std::string& path, const char* option) {
  auto text = read_small_file(path, size_t{1} << 30);
  if (text) return text;
  Error error = text.error();
  error.kind = ErrorKind::kInvalidArgument;
  error.place = option;
  return error;
}

}  // namespace moracle::cli

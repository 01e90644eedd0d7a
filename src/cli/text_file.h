#pragma once

#include <string>

#include "base/mapped_file.h"
#include "moracle/base.h"

namespace moracle::cli {

/// The whole file that an option names. A file that cannot be read is a wrong option, not failed
/// work.
inline Result<std::string> read_text(const std::string& path, const char* option) {
  auto file = MappedFile::open(path);
  if (!file) {
    Error error = file.error();
    error.kind = ErrorKind::kInvalidArgument;
    error.place = option;
    return error;
  }
  const auto bytes = file->bytes();
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace moracle::cli

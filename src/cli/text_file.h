#pragma once

#include <charconv>
#include <optional>
#include <string>

#include "base/small_file.h"
#include "command.h"

namespace moracle::cli {

/// Descriptor of a path that names an open stream: "-", or the shell's path for <(command).
inline std::optional<int> descriptor_of(std::string_view path) {
  if (path == "-" || path == "/dev/stdin") return 0;
  constexpr std::string_view kFolder = "/dev/fd/";
  int number = -1;
  if (!path.starts_with(kFolder)) return std::nullopt;
  const auto [end, error] = std::from_chars(path.data() + kFolder.size(), path.end(), number);
  if (error != std::errc() || end != path.end() || number < 0) return std::nullopt;
  return number;
}

/// Reads the text of an option: a file, or "-" for stdin. An unreadable file counts as wrong usage.
/// Errors: kInvalidArgument; kCancelled while waiting for a pipe.
inline Result<std::string> read_text(const std::string& path, const char* option) {
  constexpr size_t kMaxBytes = size_t{1} << 30;
  const auto go_on = [](int64_t, int64_t) { return !interrupted(); };
  const std::optional<int> descriptor = descriptor_of(path);
  auto text = descriptor ? read_to_end(*descriptor, path, kMaxBytes, go_on)
                         : read_small_file(path, kMaxBytes);
  if (text || text.error().kind == ErrorKind::kCancelled) return text;
  Error error = text.error();
  error.kind = ErrorKind::kInvalidArgument;
  error.place = option;
  return error;
}

}  // namespace moracle::cli

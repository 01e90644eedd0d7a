// Files that are read whole: configs, templates, caches, prompts.
#pragma once

#include <cstddef>
#include <string>

#include "moracle/base.h"

namespace moracle {

/// Published configs are below 100 KB; tokenizers and lists of layers reach some MB.
inline constexpr size_t kMaxConfigBytes = size_t{64} << 20;

/// The content of a regular file. It is read, not mapped: a file that shrinks meanwhile does no
/// harm. Errors: kIo with the system's reason; kBadFile for a folder, a pipe or a device, and for
/// more than `max_bytes`.
Result<std::string> read_small_file(const std::string& path, size_t max_bytes = kMaxConfigBytes);

/// What is left to read of an open file, a pipe included; `path` names it in errors. Waits in
/// steps of 100 ms, and asks `progress` before each. Errors: as above; kCancelled.
Result<std::string> read_to_end(int descriptor, const std::string& path, size_t max_bytes,
                                const Progress& progress = {});

}  // namespace moracle

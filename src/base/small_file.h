// Reads and writes whole files: configs, templates, caches, prompts.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "moracle/base.h"

namespace moracle {

/// Published configs are below 100 KB; tokenizers and lists of layers have some MB.
inline constexpr size_t kMaxConfigBytes = size_t{64} << 20;

/// The content of a regular file. The file is read, not memory-mapped, so a file that shrinks does
/// no harm. Errors: kIo with the system's reason; kBadFile for a folder, a pipe or a device, for
/// more than `max_bytes`, and for a Git LFS pointer.
Result<std::string> read_small_file(const std::string& path, size_t max_bytes = kMaxConfigBytes);

/// True for the text that Git LFS keeps in place of a large file, or for its start.
bool is_git_lfs_pointer(std::string_view text);
/// The error of a file that is a Git LFS pointer.
Error git_lfs_pointer(const std::string& path);

/// Reads the rest of an open file or pipe; `path` names it in errors. Waits in steps of 100 ms and
/// calls `progress` before each step. Errors: as above; kCancelled.
Result<std::string> read_to_end(int descriptor, const std::string& path, size_t max_bytes,
                                const Progress& progress = {});

/// Creates a file with this content. Errors: kIo, also if `path` exists; then no file is left.
Status write_new_file(const std::string& path, std::string_view content);

/// True if a file may be renamed over `path`: it is a regular file, or nothing is there. A rename
/// would destroy a device, a pipe, a socket or a link.
bool is_replaceable(const std::string& path);

}  // namespace moracle

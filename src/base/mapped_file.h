// A file's bytes in memory, read-only, paged in by the system.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "moracle/base.h"

namespace moracle {

/// As with every mapping, a file that somebody else cuts short while it is open ends the process
/// with SIGBUS when the lost part is touched: replace checkpoints by renaming, never in place.
class MappedFile {
 public:
  /// Errors: kIo with the system's reason; kBadFile for a folder or a special file.
  static Result<MappedFile> open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

  /// Gives back the memory of the whole pages inside `part` (of any mapping): they are read again
  /// from the file when touched again. This is what keeps a loading process near the packed size.
  static void release(std::span<const std::byte> part);
  /// Asks the system to read `part` ahead.
  static void prefetch(std::span<const std::byte> part);

 private:
  MappedFile(std::string path, const std::byte* data, size_t size)
      : path_(std::move(path)), data_(data), size_(size) {}
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace moracle

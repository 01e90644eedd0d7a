// Files that are read, never mapped: a file that is cut short while it is open is an error, not a
// SIGBUS that ends the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "moracle/base.h"

namespace moracle {

/// A regular file, open for reading. It outlives its name: a file that is deleted or replaced by
/// renaming stays readable. Bytes that are changed in place are read as they are then.
class File {
 public:
  /// Errors: kIo with the system's reason; kBadFile for a folder or a special file.
  static Result<File> open(const std::string& path);
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  const std::string& path() const { return path_; }
  /// Bytes when it was opened.
  uint64_t size() const { return size_; }

  /// Fills `to` with the bytes from `first` on. Several threads may read at once. Errors: kBadFile
  /// where the file ends before; kIo with the system's reason.
  Status read(uint64_t first, std::span<std::byte> to) const;

 private:
  File(std::string path, int fd, uint64_t size) : path_(std::move(path)), fd_(fd), size_(size) {}
  std::string path_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

}  // namespace moracle

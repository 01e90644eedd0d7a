// Files are read, never memory-mapped. A file that is cut short while it is open causes an error,
// not a SIGBUS that ends the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "moracle/base.h"

namespace moracle {

/// A regular file, open for reading. A file that is deleted or replaced by renaming stays readable.
/// A read returns the current bytes, including changes made in place.
class File {
 public:
  /// Errors: kIo with the system's reason; kBadFile for a folder or a special file.
  static Result<File> open(const std::string& path);
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  const std::string& path() const { return path_; }
  /// File size in bytes at the time of opening.
  uint64_t size() const { return size_; }

  /// Fills `to` with the bytes from offset `first` on. Several threads may read at once. Errors:
  /// kBadFile if the file ends too early; kIo with the system's reason.
  Status read(uint64_t first, std::span<std::byte> to) const;

 private:
  File(std::string path, int fd, uint64_t size) : path_(std::move(path)), fd_(fd), size_(size) {}
  std::string path_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

}  // namespace moracle

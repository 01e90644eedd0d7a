// A file that several processes change, one at a time. Readers always see a whole file.
#pragma once

#include <string>

#include "moracle/base.h"

namespace moracle::cli {

class LockedFile {
 public:
  /// Locks `path` among the processes that use this class, and makes the folders above it. The
  /// replacement is written to `path`.moracle-new, which carries the lock. If a process is killed,
  /// the next process takes over its leftover file. If the file system has no locks, continues
  /// without. Errors: kIo if the system refuses, or another process holds the lock for ten seconds;
  /// kCancelled.
  static Result<LockedFile> open(const std::string& path, bool (*stop)());
  LockedFile(LockedFile&& other) noexcept;
  LockedFile& operator=(LockedFile&&) = delete;
  /// Removes the new file. `path` stays as it is unless it was replaced.
  ~LockedFile();

  /// Replaces the content of the file and releases the lock. Errors: kIo.
  Status replace(const std::string& content);

 private:
  LockedFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  std::string path_;
  int descriptor_ = -1;
};

}  // namespace moracle::cli

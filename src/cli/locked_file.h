// A file that several processes change: one at a time, and readers see it whole.
#pragma once

#include <string>

#include "moracle/base.h"

namespace moracle::cli {

class LockedFile {
 public:
  /// Locks `path` among the processes that use this class; folders above it are made. What is to
  /// replace it is written to `path`.moracle-new, which carries the lock: the next process takes
  /// over what a killed one left of it. Where the file system has no locks, goes on without.
  /// Errors: kIo where the system refuses, or another process holds the lock for ten seconds;
  /// kCancelled.
  static Result<LockedFile> open(const std::string& path, bool (*stop)());
  LockedFile(LockedFile&& other) noexcept;
  LockedFile& operator=(LockedFile&&) = delete;
  /// Leaves the file as it is unless it was replaced, and removes the new one.
  ~LockedFile();

  /// Gives the file this content, and gives up the lock. Errors: kIo.
  Status replace(const std::string& content);

 private:
  LockedFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  std::string path_;
  int descriptor_ = -1;
};

}  // namespace moracle::cli

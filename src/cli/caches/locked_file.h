// A file that several processes change, one at a time. Readers always see a whole file.
#pragma once

#include <string>

#include "moracle/base.h"

namespace moracle::cli {

class LockedFile {
 public:
  /// What happens if `path` is a pipe or a character device. Neither is ever replaced by a file.
  enum class Stream : uint8_t {
    kRefuse,  ///< a cache, which is read again
    kWrite,   ///< text for another program: /dev/stdout, /dev/null, a named pipe
  };
  /// Locks `path` among the processes that use this class, and makes the folders above it. The
  /// replacement is written to `path`.moracle-new, which carries the lock. If a process is killed,
  /// the next process takes over its leftover file. If the file system has no locks, continues
  /// without. Streams are opened without a lock; so is the file behind standard output or error.
  /// Errors: kIo if the system refuses, if another process holds the lock for ten seconds, or if
  /// no process reads the named pipe for as long; kCancelled.
  static Result<LockedFile> open(const std::string& path, bool (*stop)(),
                                 Stream stream = Stream::kRefuse);
  LockedFile(LockedFile&& other) noexcept;
  LockedFile& operator=(LockedFile&&) = delete;
  /// Removes the new file. `path` stays as it is unless it was replaced.
  ~LockedFile();

  /// Replaces the content of the file and releases the lock, or writes to the stream. Errors: kIo;
  /// kCancelled while a pipe is full.
  Status replace(const std::string& content);

 private:
  LockedFile(std::string path, int descriptor, bool (*stop)(), bool replaces)
      : path_(std::move(path)), descriptor_(descriptor), stop_(stop), replaces_(replaces) {}
  static Result<LockedFile> open_stream(const std::string& path, bool (*stop)());
  Status write(const std::string& content);
  std::string path_;
  int descriptor_ = -1;
  bool (*stop_)();
  bool replaces_;
};

}  // namespace moracle::cli

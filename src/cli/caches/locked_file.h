// A file that several processes update, one at a time. Readers always see a complete file.
#pragma once

#include <string>

#include "moracle/base.h"

namespace moracle::cli {

class LockedFile {
 public:
  /// Policy for a pipe or character device at `path`. Neither is replaced by a file.
  enum class Stream : uint8_t {
    kRefuse,  ///< a cache, which is read again
    kWrite,   ///< text for another program: /dev/stdout, /dev/null, a named pipe
  };
  /// Locks `path` against other processes that use this class, and creates its parent folders. The
  /// lock is on `path`.moracle-new, which receives the new content; the next process reuses the
  /// file of a killed one. Without file system locks, continues unlocked. Does not lock streams, or
  /// a file that is stdout or stderr. Errors: kIo for a system error, if another process holds the
  /// lock for ten seconds, or if no process reads the named pipe for as long; kCancelled.
  static Result<LockedFile> open(const std::string& path, bool (*stop)(),
                                 Stream stream = Stream::kRefuse);
  LockedFile(LockedFile&& other) noexcept;
  LockedFile& operator=(LockedFile&&) = delete;
  /// Removes the new file. `path` is unchanged unless it was replaced.
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

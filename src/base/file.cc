#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "base/try.h"

namespace moracle {
namespace {

Error refused(const std::string& path) {
  return {ErrorKind::kIo, path, "", "a readable file", std::strerror(errno)};
}

}  // namespace

Result<File> File::open(const std::string& path) {
  // Non-blocking: a named pipe without a writer is rejected below and does not block.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return refused(path);
  struct stat info {};
  const bool known = ::fstat(fd, &info) == 0;
  if (known && S_ISREG(info.st_mode)) return File(path, fd, static_cast<uint64_t>(info.st_size));
  Error error =
      known ? Error{ErrorKind::kBadFile, path, "", "a regular file", "it is not a regular file"}
            : refused(path);
  ::close(fd);
  return error;
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  return *this;
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

Status File::read(uint64_t first, std::span<std::byte> to) const {
  for (size_t done = 0; done < to.size();) {
    const uint64_t at = first + done;
    const ssize_t got = ::pread(fd_, to.data() + done, to.size() - done, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return refused(path_);
    if (got == 0) {
      return Error{ErrorKind::kBadFile, path_, str("byte ", at),
                   str(size_,
                       " bytes, as when it was opened (to replace a file, rename a new one over "
                       "it)"),
                   str("it now has at most ", at)};
    }
    done += static_cast<size_t>(got);
  }
  return {};
}

}  // namespace moracle

#include "base/small_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/text.h"

namespace moracle {
namespace {

Error unreadable(const std::string& path) {
  return {ErrorKind::kIo, path, "", "a readable file", std::strerror(errno)};
}

}  // namespace

bool is_git_lfs_pointer(std::string_view text) {
  return text.starts_with("version https://git-lfs.github.com/spec/");
}

Error git_lfs_pointer(const std::string& path) {
  return {ErrorKind::kBadFile, path, "", "the file itself, from 'git lfs pull'",
          "it is a Git LFS pointer, which names the file and does not hold it"};
}

Result<std::string> read_to_end(int descriptor, const std::string& path, size_t max_bytes,
                                const Progress& progress) {
  constexpr int kWaitMilliseconds = 100;
  constexpr size_t kChunk = size_t{1} << 16;
  std::string text;
  for (;;) {
    if (progress && !progress(0, 0))
      return Error{ErrorKind::kCancelled, path, "", "", "stopped on request"};
    pollfd ready{descriptor, POLLIN, 0};
    const int events = ::poll(&ready, 1, kWaitMilliseconds);
    if (events == 0 || (events < 0 && errno == EINTR)) continue;
    const size_t before = text.size();
    text.resize(before + kChunk);
    const ssize_t count = ::read(descriptor, text.data() + before, kChunk);
    const int reason = errno;
    text.resize(before + (count > 0 ? static_cast<size_t>(count) : 0));
    if (count == 0) return text;
    if (count < 0 && reason != EINTR && reason != EAGAIN) {
      errno = reason;
      return unreadable(path);
    }
    if (text.size() > max_bytes) {
      return Error{ErrorKind::kBadFile, path, "", str("at most ", max_bytes, " bytes"),
                   "it is larger"};
    }
  }
}

Result<std::string> read_small_file(const std::string& path, size_t max_bytes) {
  // Non-blocking: a named pipe without a writer is rejected below and does not block.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return unreadable(path);
  struct stat info {};
  Result<std::string> text = unreadable(path);
  if (::fstat(fd, &info) != 0)
    text = unreadable(path);
  else if (!S_ISREG(info.st_mode))
    text = Error{ErrorKind::kBadFile, path, "", "a regular file", "it is not a regular file"};
  else
    text = read_to_end(fd, path, max_bytes);
  ::close(fd);
  if (text && is_git_lfs_pointer(*text)) return git_lfs_pointer(path);
  return text;
}

Status write_new_file(const std::string& path, std::string_view content) {
  const auto failed = [&] {
    return Error{ErrorKind::kIo, path, "", "to be written", std::strerror(errno)};
  };
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return failed();
  Status written;
  for (size_t done = 0; done < content.size() && written;) {
    const ssize_t count = ::write(fd, content.data() + done, content.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0)
      written = failed();
    else
      done += static_cast<size_t>(count);
  }
  if (::close(fd) != 0 && written) written = failed();
  if (!written) ::unlink(path.c_str());
  return written;
}

bool is_replaceable(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return errno == ENOENT;
  return S_ISREG(info.st_mode);
}

}  // namespace moracle

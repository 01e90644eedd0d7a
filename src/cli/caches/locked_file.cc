#include "caches/locked_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

#include "base/small_file.h"
#include "base/try.h"

namespace moracle::cli {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr auto kPatience = 10s;  // error messages repeat this value
constexpr auto kPause = 10ms;

std::string new_name(const std::string& path) {
  return path + ".moracle-new";
}

Error refused(const std::string& path, const char* need, const std::string& fact) {
  return {ErrorKind::kIo, path, "", need, fact};
}

bool is_regular(int descriptor) {
  struct stat info {};
  return ::fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode);
}

// True if the open `descriptor` is this file.
bool is_behind(int descriptor, const struct stat& file) {
  struct stat open {};
  return ::fstat(descriptor, &open) == 0 && open.st_dev == file.st_dev &&
         open.st_ino == file.st_ino;
}

// Descriptor of stdout or stderr if it is this regular file; else -1.
int output_of(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return -1;
  for (const int output : {STDOUT_FILENO, STDERR_FILENO})
    if (is_behind(output, info)) return output;
  return -1;
}

// True if `name` still refers to the open file: the previous holder may have renamed it.
bool is_named(int descriptor, const std::string& name) {
  struct stat named {};
  return ::lstat(name.c_str(), &named) == 0 && is_behind(descriptor, named);
}

}  // namespace

Result<LockedFile> LockedFile::open(const std::string& path, bool (*stop)(), Stream stream) {
  // Let the system resolve the path: /dev/stdout may lead to a pipe without a name.
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISDIR(info.st_mode)) {
    const bool streams = S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode) || output_of(path) >= 0;
    if (streams && stream == Stream::kWrite) return open_stream(path, stop);
    if (!S_ISREG(info.st_mode)) return refused(path, "a file to write", "it is not a regular file");
  }
  std::error_code why;
  // Follow links, so that a link to the file stays a link.
  const fs::path followed = fs::weakly_canonical(fs::absolute(path, why), why);
  const std::string target = why ? path : followed.string(), name = new_name(target);
  if (fs::is_directory(target, why)) return refused(path, "a file to write", "it is a folder");
  if (fs::is_symlink(fs::symlink_status(target, why)))
    return refused(path, "a file to write", "it is a broken link");
  fs::create_directories(fs::path(target).parent_path(), why);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!stop()) {
    constexpr int kFlags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    const int fd = ::open(name.c_str(), kFlags, 0666);
    if (fd < 0) return refused(path, "to be written", std::strerror(errno));
    if (!is_regular(fd)) {
      ::close(fd);
      return refused(name, "to be a regular file, written by moracle tune",
                     "it is not a regular file");
    }
    const bool locked = ::flock(fd, LOCK_EX | LOCK_NB) == 0;
    const bool held = !locked && errno == EWOULDBLOCK;
    if (!held && is_named(fd, name)) return LockedFile(target, fd, stop, /*replaces=*/true);
    ::close(fd);
    if (!held) continue;
    if (std::chrono::steady_clock::now() > deadline)
      return refused(path, "to be free within 10 seconds", "another process has locked it");
    std::this_thread::sleep_for(kPause);
  }
  return Error{ErrorKind::kCancelled, path, "", "", "stopped on request"};
}

Result<LockedFile> LockedFile::open_stream(const std::string& path, bool (*stop)()) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!stop()) {
    // Use the open descriptor: opened again, a regular file would be overwritten from its start.
    // Non-blocking: opening a named pipe without a reader would wait forever.
    const int output = output_of(path);
    const int fd = output >= 0 ? ::fcntl(output, F_DUPFD_CLOEXEC, 0)
                               : ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd >= 0) return LockedFile(path, fd, stop, /*replaces=*/false);
    if (errno != ENXIO && errno != EINTR)
      return refused(path, "to be written", std::strerror(errno));
    if (std::chrono::steady_clock::now() > deadline)
      return refused(path, "a process that reads it within 10 seconds", "it has none");
    std::this_thread::sleep_for(kPause);
  }
  return Error{ErrorKind::kCancelled, path, "", "", "stopped on request"};
}

LockedFile::LockedFile(LockedFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      stop_(other.stop_),
      replaces_(other.replaces_) {}

LockedFile::~LockedFile() {
  if (descriptor_ < 0) return;
  if (replaces_) ::unlink(new_name(path_).c_str());
  ::close(descriptor_);
}

Status LockedFile::write(const std::string& content) {
  constexpr int kWaitMilliseconds = 100;
  for (size_t done = 0; done < content.size();) {
    const ssize_t count = ::write(descriptor_, content.data() + done, content.size() - done);
    if (count > 0) {
      done += static_cast<size_t>(count);
    } else if (count < 0 && errno == EAGAIN) {
      if (stop_()) return Error{ErrorKind::kCancelled, path_, "", "", "stopped on request"};
      pollfd ready{descriptor_, POLLOUT, 0};
      ::poll(&ready, 1, kWaitMilliseconds);
    } else if (count == 0 || errno != EINTR) {
      return refused(path_, "to be written", std::strerror(errno));
    }
  }
  return {};
}

Status LockedFile::replace(const std::string& content) {
  const auto failed = [&] { return refused(path_, "to be written", std::strerror(errno)); };
  if (replaces_ && ::ftruncate(descriptor_, 0) != 0) return failed();
  MORACLE_CHECK(write(content));
  if (replaces_) {
    if (::fsync(descriptor_) != 0) return failed();
    // Check again: another process may have replaced it by a pipe or a device.
    if (!is_replaceable(path_))
      return refused(path_, "a regular file", "it is no longer a regular file");
    if (::rename(new_name(path_).c_str(), path_.c_str()) != 0) return failed();
  }
  ::close(std::exchange(descriptor_, -1));
  return {};
}

}  // namespace moracle::cli

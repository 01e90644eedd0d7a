#include "caches/locked_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

namespace moracle::cli {
namespace {

namespace fs = std::filesystem;

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

// Whether `name` still refers to the open file: the previous process may have renamed the file.
bool is_named(int descriptor, const std::string& name) {
  struct stat open {
  }, named{};
  return ::fstat(descriptor, &open) == 0 && ::lstat(name.c_str(), &named) == 0 &&
         open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

}  // namespace

Result<LockedFile> LockedFile::open(const std::string& path, bool (*stop)()) {
  using namespace std::chrono_literals;
  std::error_code why;
  // Follow links, so that a link to the file stays a link.
  const fs::path followed = fs::weakly_canonical(fs::absolute(path, why), why);
  const std::string target = why ? path : followed.string(), name = new_name(target);
  if (fs::is_directory(target, why)) return refused(path, "a file to write", "it is a folder");
  if (fs::is_symlink(fs::symlink_status(target, why)))
    return refused(path, "a file to write", "it is a broken link");
  fs::create_directories(fs::path(target).parent_path(), why);
  const auto deadline = std::chrono::steady_clock::now() + 10s;
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
    if (!held && is_named(fd, name)) return LockedFile(target, fd);
    ::close(fd);
    if (!held) continue;
    if (std::chrono::steady_clock::now() > deadline)
      return refused(path, "to be free within 10 seconds", "another process has locked it");
    std::this_thread::sleep_for(10ms);
  }
  return Error{ErrorKind::kCancelled, path, "", "", "stopped on request"};
}

LockedFile::LockedFile(LockedFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

LockedFile::~LockedFile() {
  if (descriptor_ < 0) return;
  ::unlink(new_name(path_).c_str());
  ::close(descriptor_);
}

Status LockedFile::replace(const std::string& content) {
  const auto failed = [&] { return refused(path_, "to be written", std::strerror(errno)); };
  if (::ftruncate(descriptor_, 0) != 0) return failed();
  for (size_t done = 0; done < content.size();) {
    const ssize_t count = ::write(descriptor_, content.data() + done, content.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return failed();
    done += static_cast<size_t>(count);
  }
  if (::fsync(descriptor_) != 0) return failed();
  if (::rename(new_name(path_).c_str(), path_.c_str()) != 0) return failed();
  ::close(std::exchange(descriptor_, -1));
  return {};
}

}  // namespace moracle::cli

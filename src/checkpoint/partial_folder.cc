// Whoever writes holds a lock on the folder, and the system lets go of it with the process. Unlike
// a process id, it means the same in every container and is never given to somebody else.
#include "checkpoint/partial_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/text.h"

namespace moracle {

namespace fs = std::filesystem;

namespace {

constexpr int kNoLock = -1;    // nobody can lock folders of this file system
constexpr int kHeldLock = -2;  // somebody works in it

int lock_folder(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return kNoLock;
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  const bool held = errno == EWOULDBLOCK;
  ::close(fd);
  return held ? kHeldLock : kNoLock;
}

bool is_partial(const std::string& name, const std::string& prefix) {
  return name.starts_with(prefix) && name.size() > prefix.size() &&
         name.find_first_not_of("0123456789-", prefix.size()) == name.npos;
}

// What cannot be removed stays: it is in nobody's way.
void remove_left_over(const fs::path& parent, const std::string& prefix) {
  std::error_code why, ignored;
  std::vector<fs::path> found;
  for (fs::directory_iterator it(parent, why), end; !why && it != end; it.increment(why)) {
    if (is_partial(it->path().filename().string(), prefix)) found.push_back(it->path());
  }
  for (const fs::path& path : found) {
    const int lock = lock_folder(path);
    if (lock < 0) continue;
    fs::remove_all(path, ignored);
    ::close(lock);
  }
}

Error refused(const fs::path& path, const char* need, const std::error_code& why) {
  return {ErrorKind::kIo, path.string(), "", need, why.message()};
}

}  // namespace

Result<PartialFolder> PartialFolder::beside(const std::string& folder) {
  const fs::path path(folder), parent = path.parent_path();
  const std::string prefix = str(".", path.filename().string(), ".partial-");
  remove_left_over(parent, prefix);
  for (int attempt = 0;; ++attempt) {
    const fs::path partial = parent / str(prefix, ::getpid(), "-", attempt);
    std::error_code why;
    const bool is_new = fs::create_directory(partial, why);
    if (why) return refused(partial, "a new folder", why);
    if (!is_new) continue;
    const int lock = lock_folder(partial);
    // Before it was locked, another call for the same folder may have taken it for a leftover.
    if (lock != kHeldLock && fs::is_directory(partial, why))
      return PartialFolder(partial.string(), lock);
    if (lock >= 0) ::close(lock);
  }
}

PartialFolder::PartialFolder(PartialFolder&& other) noexcept
    : path_(std::exchange(other.path_, "")), lock_(std::exchange(other.lock_, kNoLock)) {}

PartialFolder::~PartialFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
  if (lock_ >= 0) ::close(lock_);
}

Status PartialFolder::rename_to(const std::string& folder) {
  std::error_code why;
  fs::rename(path_, folder, why);
  if (why) return refused(folder, "to get its name", why);
  path_.clear();
  return {};
}

}  // namespace moracle

// The writing process holds a lock on the folder; the system releases the lock when the process
// ends. Unlike a process id, a lock works across containers and is never reused by another process.
#include "checkpoint/write/partial_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/small_file.h"
#include "base/text.h"
#include "base/try.h"

namespace moracle {

namespace fs = std::filesystem;

namespace {

constexpr int kNoLock = -1;    // the file system does not support locks
constexpr int kHeldLock = -2;  // another process uses the folder

// A marker file in every partial folder. Folders without it belong to the user, whatever their
// name.
constexpr const char* kMark = ".moracle-unfinished";

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

bool is_marked(const fs::path& folder) {
  std::error_code ignored;
  return fs::symlink_status(folder / kMark, ignored).type() == fs::file_type::regular;
}

Status mark(const fs::path& folder) {
  const std::string path = (folder / kMark).string();
  const std::string text =
      str("moracle quantize, process ", ::getpid(),
          ": incomplete output, removed when the process ends or quantize runs again\n");
  return write_new_file(path, text);
}

// Removes the marker last, so that a later call can finish a removal that was killed.
void remove_folder(const fs::path& folder) {
  std::error_code why, ignored;
  std::vector<fs::path> found;
  for (fs::directory_iterator it(folder, why), end; !why && it != end; it.increment(why)) {
    if (it->path().filename() != kMark) found.push_back(it->path());
  }
  for (const fs::path& path : found) fs::remove_all(path, ignored);
  fs::remove_all(folder, ignored);
}

// A folder that cannot be removed stays and does no harm.
void remove_left_over(const fs::path& parent, const std::string& prefix) {
  std::error_code why;
  std::vector<fs::path> found;
  for (fs::directory_iterator it(parent, why), end; !why && it != end; it.increment(why)) {
    if (is_partial(it->path().filename().string(), prefix)) found.push_back(it->path());
  }
  for (const fs::path& path : found) {
    const int lock = lock_folder(path);
    if (lock < 0) continue;
    if (is_marked(path)) remove_folder(path);
    ::close(lock);
  }
}

Error folder_error(const fs::path& path, const char* need, const std::error_code& why) {
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
    if (why) return folder_error(partial, "a new folder", why);
    if (!is_new) continue;
    const int lock = lock_folder(partial);
    // Before the lock, another call for the same folder may have removed this one as a leftover.
    if (lock != kHeldLock && fs::is_directory(partial, why)) {
      PartialFolder made(partial.string(), lock);
      MORACLE_CHECK(mark(partial));
      return made;
    }
    if (lock >= 0) ::close(lock);
  }
}

PartialFolder::PartialFolder(PartialFolder&& other) noexcept
    : path_(std::exchange(other.path_, "")), lock_(std::exchange(other.lock_, kNoLock)) {}

PartialFolder::~PartialFolder() {
  if (!path_.empty()) remove_folder(path_);
  if (lock_ >= 0) ::close(lock_);
}

Status PartialFolder::rename_to(const std::string& folder) {
  std::error_code why;
  fs::rename(path_, folder, why);
  if (why) return folder_error(folder, "to be renamed from its partial folder", why);
  path_.clear();
  fs::remove(fs::path(folder) / kMark, why);  // a remaining marker does no harm
  return {};
}

}  // namespace moracle

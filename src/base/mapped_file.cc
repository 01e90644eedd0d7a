#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace moracle {

Result<MappedFile> MappedFile::open(const std::string& path) {
  auto refused = [&](const char* need) {
    return Error{ErrorKind::kIo, path, "", need, std::strerror(errno)};
  };
  // Not blocking: a named pipe without a writer is refused below instead of waited for.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return refused("a readable file");
  struct stat info {};
  const bool known = ::fstat(fd, &info) == 0;
  if (!known || !S_ISREG(info.st_mode)) {
    Error error = known ? Error{ErrorKind::kBadFile, path, "", "a regular file", "it is not one"}
                        : refused("a readable file");
    ::close(fd);
    return error;
  }
  const auto size = static_cast<size_t>(info.st_size);
  void* data = nullptr;
  if (size > 0) {
    data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
      Error error = refused("address space to map the file");
      ::close(fd);
      return error;
    }
  }
  ::close(fd);
  return MappedFile(path, static_cast<const std::byte*>(data), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

namespace {
// The whole pages inside `part`, given to madvise; advice may fail without harm.
void advise(std::span<const std::byte> part, int advice) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = (reinterpret_cast<uintptr_t>(part.data()) + page - 1) / page * page;
  const auto last = (reinterpret_cast<uintptr_t>(part.data()) + part.size()) / page * page;
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, advice);
}
}  // namespace

void MappedFile::release(std::span<const std::byte> part) {
  advise(part, MADV_DONTNEED);
}
void MappedFile::prefetch(std::span<const std::byte> part) {
  advise(part, MADV_WILLNEED);
}

}  // namespace moracle

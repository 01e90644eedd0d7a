#include "checkpoint/write/ranged_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "base/try.h"

namespace moracle {

struct RangedFile::State {
  struct Written : Range {
    explicit Written(Range range) : Range(range) {}
    std::atomic<int64_t> written = 0;
  };
  std::string path;
  int fd = -1;
  std::map<std::string, Written> ranges;
  int64_t file_bytes = 0;

  ~State() {
    if (fd >= 0) ::close(fd);
  }
  Error refused(const char* need) const {
    return {ErrorKind::kIo, path, "", need, std::strerror(errno)};
  }
  Status write(std::span<const std::byte> bytes, int64_t at) const {
    while (!bytes.empty()) {
      const ssize_t done = ::pwrite(fd, bytes.data(), bytes.size(), at);
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) return refused("to be written to the disk");
      bytes = bytes.subspan(done);
      at += done;
    }
    return {};
  }
};

RangedFile::RangedFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
RangedFile::RangedFile(RangedFile&&) noexcept = default;
RangedFile& RangedFile::operator=(RangedFile&&) noexcept = default;
RangedFile::~RangedFile() = default;

Result<RangedFile> RangedFile::create(const std::string& path, std::string_view header,
                                      std::map<std::string, Range> ranges, int64_t file_bytes) {
  auto state = std::make_unique<State>();
  state->path = path;
  state->file_bytes = file_bytes;
  for (const auto& [tensor, range] : ranges) state->ranges.try_emplace(tensor, range);
  state->fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (state->fd < 0) return state->refused("a new file");
  if (::ftruncate(state->fd, file_bytes) != 0) return state->refused("to be written to the disk");
  MORACLE_CHECK(state->write(std::as_bytes(std::span(header)), 0));
  return RangedFile(std::move(state));
}

Status RangedFile::write(const std::string& tensor, std::span<const std::byte> bytes,
                         int64_t first) {
  const auto found = state_->ranges.find(tensor);
  const auto size = static_cast<int64_t>(bytes.size());
  if (found == state_->ranges.end() || first < 0 || first + size > found->second.bytes) {
    return Error{ErrorKind::kInvalidArgument, state_->path, "tensor '" + tensor + "'",
                 "bytes within the declared size",
                 str("bytes ", first, " to ", first + size, " were given")};
  }
  MORACLE_CHECK(state_->write(bytes, found->second.begin + first));
  found->second.written += size;
  return {};
}

Status RangedFile::finish() {
  for (const auto& [tensor, range] : state_->ranges) {
    if (range.written == range.bytes) continue;
    return Error{ErrorKind::kInvalidArgument, state_->path, "tensor '" + tensor + "'",
                 str(range.bytes, " bytes"), str(range.written, " were written")};
  }
  if (::fsync(state_->fd) != 0) return state_->refused("to be written to the disk");
  const int fd = std::exchange(state_->fd, -1);
  if (::close(fd) != 0) return state_->refused("to be written to the disk");
  return {};
}

int64_t RangedFile::file_bytes() const {
  return state_->file_bytes;
}

}  // namespace moracle

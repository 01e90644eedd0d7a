#include "checkpoint/write/write_safetensors.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "base/text.h"
#include "base/try.h"

namespace moracle {

struct SafetensorsWriter::State {
  struct ByteRange {
    int64_t begin, bytes, written;
  };
  std::string path;
  int fd = -1;
  std::map<std::string, ByteRange> ranges;
  int64_t file_bytes = 0;

  ~State() {
    if (fd >= 0) ::close(fd);
  }
  Error refused(const char* need) const {
    return {ErrorKind::kIo, path, "", need, std::strerror(errno)};
  }
  Status write(std::span<const std::byte> bytes, int64_t at) {
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

SafetensorsWriter::SafetensorsWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter& SafetensorsWriter::operator=(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter::~SafetensorsWriter() = default;

namespace {

// The length and the header. Space padding aligns the data to 8 bytes.
Result<std::string> header_of(const std::vector<SafetensorsEntry>& entries) {
  nlohmann::ordered_json header = {{"__metadata__", {{"format", "pt"}}}};
  int64_t begin = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.dtype == DType::kI4) {
      return Error{ErrorKind::kUnsupported, "", "tensor '" + entry.name + "'",
                   "a dtype of safetensors", "it is i4"};
    }
    std::string dtype(name(entry.dtype));
    for (char& c : dtype) c = 'a' <= c && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    header[entry.name] = {
        {"dtype", dtype}, {"shape", entry.shape}, {"data_offsets", {begin, begin + entry.bytes()}}};
    begin += entry.bytes();
  }
  std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string length(8, '\0');
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(uint64_t{text.size()} >> (8 * i));
  return length + text;
}

}  // namespace

Result<SafetensorsWriter> SafetensorsWriter::create(const std::string& path,
                                                    std::vector<SafetensorsEntry> entries) {
  std::sort(entries.begin(), entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::make_tuple(-bits(a.dtype), std::string_view(a.name)) <
                     std::make_tuple(-bits(b.dtype), std::string_view(b.name));
            });
  MORACLE_TRY(const std::string header, header_of(entries));
  auto state = std::make_unique<State>();
  state->path = path;
  state->file_bytes = static_cast<int64_t>(header.size());
  for (const SafetensorsEntry& entry : entries) {
    state->ranges[entry.name] = {state->file_bytes, entry.bytes(), 0};
    state->file_bytes += entry.bytes();
  }
  state->fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (state->fd < 0) return state->refused("a new file");
  MORACLE_CHECK(state->write(std::as_bytes(std::span(header)), 0));
  return SafetensorsWriter(std::move(state));
}

Status SafetensorsWriter::write(const std::string& tensor, std::span<const std::byte> bytes,
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

Status SafetensorsWriter::finish() {
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

int64_t SafetensorsWriter::file_bytes() const {
  return state_->file_bytes;
}

std::string shard_name(size_t index, size_t count) {
  if (count == 1) return "model.safetensors";
  const auto digits = [](size_t number) {
    std::string text = std::to_string(number);
    return text.size() < 5 ? std::string(5 - text.size(), '0') + text : text;
  };
  return str("model-", digits(index + 1), "-of-", digits(count), ".safetensors");
}

std::vector<std::vector<size_t>> plan_shards(std::span<const int64_t> item_bytes, int64_t limit) {
  std::vector<std::vector<size_t>> shards;
  int64_t in_last = 0;
  for (size_t i = 0; i < item_bytes.size(); ++i) {
    if (shards.empty() || in_last + item_bytes[i] > limit) {
      shards.emplace_back();
      in_last = 0;
    }
    shards.back().push_back(i);
    in_last += item_bytes[i];
  }
  return shards;
}

}  // namespace moracle

#include "checkpoint/gguf/gguf_reader.h"

#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/gguf/gguf_file.h"

namespace moracle {

// GGUF is little-endian, and values are read without swapping bytes.
static_assert(std::endian::native == std::endian::little);

Status GgufReader::take(const char* what, std::span<std::byte> to) {
  constexpr uint64_t kBufferBytes = 1 << 18;
  if (to.size() > left()) {
    return wrong(str(to.size(), " bytes for ", what, " at byte ", position_),
                 str("the file has ", file_bytes_, " bytes; it may be cut short"));
  }
  if (position_ + to.size() > GgufFile::kMaxHeaderBytes) {
    return wrong(str("a header of at most ", GgufFile::kMaxHeaderBytes, " bytes"), "it is longer");
  }
  for (size_t done = 0; done < to.size();) {
    const uint64_t at = position_ - buffer_first_;
    if (position_ < buffer_first_ || at >= buffer_.size()) {
      buffer_first_ = position_;
      buffer_.resize(std::min(kBufferBytes, left()));
      MORACLE_CHECK(read_(position_, buffer_));
      continue;
    }
    const size_t here = std::min<size_t>(to.size() - done, buffer_.size() - at);
    std::memcpy(to.data() + done, buffer_.data() + at, here);
    done += here;
    position_ += here;
  }
  return {};
}

Result<std::string> GgufReader::text(const char* what, uint64_t max) {
  MORACLE_TRY(const uint64_t length, number<uint64_t>(what));
  if (length > max || length > left()) {
    return wrong(str(what, " of at most ", std::min(max, left()), " bytes"),
                 str("its length is ", length, " at byte ", position_ - 8));
  }
  std::string text(length, '\0');
  MORACLE_CHECK(take(what, std::as_writable_bytes(std::span(text))));
  return text;
}

}  // namespace moracle

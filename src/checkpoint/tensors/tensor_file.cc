#include "checkpoint/tensors/tensor_file.h"

#include "base/text.h"

namespace moracle {

std::string quoted_ascii(std::string_view text) {
  constexpr size_t kLongest = 200;
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "'";
  for (const char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else {
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  out += "'";
  if (text.size() > kLongest) out += str(" (the start of ", text.size(), " bytes)");
  return out;
}

std::string tensor_place(std::string_view name) {
  return str("tensor ", quoted_ascii(name));
}

Status TensorFile::read(const std::string& tensor, uint64_t first, std::span<std::byte> to) const {
  Status done = file_.read(tensors_.at(tensor).first + first, to);
  if (done) return done;
  Error error = std::move(done).error();
  error.place = tensor_place(tensor) + (error.place.empty() ? "" : ", " + error.place);
  return error;
}

}  // namespace moracle

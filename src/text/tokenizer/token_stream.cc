#include "base/try.h"
#include "moracle/text.h"
#include "text/tokenizer/utf8.h"

namespace moracle {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

Result<std::string> TokenStream::push(int32_t id, bool skip_special) {
  MORACLE_TRY(const std::string bytes, tokenizer_->decode({&id, 1}, skip_special));
  pending_ += bytes;
  std::string text;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Char next = first_char(rest);
    if (next.state == Utf8Char::State::kOpen) break;
    const bool whole = next.state == Utf8Char::State::kWhole;
    text += whole ? rest.substr(0, next.length) : std::string_view(kReplacement);
    rest.remove_prefix(next.length);
  }
  pending_ = std::string(rest);
  return text;
}

std::string TokenStream::finish() {
  const bool open = !pending_.empty();
  pending_.clear();
  return open ? kReplacement : "";
}

}  // namespace moracle

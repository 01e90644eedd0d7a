#include "base/try.h"
#include "moracle/text.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/utf8.h"

namespace moracle {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

TokenStream::TokenStream(const Tokenizer& tokenizer)
    : tokenizer_(&tokenizer), state_(tokenizer.start_of_text()) {}
TokenStream::TokenStream(TokenStream&&) noexcept = default;
TokenStream& TokenStream::operator=(TokenStream&&) noexcept = default;
TokenStream::~TokenStream() = default;

Status TokenStream::follow(std::span<const int32_t> ids, bool skip_special) {
  MORACLE_CHECK(tokenizer_->decode(ids, skip_special, *state_));
  return {};
}

Result<std::string> TokenStream::push(int32_t id, bool skip_special) {
  MORACLE_TRY(const std::string bytes, tokenizer_->decode({&id, 1}, skip_special, *state_));
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

#include "serve/tools/call_cursor.h"

#include <random>

#include "base/json/ordered_json.h"

namespace moracle::serve {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

}  // namespace

std::optional<CallJson> parse_json(std::string_view text) {
  Result<CallJson> json = parse_ordered_json(text);
  if (!json) return {};
  return *std::move(json);
}

std::optional<ToolCall> make_call(std::string id, std::string name, const CallJson& arguments,
                                  const OfferedTools& tools) {
  if (!tools.has(name) || !arguments.is_object()) return {};
  return ToolCall{std::move(id), std::move(name),
                  arguments.dump(-1, ' ', false, CallJson::error_handler_t::replace)};
}

std::string new_call_id() {
  static thread_local std::mt19937_64 random(std::random_device{}());
  constexpr std::string_view kDigits =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  std::uniform_int_distribution<size_t> digit(0, kDigits.size() - 1);
  std::string id;
  while (id.size() < 9) id += kDigits[digit(random)];
  return id;
}

size_t open_end(std::string_view text, std::string_view tag) {
  if (tag.empty()) return 0;
  for (size_t size = std::min(text.size(), tag.size() - 1); size > 0; --size) {
    if (text.ends_with(tag.substr(0, size))) return size;
  }
  return 0;
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

bool CallCursor::take(std::string_view tag) {
  const size_t begin = rest_.find_first_not_of(kSpace);
  if (begin == rest_.npos || !rest_.substr(begin).starts_with(tag)) return false;
  rest_.remove_prefix(begin + tag.size());
  return true;
}

std::optional<std::string_view> CallCursor::until(std::string_view tag) {
  const size_t end = rest_.find(tag);
  if (end == rest_.npos) return {};
  const std::string_view text = rest_.substr(0, end);
  rest_.remove_prefix(end + tag.size());
  return text;
}

}  // namespace moracle::serve

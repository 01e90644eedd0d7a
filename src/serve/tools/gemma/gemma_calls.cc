#include "serve/tools/gemma/gemma_calls.h"

#include "serve/tools/call_cursor.h"

namespace moracle::serve {
namespace {

constexpr std::string_view kQuote = "<|\"|>";
constexpr int kMaxDepth = 64;

// Reads a value at the cursor. Empty: it has another form.
std::optional<CallJson> read_value(CallCursor& cursor, int depth);

std::optional<CallJson> read_object(CallCursor& cursor, int depth) {
  CallJson object = CallJson::object();
  if (cursor.take("}")) return object;
  do {
    std::optional<std::string_view> key;
    if (cursor.take(kQuote)) {
      key = cursor.until(kQuote);
      if (!key || !cursor.take(":")) return {};
    } else {
      key = cursor.until(":");
    }
    auto value = key ? read_value(cursor, depth + 1) : std::optional<CallJson>();
    if (!value) return {};
    object[std::string(trimmed(*key))] = *std::move(value);
  } while (cursor.take(","));
  if (!cursor.take("}")) return {};
  return object;
}

std::optional<CallJson> read_array(CallCursor& cursor, int depth) {
  CallJson array = CallJson::array();
  if (cursor.take("]")) return array;
  do {
    auto value = read_value(cursor, depth + 1);
    if (!value) return {};
    array.push_back(*std::move(value));
  } while (cursor.take(","));
  if (!cursor.take("]")) return {};
  return array;
}

std::optional<CallJson> read_value(CallCursor& cursor, int depth) {
  if (depth > kMaxDepth) return {};
  if (cursor.take(kQuote)) {
    const auto text = cursor.until(kQuote);
    if (!text) return {};
    return CallJson(std::string(*text));
  }
  if (cursor.take("{")) return read_object(cursor, depth);
  if (cursor.take("[")) return read_array(cursor, depth);
  const std::string_view text = cursor.rest().substr(0, cursor.rest().find_first_of(",}]"));
  auto value = parse_json(trimmed(text));
  if (value) cursor.skip(text.size());
  return value;
}

}  // namespace

std::optional<std::vector<ToolCall>> parse_gemma(std::string_view block,
                                                 const OfferedTools& tools) {
  CallCursor cursor(block);
  if (!cursor.take("call:")) return {};
  const auto name = cursor.until("{");
  const auto arguments = name ? read_object(cursor, 0) : std::optional<CallJson>();
  if (!arguments || !cursor.at_end()) return {};
  auto call = make_call({}, std::string(trimmed(*name)), *arguments, tools);
  if (!call) return {};
  return std::vector<ToolCall>{*std::move(call)};
}

}  // namespace moracle::serve

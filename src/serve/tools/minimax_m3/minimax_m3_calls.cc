#include "serve/tools/minimax_m3/minimax_m3_calls.h"

#include <algorithm>

#include "serve/tools/call_cursor.h"
#include "serve/tools/tagged_calls.h"

namespace moracle::serve {
namespace {

constexpr int kMaxTagDepth = 64;
constexpr std::string_view kItem = "item", kInvoke = "invoke name=\"";

// The name of the tag at the cursor, without consuming it. Empty: no opening tag follows.
std::string_view opening_tag(const CallCursor& cursor) {
  const std::string_view rest = trimmed(cursor.rest());
  if (!rest.starts_with(kMiniMaxM3Tag)) return {};
  const std::string_view tag = rest.substr(kMiniMaxM3Tag.size());
  const size_t end = std::min(tag.find('>'), tag.size());
  return tag.starts_with('/') || end == tag.size() ? std::string_view() : tag.substr(0, end);
}

bool take_tag(CallCursor& cursor, std::string_view before, std::string_view name) {
  return cursor.take(kMiniMaxM3Tag) && cursor.take(before) && cursor.take(name) && cursor.take(">");
}

// The children of an element, up to its closing tag. Empty: they have another form.
std::optional<CallJson> read_children(CallCursor& cursor, int depth);

// The content of an element. `is_text`: a string, even if it is valid JSON.
std::optional<CallJson> read_element(CallCursor& cursor, bool is_text, int depth) {
  if (depth > kMaxTagDepth) return {};
  if (!opening_tag(cursor).empty()) return read_children(cursor, depth);
  const size_t end = cursor.rest().find(kMiniMaxM3Tag);
  if (end == std::string_view::npos) return {};
  CallJson value = tagged_value(cursor.rest().substr(0, end), is_text, /*has_lines=*/true);
  cursor.skip(end);
  return value;
}

std::optional<CallJson> read_children(CallCursor& cursor, int depth) {
  CallJson items = CallJson::array(), members = CallJson::object();
  for (std::string_view name = opening_tag(cursor); !name.empty(); name = opening_tag(cursor)) {
    if (!take_tag(cursor, "", name)) return {};
    auto value = read_element(cursor, /*is_text=*/false, depth + 1);
    if (!value || !take_tag(cursor, "/", name)) return {};
    if (name == kItem) items.push_back(*value);
    members[std::string(name)] = *std::move(value);
  }
  const bool is_array = members.size() == 1 && members.contains(kItem);
  return is_array ? items : members;
}

}  // namespace

std::optional<std::vector<ToolCall>> parse_minimax_m3(std::string_view block,
                                                      const OfferedTools& tools) {
  std::vector<ToolCall> calls;
  CallCursor cursor(block);
  while (opening_tag(cursor).starts_with(kInvoke)) {
    cursor.take(kMiniMaxM3Tag);
    cursor.take(kInvoke);
    const auto named = cursor.until("\">");
    if (!named) return {};
    const std::string name(trimmed(*named));
    CallJson arguments = CallJson::object();
    for (std::string_view key = opening_tag(cursor); !key.empty(); key = opening_tag(cursor)) {
      const std::string parameter(key);
      if (!take_tag(cursor, "", key)) return {};
      auto value = read_element(cursor, tools.is_text(name, parameter), 0);
      if (!value || !take_tag(cursor, "/", parameter)) return {};
      arguments[parameter] = *std::move(value);
    }
    if (!take_tag(cursor, "/", "invoke")) return {};
    auto call = make_call({}, name, arguments, tools);
    if (!call) return {};
    calls.push_back(*std::move(call));
  }
  if (calls.empty() || !cursor.at_end()) return {};
  return calls;
}

}  // namespace moracle::serve

#include "serve/tools/call_heads.h"

#include <algorithm>

#include "serve/tools/call_cursor.h"
#include "serve/tools/tagged_calls.h"

namespace moracle::serve {
namespace {

constexpr size_t kMaxHeadBytes = 4096;  // of name, id and tags before JSON arguments

// Tags of a format with parameters between tags.
struct TagTable {
  std::string_view style;
  std::string_view name_open, name_close;
  std::string_view key_open, key_close, value_open, value_close;
  std::string_view end;  // empty: the call ends with its block
};

const TagTable* tags_of(const ToolFormat& format) {
  static constexpr TagTable kTables[] = {
      {"qwen_xml", "<function=", ">", "<parameter=", ">", "", "</parameter>", "</function>"},
      {"minimax_xml", "<invoke name=\"", "\">", "<parameter name=\"", "\">", "", "</parameter>",
       "</invoke>"},
      {"glm_xml", "", "<arg_key>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", ""},
      {"deepseek_xml", "<｜DSML｜invoke name=\"", "\">", "<｜DSML｜parameter name=\"",
       "\" string=\"", "", "</｜DSML｜parameter>", "</｜DSML｜invoke>"},
  };
  for (const TagTable& table : kTables) {
    if (table.style == format.style) return &table;
  }
  return nullptr;
}

// Finds a tag. Otherwise marks what need not be searched again: the tag may be split.
size_t find_tag(std::string_view tag, std::string_view text, HeadSearch& search) {
  const size_t at = text.find(tag, search.searched);
  if (at == text.npos)
    search.searched =
        std::max(search.searched, text.size() - std::min(text.size(), tag.size() - 1));
  return at;
}

std::optional<CallHead> tagged_head(const TagTable& tags, std::string_view text,
                                    HeadSearch& search) {
  if (!search.name) {
    const size_t open = tags.name_open.empty() ? 0 : find_tag(tags.name_open, text, search);
    if (open == text.npos) return {};
    search.name = search.searched = open + tags.name_open.size();
  }
  const size_t begin = *search.name;
  const size_t end = find_tag(tags.name_close, text, search);
  if (end == text.npos) return {};
  // GLM's name ends where the first key begins.
  const bool is_key = tags.name_close == tags.key_open;
  return CallHead{{},
                  std::string(trimmed(text.substr(begin, end - begin))),
                  is_key ? end : end + tags.name_close.size()};
}

// {"name": "NAME", "arguments":
std::optional<CallHead> keyed_head(std::string_view before) {
  if (!before.ends_with(':')) return {};
  const std::string_view key = trimmed(before.substr(0, before.size() - 1));
  if (!key.ends_with("\"arguments\"") && !key.ends_with("\"parameters\"")) return {};
  constexpr std::string_view kName = "\"name\"";
  const size_t at = before.rfind(kName);
  if (at == before.npos) return {};
  CallCursor cursor(before.substr(at + kName.size()));
  if (!cursor.take(":") || !cursor.take("\"")) return {};
  const auto name = cursor.until("\"");
  if (!name || !cursor.take(",")) return {};
  return CallHead{{}, std::string(*name), 0};
}

std::optional<CallHead> head_before_tag(const ToolFormat& format, std::string_view before) {
  if (format.arguments_tag.empty() || !before.ends_with(format.arguments_tag)) return {};
  std::string_view head = before.substr(0, before.size() - format.arguments_tag.size());
  if (!format.name_tag.empty()) {
    const size_t at = head.rfind(format.name_tag);
    if (at == head.npos) return {};
    head.remove_prefix(at + format.name_tag.size());
  }
  head = trimmed(head);
  if (format.name == "kimi") {
    std::string_view name = head.substr(0, head.rfind(':'));
    if (name.starts_with("functions.")) name.remove_prefix(sizeof "functions." - 1);
    return CallHead{std::string(head), std::string(name), 0};
  }
  const size_t id = head.find("[CALL_ID]");
  if (id == head.npos) return CallHead{{}, std::string(head), 0};
  return CallHead{std::string(trimmed(head.substr(id + sizeof "[CALL_ID]" - 1))),
                  std::string(trimmed(head.substr(0, id))), 0};
}

}  // namespace

std::optional<CallHead> find_call_head(const ToolFormat& format, std::string_view text,
                                       HeadSearch& search) {
  if (format.style.empty() || format.is_sent_whole) return {};
  if (const TagTable* const tags = tags_of(format)) return tagged_head(*tags, text, search);
  for (size_t at = text.find('{', search.searched); at != text.npos; at = text.find('{', at + 1)) {
    search.searched = at + 1;
    // A bounded window keeps the search linear. A longer head does not stream.
    const size_t window = std::min(at, kMaxHeadBytes);
    const std::string_view before = trimmed(text.substr(at - window, window));
    auto head = keyed_head(before);
    if (!head) head = head_before_tag(format, before);
    if (!head) continue;
    head->size = at;
    return head;
  }
  search.searched = text.size();
  return {};
}

TaggedStep read_tagged_step(const ToolFormat& format, std::string_view text,
                            const std::string& name, const OfferedTools& tools, size_t searched) {
  const TagTable& tags = *tags_of(format);
  CallCursor cursor(text);
  if (!tags.end.empty() && cursor.take(tags.end))
    return {.size = text.size() - cursor.rest().size(), .is_end = true};
  if (text.find(tags.value_close, searched) == text.npos || !cursor.take(tags.key_open)) return {};
  const auto key = cursor.until(tags.key_close);
  if (!key) return {};
  bool is_text = tools.is_text(name, std::string(trimmed(*key)));
  if (tags.style == "deepseek_xml") {
    const auto type = cursor.until("\">");
    if (!type) return {};
    is_text = *type == "true";
  }
  if (!tags.value_open.empty() && !cursor.take(tags.value_open)) return {};
  const auto value = cursor.until(tags.value_close);
  if (!value) return {};
  const bool has_lines = tags.style == "qwen_xml" || tags.style == "minimax_xml";
  const CallJson member = {{std::string(trimmed(*key)), tagged_value(*value, is_text, has_lines)}};
  std::string json = member.dump(-1, ' ', false, CallJson::error_handler_t::replace);
  return {.size = text.size() - cursor.rest().size(), .member = json.substr(1, json.size() - 2)};
}

}  // namespace moracle::serve

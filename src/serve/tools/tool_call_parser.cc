#include "serve/tools/tool_call_parser.h"

#include <random>

#include "serve/tools/call_cursor.h"

namespace moracle::serve {
namespace {

// Call id of nine letters and digits, as Mistral's templates require.
std::string new_call_id() {
  static thread_local std::mt19937_64 random(std::random_device{}());
  constexpr std::string_view kDigits =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  std::uniform_int_distribution<size_t> digit(0, kDigits.size() - 1);
  std::string id;
  while (id.size() < 9) id += kDigits[digit(random)];
  return id;
}

// Length of the longest suffix of `text` that is a prefix of `tag`.
size_t open_end(std::string_view text, std::string_view tag) {
  for (size_t size = std::min(text.size(), tag.size() - 1); size > 0; --size) {
    if (text.ends_with(tag.substr(0, size))) return size;
  }
  return 0;
}

}  // namespace

void ToolCallParser::add_text(std::string_view text, Delta& delta) {
  if (text.empty()) return;
  const std::string_view shown = text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
  if (!shown.empty()) {
    delta.text += space_;
    delta.text += shown;
    space_.clear();
  }
  space_ += text.substr(shown.size());
}

void ToolCallParser::take_block(std::string_view block, std::string_view raw, Delta& delta) {
  auto calls = format_.parse(block, tools_);
  if (!calls) return add_text(raw, delta);
  space_.clear();
  has_calls_ = true;
  for (ToolCall& call : *calls) {
    if (call.id.empty()) call.id = new_call_id();
    delta.calls.push_back(std::move(call));
  }
}

// Emits the text before the next block. False: more text is needed.
bool ToolCallParser::read_text(Delta& delta) {
  if (format_.open.empty()) {
    const std::string_view begin = trimmed(held_);
    if (!has_begun_ && begin.empty()) return false;
    in_block_ = !has_begun_ && begin[0] == '{';
    has_begun_ = true;
    if (in_block_) return true;
    add_text(held_, delta);
    held_.clear();
    return false;
  }
  const size_t at = held_.find(format_.open);
  in_block_ = at != std::string::npos;
  const size_t shown = in_block_ ? at : held_.size() - open_end(held_, format_.open);
  add_text(std::string_view(held_).substr(0, shown), delta);
  held_.erase(0, shown);
  searched_ = format_.open.size();
  return in_block_;
}

// Parses the block at the start of `held_`. False: its closing tag is missing.
bool ToolCallParser::read_block(Delta& delta) {
  if (format_.close.empty()) return false;
  const size_t begin = format_.open.size();
  const size_t end = held_.find(format_.close, searched_);
  if (end == std::string::npos) {
    const size_t may_begin = std::min(held_.size(), format_.close.size() - 1);
    searched_ = std::max(begin, held_.size() - may_begin);
    return false;
  }
  const std::string_view whole = std::string_view(held_).substr(0, end + format_.close.size());
  take_block(whole.substr(begin, end - begin), whole, delta);
  held_.erase(0, whole.size());
  in_block_ = false;
  return true;
}

ToolCallParser::Delta ToolCallParser::push(std::string_view text) {
  Delta delta;
  held_ += text;
  while (in_block_ ? read_block(delta) : read_text(delta)) {
  }
  return delta;
}

ToolCallParser::Delta ToolCallParser::finish(bool is_whole) {
  Delta delta = push({});
  if (in_block_ && is_whole)
    take_block(std::string_view(held_).substr(format_.open.size()), held_, delta);
  else
    add_text(held_, delta);
  if (!has_calls_) delta.text += space_;
  held_.clear();
  space_.clear();
  return delta;
}

}  // namespace moracle::serve

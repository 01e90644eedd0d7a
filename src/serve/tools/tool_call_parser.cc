#include "serve/tools/tool_call_parser.h"

#include "serve/tools/call_cursor.h"

namespace moracle::serve {
void ToolCallParser::add_text(std::string_view text, Delta& delta) {
  if (text.empty()) return;
  const std::string_view shown = text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
  if (!shown.empty()) {
    emit(space_ + std::string(shown), delta);
    space_.clear();
  }
  space_ += text.substr(shown.size());
}

void ToolCallParser::emit(std::string text, Delta& delta) {
  if (text.empty()) return;
  if (streams_)
    delta.pieces.push_back({.kind = AnswerPart::Kind::kText, .text = std::move(text)});
  else
    delta.text += text;
}

// Emits new arguments of the incomplete block.
void ToolCallParser::follow_block(Delta& delta) {
  if (!streams_) return;
  const size_t begin = std::max(followed_, format_.open.size());
  // The end of the text may begin the closing tag.
  const size_t end = held_.size() - open_end(held_, format_.close);
  if (end <= begin) return;
  const size_t num_complete = progress_.num_complete();
  progress_.push(std::string_view(held_).substr(begin, end - begin), delta.pieces);
  followed_ = end;
  if (progress_.num_begun() > 0) {
    has_calls_ = true;
    space_.clear();
  }
  num_complete_ += progress_.num_complete() - num_complete;
}

void ToolCallParser::take_block(std::string_view block, std::string_view raw, bool is_whole,
                                Delta& delta) {
  size_t num_begun = 0;
  if (streams_) {
    const size_t done =
        std::min(std::max(followed_, format_.open.size()) - format_.open.size(), block.size());
    const size_t num_complete = progress_.num_complete();
    progress_.push(block.substr(done), delta.pieces);
    progress_.finish(is_whole, delta.pieces);
    num_complete_ += progress_.num_complete() - num_complete;
    num_begun = progress_.num_begun();
    progress_ = CallProgress(format_, tools_);
    followed_ = 0;
  }
  auto calls = format_.parse(block, tools_);
  if (!calls && num_begun == 0) return add_text(raw, delta);
  space_.clear();
  has_calls_ = true;
  if (!calls) return;
  for (size_t i = num_begun; i < calls->size(); ++i) {
    ToolCall& call = (*calls)[i];
    if (call.id.empty()) call.id = new_call_id();
    ++num_complete_;
    if (!streams_) {
      delta.calls.push_back(std::move(call));
      continue;
    }
    delta.pieces.push_back({.kind = AnswerPart::Kind::kCall,
                            .text = std::move(call.arguments),
                            .id = std::move(call.id),
                            .name = std::move(call.name),
                            .begins = true});
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
  if (format_.close.empty()) {
    follow_block(delta);
    return false;
  }
  const size_t begin = format_.open.size();
  const size_t end = held_.find(format_.close, searched_);
  if (end == std::string::npos) {
    const size_t may_begin = std::min(held_.size(), format_.close.size() - 1);
    searched_ = std::max(begin, held_.size() - may_begin);
    follow_block(delta);
    return false;
  }
  const std::string_view whole = std::string_view(held_).substr(0, end + format_.close.size());
  take_block(whole.substr(begin, end - begin), whole, /*is_whole=*/true, delta);
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
  if (in_block_ && (is_whole || progress_.num_begun() > 0))
    take_block(std::string_view(held_).substr(format_.open.size()), held_, is_whole, delta);
  else
    add_text(held_, delta);
  if (!has_calls_) emit(space_, delta);
  held_.clear();
  space_.clear();
  return delta;
}

}  // namespace moracle::serve

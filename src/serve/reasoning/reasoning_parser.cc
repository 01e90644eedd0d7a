#include "serve/reasoning/reasoning_parser.h"

#include <algorithm>

#include "serve/tools/call_cursor.h"

namespace moracle::serve {
namespace {

constexpr std::string_view kBlank = " \t\r\n";

std::string_view without_leading_space(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(kBlank), text.size()));
}

}  // namespace

// Looks for the opening tag. False: more text is needed.
bool ReasoningParser::read_start() {
  const std::string_view open = format_->open, text = without_leading_space(held_);
  const bool is_open = text.starts_with(open);
  if (!is_open && open.starts_with(text)) return false;
  state_ = is_open ? State::kReasoning : State::kText;
  if (is_open) held_ = std::string(text.substr(open.size()));
  return true;
}

// Emits the text before the closing tag. False: more text is needed.
bool ReasoningParser::read_reasoning(Delta& delta) {
  if (!has_begun_) held_ = std::string(without_leading_space(held_));
  const size_t at = held_.find(format_->close);
  const bool is_closed = at != std::string::npos;
  size_t end = is_closed ? at : held_.size() - open_end(held_, format_->close);
  while (end > 0 && kBlank.find(held_[end - 1]) != kBlank.npos) --end;
  delta.reasoning += held_.substr(0, end);
  has_begun_ = has_begun_ || end > 0;
  held_.erase(0, is_closed ? at + format_->close.size() : end);
  if (is_closed) state_ = State::kAfter;
  return is_closed;
}

ReasoningParser::Delta ReasoningParser::push(std::string_view text) {
  Delta delta;
  held_ += text;
  if (state_ == State::kStart && !read_start()) return delta;
  if (state_ == State::kReasoning && !read_reasoning(delta)) return delta;
  if (state_ == State::kAfter) {
    held_ = std::string(without_leading_space(held_));
    if (!held_.empty()) state_ = State::kText;
  }
  delta.text += held_;
  held_.clear();
  return delta;
}

ReasoningParser::Delta ReasoningParser::finish() {
  Delta delta;
  if (state_ == State::kReasoning) {
    // The rest may begin a closing tag that never came.
    if (!trimmed(held_).empty()) delta.reasoning = held_;
  } else {
    delta.text = held_;
  }
  held_.clear();
  return delta;
}

}  // namespace moracle::serve

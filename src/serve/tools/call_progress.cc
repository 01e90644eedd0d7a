#include "serve/tools/call_progress.h"

#include <algorithm>

#include "serve/tools/call_cursor.h"

namespace moracle::serve {

void CallProgress::begin(std::string id, std::string_view name, std::vector<AnswerPiece>& pieces) {
  name_ = name;
  ++num_begun_;
  num_parameters_ = 0;
  pieces.push_back({.kind = AnswerPart::Kind::kCall,
                    .id = id.empty() ? new_call_id() : std::move(id),
                    .name = name_,
                    .begins = true});
}

void CallProgress::add(std::string text, std::vector<AnswerPiece>& pieces) {
  if (!text.empty()) pieces.push_back({.kind = AnswerPart::Kind::kCall, .text = std::move(text)});
}

// Looks for the start of arguments. False: more text is needed.
bool CallProgress::read_head(std::vector<AnswerPiece>& pieces) {
  const std::optional<CallHead> head = find_call_head(*format_, held_, head_);
  if (!head) return false;
  head_ = {};
  if (!tools_->has(head->name)) {
    state_ = State::kLost;
    return false;
  }
  begin(head->id, head->name, pieces);
  held_.erase(0, head->size);
  searched_ = 0;
  state_ = format_->arguments_open == "{" ? State::kJson : State::kTagged;
  if (state_ == State::kTagged) add("{", pieces);
  depth_ = 0;
  return true;
}

// Emits JSON up to its end. False: more text is needed.
bool CallProgress::read_json(std::vector<AnswerPiece>& pieces) {
  size_t at = 0;
  bool is_done = false;
  for (; at < held_.size() && !is_done; ++at) {
    const char c = held_[at];
    if (in_string_) {
      if (is_escaped_)
        is_escaped_ = false;
      else if (c == '\\')
        is_escaped_ = true;
      else
        in_string_ = c != '"';
    } else if (c == '"') {
      in_string_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if (c == '}' || c == ']') {
      is_done = --depth_ == 0;
    }
  }
  add(held_.substr(0, at), pieces);
  held_.erase(0, at);
  if (!is_done) return false;
  ++num_complete_;
  state_ = State::kHead;
  return true;
}

// Emits the next parameter, or the end of the call. False: more text is needed.
bool CallProgress::read_tagged(std::vector<AnswerPiece>& pieces) {
  const TaggedStep step = read_tagged_step(*format_, held_, name_, *tools_, searched_);
  if (step.size == 0) {
    // A closing tag may be split, so search its start again.
    constexpr size_t kLongestTag = 64;
    searched_ = held_.size() - std::min(held_.size(), kLongestTag);
    return false;
  }
  held_.erase(0, step.size);
  searched_ = 0;
  if (step.is_end) {
    add("}", pieces);
    ++num_complete_;
    state_ = State::kHead;
  } else {
    add((num_parameters_++ == 0 ? "" : ",") + step.member, pieces);
  }
  return true;
}

void CallProgress::push(std::string_view text, std::vector<AnswerPiece>& pieces) {
  if (state_ == State::kLost) return;
  held_ += text;
  for (bool more = true; more;) {
    more = state_ == State::kHead   ? read_head(pieces)
           : state_ == State::kJson ? read_json(pieces)
                                    : state_ == State::kTagged && read_tagged(pieces);
  }
}

void CallProgress::finish(bool is_whole, std::vector<AnswerPiece>& pieces) {
  if (state_ == State::kTagged && is_whole) {
    add("}", pieces);
    ++num_complete_;
  }
  state_ = State::kHead;
  held_.clear();
  head_ = {};
}

}  // namespace moracle::serve

#include "serve/reasoning/reasoning_budget.h"

#include <algorithm>

namespace moracle::serve {

void ReasoningBudget::add(int32_t id, std::string_view text) {
  if (!is_open_ && has_begun_) return;
  if (forces()) {
    if (id == limit_.closing_ids[num_forced_]) ++num_forced_;
    is_open_ = num_forced_ < limit_.closing_ids.size();
    has_begun_ = true;
    return;
  }
  text_ += text;
  if (!is_open_) {
    // Only the start of an answer opens the reasoning.
    const size_t begin = std::min(text_.find_first_not_of(" \t\r\n"), text_.size());
    const std::string_view start = std::string_view(text_).substr(begin);
    is_open_ = start.starts_with(limit_.open);
    has_begun_ = is_open_ || !std::string_view(limit_.open).starts_with(start);
    if (is_open_) text_.clear();
    return;
  }
  has_begun_ = true;
  ++num_tokens_;
  is_open_ = text_.find(limit_.close) == std::string::npos;
  if (text_.size() > limit_.close.size()) text_.erase(0, text_.size() - limit_.close.size());
}

}  // namespace moracle::serve

#include "text/stop_strings.h"

#include <algorithm>

#include "base/try.h"

namespace moracle {

std::string StopStrings::push(std::string_view piece, bool hidden) {
  if (found_) return {};
  held_ += piece;
  hidden_.resize(held_.size(), hidden);
  size_t end = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at >= end) continue;
    end = at;
    match_ = stop;
  }
  found_ = end != std::string::npos;
  if (!found_) {
    // Hold back the longest suffix that is a prefix of a stop string.
    end = held_.size();
    for (const std::string& stop : stops_) {
      for (size_t size = std::min(stop.size() - 1, held_.size()); size > 0; --size) {
        if (!std::string_view(held_).ends_with(std::string_view(stop).substr(0, size))) continue;
        end = std::min(end, held_.size() - size);
        break;
      }
    }
  }
  std::string shown = take(end);
  if (found_) held_.clear();
  return shown;
}

std::string StopStrings::finish() {
  return take(held_.size());
}

// Removes the first `end` bytes, and returns the visible ones.
std::string StopStrings::take(size_t end) {
  std::string shown;
  for (size_t at = 0; at < end; ++at) {
    if (!hidden_[at]) shown += held_[at];
  }
  held_.erase(0, end);
  hidden_.erase(hidden_.begin(), hidden_.begin() + static_cast<ptrdiff_t>(end));
  return shown;
}

Result<std::string> StoppingTokenStream::push(int32_t id, bool skip_special) {
  MORACLE_TRY(const std::string piece, stream_.push(id, skip_special));
  std::string text = stops_.push(piece);
  if (!stops_.empty() && skip_special && tokenizer_->is_special(id)) {
    MORACLE_TRY(const std::string special, tokenizer_->decode({&id, 1}));
    text += stops_.push(special, /*hidden=*/true);
  }
  return text;
}

std::string StoppingTokenStream::finish() {
  std::string text = stops_.push(stream_.finish());
  return text + stops_.finish();
}

}  // namespace moracle

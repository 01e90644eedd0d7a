#include "serve/engine/stop_strings.h"

#include <algorithm>

namespace moracle::serve {

std::string StopStrings::push(std::string_view piece) {
  if (found_) return {};
  held_ += piece;
  size_t end = std::string::npos;
  for (const std::string& stop : stops_) end = std::min(end, held_.find(stop));
  found_ = end != std::string::npos;
  if (!found_) {
    // Keep the longest end of the text that begins a stop string.
    end = held_.size();
    for (const std::string& stop : stops_) {
      for (size_t size = std::min(stop.size() - 1, held_.size()); size > 0; --size) {
        if (!std::string_view(held_).ends_with(std::string_view(stop).substr(0, size))) continue;
        end = std::min(end, held_.size() - size);
        break;
      }
    }
  }
  std::string shown = held_.substr(0, end);
  held_.erase(0, found_ ? held_.size() : end);
  return shown;
}

std::string StopStrings::finish() {
  return std::move(held_);
}

}  // namespace moracle::serve

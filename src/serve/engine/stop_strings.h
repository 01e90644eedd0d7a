#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moracle::serve {

/// Finds the first stop string in a text that arrives in pieces. Holds back the end of the text as
/// long as it may begin a stop string.
class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// The text that can be shown after this piece. After a stop string was found: nothing.
  std::string push(std::string_view piece);
  /// The text held back, at the end.
  std::string finish();
  bool found() const { return found_; }

 private:
  const std::vector<std::string> stops_;
  std::string held_;
  bool found_ = false;
};

}  // namespace moracle::serve

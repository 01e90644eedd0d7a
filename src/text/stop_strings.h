#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moracle/text.h"

namespace moracle {

/// Finds the first stop string in streamed text. Holds back a suffix that may begin a stop string.
/// Hidden text (special tokens) can match a stop string and is never returned.
class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// Adds text, and returns what is safe to show. Returns nothing after a stop string.
  std::string push(std::string_view piece, bool hidden = false);
  bool empty() const { return stops_.empty(); }
  /// Returns the text held back, at the end of the stream.
  std::string finish();
  bool found() const { return found_; }
  /// The stop string that was found; empty: none.
  const std::string& match() const { return match_; }

 private:
  const std::vector<std::string> stops_;
  std::string take(size_t end);

  std::string held_;
  std::vector<bool> hidden_;  // one flag per byte of held_
  std::string match_;
  bool found_ = false;
};

/// Decodes a stream of ids up to the first stop string. A stop string can be the text of a special
/// token, or contain it.
class StoppingTokenStream {
 public:
  /// The tokenizer must outlive it.
  StoppingTokenStream(const Tokenizer& tokenizer, std::vector<std::string> stops)
      : tokenizer_(&tokenizer), stream_(tokenizer), stops_(std::move(stops)) {}

  Status follow(std::span<const int32_t> ids) { return stream_.follow(ids); }
  /// Adds an id, and returns the text that is safe to show. `skip_special`: hides special tokens.
  /// Errors: ids without a token.
  Result<std::string> push(int32_t id, bool skip_special = true);
  /// True after a stop string.
  bool stopped() const { return stops_.found(); }
  /// The stop string that ended the text; empty: none.
  const std::string& stop_string() const { return stops_.match(); }
  /// Returns the text held back, at the end of the stream.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  TokenStream stream_;
  StopStrings stops_;
};

}  // namespace moracle

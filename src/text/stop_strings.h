#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moracle/text.h"

namespace moracle {

/// Finds the first stop string in a text that arrives in pieces. Holds back the end of the text as
/// long as it may begin a stop string. Hidden pieces, those of special tokens, take part in the
/// search and are never shown.
class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// The text that can be shown after this piece. After a stop string was found: nothing.
  std::string push(std::string_view piece, bool hidden = false);
  bool empty() const { return stops_.empty(); }
  /// The text held back, at the end.
  std::string finish();
  bool found() const { return found_; }

 private:
  const std::vector<std::string> stops_;
  std::string take(size_t end);

  std::string held_;
  std::vector<bool> hidden_;  // for each byte of held_
  bool found_ = false;
};

/// Decodes ids one by one, up to the first stop string, which may be or hold the text of a special
/// token.
class StoppingTokenStream {
 public:
  /// The tokenizer must outlive it.
  StoppingTokenStream(const Tokenizer& tokenizer, std::vector<std::string> stops)
      : tokenizer_(&tokenizer), stream_(tokenizer), stops_(std::move(stops)) {}

  Status follow(std::span<const int32_t> ids) { return stream_.follow(ids); }
  /// The text that can be shown after this id. `skip_special`: a special token shows nothing.
  /// Errors: ids without a token.
  Result<std::string> push(int32_t id, bool skip_special = true);
  /// Whether a stop string was found.
  bool stopped() const { return stops_.found(); }
  /// The rest of the text, at the end.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  TokenStream stream_;
  StopStrings stops_;
};

}  // namespace moracle

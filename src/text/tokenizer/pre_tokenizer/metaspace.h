// Metaspace: SentencePiece's replacement for a space, "▁" (U+2581) in most files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json/json_field.h"

namespace moracle {

/// Members of a Metaspace pre-tokenizer or decoder.
struct MetaspaceOptions {
  /// Words that get a leading mark, unless they have one.
  enum class Prepend : uint8_t { kNever, kFirst, kAlways };
  std::string mark;  ///< one character
  Prepend prepend = Prepend::kAlways;
  bool split = true;  ///< split words at marks

  /// Errors: kBadFile, also for an "add_prefix_space" that contradicts the "prepend_scheme".
  static Result<MetaspaceOptions> parse(const JsonField& field);
};

/// `text` with every `from` replaced, from left to right. `from` must not be empty.
std::string replaced(std::string_view text, std::string_view from, std::string_view to);

}  // namespace moracle

// The Unicode normalization forms that a tokenizer.json asks for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/json_field.h"

namespace moracle {

/// Zero or more normalization forms, one after another. The Unicode version is utf8proc's. The
/// library that writes the files still has tables of an earlier one, so that texts with combining
/// marks or compatibility characters that came after Unicode 9 can be normalized differently there.
class Normalizer {
 public:
  /// From the file's "normalizer": null, NFC, NFD, NFKC, NFKD or a Sequence of them.
  /// Errors: kUnsupported for every other type, by name; kBadFile.
  static Result<Normalizer> parse(const JsonField& field);

  /// `text`, which must be valid UTF-8, normalized. Takes O(n log n) even where every character is
  /// a combining mark.
  std::string apply(std::string_view text) const;

 private:
  struct Form {
    bool compose = false;  ///< NFC, NFKC
    bool compat = false;   ///< NFKC, NFKD
  };
  static std::string apply(Form form, std::string_view text);
  Status add(const JsonField& field, int depth);
  std::vector<Form> forms_;
};

}  // namespace moracle

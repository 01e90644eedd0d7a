// The Unicode normalization forms of a tokenizer.json.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json_field.h"

namespace moracle {

/// Zero or more normalization forms, applied in order. The Unicode version is that of utf8proc. The
/// library that writes the files has tables of an earlier version. Texts with combining marks or
/// compatibility characters newer than Unicode 9 can be normalized differently there.
class Normalizer {
 public:
  /// Parses "normalizer": null, NFC, NFD, NFKC, NFKD or a Sequence of them. Errors: kUnsupported
  /// for every other type, by name; kBadFile.
  static Result<Normalizer> parse(const JsonField& field);

  /// Normalizes `text`, which must be valid UTF-8. Takes O(n log n) even if every character is a
  /// combining mark.
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

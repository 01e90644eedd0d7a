// Normalization: changes the text before pre-tokenization.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json/json_field.h"
#include "base/regex/regex.h"

namespace moracle {

/// Zero or more steps, applied in order. The Unicode version is utf8proc's. Hugging Face tokenizers
/// uses Unicode 9: newer combining marks and compatibility characters can differ.
class Normalizer {
 public:
  /// Parses "normalizer": null, NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip or a Sequence of
  /// them. Errors: kUnsupported for every other type, by name, and for regular expressions that
  /// Oniguruma rejects; kBadFile.
  static Result<Normalizer> parse(const JsonField& field);

  /// Normalizes `text`, which must be valid UTF-8. A form takes O(n log n) even if every character
  /// is a combining mark. Errors: kUnsupported, see RegexScratch::cut.
  Result<std::string> apply(std::string_view text) const;

 private:
  struct Form {
    bool compose = false;  ///< NFC, NFKC
    bool compat = false;   ///< NFKC, NFKD
  };
  /// Prepends a string, unless the text is empty.
  struct Prepend {
    std::string text;
  };
  struct Replace {
    Regex pattern;
    std::string content;
  };
  /// Strips white space.
  struct Strip {
    bool left, right;
  };
  static Result<std::string> step(const Form& form, std::string text);
  static Result<std::string> step(const Prepend& prepend, std::string text);
  static Result<std::string> step(const Replace& replace, std::string text);
  static Result<std::string> step(const Strip& strip, std::string text);
  Status add(const JsonField& field, int depth);
  Status add_replace(const JsonField& field);

  std::vector<std::variant<Form, Prepend, Replace, Strip>> steps_;
};

}  // namespace moracle

// The steps of a tokenizer.json that change a text before it is cut into words.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json/json_field.h"
#include "base/regex/regex.h"

namespace moracle {

/// Zero or more steps, applied in order. The Unicode version is that of utf8proc. The library that
/// writes the files has tables of an earlier version. Texts with combining marks or compatibility
/// characters newer than Unicode 9 can be normalized differently there.
class Normalizer {
 public:
  /// Parses "normalizer": null, NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip or a Sequence of
  /// them. Errors: kUnsupported for every other type, by name, and for regular expressions that
  /// Oniguruma refuses; kBadFile.
  static Result<Normalizer> parse(const JsonField& field);

  /// Normalizes `text`, which must be valid UTF-8. A form takes O(n log n) even if every character
  /// is a combining mark. Errors: kUnsupported, see RegexScratch::cut.
  Result<std::string> apply(std::string_view text) const;

 private:
  struct Form {
    bool compose = false;  ///< NFC, NFKC
    bool compat = false;   ///< NFKC, NFKD
  };
  /// Puts a text in front of a text that is not empty.
  struct Prepend {
    std::string text;
  };
  struct Replace {
    Regex pattern;
    std::string content;
  };
  /// Removes white space at the ends.
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

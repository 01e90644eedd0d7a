// Pre-tokenizer: splits normalized text into words (pre-tokens).
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "base/json/json_field.h"
#include "base/regex/regex.h"
#include "text/tokenizer/encode_progress.h"
#include "text/tokenizer/pre_tokenizer/metaspace.h"

namespace moracle {

/// A text and its words, from left to right. Text outside of words is removed.
struct Words {
  std::string text;
  std::vector<TextRange> ranges;
  bool at_start = false;  ///< the first word starts the input text
};

/// The steps of "pre_tokenizer" in tokenizer.json.
class Pretokenizer {
 public:
  /// Parses null, ByteLevel, Split, Digits, Punctuation, Metaspace or a Sequence of them. Ignores
  /// ByteLevel's "trim_offsets": no offsets are computed. Errors: kUnsupported for every other
  /// type, for unknown behaviors of Split and for regular expressions that Oniguruma rejects;
  /// kBadFile.
  static Result<Pretokenizer> parse(const JsonField& field);

  /// Runs every step. Errors: kUnsupported, see RegexScratch::cut; kCancelled.
  Status apply(Words& words, EncodeProgress& progress) const;

 private:
  /// What Split does with matches.
  enum class Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };
  struct Split {
    Regex regex;
    Behavior behavior;
    bool invert;
    Status apply(Words& words, EncodeProgress& progress) const;
    void keep(std::vector<RegexSpan>& spans, size_t offset, std::vector<TextRange>& out) const;
  };
  /// Prepends a space to each word that lacks one.
  struct PrefixSpace {
    Status apply(Words& words, EncodeProgress&) const;
  };
  /// Replaces spaces by marks, and prepends a mark to words that lack one.
  struct Marks {
    std::string mark;
    MetaspaceOptions::Prepend prepend;
    Status apply(Words& words, EncodeProgress&) const;
  };
  /// Maps each byte to its byte-level character.
  struct ByteLevel {
    Status apply(Words& words, EncodeProgress&) const;
  };
  Status add(const JsonField& field, int depth);
  Status add_byte_level(const JsonField& field);
  Status add_split(const JsonField& field);
  Status add_digits(const JsonField& field);
  Status add_punctuation(const JsonField& field);
  Status add_metaspace(const JsonField& field);
  static Result<Behavior> read_behavior(const JsonField& field);

  std::vector<std::variant<Split, PrefixSpace, Marks, ByteLevel>> steps_;
};

}  // namespace moracle

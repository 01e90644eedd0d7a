// Cuts normalized text into the words that BPE works on.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "base/json/json_field.h"
#include "base/regex/regex.h"
#include "text/tokenizer/encode_progress.h"
#include "text/tokenizer/metaspace.h"

namespace moracle {

/// A text and its words, from left to right; text between them has been removed.
struct Words {
  std::string text;
  std::vector<TextRange> ranges;
  bool at_start = false;  ///< the first word begins where the whole text begins
};

/// The steps of a file's "pre_tokenizer".
class Pretokenizer {
 public:
  /// Parses null, ByteLevel, Split, Digits, Punctuation, Metaspace or a Sequence of them.
  /// ByteLevel's "trim_offsets" concerns positions in the text, which are not computed here.
  /// Errors: kUnsupported for every other type, for other behaviors of Split and for regular
  /// expressions that Oniguruma refuses; kBadFile.
  static Result<Pretokenizer> parse(const JsonField& field);

  /// Runs every step. Errors: kUnsupported, see RegexScratch::cut; kCancelled.
  Status apply(Words& words, EncodeProgress& progress) const;

 private:
  /// Treatment of the parts that match.
  enum class Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };
  struct Split {
    Regex regex;
    Behavior behavior;
    bool invert;
    Status apply(Words& words, EncodeProgress& progress) const;
    void keep(std::vector<RegexPart>& parts, size_t offset, std::vector<TextRange>& out) const;
  };
  /// Puts a space before each word that does not begin with one.
  struct PrefixSpace {
    Status apply(Words& words, EncodeProgress&) const;
  };
  /// Writes spaces as marks, and puts a mark before words that do not begin with one.
  struct Marks {
    std::string mark;
    MetaspaceOptions::Prepend prepend;
    Status apply(Words& words, EncodeProgress&) const;
  };
  /// Writes each byte as its character of the byte-level alphabet.
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

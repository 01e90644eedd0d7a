// Turns token ids back into text.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/json/json_field.h"
#include "text/tokenizer/token_table.h"

namespace moracle {

/// What the tokens of a text so far mean for its next token.
struct DecodeState {
  bool first = true;            ///< no token has been decoded
  std::vector<int64_t> strips;  ///< for each Strip: the characters that it may still remove
};

/// The steps of a file's "decoder". Added tokens take the same steps as all others, as in the
/// library that writes these files.
class Decoder {
 public:
  /// Parses ByteLevel, Replace of fixed texts, ByteFallback, Fuse, Metaspace, Strip of the start of
  /// the whole text, or a Sequence of them. Errors: kUnsupported for everything else, by name;
  /// kBadFile.
  static Result<Decoder> parse(const JsonField& field);

  DecodeState begin() const { return {true, strips_}; }
  /// Appends the bytes of the next token of a text. They may end inside a character.
  void append(const TokenText& token, DecodeState& state, std::string& out) const;

 private:
  struct ByteLevel {};
  struct ByteFallback {};
  struct Replace {
    std::string from, to;
  };
  struct Metaspace {
    std::string mark;
    bool drops_first;  ///< the first token's marks are no spaces
  };
  struct StripStart {
    std::string character;
    size_t index;  ///< in DecodeState::strips
  };
  Status add(const JsonField& field, int depth);
  Status add_replace(const JsonField& field);
  Status add_strip(const JsonField& field);
  static std::string step(const ByteLevel& step, std::string piece, DecodeState& state);
  static std::string step(const ByteFallback& step, std::string piece, DecodeState& state);
  static std::string step(const Replace& step, std::string piece, DecodeState& state);
  static std::string step(const Metaspace& step, std::string piece, DecodeState& state);
  static std::string step(const StripStart& step, std::string piece, DecodeState& state);

  std::vector<std::variant<ByteLevel, ByteFallback, Replace, Metaspace, StripStart>> steps_;
  std::vector<int64_t> strips_;
  bool fused_ = false;  ///< the steps so far have joined the tokens
};

}  // namespace moracle

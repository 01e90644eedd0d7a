// Decodes token ids into text.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/json/json_field.h"
#include "text/tokenizer/token_table.h"

namespace moracle {

/// Decoder state between two tokens of a text.
struct DecodeState {
  bool first = true;            ///< no token has been decoded
  std::vector<int64_t> strips;  ///< for each Strip: characters left to remove
};

/// The steps of "decoder" in tokenizer.json. As in Hugging Face tokenizers, they also apply to
/// added tokens.
class Decoder {
 public:
  /// Parses ByteLevel, Replace of a fixed string, ByteFallback, Fuse, Metaspace, Strip at the start
  /// of the text, or a Sequence of them. Errors: kUnsupported for everything else, by name;
  /// kBadFile.
  static Result<Decoder> parse(const JsonField& field);

  DecodeState begin() const { return {true, strips_}; }
  /// Appends the next token's bytes, which may end inside a UTF-8 character.
  void append(const TokenText& token, DecodeState& state, std::string& out) const;

 private:
  struct ByteLevel {};
  struct ByteFallback {};
  struct Replace {
    std::string from, to;
  };
  struct Metaspace {
    std::string mark;
    bool drops_first;  ///< drop the space of the first token's leading mark
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
  bool fused_ = false;  ///< a Fuse or ByteLevel came before
};

}  // namespace moracle

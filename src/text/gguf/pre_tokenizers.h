// Pre-tokenizers of GGUF files. "tokenizer.ggml.pre" names one; the expressions are in no file.
#pragma once

#include <array>
#include <string_view>

#include "base/json/json_field.h"

namespace moracle {

struct GgufPreTokenizer {
  std::string_view names;             ///< values of "pre", separated by spaces
  std::array<const char*, 6> splits;  ///< one after the other, matches isolated; null at the end
  bool ignore_merges = false;         ///< a word that is a token stays whole
  bool adds_bos = false;              ///< without "add_bos_token"
  bool has_characters = false;        ///< tokens hold characters with "▁" for spaces, not bytes
};

/// Finds the pre-tokenizer that `field` names. Errors: a missing or an unknown name, with the list
/// of known ones.
Result<const GgufPreTokenizer*> find_pre_tokenizer(const JsonField& field);

/// Finds the name for the "pre_tokenizer" of a tokenizer.json whose model has this ignore_merges:
/// the first form with the same expressions. Errors (kUnsupported): no form has them.
Result<std::string_view> name_pre_tokenizer(const JsonField& pre_tokenizer, bool ignore_merges);

}  // namespace moracle

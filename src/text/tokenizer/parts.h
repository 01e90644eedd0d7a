// The tokenizer pipeline: normalizer, pre-tokenizer, model, post-processor, decoder. Every file
// format yields it.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "moracle/text.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/model/bpe.h"
#include "text/tokenizer/model/ranked_bpe.h"
#include "text/tokenizer/model/unigram.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/post_processor.h"
#include "text/tokenizer/pre_tokenizer/pretokenizer.h"
#include "text/tokenizer/token_table.h"

namespace moracle {

using TokenModel = std::variant<Bpe, RankedBpe, Unigram>;

inline const Vocabulary& vocabulary_of(const TokenModel& model) {
  return std::visit([](const auto& one) -> const Vocabulary& { return one.vocabulary(); }, model);
}

struct TokenizerParts {
  Normalizer normalizer;
  Pretokenizer pretokenizer;
  TokenModel model;
  AddedTokens added;
  TokenTable tokens;
  Decoder decoder;
  PostProcessor post_processor;
  std::string eos;  ///< the content of tokenizer_config.json's "eos_token"; empty: none
  std::vector<int32_t> ends = {};  ///< further ids that end an answer
};

Tokenizer make_tokenizer(TokenizerParts parts);

}  // namespace moracle

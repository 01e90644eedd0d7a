// Tokenizer line of inspect, explain and run --dry-run.
#pragma once

#include <string>

#include "base/text.h"
#include "command.h"

namespace moracle::cli {

struct TokenizerFact {
  int64_t num_ids = 0;
  std::string error;  ///< why text cannot be encoded; empty if it can

  static TokenizerFact of(const std::string& folder) {
    const Result<Tokenizer> tokenizer = Tokenizer::open(folder);
    if (tokenizer) return {tokenizer->vocab_size(), {}};
    return {0, tokenizer.error().to_string()};
  }
  std::string text() const {
    return error.empty() ? str(num_ids, " ids") : "cannot be read: " + error;
  }
  Json json() const {
    return {{"num_ids", error.empty() ? Json(num_ids) : Json(nullptr)},
            {"error", error.empty() ? Json(nullptr) : Json(error)}};
  }
};

}  // namespace moracle::cli

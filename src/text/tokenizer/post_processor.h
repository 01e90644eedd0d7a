// Post-processor: special tokens before and after an encoded text.
#pragma once

#include <cstdint>
#include <vector>

#include "base/json/json_field.h"
#include "text/tokenizer/token_table.h"

namespace moracle {

struct PostProcessor {
  std::vector<int32_t> before, after;

  /// Parses TemplateProcessing ("single"), ByteLevel (adds no tokens), or a Sequence of them.
  /// Errors: kUnsupported for everything else, by name; kBadFile, also for ids without a token.
  static Result<PostProcessor> parse(const JsonField& field, const TokenTable& tokens);
};

}  // namespace moracle

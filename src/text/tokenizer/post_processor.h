// The special tokens that a file's post-processor puts before and after a text.
#pragma once

#include <cstdint>
#include <vector>

#include "base/json/json_field.h"
#include "text/tokenizer/token_table.h"

namespace moracle {

struct PostProcessor {
  std::vector<int32_t> before, after;

  /// Parses TemplateProcessing for a single text, ByteLevel, which adds none, or a Sequence of
  /// them. Errors: kUnsupported for everything else, by name; kBadFile, also for ids without a
  /// token.
  static Result<PostProcessor> parse(const JsonField& field, const TokenTable& tokens);
};

}  // namespace moracle

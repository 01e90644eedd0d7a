// DRY: lowers the logits of tokens that would continue a repetition.
#pragma once

#include <span>

#include "moracle/model.h"

namespace moracle {

/// Lowers the logit of each token that followed an earlier occurrence of the last n tokens by
/// multiplier * base^(n - allowed_length), for n of at least allowed_length. `tokens`: prompt and
/// generated.
void apply_dry(const DryOptions& options, std::span<const int32_t> tokens, std::span<float> logits);

/// Errors: values out of range, under their names in requests.
Status check(const DryOptions& options);

/// Ids for DryOptions::breaker_ids: tokens whose text contains one of `texts`, and the last token
/// of each text. Reads the text of every token. Errors: those of the tokenizer.
Result<std::vector<int32_t>> ids_of_breakers(const Tokenizer& tokenizer,
                                             std::span<const std::string> texts);

}  // namespace moracle

// The text of --parallel: "ep=4,mode=dispatched".
#pragma once

#include <string>

#include "moracle/model.h"

namespace moracle::cli {

struct ParallelText {
  int64_t ep = 1, tp = 1, lm_head = 1;
  Spread spread = Spread::kReplicated;

  /// lm_head is tp unless the text has it. Errors: another text; tp or lm_head with a number of
  /// ranks that is not ep, or with mode=dispatched.
  static Result<ParallelText> parse(const std::string& text);
};

}  // namespace moracle::cli

// Parses --parallel: "ep=4,mode=dispatched".
#pragma once

#include <string>

#include "moracle/model.h"

namespace moracle::cli {

struct ParallelText {
  int64_t ep = 1, tp = 1, lm_head = 1;
  Spread spread = Spread::kReplicated;

  /// lm_head defaults to tp. Errors: invalid text; tp or lm_head that is neither 1 nor ep, or above
  /// 1 with mode=dispatched.
  static Result<ParallelText> parse(const std::string& text);
};

}  // namespace moracle::cli

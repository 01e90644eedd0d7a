// Module patterns of compressed-tensors: an exact name; "re:" and a regular expression that matches
// from the start; or a class ("Linear", which covers every linear layer, including experts).
#pragma once

#include <memory>
#include <string>

#include "base/regex/regex.h"
#include "moracle/base.h"

namespace moracle {

class Pattern {
 public:
  /// Errors (kBadFile about `file`): an invalid regular expression.
  static Result<Pattern> make(const std::string& text, const std::string& file);
  /// Also false if the expression exceeds the match limit.
  bool matches(const std::string& module) const;

 private:
  Pattern() = default;
  bool any_linear_ = false;
  std::string exact_;
  std::shared_ptr<const Regex> regex_;  // if the text starts with "re:"
};

}  // namespace moracle

// How compressed-tensors names modules: exactly, by "re:" and a regular expression matched from the
// start, or by a class ("Linear", which covers every linear layer, experts included).
#pragma once

#include <memory>
#include <string>

#include "moracle/base.h"

namespace moracle {

class Pattern {
 public:
  /// Errors (kBadFile about `file`): an expression that does not compile.
  static Result<Pattern> make(const std::string& text, const std::string& file);
  /// False also where an expression takes too many steps to tell.
  bool matches(const std::string& module) const;

 private:
  Pattern() = default;
  bool any_linear_ = false;
  std::string exact_;
  std::shared_ptr<void> code_;  // pcre2_code, where the text was "re:…"
};

}  // namespace moracle

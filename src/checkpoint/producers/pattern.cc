#include "checkpoint/producers/pattern.h"

#include <string_view>
#include <utility>

namespace moracle {

namespace {
// About 2 ms at most, for each of thousands of modules.
constexpr size_t kTries = 100'000;
}  // namespace

Result<Pattern> Pattern::make(const std::string& text, const std::string& file) {
  Pattern pattern;
  if (text == "Linear") {
    pattern.any_linear_ = true;
    return pattern;
  }
  if (!text.starts_with("re:")) {
    pattern.exact_ = text;
    return pattern;
  }
  auto regex = Regex::compile(std::string_view(text).substr(3), RegexSyntax::kPython);
  if (!regex) {
    Error error = std::move(regex).error();
    return Error{ErrorKind::kBadFile, file, "module pattern '" + text + "'", std::move(error.need),
                 std::move(error.fact)};
  }
  pattern.regex_ = std::make_shared<const Regex>(*std::move(regex));
  return pattern;
}

bool Pattern::matches(const std::string& module) const {
  if (any_linear_) return true;
  if (!regex_) return module == exact_;
  return RegexScratch(*regex_).matches_start(module, kTries);
}

}  // namespace moracle

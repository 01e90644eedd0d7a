#include "checkpoint/producers/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <string_view>

#include "base/text.h"

namespace moracle {

namespace {
// PCRE2's default limit is 100 times as high: half a second for each of thousands of modules.
constexpr std::string_view kLimit = "(*LIMIT_MATCH=100000)";
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
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::string expression = str(kLimit, text.substr(3));
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                    PCRE2_ANCHORED | PCRE2_UTF, &error, &offset, nullptr);
  if (code == nullptr) {
    PCRE2_UCHAR reason[120];
    pcre2_get_error_message(error, reason, sizeof reason);
    return Error{ErrorKind::kBadFile, file, "module pattern '" + text + "'", "a regular expression",
                 str(reinterpret_cast<const char*>(reason), " at ",
                     offset - std::min(offset, kLimit.size()))};
  }
  pattern.code_ =
      std::shared_ptr<void>(code, [](void* p) { pcre2_code_free(static_cast<pcre2_code*>(p)); });
  return pattern;
}

bool Pattern::matches(const std::string& module) const {
  if (any_linear_) return true;
  if (!code_) return module == exact_;
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  const int found =
      pcre2_match(static_cast<const pcre2_code*>(code_.get()),
                  reinterpret_cast<PCRE2_SPTR>(module.data()), module.size(), 0, 0, data, nullptr);
  pcre2_match_data_free(data);
  return found >= 0;
}

}  // namespace moracle

#include "text/regex/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/text.h"
#include "base/try.h"
#include "text/regex/regex_dialect.h"
#include "text/regex/regex_escape.h"
#include "text/tokenizer/utf8.h"

namespace moracle {
namespace {

constexpr size_t kLongestPattern = 1 << 16;
constexpr uint32_t kHeapKiB = 512 * 1024;
/// Limits of match attempts by PCRE2 from one position: for a short text, and per byte of a long
/// text. Each alternative that could begin at a run of n spaces walks through the run and back
/// once.
constexpr size_t kTries = 10'000'000;
constexpr size_t kTriesPerByte = 64;

std::string message(int code) {
  std::array<PCRE2_UCHAR, 160> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

PCRE2_SPTR units(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

}  // namespace

void Regex::FreeCode::operator()(pcre2_real_code_8* code) const {
  pcre2_code_free(code);
}

Result<Regex> Regex::compile(std::string_view pattern) {
  if (pattern.size() > kLongestPattern) {
    return Error{ErrorKind::kUnsupported, "", "",
                 str("a pattern up to ", kLongestPattern, " bytes"), str(pattern.size())};
  }
  MORACLE_TRY(const std::string translated, to_pcre2(pattern));
  return compile_pcre2(translated);
}

Result<Regex> Regex::literal(std::string_view text) {
  std::string pattern;
  for (; !text.empty(); text.remove_prefix(first_char(text).length)) {
    pattern += regex_literal(first_char(text).code);
  }
  return compile_pcre2(pattern);
}

Result<Regex> Regex::compile_pcre2(std::string_view pattern) {
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  // Set both explicitly: their defaults are compile-time choices of the PCRE2 build.
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_bsr(context.get(), PCRE2_BSR_UNICODE);
  int error = 0;
  size_t offset = 0;
  // MULTILINE, because `^` and `$` match at lines in the default syntax of Oniguruma.
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  Code code(pcre2_compile(units(pattern), pattern.size(), options, &error, &offset, context.get()));
  if (!code) {
    return Error{ErrorKind::kUnsupported, "", "", "a regular expression that PCRE2 can compile",
                 message(error)};
  }
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);  // without JIT, the interpreter runs
  return Regex(std::move(code));
}

void RegexScratch::FreeData::operator()(pcre2_real_match_data_8* data) const {
  pcre2_match_data_free(data);
}
void RegexScratch::FreeContext::operator()(pcre2_real_match_context_8* context) const {
  pcre2_match_context_free(context);
}

RegexScratch::RegexScratch(const Regex& regex)
    : regex_(&regex),
      data_(pcre2_match_data_create(1, nullptr)),
      context_(pcre2_match_context_create(nullptr)) {
  pcre2_set_heap_limit(context_.get(), kHeapKiB);
}

int RegexScratch::match(std::string_view text, size_t from) {
  // Check the text once, not again at each match: that would take quadratic time.
  const auto run = [&](uint32_t options) {
    return pcre2_match(regex_->code_.get(), units(text), text.size(), from,
                       PCRE2_NO_UTF_CHECK | options, data_.get(), context_.get());
  };
  const int found = run(0);
  // JIT code backtracks on a small stack, the interpreter on the heap.
  return found == PCRE2_ERROR_JIT_STACKLIMIT ? run(PCRE2_NO_JIT) : found;
}

Status RegexScratch::cut(std::string_view text, std::vector<RegexPart>& parts) {
  parts.clear();
  const size_t tries = std::max(kTries, text.size() * kTriesPerByte);
  pcre2_set_match_limit(context_.get(), static_cast<uint32_t>(std::min<size_t>(tries, UINT32_MAX)));
  const size_t* found = pcre2_get_ovector_pointer(data_.get());
  std::optional<size_t> last_end;
  size_t from = 0;
  size_t done = 0;
  while (from <= text.size()) {
    const int count = match(text, from);
    if (count == PCRE2_ERROR_NOMATCH) break;
    if (count < 0) {
      return Error{ErrorKind::kUnsupported, "", "", "a text that PCRE2 can match within its limits",
                   message(count)};
    }
    const TextRange range{found[0], found[1]};
    if (range.empty() && last_end == range.end) {
      // An empty match directly after another match does not count; the search continues one
      // character later.
      from += from < text.size() ? first_char(text.substr(from)).length : 1;
      continue;
    }
    if (range.begin > done) parts.push_back({{done, range.begin}, false});
    parts.push_back({range, true});
    done = from = range.end;
    last_end = range.end;
  }
  if (done < text.size()) parts.push_back({{done, text.size()}, false});
  return {};
}

}  // namespace moracle

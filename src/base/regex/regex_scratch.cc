// Matches a Regex within limits.
#include <climits>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "base/regex/regex.h"
#include "base/regex/regex_text.h"

namespace moracle {
namespace {

constexpr unsigned kDeepestStack = 1 << 24;  // entries of 32 bytes: 512 MiB
constexpr size_t kSearchesPerCall = 1 << 12;
constexpr size_t kLongestText = INT_MAX;  // Oniguruma's positions are of type int

/// Backtrack limits: one per search, and a reserve that the longer searches of a RegexScratch
/// share. The reserve is a constant plus an amount per byte of text. A word takes fewer than 100. A
/// run of n spaces takes 2n for each alternative that could begin with it.
constexpr size_t kUsualTries = 512;
constexpr size_t kSpareTries = 10'000'000;
constexpr size_t kSpareTriesPerByte = 64;

Error beyond_limits(std::string fact) {
  return {ErrorKind::kUnsupported, "", "", "a text that Oniguruma can match within its limits",
          std::move(fact)};
}

bool stopped(int found) {
  return found == ONIGERR_RETRY_LIMIT_IN_MATCH_OVER || found == ONIGERR_RETRY_LIMIT_IN_SEARCH_OVER;
}

}  // namespace

void RegexScratch::FreeRegion::operator()(re_registers* region) const {
  onig_region_free(region, 1);
}
void RegexScratch::FreeParam::operator()(OnigMatchParamStruct* param) const {
  onig_free_match_param(param);
}

RegexScratch::RegexScratch(const Regex& regex)
    : regex_(&regex),
      region_(onig_region_new()),
      param_(onig_new_match_param()),
      spare_tries_(kSpareTries) {
  if (!region_ || !param_) throw std::bad_alloc();
  onig_initialize_match_param(param_.get());
  onig_set_match_stack_limit_size_of_match_param(param_.get(), kDeepestStack);
  limit(kUsualTries);
}

void RegexScratch::limit(size_t tries) {
  onig_set_retry_limit_in_match_of_match_param(param_.get(), tries);
  onig_set_retry_limit_in_search_of_match_param(param_.get(), tries);
}

/// Repeats a search with twice the limit until the reserve is used up, or until `goes_on` returns
/// false.
int RegexScratch::search(std::string_view text, size_t from, const std::function<bool()>& goes_on) {
  const OnigUChar* end = regex_units(text) + text.size();
  const auto run = [&] {
    return onig_search_with_param(regex_->code_.get(), regex_units(text), end,
                                  regex_units(text) + from, end, region_.get(), ONIG_OPTION_NONE,
                                  param_.get());
  };
  int found = run();
  if (!stopped(found)) return found;
  for (size_t tries = 2 * kUsualTries; stopped(found) && tries <= spare_tries_ && goes_on();
       tries *= 2) {
    spare_tries_ -= tries;
    limit(tries);
    found = run();
  }
  limit(kUsualTries);
  return found;
}

Status RegexScratch::cut(std::string_view text, std::vector<RegexSpan>& spans,
                         const Progress& progress) {
  spans.clear();
  if (text.size() > kLongestText) return beyond_limits("a text above 2 GiB");
  spare_tries_ += text.size() * kSpareTriesPerByte;
  std::optional<size_t> last_end;
  size_t from = 0;
  size_t done = 0;
  bool is_cancelled = false;
  const std::function<bool()> goes_on = [&] {
    is_cancelled =
        progress && !progress(static_cast<int64_t>(from), static_cast<int64_t>(text.size()));
    return !is_cancelled;
  };
  for (size_t searches = 1; from <= text.size(); ++searches) {
    if (searches % kSearchesPerCall == 0) goes_on();
    const int found = is_cancelled ? ONIG_MISMATCH : search(text, from, goes_on);
    if (is_cancelled)
      return Error{ErrorKind::kCancelled, "", "text", "", "matching was stopped on request"};
    if (found == ONIG_MISMATCH) break;
    if (found < 0) return beyond_limits(regex_message(found));
    const TextRange range{static_cast<size_t>(region_->beg[0]),
                          static_cast<size_t>(region_->end[0])};
    if (range.begin < done || range.end < range.begin) {  // \K in an assertion
      return beyond_limits("matches overlap");
    }
    if (range.empty() && last_end == range.end) {
      // An empty match directly after another match does not count; the search continues one
      // character later.
      ++from;
      while (from < text.size() && (static_cast<uint8_t>(text[from]) & 0xC0) == 0x80) ++from;
      continue;
    }
    if (range.begin > done) spans.push_back({{done, range.begin}, false});
    spans.push_back({range, true});
    done = from = range.end;
    last_end = range.end;
  }
  if (done < text.size()) spans.push_back({{done, text.size()}, false});
  return {};
}

bool RegexScratch::matches_start(std::string_view text, size_t tries) {
  if (text.size() > kLongestText) return false;
  limit(tries);
  return onig_match_with_param(regex_->code_.get(), regex_units(text),
                               regex_units(text) + text.size(), regex_units(text), nullptr,
                               ONIG_OPTION_CHECK_VALIDITY_OF_STRING, param_.get()) >= 0;
}

}  // namespace moracle

#include "models/generation/dry.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <unordered_map>

#include "base/text.h"
#include "base/try.h"

namespace moracle {
namespace {

bool breaks_repetition(const DryOptions& options, int32_t id) {
  return std::binary_search(options.breaker_ids.begin(), options.breaker_ids.end(), id);
}

// For each place i of `text`: the length of the longest common prefix of `text` and of its rest
// from i on (the Z-function).
std::vector<int64_t> prefix_lengths(const std::vector<int32_t>& text) {
  const auto size = static_cast<int64_t>(text.size());
  std::vector<int64_t> lengths(text.size());
  int64_t begin = 0, end = 0;  // the match that reaches farthest
  for (int64_t i = 1; i < size; ++i) {
    int64_t length = i < end ? std::min(end - i, lengths[i - begin]) : 0;
    while (i + length < size && text[length] == text[i + length]) ++length;
    lengths[i] = length;
    if (i + length > end) {
      begin = i;
      end = i + length;
    }
  }
  return lengths;
}

}  // namespace

void apply_dry(const DryOptions& options, std::span<const int32_t> tokens,
               std::span<float> logits) {
  if (options.multiplier == 0 || options.penalty_last_n == 0) return;
  if (options.penalty_last_n > 0 && static_cast<size_t>(options.penalty_last_n) < tokens.size())
    tokens = tokens.last(options.penalty_last_n);
  // Latest token first: a repetition then is a common prefix. It ends at a breaker.
  const std::vector<int32_t> latest(tokens.rbegin(), tokens.rend());
  const auto breaker = std::find_if(latest.begin(), latest.end(),
                                    [&](int32_t id) { return breaks_repetition(options, id); });
  const int64_t most = breaker - latest.begin();
  if (most < options.allowed_length) return;
  const std::vector<int64_t> lengths = prefix_lengths(latest);
  std::unordered_map<int32_t, int64_t> longest;  // by the token that continues the repetition
  for (size_t i = 1; i < latest.size(); ++i) {
    const int64_t length = std::min(lengths[i], most);
    if (length < options.allowed_length) continue;
    int64_t& known = longest[latest[i - 1]];
    known = std::max(known, length);
  }
  for (const auto& [id, length] : longest) {
    if (static_cast<size_t>(id) >= logits.size() || breaks_repetition(options, id)) continue;
    const double penalty =
        options.multiplier * std::pow(static_cast<double>(options.base),
                                      static_cast<double>(length - options.allowed_length));
    // The result stays finite: an infinite penalty would forbid the token.
    constexpr double kMost = std::numeric_limits<float>::max() / 4;
    logits[id] -= static_cast<float>(std::min(penalty, kMost));
  }
}

Status check(const DryOptions& options) {
  const auto wrong = [](const char* option, const char* need, std::string fact) {
    return Error{ErrorKind::kInvalidArgument, "", option, need, "it is " + fact};
  };
  if (!(options.multiplier >= 0) || !std::isfinite(options.multiplier))
    return wrong("dry_multiplier", "a number of at least 0", str(options.multiplier));
  if (!(options.base >= 1) || !std::isfinite(options.base))
    return wrong("dry_base", "a number of at least 1", str(options.base));
  if (options.allowed_length < 1)
    return wrong("dry_allowed_length", "at least 1", str(options.allowed_length));
  if (options.penalty_last_n < -1)
    return wrong("dry_penalty_last_n", "at least -1", str(options.penalty_last_n));
  if (!std::is_sorted(options.breaker_ids.begin(), options.breaker_ids.end()))
    return wrong("breaker_ids", "ids in ascending order", "another list");
  return {};
}

Result<std::vector<int32_t>> ids_of_breakers(const Tokenizer& tokenizer,
                                             std::span<const std::string> texts) {
  std::set<int32_t> ids;
  for (const std::string& text : texts) {
    if (text.empty())
      return Error{ErrorKind::kInvalidArgument, "", "dry_sequence_breakers",
                   "texts that are not empty", "one is empty"};
    // A letter before it keeps tokenizers from adding a space.
    MORACLE_TRY(const std::vector<int32_t> tokens, tokenizer.encode("a" + text));
    if (tokens.size() > 1) ids.insert(tokens.back());
  }
  const auto has_breaker = [&](const std::string& token) {
    return std::any_of(texts.begin(), texts.end(), [&](const std::string& text) {
      return token.find(text) != std::string::npos;
    });
  };
  const int64_t vocab_size = tokenizer.vocab_size();
  const std::vector<int32_t> missing = tokenizer.ids_without_token(vocab_size);
  for (int32_t id = 0; id < vocab_size && !texts.empty(); ++id) {
    if (std::binary_search(missing.begin(), missing.end(), id)) continue;
    MORACLE_TRY(const std::string token, tokenizer.decode({&id, 1}));
    if (has_breaker(token)) ids.insert(id);
  }
  return std::vector<int32_t>(ids.begin(), ids.end());
}

}  // namespace moracle

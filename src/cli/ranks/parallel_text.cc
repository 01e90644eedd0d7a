#include "ranks/parallel_text.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <utility>

#include "base/printable.h"
#include "base/text.h"
#include "base/try.h"
#include "command.h"

namespace moracle::cli {
namespace {

constexpr int64_t kMostRanks = 4096;

Error wrong_parallel(const std::string& text, std::string need) {
  return {ErrorKind::kInvalidArgument, "", "--parallel", std::move(need), "it is " + quote(text)};
}

Result<int64_t> number_of(const std::string& text, std::string_view key, std::string_view value) {
  int64_t number = 0;
  const char* const end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc() || stop != end || number < 1 || number > kMostRanks)
    return wrong_parallel(text, str(key, "=N with a whole number from 1 to ", kMostRanks));
  return number;
}

Result<Spread> spread_of(const std::string& text, std::string_view value) {
  for (const Spread spread : {Spread::kReplicated, Spread::kDispatched})
    if (value == name(spread)) return spread;
  return wrong_parallel(text,
                        "mode=replicated (every rank has the same tokens) or "
                        "mode=dispatched (each has its own sequences)");
}

}  // namespace

Result<ParallelText> ParallelText::parse(const std::string& text) {
  ParallelText parallel;
  std::set<std::string> keys;
  std::optional<int64_t> lm_head;
  for (size_t first = 0, end = 0; first <= text.size(); first = end + 1) {
    end = std::min(text.find(',', first), text.size());
    const std::string part = text.substr(first, end - first);
    const size_t equals = part.find('=');
    const std::string key = part.substr(0, equals);
    const std::string value = equals == part.npos ? "" : part.substr(equals + 1);
    if (!keys.insert(key).second) return wrong_parallel(text, "each key once");
    if (key == "ep") {
      MORACLE_TRY(parallel.ep, number_of(text, key, value));
    } else if (key == "tp") {
      MORACLE_TRY(parallel.tp, number_of(text, key, value));
    } else if (key == "lm_head") {
      MORACLE_TRY(lm_head, number_of(text, key, value));
    } else if (key == "mode") {
      MORACLE_TRY(parallel.spread, spread_of(text, value));
    } else {
      return wrong_parallel(text,
                            "ep=N, the number of ranks that share the experts; then tp=N, "
                            "lm_head=N or mode=dispatched");
    }
  }
  if (!keys.contains("ep"))
    return wrong_parallel(text, "ep=N, the number of ranks that share the experts");
  parallel.lm_head = lm_head.value_or(parallel.tp);
  const std::pair<const char*, int64_t> divided[] = {{"tp", parallel.tp},
                                                     {"lm_head", parallel.lm_head}};
  for (const auto& [key, ranks] : divided) {
    if (ranks != 1 && ranks != parallel.ep)
      return wrong_parallel(text, str(key, "=1 or ", key, "=", parallel.ep,
                                      ": tensor parallelism uses all ranks or one"));
    if (ranks != 1 && parallel.spread == Spread::kDispatched)
      return wrong_parallel(
          text, str("mode=replicated for ", key, ": dispatched ranks have different tokens"));
  }
  return parallel;
}

}  // namespace moracle::cli

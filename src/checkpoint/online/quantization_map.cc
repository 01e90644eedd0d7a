// Parses "scheme", or "pattern=scheme,pattern=none".
#include <algorithm>
#include <utility>

#include "base/named_patterns.h"
#include "base/text.h"
#include "base/try.h"
#include "moracle/checkpoint.h"

namespace moracle {

Result<QuantizationMap> QuantizationMap::parse(std::string_view text) {
  MORACLE_TRY(const auto named, parse_named_patterns(text, "quantization"));
  QuantizationMap map;
  std::optional<Entry> rest;
  for (const NamedPattern& entry : named) {
    std::optional<Scheme> scheme;
    if (entry.name != "none") {
      Result<Scheme> parsed = parse_online_scheme(entry.name);
      if (!parsed) {
        Error error = parsed.error();
        error.place = "quantization";
        error.need += ", or none, or pattern=scheme,pattern=none";
        error.fact = "'" + entry.name + "' is unknown";
        return error;
      }
      scheme = *parsed;
    }
    if (!entry.pattern.empty()) {
      map.entries_.push_back({entry.pattern, scheme});
    } else if (!rest) {
      rest = Entry{"", scheme};
    } else {
      return Error{ErrorKind::kInvalidArgument, "", "quantization",
                   "at most one scheme without a pattern, for all other modules",
                   "'" + entry.name + "' is the second one"};
    }
  }
  if (rest) map.entries_.push_back(*std::move(rest));
  return map;
}

const QuantizationMap::Entry* QuantizationMap::entry_for(std::string_view module) const {
  for (const Entry& entry : entries_) {
    if (entry.pattern.empty() || matches_pattern(entry.pattern, module)) return &entry;
  }
  return nullptr;
}

std::optional<Scheme> QuantizationMap::take_output() {
  for (Entry& entry : entries_) {
    if (entry.pattern == "lm_head") return std::exchange(entry.scheme, std::nullopt);
  }
  return {};
}

bool QuantizationMap::has_schemes() const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [](const Entry& entry) { return entry.scheme.has_value(); });
}

std::optional<Scheme> QuantizationMap::for_module(std::string_view module) const {
  const Entry* entry = entry_for(module);
  return entry == nullptr ? std::nullopt : entry->scheme;
}

}  // namespace moracle

// Parses "type", or "pattern=type,pattern=none".
#include "models/gguf/gguf_types.h"

#include <algorithm>

#include "base/named_patterns.h"
#include "base/text.h"
#include "base/try.h"
#include "quant/blocks/encode_blocks.h"

namespace moracle {

std::span<const DType> gguf_written_types() {
  static const std::vector<DType> types = [] {
    std::vector<DType> all(encoded_blocks().begin(), encoded_blocks().end());
    all.insert(all.end(), {DType::kBF16, DType::kF16, DType::kF32});
    return all;
  }();
  return types;
}

Result<GgufTypes> GgufTypes::parse(std::string_view text) {
  MORACLE_TRY(const auto named, parse_named_patterns(text, "scheme"));
  GgufTypes types;
  std::optional<Entry> rest;
  for (const NamedPattern& entry : named) {
    std::optional<DType> type;
    if (entry.name != "none") {
      const auto all = gguf_written_types();
      const auto found =
          std::find_if(all.begin(), all.end(), [&](DType one) { return name(one) == entry.name; });
      if (found == all.end()) {
        std::vector<std::string_view> names;
        for (const DType one : all) names.push_back(name(one));
        return Error{
            ErrorKind::kInvalidArgument, "", "scheme",
            str("one of ", join(names), " for GGUF, or none, or pattern=type,pattern=none"),
            str("'", entry.name, "' is unknown")};
      }
      type = *found;
    }
    if (!entry.pattern.empty()) {
      types.entries_.push_back({entry.pattern, type});
    } else if (!rest) {
      rest = Entry{"", type};
    } else {
      return Error{ErrorKind::kInvalidArgument, "", "scheme",
                   "at most one type without a pattern, for all other modules",
                   str("'", entry.name, "' is the second one")};
    }
  }
  if (rest) types.entries_.push_back(*std::move(rest));
  return types;
}

const GgufTypes::Entry* find_gguf_type(const GgufTypes& types, const std::string& stored,
                                       const std::string& module) {
  for (const GgufTypes::Entry& entry : types.entries()) {
    if (entry.pattern.empty() || matches_pattern(entry.pattern, module) ||
        matches_pattern(entry.pattern, stored))
      return &entry;
  }
  return nullptr;
}

}  // namespace moracle

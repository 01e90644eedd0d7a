// "auto", a backend's name, or "pattern=name,pattern=name".
#include <algorithm>

#include "base/named_patterns.h"
#include "base/text.h"
#include "base/try.h"
#include "moracle/oracle.h"

namespace moracle {
namespace {

Status check_name(std::string_view name) {
  std::vector<std::string_view> known;
  for (const Backend& backend : backends()) {
    if (backend.name == name) return {};
    known.push_back(backend.name);
  }
  if (name == "auto") return {};
  return Error{ErrorKind::kInvalidArgument, "", "--backend",
               "auto or one of " + join(known) + ", or pattern=name,pattern=name",
               str("'", name, "' is none of these")};
}

}  // namespace

Result<BackendMap> BackendMap::parse(std::string_view text) {
  MORACLE_TRY(std::vector<NamedPattern> entries, parse_named_patterns(text, "--backend"));
  const bool one_name = text.find('=') == text.npos;
  BackendMap map;
  for (NamedPattern& entry : entries) {
    if (entry.pattern.empty() && !one_name) {
      return Error{ErrorKind::kInvalidArgument, "", "--backend", "pattern=name between commas",
                   str("'", entry.name, "' is not")};
    }
    MORACLE_CHECK(check_name(entry.name));
    map.entries_.push_back({one_name ? "*" : std::move(entry.pattern), std::move(entry.name)});
  }
  return map;
}

std::string_view BackendMap::for_layer(std::string_view layer) const {
  for (const Entry& entry : entries_) {
    if (matches_pattern(entry.pattern, layer)) return entry.backend;
  }
  return "auto";
}

Status BackendMap::check_used(std::span<const std::string> layers) const {
  for (const Entry& entry : entries_) {
    const bool used = std::any_of(layers.begin(), layers.end(), [&](const std::string& layer) {
      return matches_pattern(entry.pattern, layer);
    });
    if (used) continue;
    return Error{ErrorKind::kInvalidArgument, "", "--backend",
                 str("patterns that match a layer, such as '",
                     layers.empty() ? "model.layers.0.mlp.experts" : layers.front(), "'"),
                 str("'", entry.pattern, "' matches none")};
  }
  return {};
}

}  // namespace moracle

// "auto", a backend's name, or "pattern=name,pattern=name".
#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "moracle/oracle.h"

namespace moracle {
namespace {

// `*` stands for any text, everything else for itself. Greedy with one point to go back to, which
// is enough: a later star can only be reached with more text consumed.
bool matches(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = pattern.npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != pattern.npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  return std::all_of(pattern.begin() + static_cast<ptrdiff_t>(p), pattern.end(),
                     [](char c) { return c == '*'; });
}

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
  BackendMap map;
  if (text.find('=') == text.npos) {
    MORACLE_CHECK(check_name(text));
    map.entries_.push_back({"*", std::string(text)});
    return map;
  }
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view entry = text.substr(begin, end - begin);
    const size_t equals = entry.rfind('=');
    if (equals == entry.npos || equals == 0) {
      return Error{ErrorKind::kInvalidArgument, "", "--backend", "pattern=name between commas",
                   str("'", entry, "' is not")};
    }
    MORACLE_CHECK(check_name(entry.substr(equals + 1)));
    map.entries_.push_back(
        {std::string(entry.substr(0, equals)), std::string(entry.substr(equals + 1))});
    begin = end + 1;
  }
  return map;
}

std::string_view BackendMap::for_layer(std::string_view layer) const {
  for (const Entry& entry : entries_) {
    if (matches(entry.pattern, layer)) return entry.backend;
  }
  return "auto";
}

Status BackendMap::check_used(std::span<const std::string> layers) const {
  for (const Entry& entry : entries_) {
    const bool used = std::any_of(layers.begin(), layers.end(), [&](const std::string& layer) {
      return matches(entry.pattern, layer);
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

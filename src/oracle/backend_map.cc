// Parses "auto", a backend's name, or "pattern=name,pattern=name".
#include <algorithm>

#include "base/named_patterns.h"
#include "base/text.h"
#include "base/try.h"
#include "oracle/backend.h"

namespace moracle {
namespace {

Status check_name(std::string_view name) {
  std::vector<std::string_view> known;
  for (const Backend& backend : backends()) {
    if (backend.name == name) return {};
    known.push_back(backend.name);
  }
  if (name == "auto") return {};
  return Error{ErrorKind::kInvalidArgument, "", "backend",
               "auto or one of " + join(known) + ", or pattern=name,pattern=name",
               str("'", name, "' is unknown")};
}

// The names of the modules that must agree. For many modules, the common name.
std::string all_of(const ModuleNames& module) {
  constexpr size_t kMostListed = 4;
  if (module.members.size() > kMostListed) return str("all of '", module.name, "'");
  std::vector<std::string> names;
  for (const std::string& member : module.members) names.push_back(str("'", member, "'"));
  return join(names);
}

}  // namespace

Result<BackendMap> BackendMap::parse(std::string_view text) {
  MORACLE_TRY(std::vector<NamedPattern> entries, parse_named_patterns(text, "backend"));
  const bool one_name = text.find('=') == text.npos;
  BackendMap map;
  for (NamedPattern& entry : entries) {
    if (entry.pattern.empty() && !one_name) {
      return Error{ErrorKind::kInvalidArgument, "", "backend",
                   "pattern=name entries, separated by commas",
                   str("'", entry.name, "' has no pattern")};
    }
    MORACLE_CHECK(check_name(entry.name));
    map.entries_.push_back({one_name ? "*" : std::move(entry.pattern), std::move(entry.name)});
  }
  return map;
}

std::string BackendMap::text() const {
  if (entries_.empty()) return "auto";
  if (entries_.size() == 1 && entries_[0].pattern == "*") return entries_[0].backend;
  std::vector<std::string> texts;
  for (const Entry& entry : entries_) texts.push_back(str(entry.pattern, "=", entry.backend));
  return join(texts, ",");
}

std::string_view BackendMap::for_member(std::string_view whole, std::string_view member) const {
  for (const Entry& entry : entries_) {
    if (matches_pattern(entry.pattern, whole) || matches_pattern(entry.pattern, member))
      return entry.backend;
  }
  return "auto";
}

std::string_view BackendMap::for_name(std::string_view name) const {
  return for_member(name, name);
}

Result<std::string> BackendMap::for_module(const ModuleNames& module) const {
  if (module.members.empty()) return std::string(for_name(module.name));
  // A pattern for a member's name applies only to that member.
  const auto& members = module.members;
  const bool shared = std::find(members.begin(), members.end(), module.name) == members.end();
  const std::string_view whole = shared ? std::string_view(module.name) : "";
  const std::string& first = members.front();
  const std::string backend(for_member(whole, first));
  for (const std::string& member : members) {
    const std::string_view other = for_member(whole, member);
    if (other == backend) continue;
    return Error{ErrorKind::kInvalidArgument, "", "backend",
                 str("one backend for ", all_of(module), ", because they are multiplied together"),
                 str("'", first, "' would be ", backend, " and '", member, "' ", other)};
  }
  return backend;
}

Status BackendMap::check_used(std::span<const ModuleNames> modules) const {
  for (const Entry& entry : entries_) {
    const auto matches = [&](const std::string& name) {
      return matches_pattern(entry.pattern, name);
    };
    const bool used = std::any_of(modules.begin(), modules.end(), [&](const ModuleNames& module) {
      return matches(module.name) ||
             std::any_of(module.members.begin(), module.members.end(), matches);
    });
    if (used) continue;
    return Error{ErrorKind::kInvalidArgument, "", "backend",
                 str("patterns that match a module, such as '",
                     modules.empty() ? "model.layers.0.mlp.experts" : modules.front().name, "'"),
                 str("'", entry.pattern, "' matches no module")};
  }
  return {};
}

}  // namespace moracle

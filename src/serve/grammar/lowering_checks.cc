// Checks of the whole lowered schema.
#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "serve/grammar/lowering.h"

namespace moracle::serve {
namespace {

// True if `lowered` enumerates all its values.
bool is_finite(const SchemaJson& lowered) {
  return lowered.contains("enum");
}

bool is_number_type(std::string_view type) {
  return type == "integer" || type == "number";
}

}  // namespace

// Rejects $ref cycles that never descend into a value.
Status SchemaLowering::check_cycles() const {
  enum class Mark : uint8_t { kNew, kOpen, kDone };
  std::vector<Mark> marks(definitions_.size(), Mark::kNew);
  const auto closes = [&](const auto& self, size_t at) -> bool {
    if (marks[at] != Mark::kNew) return marks[at] == Mark::kOpen;
    marks[at] = Mark::kOpen;
    for (const size_t next : definitions_[at].direct)
      if (self(self, next)) return true;
    marks[at] = Mark::kDone;
    return false;
  };
  for (size_t i = 0; i < definitions_.size(); ++i) {
    if (closes(closes, i)) {
      return wrong_schema(definitions_[i].place,
                          "a member or an item between a schema and a $ref to itself",
                          "it refers to itself, so it accepts nothing");
    }
  }
  return {};
}

bool SchemaLowering::accepts(const SchemaJson& lowered, const std::vector<bool>& known) const {
  if (lowered.contains("$ref")) {
    const auto& reference = lowered["$ref"].get_ref<const std::string&>();
    return known[reference == "#" ? 0 : std::stoul(reference.substr(8))];
  }
  const auto do_all = [&](const SchemaJson& parts) {
    return std::all_of(parts.begin(), parts.end(),
                       [&](const SchemaJson& schema) { return accepts(schema, known); });
  };
  if (lowered.contains("anyOf")) {
    return std::any_of(lowered["anyOf"].begin(), lowered["anyOf"].end(),
                       [&](const SchemaJson& option) { return accepts(option, known); });
  }
  if (lowered.contains("prefixItems") && !do_all(lowered["prefixItems"])) return false;
  if (lowered.contains("minItems") && lowered["items"].is_object() &&
      !accepts(lowered["items"], known)) {
    return false;
  }
  if (!lowered.contains("required")) return true;
  for (const SchemaJson& name : lowered["required"])
    if (!accepts(lowered["properties"][name.get_ref<const std::string&>()], known)) return false;
  return true;
}

// Values must be finite. Fixed point: a definition accepts a value if its parts do.
Status SchemaLowering::check_accepts() const {
  std::vector<bool> known(definitions_.size(), false);
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = definitions_.size(); i-- > 0;) {
      if (known[i] || !accepts(definitions_[i].lowered, known)) continue;
      known[i] = changed = true;
    }
  }
  for (size_t i = 0; i < definitions_.size(); ++i) {
    if (!known[i]) {
      return wrong_schema(definitions_[i].place, "a schema that accepts some value",
                          "every value would be infinitely nested");
    }
  }
  return {};
}

const SchemaJson& SchemaLowering::resolved(const SchemaJson& lowered) const {
  const SchemaJson* at = &lowered;
  while (at->contains("$ref")) {  // terminates, see check_cycles()
    const auto& reference = (*at)["$ref"].get_ref<const std::string&>();
    at = &definitions_[reference == "#" ? 0 : std::stoul(reference.substr(8))].lowered;
  }
  return *at;
}

bool SchemaLowering::are_told_apart_by_a_member(const SchemaJson& one,
                                                const SchemaJson& other) const {
  if (!one.contains("required") || !other.contains("required")) return false;
  for (const SchemaJson& name : one["required"]) {
    const auto& theirs = other["required"];
    if (std::find(theirs.begin(), theirs.end(), name) == theirs.end()) continue;
    const auto& key = name.get_ref<const std::string&>();
    const SchemaJson& left = resolved(one["properties"][key]);
    const SchemaJson& right = resolved(other["properties"][key]);
    if (is_finite(left) && is_finite(right) && are_disjoint(left, right)) return true;
  }
  return false;
}

bool SchemaLowering::are_disjoint(const SchemaJson& left, const SchemaJson& right) const {
  // Bound the work: nested references could multiply the pairs.
  constexpr int64_t kMostCompared = 100'000;
  if (++num_compared_ > kMostCompared) return false;
  const SchemaJson &one = resolved(left), &other = resolved(right);
  if (one.contains("anyOf")) {
    return std::all_of(one["anyOf"].begin(), one["anyOf"].end(),
                       [&](const SchemaJson& option) { return are_disjoint(option, other); });
  }
  if (other.contains("anyOf")) return are_disjoint(other, one);
  if (is_finite(one)) {
    return std::none_of(one["enum"].begin(), one["enum"].end(), [&](const SchemaJson& value) {
      if (is_finite(other))
        return std::find(other["enum"].begin(), other["enum"].end(), value) != other["enum"].end();
      if (!other.contains("type")) return true;
      const auto& type = other["type"].get_ref<const std::string&>();
      return has_type(value, is_number_type(type) ? "number" : type);
    });
  }
  if (is_finite(other)) return are_disjoint(other, one);
  if (!one.contains("type") || !other.contains("type")) return false;
  const auto& first = one["type"].get_ref<const std::string&>();
  const auto& second = other["type"].get_ref<const std::string&>();
  if (first == second) return first == "object" && are_told_apart_by_a_member(one, other);
  return !(is_number_type(first) && is_number_type(second));
}

Status SchemaLowering::check_branches() const {
  for (const Branches& each : exclusive_) {
    for (size_t i = 0; i < each.lowered.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (are_disjoint(each.lowered[i], each.lowered[j])) continue;
        return wrong_schema(each.place,
                            "schemas that exclude each other by type, or by a required member with "
                            "const or enum; anyOf takes others",
                            str("one value can match branches ", j, " and ", i));
      }
    }
  }
  return {};
}

}  // namespace moracle::serve

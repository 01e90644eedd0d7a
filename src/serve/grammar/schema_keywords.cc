#include "serve/grammar/schema_keywords.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "base/text.h"

namespace moracle::serve {
namespace {

constexpr std::string_view kAnnotations[] = {
    "title",     "description", "default",  "examples", "deprecated",  "readOnly",
    "writeOnly", "$schema",     "$comment", "$defs",    "definitions", "discriminator"};

struct TypeKeywords {
  std::string_view type;
  std::vector<std::string_view> keywords;
};

// Other keywords have no effect in xgrammar 0.2.8, or differ from JSON Schema: tested with texts
// that the schema forbids.
const TypeKeywords kTypes[] = {
    {"string", {"minLength", "maxLength", "pattern", "format"}},
    {"integer", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}},
    {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}},
    {"boolean", {}},
    {"null", {}},
    {"array", {"items", "prefixItems", "minItems", "maxItems"}},
    {"object",
     {"properties", "required", "additionalProperties", "patternProperties", "propertyNames"}}};

// Not json-pointer: there the engine allows unescaped quotes and line ends.
constexpr std::string_view kFormats[] = {"email",    "date",          "time",         "date-time",
                                         "duration", "ipv4",          "ipv6",         "uuid",
                                         "uri",      "uri-reference", "uri-template", "hostname"};

template <class Names>
bool is_in(const Names& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

const TypeKeywords* find_type(std::string_view type) {
  for (const TypeKeywords& each : kTypes)
    if (each.type == type) return &each;
  return nullptr;
}

}  // namespace

bool is_annotation(std::string_view keyword) {
  return is_in(kAnnotations, keyword);
}

bool is_keyword_of(std::string_view type, std::string_view keyword) {
  const TypeKeywords* const found = find_type(type);
  return found != nullptr && is_in(found->keywords, keyword);
}

std::string keywords_of(std::string_view type) {
  const TypeKeywords* const found = find_type(type);
  if (found == nullptr) return {};
  std::string names = "type";
  for (const std::string_view keyword : found->keywords) names += str(", ", keyword);
  return names;
}

bool is_known_format(std::string_view name) {
  return is_in(kFormats, name);
}

std::string_view type_of(const SchemaJson& value) {
  if (value.is_string()) return "string";
  if (value.is_number()) return "number";
  if (value.is_boolean()) return "boolean";
  if (value.is_null()) return "null";
  return value.is_array() ? "array" : "object";
}

bool has_type(const SchemaJson& value, std::string_view type) {
  if (type != "integer") return type_of(value) == type;
  return value.is_number_integer() ||
         (value.is_number() && std::floor(value.get<double>()) == value.get<double>());
}

}  // namespace moracle::serve

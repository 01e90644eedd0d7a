#include "serve/tools/minimax_m3/minimax_m3_schema.h"

#include <nlohmann/json.hpp>

#include "base/json/ordered_json.h"
#include "base/printable.h"
#include "base/try.h"

namespace moracle::serve {
namespace {

using M3Json = nlohmann::ordered_json;

bool is_tag_name(const std::string& name) {
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  for (const char c : name) {
    if (!is_letter(c) && !(c >= '0' && c <= '9') && c != '-' && c != '.') return false;
  }
  return !name.empty() && is_letter(name[0]);
}

// Members of a schema, and the schemas inside it.
Status check_m3_schema(const M3Json& schema, const std::string& place) {
  const auto wrong = [&](std::string need, std::string fact) {
    return Error{ErrorKind::kUnsupported, "", place, std::move(need), std::move(fact)};
  };
  if (schema.contains("$ref")) return {};  // the definition is checked
  if (schema.contains("enum")) {
    for (const M3Json& value : schema["enum"]) {
      if (value.is_structured()) return wrong("values of enum that are no objects", "one is");
    }
    return {};
  }
  if (schema.contains("anyOf")) {
    for (const M3Json& each : schema["anyOf"]) MORACLE_CHECK(check_m3_schema(each, place));
    return {};
  }
  if (!schema.contains("type")) return wrong("a type for each value", "one has none");
  if (schema["type"] == "array") {
    for (const M3Json& each : schema.value("prefixItems", M3Json::array()))
      MORACLE_CHECK(check_m3_schema(each, place));
    const M3Json items = schema.value("items", M3Json::object());
    return items == false ? Status() : check_m3_schema(items, place);
  }
  if (schema["type"] != "object") return {};
  if (!schema.contains("properties") || schema.contains("patternProperties"))
    return wrong("objects that list all their members", "one allows others");
  for (const auto& [name, value] : schema["properties"].items()) {
    if (!is_tag_name(name))
      return wrong("names of letters, digits, '_', '-' and '.'", "one is " + quote(name));
    MORACLE_CHECK(check_m3_schema(value, place));
  }
  return {};
}

}  // namespace

Status check_minimax_m3(const std::string& lowered, const std::string& place) {
  MORACLE_TRY(const M3Json schema, parse_ordered_json(lowered));
  MORACLE_CHECK(check_m3_schema(schema, place));
  for (const M3Json& definition : schema.value("$defs", M3Json::object()))
    MORACLE_CHECK(check_m3_schema(definition, place));
  return {};
}

}  // namespace moracle::serve

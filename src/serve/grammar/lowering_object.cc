// Schemas of objects.
#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "serve/grammar/lowering.h"

namespace moracle::serve {

Status SchemaLowering::lower_members(const Subschema& schema, SchemaJson& lowered,
                                     std::vector<std::string>& names) {
  lowered["properties"] = SchemaJson::object();
  if (schema.json.contains("properties")) {
    const Subschema given = schema.member("properties");
    if (!given.json.is_object())
      return wrong_schema(given.place, "an object", shown_in_schema(given.json));
    for (const auto& [key, value] : given.json.items()) {
      MORACLE_CHECK(count(num_bytes_, static_cast<int64_t>(key.size()), limits_.bytes,
                          "bytes of names and values", given.place));
      MORACLE_TRY(lowered["properties"][key], lower({value, given.place + "." + key}));
      names.push_back(key);
    }
  }
  auto num_optional = static_cast<int64_t>(names.size());
  if (schema.json.contains("required")) {
    const Subschema given = schema.member("required");
    if (!given.json.is_array() || given.json.size() > names.size())
      return wrong_schema(given.place, "an array of names that properties lists",
                          shown_in_schema(given.json));
    for (const SchemaJson& name : given.json) {
      const bool is_listed =
          name.is_string() && lowered["properties"].contains(name.get_ref<const std::string&>());
      if (!is_listed)
        return wrong_schema(given.place, "names that properties lists", shown_in_schema(name));
      const auto& taken = lowered["required"];
      if (std::find(taken.begin(), taken.end(), name) != taken.end()) continue;
      lowered["required"].push_back(name);
      --num_optional;
    }
  }
  if (num_optional <= limits_.optional_members) return {};
  return wrong_schema(schema.place, str("at most ", limits_.optional_members, " optional members"),
                      str("it has ", num_optional));
}

Result<SchemaJson> SchemaLowering::lower_object(const Subschema& schema) {
  SchemaJson lowered = SchemaJson::object({{"type", "object"}});
  std::vector<std::string> names;
  MORACLE_CHECK(lower_members(schema, lowered, names));
  for (const char* const key : {"patternProperties", "propertyNames"}) {
    if (schema.json.contains(key) && !names.empty()) {
      return wrong_schema(schema.place + "." + key, "an object without properties",
                          "the grammar engine does not combine them");
    }
  }
  const bool has_names = schema.json.contains("propertyNames");
  if (schema.json.contains("patternProperties")) {
    const Subschema given = schema.member("patternProperties");
    if (!given.json.is_object() || given.json.size() != 1 || has_names) {
      return wrong_schema(given.place, "an object with one pattern, without propertyNames",
                          shown_in_schema(given.json));
    }
    if (schema.json.contains("additionalProperties") &&
        schema.json["additionalProperties"] != false) {
      return wrong_schema(schema.place + ".additionalProperties", "false beside patternProperties",
                          shown_in_schema(schema.json["additionalProperties"]));
    }
    const auto entry = given.json.begin();
    const auto& key = entry.key();
    auto pattern = lower_pattern(key);
    if (!pattern) return wrong_schema(given.place, pattern.error().need, pattern.error().fact);
    MORACLE_CHECK(count_positions(pattern->num_positions, given.place));
    MORACLE_TRY(lowered["patternProperties"][pattern->text],
                lower({*entry, given.place + "." + key}));
    lowered["additionalProperties"] = false;
    lowered.erase("properties");
    return lowered;
  }
  const bool is_open = !strict_ || (names.empty() && !schema.json.contains("properties"));
  const SchemaJson absent = is_open;
  const bool is_given = schema.json.contains("additionalProperties");
  const SchemaJson& given = is_given ? schema.json["additionalProperties"] : absent;
  lowered["additionalProperties"] = false;
  if (given == false) return lowered;
  MORACLE_TRY(SchemaJson values, lower({given, schema.place + ".additionalProperties"}));
  if (!names.empty()) {
    // Other members must differ from the listed names in the first characters. An exact exclusion
    // would cost the engine one position per letter, and escaped spellings would bypass it.
    lowered["patternProperties"][other_names(names).text] = std::move(values);
    return lowered;
  }
  lowered["additionalProperties"] = std::move(values);
  lowered.erase("properties");
  if (!has_names) return lowered;
  const Subschema keys = schema.member("propertyNames");
  SchemaJson typed = keys.json;
  if (typed.is_object() && !typed.contains("type") && !typed.contains("enum") &&
      !typed.contains("const")) {
    typed["type"] = "string";
  }
  MORACLE_TRY(SchemaJson names_schema, lower({typed, keys.place}));
  const auto& texts = names_schema.contains("enum") ? names_schema["enum"] : SchemaJson::array();
  const bool are_texts = std::all_of(texts.begin(), texts.end(),
                                     [](const SchemaJson& each) { return each.is_string(); });
  if (texts.empty() ? names_schema.value("type", "") != "string" : !are_texts)
    return wrong_schema(keys.place, "a schema of type string, or enum", shown_in_schema(keys.json));
  lowered["propertyNames"] = std::move(names_schema);
  return lowered;
}

}  // namespace moracle::serve

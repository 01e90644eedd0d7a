// JSON Schema keywords that the grammar engine enforces.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace moracle::serve {

using SchemaJson = nlohmann::ordered_json;

/// True for annotations: keywords without constraints, such as title or $defs.
bool is_annotation(std::string_view keyword);
/// True if the engine enforces the keyword in schemas of this type, such as "string".
bool is_keyword_of(std::string_view type, std::string_view keyword);
/// Names of these keywords, for messages; empty: not a JSON type.
std::string keywords_of(std::string_view type);
/// String formats that the engine enforces.
bool is_known_format(std::string_view name);

/// JSON Schema type of a value; "number" also for integers.
std::string_view type_of(const SchemaJson& value);
/// True if a value has this JSON Schema type.
bool has_type(const SchemaJson& value, std::string_view type);

}  // namespace moracle::serve

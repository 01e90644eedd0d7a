// The keywords of JSON schemas that the engine honours.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace moracle::serve {

using SchemaJson = nlohmann::ordered_json;

/// A keyword that restricts nothing, such as title or $defs.
bool is_annotation(std::string_view keyword);
/// Whether the engine honours the keyword in schemas of this type, such as "string".
bool is_keyword_of(std::string_view type, std::string_view keyword);
/// The names of these keywords, for messages; empty: no type of JSON has this name.
std::string keywords_of(std::string_view type);
/// Formats of strings whose form the engine knows.
bool is_known_format(std::string_view name);

/// The type of a value: "number" for whole numbers, too.
std::string_view type_of(const SchemaJson& value);
/// Whether a value has the type with this name.
bool has_type(const SchemaJson& value, std::string_view type);

}  // namespace moracle::serve

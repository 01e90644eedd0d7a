#include "serve/grammar/lowering.h"

#include <algorithm>
#include <utility>

#include "base/printable.h"
#include "base/text.h"
#include "base/try.h"

namespace moracle::serve {
namespace {

std::string dumped(const SchemaJson& json) {
  return json.dump(-1, ' ', false, SchemaJson::error_handler_t::replace);
}

// Decodes percent escapes: "%25" becomes "%".
std::string without_percent_codes(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](size_t at) {
      const char c = at < text.size() ? text[at] : '-';
      return c >= '0' && c <= '9'                     ? c - '0'
             : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10
                                                      : -1;
    };
    if (text[i] == '%' && digit(i + 1) >= 0 && digit(i + 2) >= 0) {
      plain += static_cast<char>(digit(i + 1) * 16 + digit(i + 2));
      i += 2;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

// Splits a JSON pointer after its first "/".
std::vector<std::string> pointer_steps(std::string_view pointer) {
  std::vector<std::string> steps(1);
  for (size_t i = 0; i < pointer.size(); ++i) {
    const bool escape = pointer[i] == '~' && i + 1 < pointer.size();
    if (pointer[i] == '/') {
      steps.emplace_back();
    } else if (escape && (pointer[i + 1] == '0' || pointer[i + 1] == '1')) {
      steps.back() += pointer[++i] == '0' ? '~' : '/';
    } else {
      steps.back() += pointer[i];
    }
  }
  return steps;
}

const SchemaJson* step_into(const SchemaJson& json, const std::string& step) {
  if (json.is_object()) {
    const auto found = json.find(step);
    return found == json.end() ? nullptr : &*found;
  }
  const bool is_index =
      !step.empty() && step.size() < 6 && step.find_first_not_of("0123456789") == std::string::npos;
  if (!json.is_array() || !is_index) return nullptr;
  const size_t index = std::stoul(step);
  return index < json.size() ? &json[index] : nullptr;
}

}  // namespace

Error wrong_schema(const std::string& place, std::string need, std::string fact) {
  return {ErrorKind::kInvalidArgument, "", printable(place), std::move(need), std::move(fact)};
}

std::string shown_in_schema(const SchemaJson& value) {
  constexpr size_t kMost = 60;
  std::string text = dumped(value);
  if (text.size() > kMost) text = text.substr(0, kMost) + "…";
  return "it is " + printable(text);
}

SchemaLowering::Subschema SchemaLowering::Subschema::member(const std::string& key) const {
  return {json.at(key), place + "." + key};
}

Status SchemaLowering::count(int64_t& counter, int64_t more, int64_t limit, const char* of,
                             const std::string& place) const {
  counter += more;
  if (counter <= limit) return {};
  return wrong_schema(place_, str("at most ", limit, " ", of),
                      str("it has more, from ", printable(place), " on"));
}

Status SchemaLowering::count_positions(int64_t num, const std::string& place) {
  return count(num_positions_, num + num * num / 64, limits_.positions,
               "positions of lengths, patterns and formats", place);
}

Status SchemaLowering::check_alone(const Subschema& schema, std::string_view keyword,
                                   std::string_view other) const {
  for (const auto& [key, value] : schema.json.items()) {
    const bool is_id = key == "$id" && &schema.json == &root_;
    if (key == keyword || key == other || is_annotation(key) || is_id) continue;
    return wrong_schema(schema.place + "." + key, str("no constraining keyword beside ", keyword),
                        "the grammar engine ignores it there");
  }
  return {};
}

Result<int64_t> SchemaLowering::read_count(const Subschema& schema, const std::string& key,
                                           int64_t absent) const {
  if (!schema.json.contains(key)) return absent;
  const Subschema given = schema.member(key);
  constexpr int64_t kMost = 1'000'000;
  const bool is_whole = given.json.is_number() && has_type(given.json, "integer");
  if (is_whole && given.json.get<double>() >= 0 && given.json.get<double>() <= kMost)
    return static_cast<int64_t>(given.json.get<double>());
  return wrong_schema(given.place, str("a whole number from 0 to ", kMost),
                      shown_in_schema(given.json));
}

Result<std::string> SchemaLowering::run() {
  definitions_.push_back({place_, {}, {}});
  defined_["#"] = 0;
  MORACLE_TRY(definitions_[0].lowered, lower({root_, place_, true}));
  MORACLE_CHECK(check_cycles());
  MORACLE_CHECK(check_accepts());
  MORACLE_CHECK(check_branches());
  SchemaJson whole = definitions_[0].lowered;
  for (size_t i = 1; i < definitions_.size(); ++i)
    whole["$defs"][std::to_string(i)] = definitions_[i].lowered;
  return dumped(whole);
}

SchemaLimits SchemaLowering::left() const {
  SchemaLimits left = limits_;
  left.schemas -= num_schemas_;
  left.values -= num_values_;
  left.bytes -= num_bytes_;
  left.positions -= num_positions_;
  return left;
}

Result<SchemaJson> SchemaLowering::lower(const Subschema& schema) {
  MORACLE_CHECK(
      count(num_schemas_, 1, limits_.schemas, "schemas with those of $ref", schema.place));
  if (schema.json == true) return SchemaJson::object();
  if (schema.json == false)
    return wrong_schema(schema.place, "a schema that accepts some value", "it is false");
  if (!schema.json.is_object())
    return wrong_schema(schema.place, "an object or true", shown_in_schema(schema.json));
  if (schema.json.contains("$ref")) return lower_ref(schema);
  for (const char* const keyword : {"const", "enum"})
    if (schema.json.contains(keyword)) return lower_values(schema, keyword);
  for (const char* const keyword : {"anyOf", "oneOf", "allOf"})
    if (schema.json.contains(keyword)) return lower_branches(schema, keyword);
  return lower_types(schema);
}

Result<SchemaJson> SchemaLowering::lower_ref(const Subschema& schema) {
  MORACLE_CHECK(check_alone(schema, "$ref"));
  const Subschema given = schema.member("$ref");
  if (!given.json.is_string())
    return wrong_schema(given.place, "a string", shown_in_schema(given.json));
  MORACLE_TRY(const size_t index, define(given.json.get_ref<const std::string&>(), given.place));
  if (schema.is_direct) definitions_[current_].direct.push_back(index);
  return SchemaJson::object({{"$ref", index == 0 ? "#" : "#/$defs/" + std::to_string(index)}});
}

Result<size_t> SchemaLowering::define(const std::string& reference, const std::string& place) {
  if (const auto found = defined_.find(reference); found != defined_.end()) return found->second;
  const Error unknown = wrong_schema(place, "a place in this schema, such as #/$defs/name",
                                     shown_in_schema(SchemaJson(reference)));
  if (!reference.starts_with("#/")) return unknown;
  const SchemaJson* at = &root_;
  std::string place_of = place_;
  for (const std::string& step :
       pointer_steps(without_percent_codes(std::string_view(reference).substr(2)))) {
    at = step_into(*at, step);
    if (at == nullptr) return unknown;
    place_of += "." + step;
  }
  const size_t index = definitions_.size();
  defined_[reference] = index;
  definitions_.push_back({place_of, {}, {}});
  const size_t before = std::exchange(current_, index);
  MORACLE_TRY(SchemaJson lowered, lower({*at, place_of, true}));
  definitions_[index].lowered = std::move(lowered);
  current_ = before;
  return index;
}

Result<SchemaJson> SchemaLowering::lower_values(const Subschema& schema,
                                                const std::string& keyword) {
  MORACLE_CHECK(check_alone(schema, keyword, "type"));
  const Subschema given = schema.member(keyword);
  const bool is_one = keyword == "const";
  if (!is_one && (!given.json.is_array() || given.json.empty()))
    return wrong_schema(given.place, "an array with at least one value",
                        shown_in_schema(given.json));
  const SchemaJson values = is_one ? SchemaJson::array({given.json}) : given.json;
  MORACLE_CHECK(count(num_values_, static_cast<int64_t>(values.size()), limits_.values,
                      "values of enum and const", given.place));
  for (const SchemaJson& value : values) {
    const auto bytes = static_cast<int64_t>(dumped(value).size());
    if (bytes > limits_.value_bytes) {
      return wrong_schema(given.place, str("values of at most ", limits_.value_bytes, " bytes"),
                          str("one has ", bytes));
    }
    MORACLE_CHECK(
        count(num_bytes_, bytes, limits_.bytes, "bytes of names and values", given.place));
  }
  if (schema.json.contains("type")) {
    const SchemaJson& type = schema.json["type"];
    const SchemaJson types = type.is_array() ? type : SchemaJson::array({type});
    for (const SchemaJson& value : values) {
      const bool fits = std::any_of(types.begin(), types.end(), [&](const SchemaJson& each) {
        return each.is_string() && has_type(value, each.get_ref<const std::string&>());
      });
      if (!fits)
        return wrong_schema(given.place, "values of the declared type", shown_in_schema(value));
    }
  }
  return SchemaJson::object({{"enum", values}});
}

Result<SchemaJson> SchemaLowering::lower_branches(const Subschema& schema,
                                                  const std::string& keyword) {
  MORACLE_CHECK(check_alone(schema, keyword));
  const Subschema given = schema.member(keyword);
  if (!given.json.is_array() || given.json.empty())
    return wrong_schema(given.place, "an array with at least one schema",
                        shown_in_schema(given.json));
  if (keyword == "allOf" && given.json.size() > 1) {
    return wrong_schema(given.place, "one schema, because the grammar engine does not combine more",
                        str("it has ", given.json.size()));
  }
  SchemaJson options = SchemaJson::array();
  for (size_t i = 0; i < given.json.size(); ++i) {
    MORACLE_TRY(SchemaJson option,
                lower({given.json[i], str(given.place, "[", i, "]"), schema.is_direct}));
    options.push_back(std::move(option));
  }
  if (options.size() == 1) return options[0];
  if (keyword == "oneOf") exclusive_.push_back({given.place, options});
  return SchemaJson::object({{"anyOf", std::move(options)}});
}

Result<SchemaJson> SchemaLowering::lower_types(const Subschema& schema) {
  SchemaJson types = SchemaJson::array();
  if (schema.json.contains("type")) {
    const Subschema given = schema.member("type");
    types = given.json.is_array() ? given.json : SchemaJson::array({given.json});
    const bool all_known = std::all_of(types.begin(), types.end(), [](const SchemaJson& type) {
      return type.is_string() && !keywords_of(type.get_ref<const std::string&>()).empty();
    });
    constexpr size_t kNumTypes = 7;
    if (types.empty() || types.size() > kNumTypes || !all_known) {
      return wrong_schema(
          given.place, "string, integer, number, boolean, null, array, object, or several of them",
          shown_in_schema(given.json));
    }
  } else if (schema.json.contains("properties") || schema.json.contains("additionalProperties")) {
    types.push_back("object");
  } else if (schema.json.contains("items") || schema.json.contains("prefixItems")) {
    types.push_back("array");
  }
  for (const auto& [key, value] : schema.json.items()) {
    const std::string& keyword = key;
    const bool is_id = keyword == "$id" && &schema.json == &root_;
    if (keyword == "type" || is_annotation(keyword) || is_id) continue;
    const bool honoured = std::any_of(types.begin(), types.end(), [&](const SchemaJson& type) {
      return is_keyword_of(type.get_ref<const std::string&>(), keyword);
    });
    if (honoured) continue;
    std::string fact = "a schema without a type takes annotations only";
    if (!types.empty()) {
      const auto& type = types[0].get_ref<const std::string&>();
      fact = str("for type ", type, " it honours ", keywords_of(type));
    }
    return wrong_schema(schema.place + "." + keyword, "a keyword that the grammar engine honours",
                        fact);
  }
  if (types.empty()) return SchemaJson::object();
  SchemaJson options = SchemaJson::array();
  for (const SchemaJson& type : types) {
    MORACLE_TRY(SchemaJson option, lower_type(schema, type.get_ref<const std::string&>()));
    options.push_back(std::move(option));
  }
  if (options.size() == 1) return options[0];
  return SchemaJson::object({{"anyOf", std::move(options)}});
}

Result<SchemaJson> SchemaLowering::lower_type(const Subschema& schema, const std::string& type) {
  if (type == "string") return lower_string(schema);
  if (type == "integer" || type == "number") return lower_number(schema, type == "integer");
  if (type == "array") return lower_array(schema);
  if (type == "object") return lower_object(schema);
  return SchemaJson::object({{"type", type}});
}

}  // namespace moracle::serve

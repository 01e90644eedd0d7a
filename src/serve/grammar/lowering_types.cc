// The keywords of each type.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/text.h"
#include "base/try.h"
#include "serve/grammar/lowering.h"

namespace moracle::serve {
namespace {

constexpr int64_t kFormatPositions = 8;  // no format takes longer to compile
constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

Result<SchemaJson> SchemaLowering::lower_string(const Subschema& schema) {
  const SchemaJson& json = schema.json;
  const bool has_length = json.contains("minLength") || json.contains("maxLength");
  const int kinds =
      (json.contains("pattern") ? 1 : 0) + (json.contains("format") ? 1 : 0) + (has_length ? 1 : 0);
  if (kinds > 1) {
    return wrong_schema(schema.place, "only one of pattern, format, and a length",
                        "the grammar engine does not combine them");
  }
  SchemaJson lowered = SchemaJson::object({{"type", "string"}});
  if (json.contains("format")) {
    const Subschema given = schema.member("format");
    if (!given.json.is_string() || !is_known_format(given.json.get_ref<const std::string&>()))
      return wrong_schema(given.place, "a format that the grammar engine knows",
                          shown_in_schema(given.json));
    MORACLE_CHECK(count_positions(kFormatPositions, given.place));
    lowered["format"] = given.json;
    return lowered;
  }
  SchemaPattern pattern;
  if (json.contains("pattern")) {
    const Subschema given = schema.member("pattern");
    if (!given.json.is_string())
      return wrong_schema(given.place, "a regular expression", shown_in_schema(given.json));
    auto made = lower_pattern(given.json.get_ref<const std::string&>());
    if (!made) return wrong_schema(given.place, made.error().need, made.error().fact);
    pattern = *std::move(made);
  } else if (has_length) {
    MORACLE_TRY(const int64_t min, read_count(schema, "minLength", 0));
    MORACLE_TRY(const int64_t max, read_count(schema, "maxLength", -1));
    if (max >= 0 && max < min)
      return wrong_schema(schema.place, "maxLength of at least minLength", str("it is ", max));
    if (min == 0 && max < 0) return lowered;
    pattern = length_pattern(min, max);
  } else {
    return lowered;
  }
  MORACLE_CHECK(count_positions(pattern.num_positions, schema.place));
  lowered["pattern"] = pattern.text;
  return lowered;
}

Result<SchemaJson> SchemaLowering::lower_number(const Subschema& schema, bool is_integer) {
  SchemaJson lowered = SchemaJson::object({{"type", is_integer ? "integer" : "number"}});
  double min = -kInfinity, max = kInfinity;
  for (const char* const key : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}) {
    if (!schema.json.contains(key)) continue;
    const Subschema given = schema.member(key);
    // Beyond 2^53 doubles are not exact.
    constexpr double kMost = 9007199254740992.0, kDigits = 1e6;
    double value = given.json.is_number() ? given.json.get<double>() : kInfinity;
    if (!(std::abs(value) <= kMost)) {
      return wrong_schema(given.place, "a number from -2^53 to 2^53", shown_in_schema(given.json));
    }
    if (std::round(value * kDigits) / kDigits != value) {
      return wrong_schema(given.place, "a number with at most 6 digits after the decimal point",
                          shown_in_schema(given.json));
    }
    const bool is_lower = std::string_view(key).ends_with("inimum");
    const bool is_exclusive = std::string_view(key).starts_with("exclusive");
    if (is_integer) {
      value = is_lower
                  ? std::ceil(value) +
                        (is_exclusive && std::ceil(value) == given.json.get<double>() ? 1 : 0)
                  : std::floor(value) -
                        (is_exclusive && std::floor(value) == given.json.get<double>() ? 1 : 0);
      (is_lower ? min : max) = is_lower ? std::max(min, value) : std::min(max, value);
      continue;
    }
    lowered[key] = given.json;
    // The engine generates at most 6 decimal places.
    const double inside = is_exclusive ? 1 / kDigits : 0;
    (is_lower ? min : max) =
        is_lower ? std::max(min, value + inside) : std::min(max, value - inside);
  }
  if (min > max) {
    return wrong_schema(schema.place, "a range that holds a number",
                        "its minimum is above its maximum");
  }
  if (min > -kInfinity || max < kInfinity) MORACLE_CHECK(count_positions(2, schema.place));
  if (!is_integer) return lowered;
  if (min > -kInfinity) lowered["minimum"] = static_cast<int64_t>(min);
  if (max < kInfinity) lowered["maximum"] = static_cast<int64_t>(max);
  MORACLE_CHECK(lower_multiple(schema, lowered, min, max));
  return lowered;
}

Status SchemaLowering::lower_multiple(const Subschema& schema, SchemaJson& lowered, double min,
                                      double max) {
  if (!schema.json.contains("multipleOf")) return {};
  const Subschema given = schema.member("multipleOf");
  constexpr double kMost = 1024;  // the engine ignores larger values, and half-open ranges
  const double value = given.json.is_number() ? given.json.get<double>() : 0;
  if (!(value >= 1 && value <= kMost && std::floor(value) == value)) {
    return wrong_schema(given.place, str("a whole number from 1 to ", kMost),
                        shown_in_schema(given.json));
  }
  const bool has_min = min > -kInfinity, has_max = max < kInfinity;
  if (has_min != has_max || max - min > kMost) {
    if (has_min || has_max) {
      return wrong_schema(given.place,
                          str("no minimum and maximum, or both and at most ", kMost, " apart"),
                          "the grammar engine ignores it otherwise");
    }
  }
  if (has_min && std::floor(max / value) * value < min)
    return wrong_schema(given.place, "a multiple in the range", "there is none");
  lowered["multipleOf"] = static_cast<int64_t>(value);
  constexpr int64_t kPerPosition = 5;  // measured
  return count_positions(static_cast<int64_t>(has_min ? max - min : value) / kPerPosition + 1,
                         given.place);
}

Result<SchemaJson> SchemaLowering::lower_array(const Subschema& schema) {
  SchemaJson lowered = SchemaJson::object({{"type", "array"}});
  MORACLE_TRY(const int64_t min, read_count(schema, "minItems", 0));
  MORACLE_TRY(const int64_t max, read_count(schema, "maxItems", -1));
  if (max >= 0 && max < min)
    return wrong_schema(schema.place, "maxItems of at least minItems", str("it is ", max));
  size_t num_first = 0;
  if (schema.json.contains("prefixItems")) {
    const Subschema given = schema.member("prefixItems");
    if (!given.json.is_array() || given.json.empty())
      return wrong_schema(given.place, "an array with at least one schema",
                          shown_in_schema(given.json));
    num_first = given.json.size();
    if (max >= 0 && max < static_cast<int64_t>(num_first))
      return wrong_schema(given.place, "at most maxItems schemas", str("it has ", num_first));
    for (size_t i = 0; i < num_first; ++i) {
      MORACLE_TRY(SchemaJson item, lower({given.json[i], str(given.place, "[", i, "]")}));
      lowered["prefixItems"].push_back(std::move(item));
    }
  }
  const bool is_closed =
      schema.json.contains("items") ? schema.json["items"] == false : strict_ && num_first > 0;
  if (is_closed && min > static_cast<int64_t>(num_first)) {
    return wrong_schema(schema.place, "minItems at most the number of items that it allows",
                        str("it allows ", num_first));
  }
  if (is_closed) {
    lowered["items"] = false;
  } else if (schema.json.contains("items")) {
    MORACLE_TRY(lowered["items"], lower(schema.member("items")));
  } else {
    lowered["items"] = SchemaJson::object();
  }
  if (min > 0) lowered["minItems"] = min;
  if (max >= 0) lowered["maxItems"] = max;
  return lowered;
}

}  // namespace moracle::serve

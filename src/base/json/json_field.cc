#include "base/json/json_field.h"

#include <cmath>

#include "base/printable.h"
#include "base/text.h"

namespace moracle {

JsonField JsonField::operator[](std::string_view key) const {
  static const nlohmann::json kNull;
  const std::string shown_key = printable(key, 60);
  std::string place = place_.empty() ? shown_key : str(place_, '.', shown_key);
  if (value_->is_object()) {
    if (const auto found = value_->find(key); found != value_->end()) {
      return {*found, *file_, std::move(place)};
    }
  }
  return {kNull, *file_, std::move(place)};
}

bool JsonField::contains(std::string_view key) const {
  return value_->is_object() && value_->contains(key);
}

Result<std::string> JsonField::text() const {
  if (!value_->is_string()) return bad("a string");
  return value_->get_ref<const std::string&>();
}

Result<bool> JsonField::flag() const {
  if (!value_->is_boolean()) return bad("true or false");
  return value_->get<bool>();
}

Result<bool> JsonField::flag_or(bool absent) const {
  return is_null() ? absent : flag();
}

Result<double> JsonField::number() const {
  if (!value_->is_number()) return bad("a number");
  const auto number = value_->get<double>();
  if (!std::isfinite(number)) return bad("a finite number");
  return number;
}

Result<int64_t> JsonField::integer(int64_t min, int64_t max) const {
  const bool fits_64_bits = value_->is_number_integer() &&
                            !(value_->is_number_unsigned() && value_->get<uint64_t>() > INT64_MAX);
  if (fits_64_bits) {
    const auto number = value_->get<int64_t>();
    if (number >= min && number <= max) return number;
  }
  return bad(str("a whole number from ", min, " to ", max));
}

Result<std::vector<JsonField>> JsonField::items() const {
  if (!value_->is_array()) return bad("an array");
  std::vector<JsonField> items;
  items.reserve(value_->size());
  for (size_t i = 0; i < value_->size(); ++i) {
    items.emplace_back((*value_)[i], *file_, str(place_, '[', i, ']'));
  }
  return items;
}

std::string JsonField::shown(const nlohmann::json& value) {
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    if (std::isnan(value.get<double>())) return "NaN";
    return value.get<double>() > 0 ? "Infinity" : "-Infinity";
  }
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

std::string JsonField::fact() const {
  return value_->is_null() ? "it is missing" : "it is " + shown(*value_);
}

Error JsonField::bad(std::string need) const {
  return {ErrorKind::kBadFile, *file_, place_, std::move(need), fact()};
}

Error JsonField::unsupported(std::string need) const {
  return {ErrorKind::kUnsupported, *file_, place_, std::move(need), fact()};
}

}  // namespace moracle

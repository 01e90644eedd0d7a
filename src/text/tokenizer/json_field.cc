#include "text/tokenizer/json_field.h"

#include "base/text.h"
#include "text/tokenizer/utf8.h"

namespace moracle {
JsonField JsonField::operator[](std::string_view key) const {
  static const nlohmann::json kNull;
  std::string place = place_.empty() ? shortened(key) : str(place_, '.', shortened(key));
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

Result<int32_t> JsonField::id() const {
  // An unsigned number above 2^63 becomes negative here and is refused like other negative numbers.
  const int64_t id = value_->is_number_integer() ? value_->get<int64_t>() : -1;
  if (id < 0 || id > kLargestId) return bad(str("a token id from 0 to ", kLargestId));
  return static_cast<int32_t>(id);
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

std::string JsonField::fact() const {
  if (value_->is_string()) return str('"', shortened(value_->get_ref<const std::string&>()), '"');
  if (value_->is_boolean() || value_->is_number()) return value_->dump();
  if (value_->is_null()) return "null or absent";
  return str("an ", value_->type_name());
}

Error JsonField::bad(std::string need) const {
  return {ErrorKind::kBadFile, *file_, place_, std::move(need), fact()};
}

Error JsonField::unsupported(std::string need) const {
  return {ErrorKind::kUnsupported, *file_, place_, std::move(need), fact()};
}

}  // namespace moracle

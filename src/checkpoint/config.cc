#include "checkpoint/config.h"

#include <filesystem>

#include "base/json_text.h"
#include "base/small_file.h"
#include "base/text.h"
#include "base/try.h"

namespace moracle {

using nlohmann::json;

bool is_absent(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::status(path, ignored).type() == std::filesystem::file_type::not_found;
}

Result<Config> Config::open(const std::string& path) {
  MORACLE_TRY(const std::string text, read_small_file(path));
  return parse(text, path);
}

Result<Config> Config::parse(std::string_view text, std::string path) {
  MORACLE_CHECK(check_json_text(text, path));
  json parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded())
    return Error{ErrorKind::kBadFile, path, "", "valid JSON", "it is invalid"};
  if (!parsed.is_object()) {
    return Error{ErrorKind::kBadFile, path, "", "a JSON object", str("it is ", shown(parsed))};
  }
  return Config(std::move(path), "", std::move(parsed));
}

const json* Config::find(Keys keys) const {
  for (const char* key : keys) {
    const auto it = json_.find(key);
    if (it != json_.end() && !it->is_null()) return &*it;
  }
  return nullptr;
}

std::string Config::shown(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

Error Config::wrong(Keys keys, std::string need, std::string fact) const {
  return {ErrorKind::kBadFile, path_, place_ + join(keys, " or "), std::move(need),
          std::move(fact)};
}

Error Config::unsupported(Keys keys, std::string need, std::string fact) const {
  Error error = wrong(keys, std::move(need), std::move(fact));
  error.kind = ErrorKind::kUnsupported;
  return error;
}

namespace {
constexpr const char* kAbsent = "it is missing";
}

Result<int64_t> Config::integer(Keys keys, int64_t min, int64_t max) const {
  const json* value = find(keys);
  const std::string need = str("a whole number from ", min, " to ", max);
  if (value == nullptr) return wrong(keys, need, kAbsent);
  const bool whole = value->is_number_integer() &&
                     !(value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX);
  if (!whole || value->get<int64_t>() < min || value->get<int64_t>() > max) {
    return wrong(keys, need, "it is " + shown(*value));
  }
  return value->get<int64_t>();
}

Result<int64_t> Config::integer_or(int64_t fallback, Keys keys, int64_t min, int64_t max) const {
  return has(keys) ? integer(keys, min, max) : fallback;
}

Result<double> Config::number_or(double fallback, Keys keys) const {
  const json* value = find(keys);
  if (value == nullptr) return fallback;
  if (!value->is_number()) return wrong(keys, "a number", "it is " + shown(*value));
  return value->get<double>();
}

Result<bool> Config::boolean_or(bool fallback, Keys keys) const {
  const json* value = find(keys);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) return wrong(keys, "true or false", "it is " + shown(*value));
  return value->get<bool>();
}

Result<std::string> Config::text(Keys keys) const {
  const json* value = find(keys);
  if (value == nullptr) return wrong(keys, "a string", kAbsent);
  if (!value->is_string()) return wrong(keys, "a string", "it is " + shown(*value));
  return value->get<std::string>();
}

Result<std::string> Config::text_or(std::string fallback, Keys keys) const {
  return has(keys) ? text(keys) : Result<std::string>(std::move(fallback));
}

Result<std::vector<int64_t>> Config::integers(Keys keys) const {
  const json* value = find(keys);
  std::vector<int64_t> numbers;
  if (value == nullptr) return numbers;
  const json list = value->is_array() ? *value : json::array({*value});
  for (const json& item : list) {
    const bool fits = item.is_number_integer() &&
                      !(item.is_number_unsigned() && item.get<uint64_t>() > INT64_MAX);
    if (!fits) return wrong(keys, "whole numbers", "it has " + shown(item));
    numbers.push_back(item.get<int64_t>());
  }
  return numbers;
}

Result<std::vector<std::string>> Config::texts(Keys keys) const {
  const json* value = find(keys);
  std::vector<std::string> texts;
  if (value == nullptr) return texts;
  if (!value->is_array()) return wrong(keys, "an array of strings", "it is " + shown(*value));
  for (const json& item : *value) {
    if (!item.is_string()) return wrong(keys, "an array of strings", "it has " + shown(item));
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

Result<std::optional<Config>> Config::object(Keys keys) const {
  for (const char* key : keys) {
    const json* value = find({key});
    if (value == nullptr) continue;
    if (!value->is_object()) return wrong({key}, "an object", "it is " + shown(*value));
    return std::optional<Config>(Config(path_, place_ + key + ".", *value));
  }
  return std::optional<Config>();
}

}  // namespace moracle

#include "checkpoint/config.h"

#include <algorithm>
#include <filesystem>

#include "base/json/json_text.h"
#include "base/json/non_finite_json.h"
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
  MORACLE_TRY(json parsed, parse_json(quote_non_finite(text), path));
  restore_non_finite(parsed);
  if (!parsed.is_object()) {
    return Error{ErrorKind::kBadFile, path, "", "a JSON object",
                 str("it is ", JsonField::shown(parsed))};
  }
  return Config(std::move(path), "", std::move(parsed), std::make_shared<KeysRead>());
}

Config Config::from(json object, std::string path, Origins origins) {
  auto read = std::make_shared<KeysRead>();
  read->origins = std::move(origins);
  return Config(std::move(path), "", std::move(object), std::move(read));
}

Status Config::set_defaults(std::string_view defaults) {
  MORACLE_TRY(const Config parsed, parse(defaults, path_));
  if (defaults_.is_null()) defaults_ = json::object();
  defaults_.update(parsed.json_);
  return {};
}

const json* Config::find(Keys keys) const {
  bool is_null = false;
  for (const char* key : keys) {
    const auto it = json_.find(key);
    if (it == json_.end()) continue;
    if (!it->is_null()) {
      mark_read(key);
      return &*it;
    }
    is_null = true;
  }
  for (const char* key : keys) {
    const auto it = defaults_.find(key);
    if (!is_null && it != defaults_.end()) return &*it;
  }
  return nullptr;
}

std::vector<std::string> Config::unread() const {
  std::vector<std::string> places;
  const auto is_read = [&](const std::string& place) {
    const std::lock_guard lock(read_->mutex);
    return read_->places.contains(place);
  };
  // An object counts as read if it is read as a whole, or if any of its keys is.
  const auto is_opened = [&](const std::string& inside) {
    const std::lock_guard lock(read_->mutex);
    const auto at = read_->places.lower_bound(inside);
    return at != read_->places.end() && at->starts_with(inside);
  };
  for (const auto& [key, value] : json_.items()) {
    const std::string place = place_ + key;
    if (value.is_null()) continue;
    if (!is_read(place)) {
      places.push_back(origin(place));
    } else if (value.is_object() && is_opened(place + ".")) {
      const std::vector<std::string> inside = Config(path_, place + ".", value, read_).unread();
      places.insert(places.end(), inside.begin(), inside.end());
    }
  }
  return places;
}

void Config::mark_read(const char* key) const {
  const std::lock_guard lock(read_->mutex);
  read_->places.insert(place_ + key);
}

std::string Config::origin(const std::string& place) const {
  const auto found = read_->origins.find(place);
  return found == read_->origins.end() ? place : found->second;
}

// Errors about a default say that the file leaves the key out.
std::string Config::place(const Keys& keys) const {
  for (const char* key : keys) {
    const auto found = read_->origins.find(place_ + key);
    if (found == read_->origins.end()) continue;
    return str(found->second, !json_.contains(key) && has({key}) ? " (left out)" : "");
  }
  const bool in_file =
      std::any_of(keys.begin(), keys.end(), [&](const char* key) { return json_.contains(key); });
  return str(place_, join(keys, " or "), !in_file && has(keys) ? " (left out)" : "");
}

JsonField Config::field(Keys keys) const {
  static const json kNull;
  const json* const value = find(keys);
  return {value == nullptr ? kNull : *value, path_, place(keys)};
}

Error Config::wrong(Keys keys, std::string need, std::string fact) const {
  return {ErrorKind::kBadFile, path_, place(keys), std::move(need), std::move(fact)};
}

Error Config::unsupported(Keys keys, std::string need, std::string fact) const {
  Error error = wrong(keys, std::move(need), std::move(fact));
  error.kind = ErrorKind::kUnsupported;
  return error;
}

Result<int64_t> Config::integer(Keys keys, int64_t min, int64_t max) const {
  return field(keys).integer(min, max);
}

Result<int64_t> Config::integer_or(int64_t fallback, Keys keys, int64_t min, int64_t max) const {
  return has(keys) ? integer(keys, min, max) : fallback;
}

Result<double> Config::number(Keys keys) const {
  return field(keys).number();
}

Result<double> Config::number_or(double fallback, Keys keys) const {
  return has(keys) ? number(keys) : fallback;
}

Result<bool> Config::boolean_or(bool fallback, Keys keys) const {
  return field(keys).flag_or(fallback);
}

Result<std::string> Config::text(Keys keys) const {
  return field(keys).text();
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
    const auto number = JsonField(item, path_).integer(INT64_MIN, INT64_MAX);
    if (!number) return wrong(keys, "whole numbers", "it has " + JsonField::shown(item));
    numbers.push_back(*number);
  }
  return numbers;
}

Result<std::vector<std::string>> Config::texts(Keys keys) const {
  std::vector<std::string> texts;
  if (!has(keys)) return texts;
  const JsonField list = field(keys);
  if (!list.value().is_array()) return list.bad("an array of strings");
  for (const json& item : list.value()) {
    if (!item.is_string())
      return wrong(keys, "an array of strings", "it has " + JsonField::shown(item));
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

Result<std::optional<Config>> Config::object(Keys keys) const {
  for (const json* const all : {&json_, &defaults_}) {
    for (const char* key : keys) {
      const auto it = all->find(key);
      if (it == all->end() || it->is_null()) continue;
      if (!it->is_object()) return wrong({key}, "an object", "it is " + JsonField::shown(*it));
      mark_read(key);
      return std::optional<Config>(Config(path_, place_ + key + ".", *it, read_));
    }
  }
  return std::optional<Config>();
}

}  // namespace moracle

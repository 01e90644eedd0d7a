// A value inside a JSON file that stores its location, so that every error names the place.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "moracle/base.h"

namespace moracle {

/// Type-checked reads; nothing here throws. Does not own: the document and the file's name must
/// outlive it.
class JsonField {
 public:
  JsonField(const nlohmann::json& value, const std::string& file, std::string place = {})
      : value_(&value), file_(&file), place_(std::move(place)) {}

  /// The member `key`; null if it is missing or if this is no object.
  JsonField operator[](std::string_view key) const;
  bool is_null() const { return value_->is_null(); }
  bool is_object() const { return value_->is_object(); }
  bool contains(std::string_view key) const;
  const nlohmann::json& value() const { return *value_; }
  const std::string& file() const { return *file_; }
  const std::string& place() const { return place_; }

  /// Errors of all functions below: kBadFile for a missing value or a value of another type.
  Result<std::string> text() const;
  Result<bool> flag() const;
  Result<bool> flag_or(bool absent) const;
  Result<double> number() const;
  /// A whole number in [min, max].
  Result<int64_t> integer(int64_t min, int64_t max) const;
  /// The elements of an array.
  Result<std::vector<JsonField>> items() const;

  /// kBadFile: the value contradicts its format.
  Error bad(std::string need) const;
  /// kUnsupported: the value is valid, but this program does not support it.
  Error unsupported(std::string need) const;

  /// "it is …" with the shortened value, or "it is missing".
  std::string fact() const;
  /// A value as text of at most 60 bytes.
  static std::string shown(const nlohmann::json& value);

 private:
  const nlohmann::json* value_;
  const std::string* file_;
  std::string place_;
};

}  // namespace moracle

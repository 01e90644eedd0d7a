// A JSON object from a checkpoint's folder, read with types checked and places named.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "moracle/base.h"

namespace moracle {

/// True if nothing is at `path`. What the system refuses to look at (a loop of links, a name that
/// is too long) counts as there: opening it gives the reason.
bool is_absent(const std::string& path);

/// Keys may be given as a list: producers spell the same thing in several dialects (transformers 4
/// "num_experts", transformers 5 "num_local_experts"); the first that is there counts. A null value
/// counts as absent.
class Config {
 public:
  using Keys = std::vector<const char*>;

  static Result<Config> open(const std::string& path);
  static Result<Config> parse(std::string_view text, std::string path);

  const std::string& path() const { return path_; }
  bool has(Keys keys) const { return find(keys) != nullptr; }
  const nlohmann::json* find(Keys keys) const;
  const nlohmann::json& value() const { return json_; }

  /// Whole numbers in [min, max]. Errors: kBadFile, naming the key, what is needed and what is
  /// there.
  Result<int64_t> integer(Keys keys, int64_t min = 0, int64_t max = INT32_MAX) const;
  Result<int64_t> integer_or(int64_t fallback, Keys keys, int64_t min = 0,
                             int64_t max = INT32_MAX) const;
  Result<double> number_or(double fallback, Keys keys) const;
  Result<bool> boolean_or(bool fallback, Keys keys) const;
  Result<std::string> text(Keys keys) const;
  Result<std::string> text_or(std::string fallback, Keys keys) const;
  /// An array of whole numbers, or one whole number as an array of one; empty if absent.
  Result<std::vector<int64_t>> integers(Keys keys) const;
  /// An array of texts; empty if absent.
  Result<std::vector<std::string>> texts(Keys keys) const;
  /// A nested object; nothing if absent.
  Result<std::optional<Config>> object(Keys keys) const;

  /// "config.json: quantization_config.bits: needs …; it is …"
  Error wrong(Keys keys, std::string need, std::string fact) const;
  /// The same for what means something, but not to this program: kUnsupported.
  Error unsupported(Keys keys, std::string need, std::string fact) const;
  /// How a value looks, shortened, for messages.
  static std::string shown(const nlohmann::json& value);

 private:
  Config(std::string path, std::string place, nlohmann::json json)
      : path_(std::move(path)), place_(std::move(place)), json_(std::move(json)) {}
  std::string path_;
  std::string place_;  // "quantization_config." inside an object
  nlohmann::json json_;
};

}  // namespace moracle

// A JSON object from a checkpoint folder. Reads check types and name the place of an error.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/json/json_field.h"
#include "moracle/base.h"

namespace moracle {

/// True if nothing exists at `path`. A path that the system refuses to check (a loop of links, a
/// name that is too long) counts as present: opening it reports the reason.
bool is_absent(const std::string& path);

/// Keys may be given as a list, because producers use different names for the same value
/// (transformers 4 "num_experts", transformers 5 "num_local_experts"). The first present key
/// counts. A null value counts as absent; its default does not apply either.
class Config {
 public:
  using Keys = std::vector<const char*>;

  static Result<Config> open(const std::string& path);
  static Result<Config> parse(std::string_view text, std::string path);
  /// From a JSON object. `origins` gives the keys of the file for keys that were translated:
  /// {"rope_scaling.factor": "qwen3moe.rope.scaling.factor"}. Messages and unread() name those.
  using Origins = std::map<std::string, std::string, std::less<>>;
  static Config from(nlohmann::json object, std::string path, Origins origins = {});

  /// Sets the values of keys that the file lacks, as a JSON object. Later calls take precedence.
  /// Errors: invalid JSON.
  Status set_defaults(std::string_view defaults);

  const std::string& path() const { return path_; }
  bool has(Keys keys) const { return find(keys) != nullptr; }
  const nlohmann::json* find(Keys keys) const;
  const nlohmann::json& value() const { return json_; }
  /// The value of the first present key, or a missing field. The config must outlive it.
  JsonField field(Keys keys) const;

  /// An integer in [min, max]. Errors: kBadFile, with the key, the requirement and the actual
  /// value.
  Result<int64_t> integer(Keys keys, int64_t min = 0, int64_t max = INT32_MAX) const;
  Result<int64_t> integer_or(int64_t fallback, Keys keys, int64_t min = 0,
                             int64_t max = INT32_MAX) const;
  Result<double> number(Keys keys) const;
  Result<double> number_or(double fallback, Keys keys) const;
  Result<bool> boolean_or(bool fallback, Keys keys) const;
  Result<std::string> text(Keys keys) const;
  Result<std::string> text_or(std::string fallback, Keys keys) const;
  /// An array of integers. A single integer gives an array of one; absent gives an empty array.
  Result<std::vector<int64_t>> integers(Keys keys) const;
  /// An array of strings; empty if absent.
  Result<std::vector<std::string>> texts(Keys keys) const;
  /// A nested object; nullopt if absent. The default of an object also counts for null.
  Result<std::optional<Config>> object(Keys keys) const;

  /// Keys that no call has read, of this object, of its copies and of the objects inside it:
  /// "quantization_config.bits".
  std::vector<std::string> unread() const;

  /// "config.json: quantization_config.bits: needs …; it is …"
  Error wrong(Keys keys, std::string need, std::string fact) const;
  /// The same for a meaningful value that this library does not support: kUnsupported.
  Error unsupported(Keys keys, std::string need, std::string fact) const;

 private:
  struct KeysRead {
    std::mutex mutex;
    std::set<std::string, std::less<>> places;
    Origins origins;
  };
  Config(std::string path, std::string place, nlohmann::json json, std::shared_ptr<KeysRead> read)
      : path_(std::move(path)),
        place_(std::move(place)),
        json_(std::move(json)),
        read_(std::move(read)) {}
  std::string place(const Keys& keys) const;
  std::string origin(const std::string& place) const;
  void mark_read(const char* key) const;
  std::string path_;
  std::string place_;  // "quantization_config." inside an object
  nlohmann::json json_;
  nlohmann::json defaults_;
  std::shared_ptr<KeysRead> read_;  // of the whole file
};

}  // namespace moracle

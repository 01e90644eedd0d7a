// The formats of compressed-tensors, one file each: what a config group may say, and how a module's
// tensors become canonical.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "checkpoint/config.h"
#include "checkpoint/producers/producer.h"

namespace moracle {

/// What one config group says of its modules.
struct CtScheme {
  Scheme scheme;
  bool per_tensor = false;   ///< int-quantized: the file has one scale, the scheme one per channel
  bool group_index = false;  ///< columns belong to groups in another order than left to right
};

struct CtFormat {
  std::string_view name;     ///< as in the key "format"
  std::string_view tensors;  ///< the names after a module's, for messages
  /// Errors (kUnsupported): a combination that this format's reader does not serve, by its key.
  Result<CtScheme> (*read_scheme)(const Config& group);
  Result<DescribedLinear> (*describe)(const Tensors& tensors, const std::string& module,
                                      const CtScheme& scheme);
};
extern const CtFormat kCtInt;
extern const CtFormat kCtPack;
extern const CtFormat kCtFloat;
extern const CtFormat kCtMxfp8;

// Shared by the formats.

/// The value of `key`, one of `allowed`; where it is absent, `fallback` unless that is null.
/// Errors (kUnsupported): another value, or none.
Result<nlohmann::json> one_of(const Config& config, const char* key,
                              std::initializer_list<nlohmann::json> allowed,
                              nlohmann::json fallback = nullptr);
/// The group's quantization of weights. Errors: none, or one that the data decides at run time.
Result<Config> weights_of(const Config& group, std::string_view type);
/// Errors (kUnsupported): one of the keys has a value, though nothing here reads it.
Status check_unused(const Config& config, std::initializer_list<const char*> keys,
                    const char* need = "nothing");
/// Errors: the file holds this tensor, though the config says that there is none.
Status check_absent(const Tensors& tensors, const std::string& name, const char* reason);

}  // namespace moracle

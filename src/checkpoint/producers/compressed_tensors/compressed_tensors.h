// The formats of compressed-tensors, one file each: the allowed config groups, and the conversion
// of a module's tensors to canonical form.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "checkpoint/config.h"
#include "checkpoint/producers/producer.h"

namespace moracle {

/// The scheme of one config group.
struct CtScheme {
  Scheme scheme;
  bool per_tensor = false;   ///< int-quantized: the file has one scale, the scheme one per channel
  bool group_index = false;  ///< act-order: groups do not follow the columns from left to right
  bool drops_activations = false;  ///< the group quantizes activations to 4 bits; they stay floats
};

struct CtFormat {
  std::string_view name;     ///< the value of the key "format"
  std::string_view tensors;  ///< the name endings of a module's tensors, for messages
  /// Errors (kUnsupported): a combination that this format's reader does not support, with its key.
  Result<CtScheme> (*read_scheme)(const Config& group);
  Result<DescribedLinear> (*describe)(const Tensors& tensors, const std::string& module,
                                      const CtScheme& scheme);
};
extern const CtFormat kCtInt;
extern const CtFormat kCtPack;
extern const CtFormat kCtFloat;
extern const CtFormat kCtMxfp8;
extern const CtFormat kCtMxfp4;
extern const CtFormat kCtNvfp4;

// Functions that several formats use.

/// The value of `key`, one of `allowed`. If the key is absent, `fallback` unless that is null.
/// Errors (kUnsupported): another value, or no value.
Result<nlohmann::json> one_of(const Config& config, const char* key,
                              std::initializer_list<nlohmann::json> allowed,
                              nlohmann::json fallback = nullptr);
/// The group's weight quantization. Errors: there is none, or it is dynamic (computed at run time).
Result<Config> weights_of(const Config& group, std::string_view type);
/// Errors (kUnsupported): one of the keys has a value, but no reader uses it.
Status check_unused(const Config& config, std::initializer_list<const char*> keys,
                    const char* need = "to be absent or empty");
/// Errors: the file holds this tensor, but the config says that it is absent.
Status check_absent(const Tensors& tensors, const std::string& name, const char* reason);

}  // namespace moracle

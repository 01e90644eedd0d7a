// The stored form of a quantized module in a written checkpoint: its tensors and its config entry.
// The inverse of the readers.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/write/write_safetensors.h"
#include "moracle/quant.h"

namespace moracle {

/// The written format; the names are those of QuantizeOptions::format.
enum class WriteFormat { kCompressedTensors, kFp8, kModelOpt };
/// Errors list the names.
Result<WriteFormat> parse_write_format(std::string_view text);
std::string_view name(WriteFormat format);
/// Errors (kUnsupported): a scheme that the format cannot express.
Status check_stores(WriteFormat format, const Scheme& scheme);

/// The tensors of module [n, k], codes first. Errors (kUnsupported): a K that is not a multiple of
/// the format's group size.
Result<std::vector<SafetensorsEntry>> stored_entries(WriteFormat format, const Scheme& scheme,
                                                     const std::string& module, int64_t n,
                                                     int64_t k);
/// The bytes of these tensors, in the same order, from a matrix that quantize_weight() made.
std::vector<std::vector<std::byte>> stored_bytes(const Scheme& scheme, CanonicalMatrix&& matrix);

/// One module and its scheme in the written checkpoint.
struct StoredModule {
  std::string name;
  std::optional<Scheme> scheme;  ///< nullopt: not quantized
  bool fused = false;
};
/// The quantization_config of config.json.
nlohmann::ordered_json quantization_config(WriteFormat format,
                                           const std::vector<StoredModule>& modules);

}  // namespace moracle

// How a quantized module lies in a checkpoint that is written: its tensors, and what the config
// says of it. The inverse of the readers.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/write/write_safetensors.h"
#include "moracle/quant.h"

namespace moracle {

/// Who reads what is written; the names are QuantizeOptions::format.
enum class WriteFormat { kCompressedTensors, kFp8, kModelOpt };
/// Errors list the names.
Result<WriteFormat> parse_write_format(std::string_view text);
std::string_view name(WriteFormat format);
/// Errors (kUnsupported): a scheme that the format has no words for.
Status check_stores(WriteFormat format, const Scheme& scheme);

/// The tensors of module [n, k], the codes first. Errors (kUnsupported): a K that the format's
/// groups do not divide.
Result<std::vector<SafetensorsEntry>> stored_entries(WriteFormat format, const Scheme& scheme,
                                                     const std::string& module, int64_t n,
                                                     int64_t k);
/// Their bytes, in the same order, of a matrix that quantize_weight() made.
std::vector<std::vector<std::byte>> stored_bytes(const Scheme& scheme, CanonicalMatrix&& matrix);

/// One module and what became of it.
struct StoredModule {
  std::string name;
  std::optional<Scheme> scheme;  ///< nothing: left as it was
  bool fused = false;
};
/// config.json's quantization_config.
nlohmann::ordered_json quantization_config(WriteFormat format,
                                           const std::vector<StoredModule>& modules);

}  // namespace moracle

// One GGUF file: a header with metadata and a table of tensors, then the data. Format:
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "checkpoint/tensors/tensor_file.h"
#include "moracle/base.h"

namespace moracle {

/// The checked header of a GGUF file.
struct GgufHeader {
  /// One flat object: "qwen3moe.block_count": 48. Arrays are JSON arrays. An f32 becomes its
  /// shortest decimal number, as in config.json.
  nlohmann::json metadata;
  /// Shapes in the order of this library: GGUF's dimensions reversed.
  std::map<std::string, StoredTensor> tensors;
};

struct GgufFile {
  /// Errors (kBadFile, with file and place): not a GGUF file; a truncated file; unknown types of
  /// values; counts, lengths and dimensions that the file cannot hold; a key or a tensor that
  /// occurs twice; offsets that are not aligned, outside the data, or leave bytes without a tensor;
  /// tensors that overlap. kUnsupported: version 1 or above 3; big-endian files; types of tensors
  /// that this library does not read; nested arrays. kIo: the system refuses the file.
  static Result<GgufFile> open(const std::string& path);

  /// The same checks for a file image in memory.
  static Result<GgufHeader> parse(std::span<const std::byte> image, const std::string& path);

  /// Published headers are below 12 MB, nearly all of it the tokenizer.
  static constexpr uint64_t kMaxHeaderBytes = 256 << 20;
  /// Values in all arrays of a file. Published tokenizers have below 1 million.
  static constexpr uint64_t kMaxValues = 1 << 24;
  static constexpr uint64_t kMaxTensors = 1 << 20;
  static constexpr uint32_t kMaxRank = 4;
  /// Longest name of a tensor in bytes; ggml allows 63.
  static constexpr uint64_t kMaxName = 127;

  TensorFile file;
  nlohmann::json metadata;
};

/// True if the file begins with GGUF's magic.
bool is_gguf(const std::string& path);

}  // namespace moracle

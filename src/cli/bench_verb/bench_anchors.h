// Anchors: times of public kernels for the same cells, measured elsewhere with the same method.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "moracle/base.h"

namespace moracle::cli {

struct Anchor {
  std::string impl;  ///< "humming-0.1.19"
  double us = 0;     ///< time in a CUDA graph replay
};
struct AnchorCell {
  Anchor best_public;
  std::optional<Anchor> vllm;  ///< vLLM's choice
};

class Anchors {
 public:
  /// Reads a JSON list of {"shape", "scheme", "impl", "M", "us_graph"}. M is the number of tokens;
  /// names are in their authors' spelling ("int8_w8a8_ch"). Errors: no such file, an invalid row.
  static Result<Anchors> read(const std::string& path);
  /// Finds a cell by this library's names: "deepseek-v3-ep8", "int8-w8a8". Null: no measurement.
  const AnchorCell* find(const std::string& shape, const std::string& scheme,
                         int64_t num_tokens) const;

 private:
  std::map<std::tuple<std::string, std::string, int64_t>, AnchorCell> cells_;
};

}  // namespace moracle::cli

// What other people's kernels take for the same cells: measured elsewhere, by the same method, and
// put beside.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "moracle/base.h"

namespace moracle::cli {

struct Anchor {
  std::string impl;  ///< "humming-0.1.19"
  double us = 0;     ///< by graph replay
};
struct AnchorCell {
  Anchor best_public;
  std::optional<Anchor> vllm;  ///< what vLLM chooses by its own order
};

class Anchors {
 public:
  /// A JSON list of {"shape", "scheme", "impl", "M", "us_graph"}: M tokens, names as their authors
  /// spell them ("int8_w8a8_ch"). Errors: no such file, another form.
  static Result<Anchors> read(const std::string& path);
  /// By this library's names: "deepseek-v3-ep8", "int8-w8a8". Null: nobody measured it.
  const AnchorCell* find(const std::string& shape, const std::string& scheme,
                         int64_t num_tokens) const;

 private:
  std::map<std::tuple<std::string, std::string, int64_t>, AnchorCell> cells_;
};

}  // namespace moracle::cli

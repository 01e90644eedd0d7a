// Plans the content of a GGUF file before any weight is read.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/gguf/convention.h"
#include "checkpoint/gguf/write/gguf_writer.h"
#include "models/description.h"
#include "moracle/gguf.h"

namespace moracle {

/// A matrix of a layer's experts.
enum class ExpertRole : uint8_t { kGate, kUp, kDown };

struct GgufTensorPlan {
  GgufEntry entry;
  /// The tensors of GgufPlan::sources that become its rows. A source with the name of `entry` is
  /// written unchanged.
  std::vector<std::string> sources = {};
  /// In place of `sources`: a matrix, or its bias, of every expert.
  struct Experts {
    int64_t layer;
    ExpertRole role;
    bool bias;
  };
  std::optional<Experts> experts = {};
};

struct GgufPlan {
  const GgufConvention* gguf = nullptr;
  nlohmann::json metadata;  ///< without the tokenizer
  std::map<std::string, Tensors::Entry> sources;
  std::vector<GgufTensorPlan> tensors;
  GgufReport report;
};

/// Errors: those of write_gguf about the family, keys, and names and types of tensors.
Result<GgufPlan> plan_gguf(const Checkpoint& from, const Description& description,
                           const GgufTypes& types);

}  // namespace moracle

// The tiny models of tests/golden/architectures, unchanged or changed.
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "checkpoint/safetensors_image.h"
#include "checkpoint/synthetic_checkpoint.h"
#include "moracle/moracle.h"
#include "paths.h"
#include "support/model_words.h"
#include "support/must.h"

namespace moracle::testing {

/// The names of the models, sorted.
inline std::vector<std::string> golden_models() {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(testing::golden_dir() + "/architectures"))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}
/// Models with compressed attention or pools of positions, for which OpenCL has no kernels.
inline std::vector<std::string> compressed_models() {
  return {"deepseek_v4",      "deepseek_v4_pro", "glm5_next_pools",
          "glm5_next_shared", "qwen4_exp",       "qwen4_exp_bigrams"};
}
inline std::string golden_folder(const std::string& name) {
  const std::vector<std::string> compressed = compressed_models();
  const bool is_compressed =
      std::find(compressed.begin(), compressed.end(), name) != compressed.end();
  return testing::golden_dir() + (is_compressed ? "/compressed/" : "/architectures/") + name;
}
inline bool has_experts(const std::string& name) {
  return !must(Checkpoint::open(golden_folder(name))).moe_layers().empty();
}

/// A model whose files may be changed.
inline SyntheticCheckpoint model_in(const std::string& folder) {
  SyntheticCheckpoint checkpoint = SyntheticCheckpoint::plain();
  checkpoint.config = nlohmann::json::parse(std::ifstream(folder + "/config.json"));
  checkpoint.tensors.clear();
  const auto file = SafetensorsImage::open(folder + "/model.safetensors");
  for (const auto& [tensor, view] : file->tensors()) {
    checkpoint.tensors[tensor] = {
        tensor, view.dtype, view.shape, {view.data, view.data + view.num_bytes()}};
  }
  return checkpoint;
}
inline SyntheticCheckpoint golden_model(const std::string& name) {
  return model_in(golden_folder(name));
}

struct GoldenReference {
  std::vector<int32_t> ids;
  std::vector<float> logits;  ///< [ids, vocabulary]
};
inline GoldenReference reference_in(const std::string& folder) {
  const auto file = SafetensorsImage::open(folder + "/reference.safetensors");
  const TensorView &ids = file->tensors().at("ids"), &logits = file->tensors().at("logits");
  return {{ids.as<int32_t>(), ids.as<int32_t>() + ids.num_elements()},
          {logits.as<float>(), logits.as<float>() + logits.num_elements()}};
}

inline GoldenReference golden_reference(const std::string& name) {
  return reference_in(golden_folder(name));
}

/// Runs all tokens in one step. Returns the logits of every position, of many those of the last
/// ones.
inline Result<std::vector<float>> all_logits(Model& model, const std::vector<int32_t>& ids) {
  const auto count = static_cast<int64_t>(ids.size());
  MORACLE_TRY(KvCache cache, model.make_cache(count));
  const Model::Step step{ids, &cache};
  MORACLE_CHECK(model.forward({&step, 1}));
  const int64_t rows = std::min(count, Model::kMaxLogitRows);
  MORACLE_TRY(const std::span<const float> logits, model.logits(count - rows, rows));
  return std::vector<float>(logits.begin(), logits.end());
}
/// On the backend "cpu", in f32.
inline Result<std::vector<float>> all_logits(const SyntheticCheckpoint& written,
                                             const std::vector<int32_t>& ids) {
  MORACLE_TRY(const Checkpoint checkpoint, written.open());
  MORACLE_TRY(Model model,
              Model::load(checkpoint, {.backend = testing::backend("cpu"), .threads = 2}));
  return all_logits(model, ids);
}

/// |a - b| / |b|
inline double relative_difference(std::span<const float> a, std::span<const float> b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += std::pow(double{a[i]} - b[i], 2);
    size += std::pow(double{b[i]}, 2);
  }
  return a.size() == b.size() ? std::sqrt(difference / size) : INFINITY;
}

}  // namespace moracle::testing

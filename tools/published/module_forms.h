// The tensors of a published checkpoint's modules, in the form that its quantization config names.
// The producers' rules are implemented here a second time, independently of the readers under test.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "published/sparse_tensors.h"

namespace moracle::published {

using Json = nlohmann::json;

class ModuleForms {
 public:
  /// `quantization` is the quantization config; null: the file is not quantized.
  explicit ModuleForms(Json quantization);

  void floats(const std::string& name, std::vector<int64_t> shape, DType dtype = DType::kBF16) {
    tensors_.add(name, dtype, std::move(shape));
  }
  /// Adds a tensor with one f32 of value 1.
  void one(const std::string& name);
  /// Adds a module that no producer quantizes: a router, the embedding.
  void plain(const std::string& module, int64_t n, int64_t k) {
    floats(module + ".weight", {n, k});
  }
  /// Adds a linear layer [n, k], quantized by the rules.
  void linear(const std::string& module, int64_t n, int64_t k);

  /// False: experts are stored as floats, in one tensor where the family does so.
  bool quantizes(const std::string& module) { return form_of(module) != Form::kPlain; }
  /// True if the file holds scales for a KV cache in fp8.
  bool kv_scales() const { return kv_scales_; }
  /// "NVFP4", "fp8 128x128"
  std::string name() const { return name_; }
  const SparseTensors& tensors() const { return tensors_; }

 private:
  enum class Form { kPlain, kFp8Block, kFp8Tensor, kMxfp8, kNvfp4, kNvfp4Weights, kMxfp4, kInt4 };
  Form form_of(const std::string& module);
  Form decide(const std::string& module) const;
  bool is_excluded(const std::string& module) const;

  Json config_;
  SparseTensors tensors_;
  std::string name_ = "bf16";
  Form form_ = Form::kPlain;
  bool kv_scales_ = false;
  std::vector<std::string> excluded_;
  std::map<std::string, Form> layers_;   // ModelOpt's quantized_layers
  std::map<std::string, Form> decided_;  // modules of one layer's experts share an entry
};

}  // namespace moracle::published

// Reads LoRA adapters that PEFT wrote (peft.LoraConfig.save_pretrained).
#include <set>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/lora/lora_settings.h"
#include "checkpoint/producers/module_tensors.h"
#include "checkpoint/state.h"

namespace moracle {
namespace {

constexpr const char* kPrefix = "base_model.model.";

class AdapterReader {
 public:
  AdapterReader(const Tensors& tensors, const LoraSettings& settings)
      : tensors_(tensors), settings_(settings) {}

  int64_t rank() const { return rank_; }

  /// The adapter of one matrix [n, k]; rank 0 if the matrix has no adapter.
  Result<LoraPair> pair(const std::string& module, int64_t n, int64_t k) {
    const std::string a_name = kPrefix + module + ".lora_A.weight";
    const std::string b_name = kPrefix + module + ".lora_B.weight";
    const bool has_a = tensors_.find(a_name) != nullptr, has_b = tensors_.find(b_name) != nullptr;
    LoraPair pair;
    if (!has_a && !has_b) return pair;
    MORACLE_TRY(const TensorView a, get_floats(tensors_, a_name));
    MORACLE_TRY(const TensorView b, get_floats(tensors_, b_name));
    if (a.shape.size() != 2 || a.shape[0] < 1 || a.shape[1] != k)
      return tensors_.wrong(a_name, str("shape [rank, ", k, "]"), "it is " + to_string(a));
    pair.rank = a.shape[0];
    if (b.shape != std::vector<int64_t>{n, pair.rank})
      return tensors_.wrong(b_name, str("shape [", n, ", ", pair.rank, "]"),
                            "it is " + to_string(b));
    MORACLE_TRY(pair.a, read_scales(tensors_, a_name));
    MORACLE_TRY(pair.b, read_scales(tensors_, b_name));
    pair.scale = settings_.scale(module, pair.rank);
    rank_ = std::max(rank_, pair.rank);
    claimed_.insert({a_name, b_name});
    return pair;
  }

  /// The adapters of one matrix for all experts; empty if no expert has one.
  Result<std::vector<LoraPair>> experts(const std::string& prefix, std::string_view part,
                                        int64_t num_experts, int64_t n, int64_t k) {
    std::vector<LoraPair> pairs;
    bool any = false;
    for (int64_t e = 0; e < num_experts; ++e) {
      MORACLE_TRY(LoraPair one, pair(str(prefix, ".", e, ".", part), n, k));
      any |= one.rank > 0;
      pairs.push_back(std::move(one));
    }
    if (!any) pairs.clear();
    return pairs;
  }

  Status check_claimed() const {
    for (const auto& [name, entry] : tensors_.all()) {
      if (claimed_.contains(name)) continue;
      return Error{ErrorKind::kUnsupported, tensors_.file_of(name), "tensor '" + name + "'",
                   "to adapt an expert matrix of this checkpoint", "no expert uses it"};
    }
    return {};
  }

 private:
  const Tensors& tensors_;
  const LoraSettings& settings_;
  std::set<std::string> claimed_;
  int64_t rank_ = 0;
};

}  // namespace

Result<LoraAdapter> LoraAdapter::open(const std::string& folder, const Checkpoint& checkpoint) {
  if (is_absent(folder + "/adapter_config.json"))
    return Error{ErrorKind::kBadFile, folder, "", "adapter_config.json, as PEFT writes it",
                 "the folder has none"};
  MORACLE_TRY(const Config config, Config::open(folder + "/adapter_config.json"));
  MORACLE_TRY(const LoraSettings settings, LoraSettings::read(config));
  MORACLE_TRY(SafetensorsFile file, SafetensorsFile::open(folder + "/adapter_model.safetensors"));
  std::vector<SafetensorsFile> files;
  files.push_back(std::move(file));
  MORACLE_TRY(const Tensors tensors, Tensors::from(std::move(files)));

  LoraAdapter adapter;
  AdapterReader reader(tensors, settings);
  for (int64_t layer : checkpoint.moe_layers()) {
    MORACLE_TRY(const DescribedWeights weights, checkpoint.moe_layer(layer));
    const LayerSpec& spec = weights.spec;
    const ExpertNames& names = *expert_names(checkpoint.state(), layer);
    auto read = [&](std::string_view own, std::string_view usual, int64_t n, int64_t k) {
      // Experts in one tensor have no module names. Adapters use the most common names for them.
      return reader.experts(spec.name, names.fused ? usual : own, spec.num_experts, n, k);
    };
    const int64_t hidden = spec.hidden_size, intermediate = spec.intermediate_size;
    LoraWeights of_layer;
    MORACLE_TRY(of_layer.gate, read(names.gate, "gate_proj", intermediate, hidden));
    MORACLE_TRY(of_layer.up, read(names.up, "up_proj", intermediate, hidden));
    MORACLE_TRY(of_layer.down, read(names.down, "down_proj", hidden, intermediate));
    if (!of_layer.gate.empty() || !of_layer.up.empty() || !of_layer.down.empty())
      adapter.layers.emplace(layer, std::move(of_layer));
  }
  MORACLE_CHECK(reader.check_claimed());
  adapter.rank = reader.rank();
  if (adapter.rank == 0)
    return Error{ErrorKind::kBadFile, folder, "", "an adapter for at least one expert",
                 "it has none"};
  return adapter;
}

}  // namespace moracle

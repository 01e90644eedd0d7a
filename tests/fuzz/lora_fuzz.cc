// libFuzzer: mutated PEFT adapters, for a model with one tensor per expert and for one with fused
// experts.
#include <cmath>
#include <filesystem>
#include <map>

#include "checkpoint/producers/mxfp4_synthetic.h"
#include "fuzz/checkpoint_fuzz.h"
#include "moracle/model.h"

namespace moracle::testing::lora_fuzz {

namespace {

// A model, opened once, and an adapter that fits all its experts.
struct Base {
  explicit Base(const SyntheticCheckpoint& model) : checkpoint(*model.open()) {
    adapter.tensors.clear();
    adapter.config = {{"peft_type", "LORA"},
                      {"r", 2},
                      {"lora_alpha", 4},
                      {"use_rslora", false},
                      {"bias", "none"},
                      {"target_modules", {"gate_proj", "up_proj", "down_proj"}},
                      {"alpha_pattern", {{"experts.1.up_proj", 8}, {"0.(gate|down)_proj", 1.5}}},
                      {"modules_to_save", nullptr}};
    const auto layer = checkpoint.moe_layer(0);
    require(layer.ok());
    const int64_t hidden = layer->spec.hidden_size, inner = layer->spec.intermediate_size;
    for (int64_t e = 0; e < layer->spec.num_experts; ++e) {
      add(SyntheticCheckpoint::expert(0, e, "gate_proj"), inner, hidden);
      add(SyntheticCheckpoint::expert(0, e, "up_proj"), inner, hidden);
      add(SyntheticCheckpoint::expert(0, e, "down_proj"), hidden, inner);
    }
  }
  void add(const std::string& module, int64_t n, int64_t k) {
    adapter.add_floats("base_model.model." + module + ".lora_A.weight", {2, k});
    adapter.add_floats("base_model.model." + module + ".lora_B.weight", {n, 2});
  }

  Checkpoint checkpoint;
  SyntheticCheckpoint adapter = SyntheticCheckpoint::plain(kTiny);
};

void write(const SyntheticCheckpoint& adapter, const std::string& folder) {
  require(adapter.write(folder).ok());
  std::filesystem::rename(folder + "/config.json", folder + "/adapter_config.json");
  std::filesystem::rename(folder + "/model.safetensors", folder + "/adapter_model.safetensors");
}

// Checks the guarantees of the header: an entry for every expert or for none, matching sizes, a
// rank that covers all entries, finite numbers.
void require_whole(const LoraAdapter& adapter, const Checkpoint& checkpoint) {
  require(adapter.rank > 0 && !adapter.layers.empty());
  int64_t rank = 0;
  for (const auto& [index, weights] : adapter.layers) {
    const LayerSpec spec = checkpoint.moe_layer(index)->spec;
    const auto check = [&](const std::vector<LoraPair>& pairs, int64_t n, int64_t k) {
      require(pairs.empty() || pairs.size() == static_cast<size_t>(spec.num_experts));
      for (const LoraPair& pair : pairs) {
        require(pair.rank >= 0 && std::isfinite(pair.scale));
        require(pair.a.size() == static_cast<size_t>(pair.rank * k));
        require(pair.b.size() == static_cast<size_t>(n * pair.rank));
        for (const float value : pair.a) require(std::isfinite(value));
        for (const float value : pair.b) require(std::isfinite(value));
        rank = std::max(rank, pair.rank);
      }
    };
    check(weights.gate, spec.intermediate_size, spec.hidden_size);
    check(weights.up, spec.intermediate_size, spec.hidden_size);
    check(weights.down, spec.hidden_size, spec.intermediate_size);
  }
  require(rank == adapter.rank);
}

// Runs two tokens through the model with the adapter; true on success.
bool apply(const Checkpoint& checkpoint, const std::string& folder) {
  ModelOptions options;
  options.threads = 1;
  options.max_num_tokens = 2;
  options.adapters = {folder};
  auto model = Model::load(checkpoint, options);
  if (!passes(model)) return false;
  GenerateOptions two;
  two.max_tokens = 2;
  two.adapter = 0;
  return passes(generate(*model, std::vector<int32_t>{0, 1}, two));
}

}  // namespace

int run(const uint8_t* data, size_t size) {
  static const TemporaryFolder folder;
  static const Base bases[] = {Base(SyntheticCheckpoint::plain(kTiny)), Base(fused_plain(false))};
  static const bool open = std::all_of(std::begin(bases), std::end(bases), [](const Base& base) {
    write(base.adapter, folder.path());
    return apply(base.checkpoint, folder.path());
  });
  require(open);
  Bytes bytes({data, size});
  const Base& base = bases[bytes.below(std::size(bases))];
  SyntheticCheckpoint adapter = base.adapter;
  for (int edits = 0; edits < 32 && !bytes.empty(); ++edits) {
    bytes.byte() % 2 == 0 ? edit_tensors(adapter, bytes) : edit_config(adapter.config, bytes);
  }
  write(adapter, folder.path());
  const auto read = LoraAdapter::open(folder.path(), base.checkpoint);
  if (!passes(read)) return 0;
  require_whole(*read, base.checkpoint);
  apply(base.checkpoint, folder.path());
  return 0;
}

}  // namespace moracle::testing::lora_fuzz

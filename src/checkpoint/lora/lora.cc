// Reads LoRA adapters that PEFT wrote (peft.LoraConfig.save_pretrained), and those in GGUF.
#include <algorithm>
#include <filesystem>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/lora/adapter_reader.h"
#include "checkpoint/lora/gguf_adapter.h"
#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/state.h"

namespace moracle {
namespace {

// Splits the pair of gate and up: both have the same A. Their rows follow one another, or
// alternate.
void split_gate_up(const std::vector<LoraPair>& both, bool interleaved, LoraWeights& to) {
  for (const LoraPair& pair : both) {
    const int64_t rows = static_cast<int64_t>(pair.b.size()) / pair.rank;
    for (const bool is_up : {false, true}) {
      LoraPair half{pair.rank, pair.scale, pair.a, {}};
      for (int64_t r = 0; r < rows / 2; ++r) {
        const int64_t row = interleaved ? 2 * r + is_up : r + (is_up ? rows / 2 : 0);
        const auto first = pair.b.begin() + row * pair.rank;
        half.b.insert(half.b.end(), first, first + pair.rank);
      }
      (is_up ? to.up : to.gate).push_back(std::move(half));
    }
  }
}

// Modules of transformers that hold the experts of `spec`: as in the file, or as version 5 names
// them.
std::vector<std::string> fused_modules(const LayerSpec& spec) {
  std::vector<std::string> modules = {spec.name, spec.name + ".experts"};
  constexpr std::string_view kOld = "block_sparse_moe";
  if (const size_t at = spec.name.find(kOld); at != spec.name.npos)
    modules.push_back(std::string(spec.name).replace(at, kOld.size(), "mlp"));
  return modules;
}

// Reads adapters of fused parameters, for matrices that have no adapter per expert.
Status read_fused(AdapterReader& reader, const LayerSpec& spec, bool interleaved, LoraWeights& to) {
  const int64_t hidden = spec.hidden_size, intermediate = spec.intermediate_size;
  for (const std::string& module : fused_modules(spec)) {
    if (to.gate.empty() && to.up.empty()) {
      MORACLE_TRY(const auto both,
                  reader.fused(module, "gate_up_proj", spec.num_experts, 2 * intermediate, hidden));
      split_gate_up(both, interleaved, to);
    }
    if (to.down.empty()) {
      MORACLE_TRY(to.down,
                  reader.fused(module, "down_proj", spec.num_experts, hidden, intermediate));
    }
  }
  return {};
}

// The path of a file, with links resolved if it must lie `inside` a folder. `name` is for messages.
Result<std::string> path_of(const std::string& path, const char* name, const std::string& inside) {
  namespace fs = std::filesystem;
  if (inside.empty()) return path;
  std::error_code failure;
  const fs::path root = fs::canonical(inside, failure);
  const fs::path resolved = failure ? fs::path() : fs::canonical(path, failure);
  const auto [end, unused] =
      std::mismatch(root.begin(), root.end(), resolved.begin(), resolved.end());
  if (!failure && end == root.end()) return resolved.string();
  return Error{ErrorKind::kInvalidArgument, "", name, "a file inside the folder of adapters",
               failure ? "it is absent" : "it is a link that leaves the folder"};
}

struct AdapterFile {
  LoraSettings settings;
  Tensors tensors;  // under PEFT's names
};

Result<AdapterFile> open_peft(const std::string& folder, const std::string& inside) {
  constexpr const char *kConfig = "adapter_config.json", *kTensors = "adapter_model.safetensors";
  if (is_absent(str(folder, "/", kConfig)))
    return Error{ErrorKind::kBadFile, folder, "", "adapter_config.json, as PEFT writes it",
                 "the folder has none"};
  MORACLE_TRY(const std::string config_path, path_of(str(folder, "/", kConfig), kConfig, inside));
  MORACLE_TRY(const std::string file_path, path_of(str(folder, "/", kTensors), kTensors, inside));
  MORACLE_TRY(const Config config, Config::open(config_path));
  MORACLE_TRY(LoraSettings settings, LoraSettings::read(config));
  MORACLE_TRY(TensorFile file, SafetensorsFile::open(file_path));
  std::vector<TensorFile> files;
  files.push_back(std::move(file));
  MORACLE_TRY(Tensors tensors, Tensors::from(std::move(files)));
  return AdapterFile{std::move(settings), std::move(tensors)};
}

Result<AdapterFile> open_file(const std::string& path, const Checkpoint& checkpoint,
                              const std::string& inside) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return open_peft(path, inside);
  MORACLE_TRY(const std::string resolved, path_of(path, "the GGUF file", inside));
  MORACLE_TRY(GgufAdapter adapter, open_gguf_adapter(resolved, checkpoint));
  return AdapterFile{std::move(adapter.settings), std::move(adapter.tensors)};
}

}  // namespace

Result<LoraAdapter> LoraAdapter::open(const std::string& path, const Checkpoint& checkpoint,
                                      const std::string& inside) {
  MORACLE_TRY(const AdapterFile file, open_file(path, checkpoint, inside));
  LoraAdapter adapter;
  AdapterReader reader(file.tensors, file.settings);
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
    MORACLE_CHECK(read_fused(reader, spec, names.interleaved, of_layer));
    if (!of_layer.gate.empty() || !of_layer.up.empty() || !of_layer.down.empty())
      adapter.layers.emplace(layer, std::move(of_layer));
  }
  adapter.rank = reader.rank();
  MORACLE_TRY(adapter.modules, reader.linear_layers(checkpoint));
  MORACLE_CHECK(reader.check_claimed());
  if (reader.rank() == 0)
    return Error{ErrorKind::kBadFile, path, "",
                 "an adapter for at least one expert or linear layer", "it has none"};
  return adapter;
}

}  // namespace moracle

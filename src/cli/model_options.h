// Options of every verb with a model.
#pragma once

#include "base/text.h"
#include "base/try.h"
#include "command.h"
#include "numbers.h"
#include "tuning_cache.h"

namespace moracle::cli {

inline constexpr const char* kBackendHelp =
    "auto, a backend's name (see explain), or pattern=name,pattern=name for some modules";

inline constexpr const char* kQuantizationHelp =
    "Quantize a plain checkpoint while loading: int8-per-channel, fp8-per-block, mxfp8, …, or "
    "pattern=scheme,pattern=none for some modules";

inline constexpr const char* kActivationsHelp =
    "16bit: leave activations floats where the scheme would quantize them (W8A16; stored "
    "activation "
    "scales are not used); int8: quantize float activations, where weights are int4, int8 or fp4; "
    "bf16: kernels may round float activations to bf16";
inline constexpr const char* kKvCacheHelp =
    "Keys and values as f32, bf16 or f16: 16 bits take half of the memory; auto: as activations "
    "are on the device";
inline constexpr const char* kNoGraphsHelp =
    "On a GPU: enqueue every step kernel by kernel instead of replaying it as a graph";
inline constexpr const char* kPinHelp =
    "Keep each thread on a CPU of its own, and weights on the node that reads them";
inline constexpr const char* kCacheHelp =
    "File with the times that tune measured; default: moracle/tuning.json in the user's cache folder";

inline constexpr const char* kDeviceHelp =
    "cpu, cuda[:n] or opencl[:n]; default: cpu, of a known machine its first GPU with kernels";

/// Default device of a model: the CPU. On a known machine: its first GPU with kernels for its
/// platform.
inline std::string default_device(const Machine& machine) {
  for (const GpuInfo& gpu : machine.gpus) {
    if (machine.name == "here" || gpu.is_cpu) continue;
    for (const Backend& backend : backends()) {
      if (backend.platform == gpu.platform && !backend.planned)
        return str(name(gpu.platform), ":", gpu.index);
    }
  }
  return "cpu";
}

struct ModelArguments {
  std::string folder;
  std::string backend = "auto";
  std::string quantization;
  std::string activations;
  std::string kv_cache = "auto";
  std::string device;  // empty: default_device()
  std::string lora;    // folder of an adapter
  std::string cache;
  int threads = 0;
  bool pin = false;
  bool deterministic = false;
  bool no_graphs = false;
  bool json = false;

  /// Model options for `machine`. Errors: a broken cache.
  Result<ModelOptions> options(const Machine& machine) const {
    const std::string on = device.empty() ? default_device(machine) : device;
    std::vector<TunedLayer> tuned;  // measurements of this machine are valid for no other
    if (machine.name == "here") {
      MORACLE_TRY(tuned, read_tuning(cache, threads, on));
    }
    ModelOptions options;
    options.backend = backend;
    options.quantization = quantization;
    options.activations = activations;
    options.kv_cache = kv_cache;
    options.device = on;
    options.threads = threads;
    options.pin = pin;
    options.deterministic = deterministic;
    options.graphs = !no_graphs;
    if (!lora.empty()) options.adapters = {lora};
    options.tuned = std::move(tuned);
    return options;
  }
  Result<ModelOptions> options() const { return options(Machine::here()); }
  /// The adapter for all runs; -1: none.
  int32_t adapter() const { return lora.empty() ? -1 : 0; }
  void add_to(CLI::App& app) {
    app.add_option("MODEL", folder, "Folder of the checkpoint")->required();
    app.add_option("--backend", backend, kBackendHelp)->capture_default_str();
    app.add_option("--quantization", quantization, kQuantizationHelp);
    app.add_option("--activations", activations, kActivationsHelp);
    app.add_option("--kv-cache", kv_cache, kKvCacheHelp)->capture_default_str();
    app.add_option("--lora", lora, "Folder of a LoRA adapter for the experts, as PEFT writes it");
    app.add_option("--device", device, kDeviceHelp);
    app.add_option("--threads", threads, "CPU threads; 0: all that may be used")
        ->transform(whole(0, 4096))
        ->capture_default_str();
    app.add_flag("--pin", pin, kPinHelp);
    app.add_option("--cache", cache, kCacheHelp);
    app.add_flag("--deterministic", deterministic,
                 "The same bits for a token whatever else is in the batch");
    app.add_flag("--no-graphs", no_graphs, kNoGraphsHelp);
    app.add_flag("--json", json, "One JSON document on stdout");
  }
};

/// Names of the backends in use, each once, in order of use.
inline std::vector<std::string> backend_names(const Model& model) {
  std::vector<std::string> names;
  for (const Choice& choice : model.choices()) {
    const std::string name(choice.selection.plan->backend->name);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

}  // namespace moracle::cli

// Options of all verbs that take a model.
#pragma once

#include "base/text.h"
#include "base/threads/thread_pool.h"
#include "base/try.h"
#include "caches/kernel_cache.h"
#include "caches/memory_rates.h"
#include "caches/tuning_cache.h"
#include "command.h"
#include "numbers.h"
#include "oracle/backend.h"
#include "ranks/ranks.h"

namespace moracle::cli {

inline constexpr const char* kBackendHelp =
    "auto, a backend's name (moracle explain lists them), or pattern=name,pattern=name to choose "
    "by "
    "module";

inline constexpr const char* kQuantizationHelp =
    "Quantize a plain checkpoint while loading: int8-per-channel, fp8-per-block, mxfp8, …, or "
    "pattern=scheme,pattern=none to choose by module; lm_head=scheme: the output layer, too; "
    "patterns also choose among what a quantized file left in 16 or 32 bits";

inline constexpr const char* kActivationsHelp =
    "16bit: keep activations as floats where the scheme quantizes them (W8A16; stored activation "
    "scales are not used); int8, fp8: quantize float activations if weights are int4, int8 or fp4; "
    "bf16: kernels may round float activations to bf16";
inline constexpr const char* kWeightsHelp =
    "4-bit weights beside fp8 activations on a Hopper GPU: packed (4-bit codes), folded (converted "
    "to "
    "fp8 at load: twice the memory, faster with many tokens), or auto (folded if it fits the free "
    "memory)";
inline constexpr const char* kKvCacheHelp =
    "Type of keys and values in the cache: f32, bf16, f16 (half of f32's memory), int8 (a quarter; "
    "a scale per token and head; CPU), fp8 (e4m3, a quarter; the file's scales; CPU and CUDA); "
    "auto: the device's type "
    "of activations";
inline constexpr const char* kGpuMemoryHelp =
    "Memory of the GPU that the model may take, such as 20GB: experts that do not fit lie in host "
    "memory, and the CPU computes them; auto or no number: what is free; 0: the GPU holds all "
    "experts";
inline constexpr const char* kCpuMemoryHelp =
    "With --gpu-memory: host memory that experts may take; those that do not fit are read from the "
    "mapped files when they are used; auto or no number: what is free; 0: all";
inline constexpr const char* kNoGraphsHelp =
    "On a GPU: launch each kernel of a step by itself instead of replaying a graph";
inline constexpr const char* kPinHelp =
    "Pin each thread to one CPU, and place weights on the NUMA node that reads them";
inline constexpr const char* kWithoutHelp =
    "Hide these CPU features and the features that depend on them: avx512_bf16, …";
inline constexpr const char* kCacheHelp =
    "File with the times from moracle tune; default: moracle/tuning.json in the user's cache "
    "folder";

inline constexpr const char* kDeviceHelp =
    "cpu, cuda[:n] or opencl[:n]; default: cpu, or with --machine its first GPU that has kernels; "
    "cuda:0,cuda:1 with --gpu-memory: both have slots for experts";

/// Default device: the CPU, or on a known machine its first GPU with kernels.
inline DeviceName default_device(const Machine& machine) {
  for (const GpuInfo& gpu : machine.gpus) {
    if (machine.name == "here" || missing(GpuFeature::kCpuCores, gpu.features) == GpuFeature::kNone)
      continue;
    for (const Backend& backend : backends()) {
      if (backend.platform == gpu.platform) return {gpu.platform, gpu.index};
    }
  }
  return {};
}

/// The map of --quantization; empty for an empty text.
inline Result<QuantizationMap> parse_quantization(const std::string& text) {
  return text.empty() ? Result(QuantizationMap()) : QuantizationMap::parse(text);
}

struct ModelArguments {
  std::string folder;
  std::string backend = "auto";
  std::string quantization;
  std::string activations;
  std::string weights = "packed";
  std::string kv_cache = "auto";
  std::string device;  // empty: default_device()
  std::string lora;    // a LoRA adapter
  std::string cache;
  std::string rates;
  int64_t gpu_memory = 0, cpu_memory = 0;
  int threads = 0;
  bool pin = false;
  bool deterministic = false;
  bool no_graphs = false;
  bool json = false;
  RankArguments ranks;

  /// Builds ModelOptions for `machine`. Errors: those of the parse functions; an invalid tuning
  /// cache.
  Result<ModelOptions> options(const Machine& machine) const {
    ModelOptions options;
    options.device = default_device(machine);
    if (!device.empty()) {
      MORACLE_CHECK(set_devices(options, device));
    }
    if (machine.name == "here") {  // measurements of this machine are valid for no other
      MORACLE_TRY(options.tuned, read_tuning(cache, threads, options.device));
    }
    MORACLE_TRY(options.backend, BackendMap::parse(backend));
    MORACLE_TRY(options.quantization, parse_quantization(quantization));
    MORACLE_TRY(options.activations, parse_activations(activations));
    MORACLE_TRY(options.weights, parse_weights(weights));
    MORACLE_TRY(options.kv_cache, parse_kv_cache(kv_cache));
    if (gpu_memory != 0 && options.device.platform == Platform::kCpu) {
      return Error{ErrorKind::kInvalidArgument, "", "device_memory", "a GPU (device)",
                   "the device is the CPU"};
    }
    if (!rates.empty()) {
      MORACLE_TRY(options.rates, parse_rates(rates));
    } else if (machine.name == "here" && gpu_memory != 0) {
      MORACLE_TRY(options.rates, read_rates(cache, threads, options.device));
    }
    options.device_memory = gpu_memory;
    options.host_memory = cpu_memory;
    options.threads = threads;
    options.pin = pin;
    options.deterministic = deterministic;
    options.graphs = !no_graphs;
    if (!lora.empty()) options.adapters = {lora};
    MORACLE_TRY(options.parallel, ranks.planned());
    MORACLE_CHECK(ranks.set_spread(options));
    MORACLE_TRY(options.measured_load, ranks.measured_load(gpu_memory != 0));
    keep_kernels(options, json);
    return options;
  }
  Result<ModelOptions> options() const { return options(Machine::here()); }
  /// RankArguments::join with the device as it was typed.
  /// Then the memory that is free on that device is a number.
  Status join(ModelOptions& options) const {
    MORACLE_CHECK(ranks.join(options, device));
    if (options.device_memory == kFreeMemory) {
      MORACLE_TRY(options.device_memory, free_memory(options.device));
      for (const DeviceName& other : options.slot_devices) {
        MORACLE_TRY(const int64_t there, free_memory(other));
        options.device_memory = std::min(options.device_memory, there);
      }
    }
    if (options.host_memory == kFreeMemory) {
      MORACLE_TRY(options.host_memory, free_memory({}));
    }
    return {};
  }
  /// Adapter index for all requests; -1: none.
  int32_t adapter() const { return lora.empty() ? -1 : 0; }
  void add_to(CLI::App& app) {
    app.add_option("MODEL", folder, "Folder of the checkpoint, or a GGUF file")->required();
    app.add_option("--backend", backend, kBackendHelp)->capture_default_str();
    app.add_option("--quantization", quantization, kQuantizationHelp);
    app.add_option("--activations", activations, kActivationsHelp);
    app.add_option("--weights", weights, kWeightsHelp)->capture_default_str();
    app.add_option("--kv-cache", kv_cache, kKvCacheHelp)->capture_default_str();
    app.add_option("--lora", lora,
                   "LoRA adapter: a folder as PEFT writes it, or for a model in GGUF a GGUF file");
    app.add_option("--device", device, kDeviceHelp);
    auto* const gpu = app.add_option("--gpu-memory", gpu_memory, kGpuMemoryHelp)
                          ->expected(0, 1)
                          ->transform(size_or_free("20GB"));
    app.add_option("--cpu-memory", cpu_memory, kCpuMemoryHelp)
        ->expected(0, 1)
        ->transform(size_or_free("64GB"))
        ->needs(gpu);
    app.add_option("--rates", rates, kRatesHelp)->needs(gpu);
    app.add_option("--threads", threads, "CPU threads; 0: all CPUs that the process may use")
        ->transform(whole(0, kMaxThreads))
        ->capture_default_str();
    app.add_flag("--pin", pin, kPinHelp);
    app.add_option("--cache", cache, kCacheHelp);
    app.add_flag(
        "--deterministic", deterministic,
        "Batch-invariant: a token's result does not depend on the other tokens, bit for bit");
    app.add_flag("--no-graphs", no_graphs, kNoGraphsHelp);
    app.add_flag("--json", json, "Print one JSON document on stdout");
    ranks.add_to(app);
  }
};

/// Names of the backends in use, without duplicates, in order of use.
inline std::vector<std::string> backend_names(const Model& model) {
  std::vector<std::string> names;
  for (const Choice& choice : model.choices()) {
    const std::string name(moracle::name(*choice.selection.plan->backend));
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

}  // namespace moracle::cli

#include "models/plan.h"

#include <algorithm>
#include <set>

#include "base/text.h"
#include "base/try.h"
#include "kernels/device/device_memory.h"
#include "kernels/weights/expert_transfers.h"
#include "models/decoder/activations.h"
#include "models/divide.h"
#include "models/host_experts/decode_estimate.h"
#include "models/host_experts/place_experts.h"
#include "models/modules.h"
#include "models/residency.h"
#include "models/routing_statistics.h"
#include "moracle/moe.h"
#include "oracle/rates/rates.h"
#include "parallel/dispatch/gathered_experts.h"
#include "parallel/replicated_moe.h"

namespace moracle {
namespace {

// Gate, up and down of an MLP; empty if they are not modules of their own.
std::vector<std::string> mlp_modules(const DescribedWeights& weights) {
  std::vector<std::string> modules = adaptable_modules(weights.w13),
                           down = adaptable_modules(weights.w2);
  if (modules.size() != 2 || down.size() != 1) return {};
  modules.push_back(std::move(down[0]));
  return modules;
}

class Chooser {
 public:
  static Result<Chooser> make(const ModelOptions& options, const Machine& machine,
                              AdapterSpan adapters, const ExpertWishes& wishes) {
    if (options.max_num_tokens < 0) {
      return Error{ErrorKind::kInvalidArgument, "", "max_num_tokens", "at least 1, or 0",
                   str("it is ", options.max_num_tokens)};
    }
    Chooser chooser(options, machine, adapters, wishes);
    chooser.bf16_activations_ = options.activations == ActivationPrecision::kBf16;
    std::vector<TunedLayer>& tuned = chooser.machine_.tuned;
    tuned.insert(tuned.begin(), options.tuned.begin(), options.tuned.end());
    return chooser;
  }

  Status operator()(const ModuleLabel& label, const DescribedMatrix& weights) {
    for (std::string& module : adaptable_modules(weights)) adaptable_.insert(std::move(module));
    Request request;
    request.layer = linear_spec(module_name(weights), weights);
    MORACLE_CHECK(add(label, module_names(label, weights), std::move(request)));
    modules_.back().adapted = adapted_rows(weights, adapters_);
    return {};
  }
  Status operator()(const ModuleLabel& label, const DescribedWeights& weights) {
    Request request;
    request.layer = weights.spec;
    if (label.part == "experts") {
      MORACLE_CHECK(add_wishes(label, request));
      if (wishes_.num_slots) MORACLE_CHECK(add_slots(label, weights, request));
    } else {
      for (std::string& module : mlp_modules(weights)) adaptable_.insert(std::move(module));
      add_adapters(label, weights, request);
    }
    return add(label, module_names(label, weights), std::move(request));
  }
  /// Errors: an adapter changes a module that no adapter can change.
  Status check_adapters() const {
    for (const auto& adapter : adapters_) {
      for (const auto& [module, pair] : adapter->modules) {
        if (adaptable_.contains(module)) continue;
        return Error{ErrorKind::kUnsupported, "", "adapter of " + module,
                     "a linear layer that the model multiplies by itself",
                     "it is another part of the model, or stored together with others"};
      }
    }
    return {};
  }
  Result<std::vector<ModuleChoice>> finish() && {
    MORACLE_CHECK(options_.backend.check_used(names_));
    if (options_.measured_load) MORACLE_CHECK(check_layers(*options_.measured_load, with_experts_));
    return std::move(modules_);
  }

 private:
  Chooser(const ModelOptions& options, const Machine& machine, AdapterSpan adapters,
          const ExpertWishes& wishes)
      : options_(options), machine_(machine), adapters_(adapters), wishes_(wishes) {}

  // Adds the choice of all experts on the CPU, and makes `request` that of the slots.
  Status add_slots(const ModuleLabel& label, const DescribedWeights& weights, Request& request) {
    const int64_t num_experts = request.layer.num_experts;
    MORACLE_TRY(const ExpertMap here, request.parallel.map(num_experts));
    request.max_num_tokens = expert_tokens_per_step(options_);
    request.deterministic = options_.deterministic;
    request.bf16_activations = bf16_activations_;
    // A name of --backend is that of the device; the CPU's row is the oracle's choice.
    Request on_host = request;
    on_host.platform = Platform::kCpu;
    if (options_.device.platform == Platform::kCpu) {
      MORACLE_TRY(on_host.backend, options_.backend.for_module(module_names(label, weights)));
    }
    if (wishes_.num_on_host && *wishes_.num_on_host < num_experts) {
      MORACLE_TRY(on_host.parallel, slots_of(num_experts, *wishes_.num_on_host));
    }
    modules_.push_back({kHostExperts, label.layer, select(on_host, machine_), {}});
    MORACLE_TRY(request.backend, options_.backend.for_module(module_names(label, weights)));
    set_device(request, options_.device);
    if (wishes_.num_streamed > 0) {
      MORACLE_TRY(request.parallel,
                  slots_of(num_experts, std::min(wishes_.num_streamed, here.num_local())));
      modules_.push_back({kStreamedExperts, label.layer, select(request, machine_), {}});
    }
    for (size_t d = 0; d < wishes_.other_slots.size(); ++d) {
      const DeviceName& device = options_.slot_devices[d];
      Request other = request;
      set_device(other, device);
      MORACLE_TRY(other.parallel, slots_of(num_experts, wishes_.other_slots[d]));
      modules_.push_back({kOtherExperts + name(device), label.layer, select(other, machine_), {}});
    }
    MORACLE_TRY(request.parallel,
                slots_of(num_experts, std::min(*wishes_.num_slots, here.num_local())));
    return {};
  }

  static void set_device(Request& request, const DeviceName& device) {
    request.platform = device.platform;
    if (device.platform != Platform::kCpu) request.device_index = device.index;
  }

  Status add(const ModuleLabel& label, ModuleNames names, Request request) {
    request.max_num_tokens =
        label.part == "experts" ? expert_tokens_per_step(options_) : tokens_per_step(options_);
    request.deterministic = options_.deterministic;
    request.bf16_activations = bf16_activations_;
    MORACLE_TRY(request.backend, options_.backend.for_module(names));
    set_device(request, options_.device);
    names_.push_back(std::move(names));
    modules_.push_back({label.name(), label.layer, select(request, machine_), {}});
    return {};
  }

  Status add_wishes(const ModuleLabel& label, Request& request) {
    request.parallel = options_.parallel;
    request.parallel.format = wishes_.format;
    with_experts_.insert(*label.layer);
    if (options_.measured_load) {
      MORACLE_TRY(request.parallel.expert_map,
                  map_by_load(*options_.measured_load, *label.layer, request.layer.num_experts,
                              options_.parallel, options_.num_redundant_experts));
    }
    request.lora_rank = wishes_.lora_rank;
    for (const auto& adapter : adapters_) {
      if (!adapter->layers.contains(*label.layer)) continue;
      request.lora_rank = std::max(request.lora_rank, adapter->rank);
      request.max_adapters = static_cast<int64_t>(adapters_.size());
    }
    return {};
  }

  // Dense MLPs and shared experts are experts that every token uses.
  void add_adapters(const ModuleLabel& label, const DescribedWeights& weights,
                    Request& request) const {
    for (const auto& adapter : adapters_) {
      const LoraWeights own = adapter_of(*adapter, label.part, label.layer, weights);
      for (const std::vector<LoraPair>* pairs : {&own.gate, &own.up, &own.down})
        for (const LoraPair& pair : *pairs)
          request.lora_rank = std::max(request.lora_rank, pair.rank);
    }
    if (request.lora_rank > 0) request.max_adapters = static_cast<int64_t>(adapters_.size());
  }

  const ModelOptions& options_;
  Machine machine_;
  AdapterSpan adapters_;
  const ExpertWishes& wishes_;
  bool bf16_activations_ = false;
  std::set<int64_t> with_experts_;   // layers
  std::set<std::string> adaptable_;  // modules outside the experts
  std::vector<ModuleNames> names_;
  std::vector<ModuleChoice> modules_;
};

}  // namespace

LoraWeights adapter_of(const LoraAdapter& adapter, const std::string& part,
                       std::optional<int64_t> layer, const DescribedWeights& weights) {
  if (part == "experts") {
    const auto own = adapter.layers.find(*layer);
    return own == adapter.layers.end() ? LoraWeights() : own->second;
  }
  const std::vector<std::string> modules = mlp_modules(weights);
  if (modules.empty()) return {};
  const auto one = [&](const std::string& module) -> std::vector<LoraPair> {
    const auto own = adapter.modules.find(module);
    if (own == adapter.modules.end()) return {};
    return {own->second};
  };
  return {one(modules[0]), one(modules[1]), one(modules[2])};
}

Result<AdapterList> open_adapters(const Checkpoint& checkpoint, const ModelOptions& options) {
  AdapterList adapters;
  for (const std::string& folder : options.adapters) {
    MORACLE_TRY(LoraAdapter adapter, LoraAdapter::open(folder, checkpoint));
    adapters.push_back(std::make_shared<const LoraAdapter>(std::move(adapter)));
  }
  adapters.insert(adapters.end(), options.read_adapters.begin(), options.read_adapters.end());
  return adapters;
}

Result<std::vector<ModuleChoice>> consider(const Description& description,
                                           const ModelOptions& options, const Machine& machine,
                                           AdapterSpan adapters, const ExpertWishes& wishes) {
  MORACLE_TRY(Chooser chooser, Chooser::make(options, machine, adapters, wishes));
  MORACLE_CHECK(visit_modules(description, chooser));
  MORACLE_CHECK(chooser.check_adapters());
  return std::move(chooser).finish();
}

Result<std::vector<ModuleChoice>> consider(std::span<const LayerExperts> experts,
                                           const ModelOptions& options, const Machine& machine,
                                           AdapterSpan adapters, const ExpertWishes& wishes) {
  MORACLE_TRY(Chooser chooser, Chooser::make(options, machine, adapters, wishes));
  for (const auto& [layer, weights] : experts)
    MORACLE_CHECK(chooser(ModuleLabel{"experts", "", layer}, weights));
  return std::move(chooser).finish();
}

bool reads_files(const Selection& on_host) {
  const Parallelism& parallel = on_host.request.parallel;
  return parallel.ep_size == 1 && on_host.plan && parallel.expert_map &&
         on_host.plan->experts.num_local() < on_host.plan->layer.num_experts;
}

bool needs_slots(const ModelOptions& options) {
  return options.deterministic && options.parallel.ep_size > 1 &&
         options.spread == Spread::kReplicated;
}

int64_t expert_tokens_per_step(const ModelOptions& options) {
  const int64_t own = tokens_per_step(options);
  if (options.spread == Spread::kReplicated) return own;
  // The tokens of all ranks, in chunks of at most this size: longer chunks are not faster.
  constexpr int64_t kMost = 8192;
  return std::max(own, std::min(own * options.parallel.ep_size, kMost));
}

int64_t tokens_per_step(const ModelOptions& options) {
  if (options.max_num_tokens > 0) return options.max_num_tokens;
  // Long steps fill a GPU's tensor cores; the activations of short steps fit a CPU's caches. Steps
  // to which experts stream are as long as memory allows.
  constexpr int64_t kLarge = int64_t{4} << 30;
  if (options.device.platform != Platform::kCuda) return 512;
  return options.device_memory >= kLarge ? 8192 : 4096;
}

Result<std::vector<ModuleChoice>> choose(const Description& description,
                                         const ModelOptions& options, const Machine& machine,
                                         AdapterSpan adapters) {
  MORACLE_TRY(const ExpertWishes wishes,
              place_experts(description, options, machine, adapters, {}));
  MORACLE_TRY(std::vector<ModuleChoice> modules,
              consider(description, options, machine, adapters, wishes));
  for (const ModuleChoice& module : modules) MORACLE_CHECK(module.selection.chosen());
  return modules;
}

namespace {

bool same_choice(const Selection& a, const Selection& b) {
  const Request &left = a.request, &right = b.request;
  const bool same_row = a.plan && b.plan ? a.plan->backend == b.plan->backend : !a.plan && !b.plan;
  // A placement by load gives a rank more experts in one layer than in another.
  const bool as_many =
      !same_row || !a.plan || a.plan->experts.num_local() == b.plan->experts.num_local();
  return same_row && as_many && left.backend == right.backend &&
         left.lora_rank == right.lora_rank && left.layer.same_but_name(right.layer);
}

}  // namespace

std::vector<Choice> grouped(std::vector<ModuleChoice> modules) {
  std::vector<Choice> choices;
  for (ModuleChoice& module : modules) {
    const auto equal = std::find_if(choices.begin(), choices.end(), [&](const Choice& choice) {
      return choice.part == module.part && same_choice(choice.selection, module.selection);
    });
    if (equal == choices.end()) {
      choices.push_back({std::move(module.part), {}, std::move(module.selection)});
      if (module.layer) choices.back().layers.push_back(*module.layer);
    } else if (module.layer) {
      equal->layers.push_back(*module.layer);
    }
  }
  return choices;
}

namespace {

// What a device of options.slot_devices holds.
struct OtherDevice {
  int64_t num_slots = 0;
  int64_t weights = 0, scratch = 0, workspace = 0, calls = 0;
  bool on_cuda = false;

  void add(const Plan& one) {
    num_slots = std::max(num_slots, one.experts.num_local());
    weights += one.weight_bytes + one.adapter_bytes;
    scratch = std::max(scratch, one.scratch_bytes);
    workspace = std::max(workspace, one.workspace_bytes);
    const int64_t row = one.layer.hidden_size * bits(one.activation_dtype) / 8;
    calls = std::max(calls, one.max_num_tokens * (2 * row + 8 * one.layer.top_k + 4));
    on_cuda = platform(*one.backend) == Platform::kCuda;
  }
  int64_t bytes(int64_t host_expert) const {
    const int64_t transfers = on_cuda ? kTransferBuffers * kTransferExperts * host_expert : 0;
    return weights + scratch + workspace + calls + transfers;
  }
};

}  // namespace

Result<ModelPlan> plan_memory(const Description& description, std::span<const ModuleChoice> modules,
                              const ModelOptions& options, const Machine& machine) {
  const DeviceName& device = options.device;
  ModelPlan plan;
  plan.memory_bytes = memory_of(machine, device);
  plan.weight_bytes = description.embedding_bytes(device.platform) + description.ngram_bytes();
  std::vector<const LayerSpec*> streamed;  // one of each kind
  int64_t largest_host_expert = 0;
  bool in_shares = false;
  std::vector<OtherDevice> others(options.slot_devices.size());
  size_t at = 0;  // of the layer's other devices
  for (const ModuleChoice& module : modules) {
    const Plan& one = *module.selection.plan;
    if (is_on_other(module)) {
      others[at++].add(one);
      continue;
    }
    at = 0;
    if (module.part == kHostExperts) {
      plan.host_bytes += one.weight_bytes + one.adapter_bytes;
      plan.num_on_host = std::max(plan.num_on_host, one.experts.num_local());
      largest_host_expert = std::max(
          largest_host_expert, one.weight_bytes / std::max<int64_t>(one.experts.num_local(), 1));
      continue;
    }
    if (module.part == kStreamedExperts) {
      in_shares = in_shares || one.experts.num_local() < one.layer.num_experts;
      const auto alike = [&](const LayerSpec* other) { return other->same_but_name(one.layer); };
      if (std::none_of(streamed.begin(), streamed.end(), alike)) {
        streamed.push_back(&one.layer);
        plan.transfer_bytes += 2 * (one.weight_bytes + one.adapter_bytes);
      }
    }
    if (module.part == "experts" && plan.host_bytes > 0) {
      plan.num_slots = std::max(plan.num_slots, one.experts.num_local());
      // A share's part of a sum has memory of its own, and the host's where the device copies it.
      if (in_shares || device.platform != Platform::kCuda) {
        plan.activation_bytes =
            one.max_num_tokens * one.layer.hidden_size * bits(one.activation_dtype) / 8;
      }
    }
    plan.scratch_bytes = std::max(plan.scratch_bytes, one.scratch_bytes);
    plan.workspace_bytes = std::max(plan.workspace_bytes, one.workspace_bytes);
    if (module.part == kStreamedExperts) continue;
    plan.weight_bytes +=
        one.weight_bytes + one.adapter_bytes +
        adapter_bytes(module.adapted, options.num_adapters(), one.activation_dtype);
  }
  // Other devices get experts through host memory alone.
  if (device.platform == Platform::kCuda)
    plan.transfer_bytes += kTransferBuffers * kTransferExperts * largest_host_expert;
  for (size_t d = 0; plan.num_slots >= 0 && d < others.size(); ++d) {
    const DeviceName& on = options.slot_devices[d];
    plan.slot_devices.push_back(
        {on, others[d].num_slots, others[d].bytes(largest_host_expert), memory_of(machine, on)});
    const SlotDevicePlan& there = plan.slot_devices.back();
    if (there.bytes > there.memory_bytes) {
      return Error{ErrorKind::kOutOfMemory, "", "plan",
                   str(there.bytes, " bytes of memory on ", name(on)),
                   str("it has ", there.memory_bytes)};
    }
  }
  const DType dtype = modules.front().selection.plan->activation_dtype;
  for (const ModuleChoice& module : modules) {
    if (module.part != "experts" || !needs_slots(options)) continue;
    plan.activation_bytes =
        std::max(plan.activation_bytes, static_cast<int64_t>(ReplicatedMoe::scratch_bytes(
                                            module.selection.plan->layer, tokens_per_step(options),
                                            modules.front().selection.plan->activation_dtype)));
  }
  for (const ModuleChoice& module : modules) {
    if (module.part != "experts" || options.spread == Spread::kReplicated) continue;
    const Plan& experts = *module.selection.plan;
    plan.activation_bytes = std::max(plan.activation_bytes, GatheredExperts::memory_bytes(experts));
  }
  MORACLE_TRY(plan.cache_dtype, cache_dtype(options.kv_cache, device.platform, dtype));
  for (const LayerDescription& layer : description.layers) {
    LayerCache cache{.dtype = plan.cache_dtype};
    MORACLE_CHECK(set_scales(cache, layer));
    MORACLE_CHECK(check_attention(layer.attention, device.platform, plan.cache_dtype));
  }
  if (description.spec.num_streams > 1 && device.platform == Platform::kOpenCl) {
    return Error{
        ErrorKind::kUnsupported, "", "device",
        str("cpu or cuda for ",
            description.spec.residual_rank > 0 ? "gated residual streams" : "hyper-connections",
            ", because other devices have no kernels for them"),
        str("it is of the kind ", name(device.platform))};
  }
  const auto activations = static_cast<int64_t>(
      carve_activations(description, tokens_per_step(options), dtype, nullptr).bytes);
  plan.activation_bytes += activations;
  // The rule `memory` checks what layers allocate.
  const int64_t most = max_allocation_of(machine, device);
  const int64_t largest = std::max(description.embedding_bytes(device.platform), activations);
  if (most > 0 && largest > most) {
    return Error{ErrorKind::kOutOfMemory, "", "plan",
                 str(largest, " bytes of memory on ", name(device), " in one allocation"),
                 str("it allows ", most)};
  }
  for (const LayerDescription& layer : description.layers) {
    const AttentionSizes sizes = attention_sizes(layer.attention, tokens_per_step(options), dtype);
    plan.cache_bytes_per_token += cached_bytes(sizes, plan.cache_dtype).total();
    plan.state_bytes += static_cast<int64_t>(sizes.state_bytes);
    if (layer.ngrams) plan.state_bytes += ngram_state_bytes(layer.ngrams->spec);
  }
  const bool floats = device.platform == Platform::kCpu && plan.cache_dtype != DType::kI8;
  if (floats && options.activations == ActivationPrecision::kBf16 && !options.deterministic) {
    Bf16Choice choice = choose_bf16(machine.cpu);
    plan.bf16_attention = choice.bf16;
    plan.attention_reason = std::move(choice.reason);
  }
  if (const int64_t host_memory = host_memory_of(options, machine); plan.host_bytes > host_memory) {
    return Error{ErrorKind::kOutOfMemory, "", "plan",
                 str(plan.host_bytes, " bytes of memory on the host for experts (host_memory)"),
                 str("it is ", host_memory)};
  }
  if (plan.total_bytes() <= plan.memory_bytes) return plan;
  return Error{ErrorKind::kOutOfMemory, "", "plan",
               str(plan.total_bytes(), " bytes of memory on ", name(device)),
               str("it has ", plan.memory_bytes)};
}

Result<ModelPlan> plan(const Description& description, const ModelOptions& options,
                       const Machine& machine, AdapterSpan adapters) {
  MORACLE_TRY(std::vector<ModuleChoice> modules, choose(description, options, machine, adapters));
  MORACLE_TRY(ModelPlan plan, plan_memory(description, modules, options, machine));
  plan.estimate = estimate_decode(modules, plan, options);
  plan.choices = grouped(std::move(modules));
  return plan;
}

Result<ModelPlan> plan(const Checkpoint& checkpoint, const ModelOptions& wanted,
                       const Machine& machine) {
  ModelOptions options = wanted;
  MORACLE_CHECK(set_free_memory(options, machine));
  std::optional<ResidencyPlan> residency;
  MORACLE_TRY(Description description, describe_resident(checkpoint, machine, options, residency));
  MORACLE_CHECK(divide(description, options));
  MORACLE_TRY(const AdapterList adapters, open_adapters(checkpoint, options));
  MORACLE_CHECK(check_measured_load(options, checkpoint));
  Result<ModelPlan> planned = plan(description, options, machine, adapters);
  if (planned) planned->residency = std::move(residency);
  if (planned && options.next_tokens) {
    MORACLE_TRY(const Description next, describe_next_tokens(checkpoint, changes_of(options)));
    MORACLE_TRY(const ModelPlan own, plan(next, next_token_options(options), machine));
    planned->weight_bytes += own.weight_bytes;
    planned->workspace_bytes += own.workspace_bytes;
    planned->scratch_bytes += own.scratch_bytes;
    planned->activation_bytes += own.activation_bytes;
    planned->cache_bytes_per_token += own.cache_bytes_per_token;
  }
  if (planned || planned.error().kind != ErrorKind::kOutOfMemory) return planned;
  Error error = planned.error();
  if (error.file.empty()) error.file = checkpoint.folder();
  return error;
}

}  // namespace moracle

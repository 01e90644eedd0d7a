#include "models/host_experts/place_experts.h"

#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "kernels/device/device_memory.h"
#include "layout/layout.h"
#include "oracle/backend.h"
#include "oracle/workspace.h"

namespace moracle {
namespace {

Status check_options(const ModelOptions& options, const ExpertWishes& wishes) {
  const auto refused = [](std::string need, std::string fact) {
    return Error{ErrorKind::kUnsupported, "", "device_memory", std::move(need), std::move(fact)};
  };
  if (options.device_memory < 0 || options.host_memory < 0) {
    return Error{ErrorKind::kInvalidArgument, "",
                 options.device_memory < 0 ? "device_memory" : "host_memory",
                 str("0 or more bytes, or ", kFreeMemory, " for what is free"), "it is negative"};
  }
  for (const DeviceName& device : options.slot_devices) {
    const bool again =
        device.platform != Platform::kCpu &&
        (device.index == options.device.index ||
         std::count_if(options.slot_devices.begin(), options.slot_devices.end(),
                       [&](const DeviceName& other) { return other.index == device.index; }) > 1);
    if (again || device.platform != options.device.platform) {
      return Error{ErrorKind::kInvalidArgument, "", "device",
                   "several devices of one platform, each once",
                   str("there are ", name(options.device), " and ", name(device))};
    }
  }
  if (options.parallel.ep_size > 1 && !options.slot_devices.empty())
    return Error{ErrorKind::kUnsupported, "", "device", "one device for each of several ranks",
                 str("there are ", 1 + options.slot_devices.size())};
  if (options.parallel.ep_size > 1 && options.spread == Spread::kDispatched)
    return refused("mode=replicated: experts in host memory take no rows of other ranks",
                   "it is mode=dispatched");
  if (needs_slots(options))
    return refused(
        "deterministic to be off on several ranks: it sums the rows of each expert in one "
        "order, but the CPU's experts come as a sum",
        str("there are ", options.parallel.ep_size, " ranks"));
  if (wishes.format == ActivationFormat::kBatched)
    return refused("tokens with ids", "activations are batched");
  return {};
}

// Bytes of one expert in a slot of this layer, with its adapters.
int64_t slot_bytes(const Plan& plan) {
  int64_t bytes = 0;
  if (plan.lora_rank > 0) {
    Plan one = plan;
    one.experts = ExpertMap::all(1);
    bytes = static_cast<int64_t>(carve_adapters(one, nullptr).bytes);
  }
  for (const MatrixPlan& matrix : plan.matrices)
    bytes += static_cast<int64_t>(plan.backend->layout->sections(matrix.shape).bytes);
  return bytes;
}

struct Experts {
  int64_t num_experts = 0;  // of this process, of the layer with the fewest
  int64_t bytes = 0;        // one slot of each layer
  int64_t largest = 0;      // one slot of the layer whose slots are largest
};

Experts experts_of(const std::vector<ModuleChoice>& modules) {
  Experts experts;
  int64_t count = 0;
  for (const ModuleChoice& module : modules) {
    const Plan& plan = *module.selection.plan;
    if (module.part == kHostExperts)  // comes before the slots
      count = reads_files(module.selection) ? plan.layer.num_experts : plan.experts.num_local();
    if (module.part != "experts") continue;
    const int64_t bytes = slot_bytes(plan);
    experts.bytes += bytes;
    experts.largest = std::max(experts.largest, bytes);
    experts.num_experts = experts.num_experts == 0 ? count : std::min(experts.num_experts, count);
  }
  return experts;
}

// Experts that memory for streaming holds, twice: a third of the memory at most. Fewer than a few
// are not worth it, because each share is a call.
int64_t streamed_in(int64_t memory, const Experts& experts) {
  constexpr int64_t kFewest = 8;
  const int64_t fit = memory / 3 / (2 * std::max<int64_t>(experts.largest, 1));
  return fit < std::min(kFewest, experts.num_experts) ? 0 : std::min(fit, experts.num_experts);
}

// True if device_memory holds the whole model with its caches.
Result<bool> holds_all(const Description& description, const ModelOptions& options,
                       const Machine& machine, AdapterSpan adapters, const ExpertWishes& wishes) {
  MORACLE_TRY(auto modules, consider(description, options, machine, adapters, wishes));
  const auto served = [](const ModuleChoice& one) { return one.selection.plan.has_value(); };
  if (!std::all_of(modules.begin(), modules.end(), served)) return true;  // the caller reports
  const Result<ModelPlan> plan = plan_memory(description, modules, options, machine);
  return plan.ok() &&
         plan->total_bytes() + reserved_cache_bytes(*plan, options, description.spec.max_context) <=
             std::min(options.device_memory, plan->memory_bytes);
}

// Sets the number of experts in host memory where it does not hold all. Errors: memory that does
// not hold one of each layer; options that need all.
Status limit_host(ExpertWishes& placed, std::span<const ModuleChoice> modules,
                  const ModelOptions& options, const Machine& machine) {
  int64_t all = 0, one_of_each = 0, most = 0;
  bool adapts = false;
  for (const ModuleChoice& module : modules) {
    if (module.part != kHostExperts) continue;
    const Plan& plan = *module.selection.plan;
    const int64_t count = std::max<int64_t>(plan.experts.num_local(), 1);
    all += plan.weight_bytes + plan.adapter_bytes;
    one_of_each += plan.weight_bytes / count;
    most = std::max(most, count);
    adapts = adapts || plan.lora_rank > 0;
  }
  const int64_t memory = host_memory_of(options, machine);
  if (all <= memory) return {};
  const auto short_of = [&](std::string_view why) {
    return Error{ErrorKind::kOutOfMemory, "", "plan",
                 str(all, " bytes of memory on the host for all experts (host_memory)", why),
                 str("it is ", memory)};
  };
  if (adapts) return short_of(", because adapters change some");
  if (options.parallel.ep_size > 1) return short_of(", because ranks read no experts from files");
  if (memory < one_of_each) {
    return Error{
        ErrorKind::kOutOfMemory, "", "plan",
        str(one_of_each, " bytes of memory on the host for one expert of each layer (host_memory)"),
        str("it is ", memory)};
  }
  placed.num_on_host = std::min(memory / one_of_each, most - 1);
  return {};
}

// Adds the slots of options.slot_devices. Together the devices have at most one for each expert.
// Then those with the most give some back, so that the work is divided evenly.
Status place_on_others(ExpertWishes& placed, const Description& description,
                       const ModelOptions& options, const Machine& machine, AdapterSpan adapters) {
  std::vector<int64_t>& slots = placed.other_slots;
  slots.assign(options.slot_devices.size(), 0);
  for (bool filled = false;; filled = true) {
    MORACLE_TRY(const auto modules, consider(description, options, machine, adapters, placed));
    const auto served = [](const ModuleChoice& one) { return one.selection.plan.has_value(); };
    if (!std::all_of(modules.begin(), modules.end(), served)) return {};  // the caller reports
    const Experts experts = experts_of(modules);
    const int64_t one_of_each = std::max<int64_t>(experts.bytes, 1);
    MORACLE_TRY(const ModelPlan plan, plan_memory(description, modules, options, machine));
    bool over = false;
    for (size_t d = 0; d < slots.size(); ++d) {
      const SlotDevicePlan& there = plan.slot_devices[d];
      const int64_t left = std::min(options.device_memory, there.memory_bytes) - there.bytes;
      if (!filled) slots[d] = std::clamp<int64_t>(left / one_of_each, 0, experts.num_experts);
      if (!filled || left >= 0 || slots[d] == 0) continue;
      over = true;  // workspaces depend on the number of slots
      slots[d] = std::max<int64_t>(slots[d] - (-left + one_of_each - 1) / one_of_each, 0);
    }
    if (filled && !over) return {};
    int64_t all = *placed.num_slots;
    for (const int64_t count : slots) all += count;
    for (; all > experts.num_experts; --all) {
      int64_t* most = &*placed.num_slots;
      for (int64_t& count : slots) most = count > *most ? &count : most;
      --*most;
    }
  }
}

}  // namespace

int64_t host_memory_of(const ModelOptions& options, const Machine& machine) {
  const int64_t memory = machine.cpu.memory_bytes;
  return options.host_memory > 0 ? std::min(options.host_memory, memory) : memory;
}

int64_t reserved_cache_bytes(const ModelPlan& plan, const ModelOptions& options,
                             int64_t max_context) {
  constexpr int64_t kTokens = 4096, kShare = 8;
  if (options.cache_bytes > 0) return options.cache_bytes;
  if (plan.cache_bytes_per_token == 0) return 0;
  const int64_t tokens =
      std::max(kTokens, options.device_memory / kShare / plan.cache_bytes_per_token);
  return std::max(std::min(max_context, tokens), options.cached_tokens) *
         plan.cache_bytes_per_token;
}

namespace {

Result<ExpertWishes> place_on_first(const Description& description, const ModelOptions& options,
                                    const Machine& machine, AdapterSpan adapters,
                                    const ExpertWishes& wishes) {
  MORACLE_CHECK(check_options(options, wishes));
  MORACLE_TRY(const bool whole, holds_all(description, options, machine, adapters, wishes));
  if (whole) return wishes;
  ExpertWishes placed = wishes;
  placed.num_slots = 0;
  int64_t most = -1, of_all_layers = 0;
  bool filled = false;
  // Workspaces depend on the number of slots, so that a guess may be too large.
  for (;;) {
    MORACLE_TRY(auto modules, consider(description, options, machine, adapters, placed));
    const auto served = [](const ModuleChoice& one) { return one.selection.plan.has_value(); };
    if (!std::all_of(modules.begin(), modules.end(), served)) return placed;  // the caller reports
    if (most < 0 && !placed.num_on_host) {
      MORACLE_CHECK(limit_host(placed, modules, options, machine));
      if (placed.num_on_host) continue;
    }
    MORACLE_TRY(const ModelPlan plan, plan_memory(description, modules, options, machine));
    const int64_t memory = std::min(options.device_memory, plan.memory_bytes);
    const int64_t used =
        plan.total_bytes() + reserved_cache_bytes(plan, options, description.spec.max_context);
    if (*placed.num_slots == 0 && placed.num_streamed == 0 && used > memory) {
      return Error{ErrorKind::kOutOfMemory, "", "plan",
                   str(used, " bytes of memory on ", name(options.device),
                       " for everything except experts, with caches (device_memory)"),
                   str("it is ", memory)};
    }
    if (most < 0) {
      const Experts experts = experts_of(modules);
      const bool streams = !options.deterministic && !placed.num_on_host;
      if (experts.num_experts == 0) return wishes;  // no layer has experts
      of_all_layers = experts.bytes;
      most = std::min(experts.num_experts, (memory - used) / of_all_layers);
      if (most == experts.num_experts) {
        placed.num_slots = most;
        continue;
      }
      // Not all of them: steps of many tokens get memory of their own.
      placed.num_streamed = streams ? streamed_in(memory - used, experts) : 0;
      if (placed.num_streamed == 0) placed.num_slots = most;
      if (most == 0 && placed.num_streamed == 0) return placed;
      continue;
    }
    const int64_t over = used - memory;
    if (over > 0 && *placed.num_slots == 0) {
      placed.num_streamed = 0;  // even that is too much
      return placed;
    }
    if (over > 0) {
      placed.num_slots =
          std::max<int64_t>(*placed.num_slots - (over + of_all_layers - 1) / of_all_layers, 0);
      continue;
    }
    const int64_t more = -over / of_all_layers;
    if (filled || more == 0 || *placed.num_slots == most) return placed;
    filled = true;
    placed.num_slots = std::min(*placed.num_slots + more, most);
  }
}

}  // namespace

Result<ExpertWishes> place_experts(const Description& description, const ModelOptions& options,
                                   const Machine& machine, AdapterSpan adapters,
                                   const ExpertWishes& wishes) {
  if (options.device_memory == 0) {
    if (options.slot_devices.empty()) return wishes;
    return Error{ErrorKind::kInvalidArgument, "", "device_memory",
                 "a number of bytes or what is free: further devices have slots for experts",
                 "it is 0, so that the first device holds the whole model"};
  }
  MORACLE_TRY(ExpertWishes placed, place_on_first(description, options, machine, adapters, wishes));
  if (placed.num_slots && !options.slot_devices.empty())
    MORACLE_CHECK(place_on_others(placed, description, options, machine, adapters));
  return placed;
}

Status set_devices(ModelOptions& options, std::string_view names) {
  options.slot_devices.clear();
  for (bool first = true;; first = false) {
    const size_t comma = names.find(',');
    MORACLE_TRY(const DeviceName device, parse_device(names.substr(0, comma)));
    if (first)
      options.device = device;
    else
      options.slot_devices.push_back(device);
    if (comma == names.npos) return {};
    names.remove_prefix(comma + 1);
  }
}

}  // namespace moracle

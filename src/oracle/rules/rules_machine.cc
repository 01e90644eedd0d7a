// Rules about the backend's name, the machine and the build.
#include <algorithm>
#include <functional>

#include "base/text.h"
#include "layout/layout.h"
#include "oracle/plan.h"
#include "oracle/rules/rules.h"

namespace moracle {
namespace rules_machine {
namespace {

using Objection = std::optional<Reason>;

// The GPUs that match this row's platform and the requested index.
std::vector<GpuInfo> devices(const Backend& b, const Request& r, const Machine& m) {
  std::vector<GpuInfo> found;
  for (const GpuInfo& gpu : m.gpus) {
    const bool wanted = !r.device_index || *r.device_index == gpu.index;
    if (gpu.platform == b.platform && wanted) found.push_back(gpu);
  }
  return found;
}

std::string version(int capability) {
  return str(capability / 10, ".", capability % 10);
}

Objection refuse_requested(const Backend& b, const Request& r, const Machine&) {
  if (r.backend == "auto" || r.backend == b.name) return {};
  return object(str("backend '", r.backend, "', requested by name"), str("this is '", b.name, "'"));
}

Objection refuse_platform(const Backend& b, const Request& r, const Machine&) {
  if (!r.platform || *r.platform == b.platform) return {};
  return object(str("a backend for device ", name(*r.platform)),
                str("this backend runs on ", name(b.platform)));
}

Objection refuse_build(const Backend& b, const Request&, const Machine& m) {
  const bool plans = b.kernels != nullptr && b.kernels->plan != nullptr;
  if (plans && (b.built() || m.every_platform)) return {};
  return object("a build with this backend", "this build was made without it");
}

Objection refuse_device(const Backend& b, const Request& r, const Machine& m) {
  if (b.platform == Platform::kCpu || !devices(b, r, m).empty()) return {};
  std::string fact = "this machine has none";
  if (r.device_index && !devices(b, Request{}, m).empty())
    fact += str(" with index ", *r.device_index);
  else if (b.platform == Platform::kCuda && !m.cuda_fault.empty())
    fact = m.cuda_fault;
  return object(str(b.platform == Platform::kOpenCl ? "an " : "a ", name(b.platform), " device"),
                std::move(fact));
}

Objection refuse_isa(const Backend& b, const Request&, const Machine& m) {
  const Isa lacking = missing(b.isa, m.cpu.isa);
  if (lacking == Isa::kNone) return {};
  return object("CPU features " + names(lacking), "this CPU has " + names(m.cpu.isa));
}

// A requirement of a row on the single GPU that it runs on.
struct DeviceNeed {
  std::string text;
  std::function<bool(const GpuInfo&)> met;
  std::function<std::string(const GpuInfo&)> fact;
};

DeviceNeed need_architecture(const Backend& b, const Request&, const Machine&) {
  const int least = b.min_capability, most = b.max_capability;
  std::string text = str("compute capability ", version(least));
  if (most != least) text += most > 0 ? " to " + version(most) : " or later";
  const bool any = b.platform != Platform::kCuda;
  return {std::move(text),
          [=](const GpuInfo& gpu) {
            return any || (gpu.capability >= least && (most == 0 || gpu.capability <= most));
          },
          [](const GpuInfo& gpu) { return version(gpu.capability); }};
}

DeviceNeed need_features(const Backend& b, const Request&, const Machine&) {
  return {names(b.gpu_features),
          [&](const GpuInfo& gpu) {
            return missing(b.gpu_features, gpu.features) == GpuFeature::kNone;
          },
          [](const GpuInfo& gpu) { return names(gpu.features); }};
}

DeviceNeed need_shared_memory(const Backend& b, const Request&, const Machine&) {
  return {str(b.shared_memory_bytes / 1024, " KiB of shared memory per block"),
          [&](const GpuInfo& gpu) { return gpu.shared_memory_bytes >= b.shared_memory_bytes; },
          [](const GpuInfo& gpu) { return str(gpu.shared_memory_bytes / 1024, " KiB"); }};
}

std::string megabytes(int64_t bytes) {
  return str(bytes / 1'000'000, " MB");
}

// Memory in bytes for this layer only. The model checks whether all layers fit.
struct LayerMemory {
  int64_t total = 0;
  int64_t largest = 0;  // in one allocation
};

// Zeros if there is no plan.
LayerMemory layer_memory(const Backend& b, const Request& r, const Machine& m) {
  if (b.layout == nullptr || b.kernels == nullptr || b.kernels->plan == nullptr) return {};
  if (r.max_num_tokens > countable_tokens(r)) return {};  // `tokens` reports it
  Request whole = r;
  whole.max_num_tokens = std::max<int64_t>(r.max_num_tokens, 1);  // `tokens` reports it
  if (!countable_adapters(r)) whole.lora_rank = 0;                // `lora` reports it
  if (!r.parallel.map(r.layer.num_experts)) whole.parallel = {};  // `expert-parallel` reports it
  const Plan plan = make_plan(b, whole, m);
  return {plan.weight_bytes + plan.adapter_bytes + plan.workspace_bytes, plan.largest_allocation()};
}

DeviceNeed need_memory(const Backend& b, const Request& r, const Machine& m) {
  const LayerMemory need = layer_memory(b, r, m);
  const auto allocates = [=](const GpuInfo& gpu) {
    return gpu.max_allocation_bytes == 0 || gpu.max_allocation_bytes >= need.largest;
  };
  std::string text = megabytes(need.total) + " of memory for this layer";
  const std::vector<GpuInfo> there = devices(b, r, m);
  if (!std::all_of(there.begin(), there.end(), allocates))
    text += str(", ", megabytes(need.largest), " of it in one allocation");
  return {std::move(text),
          [=](const GpuInfo& gpu) { return gpu.memory_bytes >= need.total && allocates(gpu); },
          [=](const GpuInfo& gpu) {
            const std::string all = megabytes(gpu.memory_bytes);
            if (allocates(gpu)) return all;
            return str(all, ", at most ", megabytes(gpu.max_allocation_bytes),
                       " in one allocation");
          }};
}

using MakeNeed = DeviceNeed (*)(const Backend&, const Request&, const Machine&);
constexpr MakeNeed kNeeds[] = {need_architecture, need_features, need_shared_memory, need_memory};

bool meets_all_needs(const GpuInfo& gpu, const Backend& b, const Request& r, const Machine& m) {
  return std::all_of(std::begin(kNeeds), std::end(kNeeds),
                     [&](MakeNeed make) { return make(b, r, m).met(gpu); });
}

// Objects if no single device meets all needs of the row, and names the devices that lack this
// need. If there are no devices, the rule `device` objects instead.
Objection refuse_devices(MakeNeed make, const Backend& b, const Request& r, const Machine& m) {
  const std::vector<GpuInfo> there = devices(b, r, m);
  if (there.empty()) return {};
  const DeviceNeed need = make(b, r, m);
  std::vector<std::string> facts;
  for (const GpuInfo& gpu : there) {
    if (need.met(gpu)) continue;
    const std::string which =
        there.size() == 1 ? "" : str(" (", name(gpu.platform), ":", gpu.index, ")");
    facts.push_back(str(gpu.model, which, " has ", need.fact(gpu)));
  }
  if (facts.empty()) return {};
  const bool one_serves = std::any_of(there.begin(), there.end(), [&](const GpuInfo& gpu) {
    return meets_all_needs(gpu, b, r, m);
  });
  if (one_serves) return {};
  return object(need.text, join(facts, ", "));
}

Objection refuse_architecture(const Backend& b, const Request& r, const Machine& m) {
  return refuse_devices(need_architecture, b, r, m);
}

Objection refuse_device_features(const Backend& b, const Request& r, const Machine& m) {
  return refuse_devices(need_features, b, r, m);
}

Objection refuse_shared_memory(const Backend& b, const Request& r, const Machine& m) {
  return refuse_devices(need_shared_memory, b, r, m);
}

Objection refuse_library(const Backend& b, const Request& r, const Machine& m) {
  if (devices(b, r, m).empty()) return {};  // `device` reports it
  const Library lacking = missing(b.libraries, m.libraries);
  if (lacking == Library::kNone) return {};
  return object("the library " + names(lacking), "it was not found");
}

Objection refuse_memory(const Backend& b, const Request& r, const Machine& m) {
  if (b.platform != Platform::kCpu) return refuse_devices(need_memory, b, r, m);
  const int64_t need = layer_memory(b, r, m).total;
  if (m.cpu.memory_bytes >= need) return {};
  return object(megabytes(need) + " of memory for this layer",
                "this machine has " + megabytes(m.cpu.memory_bytes));
}

constexpr Rule kRules[] = {
    {"requested", refuse_requested},
    {"platform", refuse_platform},
    {"build", refuse_build},
    {"device", refuse_device},
    {"isa", refuse_isa},
    {"architecture", refuse_architecture},
    {"device-features", refuse_device_features},
    {"shared-memory", refuse_shared_memory},
    {"library", refuse_library},
    {"memory", refuse_memory},
};

}  // namespace
}  // namespace rules_machine

std::span<const Rule> machine_rules() {
  return rules_machine::kRules;
}

}  // namespace moracle

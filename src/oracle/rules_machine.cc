// What was asked for by name, and what the machine and this build have.
#include <algorithm>
#include <functional>

#include "base/text.h"
#include "layout/layout.h"
#include "oracle/plan.h"
#include "oracle/rules.h"

namespace moracle {
namespace {

using Objection = std::optional<Reason>;

// The GPUs that this row could run on, as far as kind and index go.
std::vector<GpuInfo> devices(const Backend& b, const Request& r, const Machine& m) {
  std::vector<GpuInfo> found;
  for (const GpuInfo& gpu : m.gpus) {
    const bool wanted = !r.device_index || *r.device_index == gpu.index;
    if (gpu.platform == b.platform && wanted) found.push_back(gpu);
  }
  return found;
}

// Objects if there are devices and none of them fits; `device` speaks where there are none.
Objection none_fits(const Backend& b, const Request& r, const Machine& m,
                    const std::function<bool(const GpuInfo&)>& fits, std::string need,
                    const std::function<std::string(const GpuInfo&)>& fact) {
  const std::vector<GpuInfo> there = devices(b, r, m);
  if (there.empty() || std::any_of(there.begin(), there.end(), fits)) return {};
  std::vector<std::string> facts;
  for (const GpuInfo& gpu : there) facts.push_back(str(gpu.model, " has ", fact(gpu)));
  return object(std::move(need), join(facts, ", "));
}

std::string version(int capability) {
  return str(capability / 10, ".", capability % 10);
}

Objection refuse_requested(const Backend& b, const Request& r, const Machine&) {
  if (r.backend == "auto" || r.backend == b.name) return {};
  return object(str("backend '", r.backend, "', asked for by name"), str("this is '", b.name, "'"));
}

Objection refuse_platform(const Backend& b, const Request& r, const Machine&) {
  if (!r.platform || *r.platform == b.platform) return {};
  return object(str("a backend for device ", name(*r.platform)),
                str("it runs on ", name(b.platform)));
}

Objection refuse_build(const Backend& b, const Request&, const Machine&) {
  if (b.kernels != nullptr) return {};
  if (b.planned) return object("a kernel that is written", "it is planned, not yet made");
  return object("a build with this backend", "this build was made without it");
}

Objection refuse_device(const Backend& b, const Request& r, const Machine& m) {
  if (b.platform == Platform::kCpu || !devices(b, r, m).empty()) return {};
  const bool indexed = r.device_index && !devices(b, Request{}, m).empty();
  return object(str("a device that speaks ", name(b.platform)),
                indexed ? str("this machine has none with index ", *r.device_index)
                        : "this machine has none");
}

Objection refuse_isa(const Backend& b, const Request&, const Machine& m) {
  const Isa lacking = missing(b.isa, m.cpu.isa);
  if (lacking == Isa::kNone) return {};
  return object(names(lacking), "this CPU has " + names(m.cpu.isa));
}

Objection refuse_architecture(const Backend& b, const Request& r, const Machine& m) {
  if (b.platform != Platform::kCuda) return {};
  const auto& key = r.layer.scheme.activation;
  const bool fp8 = key && key->dtype == DType::kF8E4M3 && b.fp8_capability > b.min_capability;
  const int least = fp8 ? b.fp8_capability : b.min_capability;
  const bool one = b.max_capability == least;
  std::string need = str("compute capability ", version(least));
  if (!one) need += b.max_capability > 0 ? " to " + version(b.max_capability) : " or later";
  if (fp8) need += " for fp8 activations, or --activations 16bit";
  return none_fits(
      b, r, m,
      [&](const GpuInfo& gpu) {
        return gpu.capability >= least &&
               (b.max_capability == 0 || gpu.capability <= b.max_capability);
      },
      need, [](const GpuInfo& gpu) { return version(gpu.capability); });
}

Objection refuse_device_features(const Backend& b, const Request& r, const Machine& m) {
  return none_fits(
      b, r, m,
      [&](const GpuInfo& gpu) {
        return missing(b.gpu_features, gpu.features) == GpuFeature::kNone;
      },
      names(b.gpu_features), [](const GpuInfo& gpu) { return names(gpu.features); });
}

Objection refuse_shared_memory(const Backend& b, const Request& r, const Machine& m) {
  return none_fits(
      b, r, m, [&](const GpuInfo& gpu) { return gpu.shared_memory_bytes >= b.shared_memory_bytes; },
      str(b.shared_memory_bytes / 1024, " KiB of shared memory for one block"),
      [](const GpuInfo& gpu) { return str(gpu.shared_memory_bytes / 1024, " KiB"); });
}

// One layer alone; whether the whole model fits is the model's question.
Objection refuse_memory(const Backend& b, const Request& r, const Machine& m) {
  if (b.layout == nullptr || b.kernels == nullptr) return {};
  if (r.max_num_tokens > countable_tokens(r)) return {};  // `tokens` says so
  Request whole = r;
  if (!r.parallel.map(r.layer.num_experts)) whole.parallel = {};  // `expert-parallel` says why
  const Plan plan = make_plan(b, whole, m);
  const int64_t need = plan.weight_bytes + plan.adapter_bytes + plan.workspace_bytes;
  auto megabytes = [](int64_t bytes) { return str(bytes / 1'000'000, " MB"); };
  if (b.platform != Platform::kCpu) {
    return none_fits(
        b, r, m, [&](const GpuInfo& gpu) { return gpu.memory_bytes >= need; },
        megabytes(need) + " of memory for this layer",
        [&](const GpuInfo& gpu) { return megabytes(gpu.memory_bytes); });
  }
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
    {"memory", refuse_memory},
};

}  // namespace

std::span<const Rule> machine_rules() {
  return kRules;
}

}  // namespace moracle

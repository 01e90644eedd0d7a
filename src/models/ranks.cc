#include "models/ranks.h"

#include <algorithm>
#include <iomanip>

#include "base/checksum.h"
#include "base/text.h"
#include "base/threads/thread_pool.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "checkpoint/tensors/sampled_digest.h"
#include "oracle/kernel_plan.h"

namespace moracle {
namespace {

std::string hex(uint64_t value) {
  std::ostringstream out;
  out << std::hex << std::setw(16) << std::setfill('0') << value;
  return out.str();
}

uint64_t checksum_of(std::span<const LoraPair> pairs, uint64_t sum) {
  for (const LoraPair& pair : pairs) {
    sum = checksum(std::as_bytes(std::span(pair.a)), sum);
    sum = checksum(std::as_bytes(std::span(pair.b)), sum);
    sum = checksum(std::as_bytes(std::span(&pair.scale, 1)), sum);
  }
  return sum;
}

std::string adapters_text(AdapterSpan adapters) {
  uint64_t sum = 0;
  for (const auto& adapter : adapters) {
    for (const auto& [layer, weights] : adapter->layers)
      for (const auto* pairs : {&weights.gate, &weights.up, &weights.down})
        sum = checksum_of(*pairs, sum);
    for (const auto& [module, pair] : adapter->modules) sum = checksum_of({&pair, 1}, sum);
  }
  return adapters.empty() ? "none" : str(adapters.size(), " with checksum ", hex(sum));
}

// Names, sizes, types and shapes of all tensors: two files with equal text differ only in values.
std::string tensors_text(const Tensors& tensors) {
  std::string all;
  for (const auto& [name, entry] : tensors.all())
    all += str(name, " ", to_string(entry.view), "\n");
  return str(tensors.all().size(), " tensors in ", tensors.files().size(), " files, checksum ",
             hex(checksum(std::as_bytes(std::span(all)))));
}

std::string config_text(const Checkpoint& checkpoint) {
  const Checkpoint::State& state = checkpoint.state();
  const Config& whole = state.wrapper ? *state.wrapper : state.config;
  // Texts in GGUF may be no UTF-8.
  const std::string config =
      whole.value().dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return str(config.size(), " bytes with checksum ",
             hex(checksum(std::as_bytes(std::span(config)))));
}

// An error is compared like a value, because all ranks must take part in the comparison.
std::string samples_text(const Checkpoint& checkpoint, ThreadPool& pool) {
  const Result<std::string> digest = sampled_digest(checkpoint.state().tensors, pool);
  return digest ? *digest : digest.error().to_string();
}

constexpr const char* kConfig = "a config.json";
constexpr const char* kTensors = "tensors";
constexpr const char* kSamples = "samples of all weights";
constexpr const char* kCommonWeights = "weights that every rank reads";

std::string common_text(const ReadRecord& record) {
  const ReadRecord::Sum common = record.common();
  return str(common.bytes, " bytes with checksum ", hex(common.checksum));
}

std::string placement_text(const ModelOptions& o) {
  if (!o.measured_load) return std::string(name(o.parallel.placement));
  const std::string json = o.measured_load->json();
  return str("measured load with checksum ", hex(checksum(std::as_bytes(std::span(json)))), ", ",
             o.num_redundant_experts, " redundant experts");
}

std::string quantization_text(const QuantizationMap& map) {
  std::vector<std::string> texts;
  for (const QuantizationMap::Entry& entry : map.entries())
    texts.push_back(str(entry.pattern, entry.pattern.empty() ? "" : "=",
                        entry.scheme ? name(*entry.scheme) : "none"));
  return join(texts, ",");
}

std::string options_text(const ModelOptions& o) {
  return str("quantization '", quantization_text(o.quantization), "', activations '",
             name(o.activations), "', weights ", name(o.weights), ", kv-cache ",
             o.kv_cache ? kv_cache_name(*o.kv_cache) : "auto", ", backend ", o.backend.text(), ", ",
             tokens_per_step(o), " tokens per step", o.deterministic ? ", deterministic" : "",
             ", graphs ", o.graphs ? "on" : "off", ", ", name(o.spread), ", tp=", o.tp_size,
             ", lm_head=", o.lm_head_size);
}

// Ranks choose between bf16 and f32 by the rates that each measured.
bool in_bf16(const MatrixPlan& matrix) {
  const auto& kernels = matrix.kernel->kernels;
  return std::any_of(kernels.begin(), kernels.end(), [](const PlannedKernel& kernel) {
    const auto* const form = std::get_if<CpuDotForm>(&kernel.form);
    return form != nullptr && form->isa == cpu::DotIsa::kAvx512Bf16;
  });
}

}  // namespace

Status check_ranks(const ModelOptions& options) {
  const int64_t size = options.group ? options.group->size() : 1;
  const int64_t rank = options.group ? options.group->rank() : 0;
  const Parallelism& parallel = options.parallel;
  const auto wrong = [](std::string need, std::string fact) {
    return Error{ErrorKind::kInvalidArgument, "", "parallel", std::move(need), std::move(fact)};
  };
  if (parallel.ep_size != size || parallel.ep_rank != rank) {
    return wrong(str("ep=", size, " and rank ", rank,
                     options.group ? ", as in the group" : ", because there is no group"),
                 str("it is ep=", parallel.ep_size, " and rank ", parallel.ep_rank));
  }
  if (parallel.expert_map)
    return wrong("a placement by name: layers may have other numbers of experts", "it has a map");
  const std::pair<const char*, int64_t> divided[] = {{"tp=", options.tp_size},
                                                     {"lm_head=", options.lm_head_size}};
  for (const auto& [what, ranks] : divided) {
    if (ranks != 1 && (ranks != size || options.spread == Spread::kDispatched))
      return wrong(str(what, "1, or ", what, size, " with the same tokens on all ranks"),
                   str("it is ", what, ranks));
    if (ranks != 1 && options.num_adapters() > 0)
      return wrong(str(what, "1 for adapters: they change whole modules"),
                   str("it is ", what, ranks));
  }
  if (options.spread == Spread::kReplicated || size == 1) return {};
  if (options.num_adapters() > 0)
    return wrong("mode=replicated for adapters: their numbers do not travel with dispatched tokens",
                 "it is mode=dispatched");
  return {};
}

std::vector<Fact> facts_before_loading(const Checkpoint& checkpoint, const ModelOptions& options,
                                       const Result<AdapterList>& adapters) {
  ThreadPool pool(options.threads);
  return {{"a Moracle version", MORACLE_LIBRARY_VERSION},
          {kConfig, config_text(checkpoint)},
          {kTensors, tensors_text(checkpoint.state().tensors)},
          {"options", options_text(options)},
          {"a placement", placement_text(options)},
          {"adapters", adapters ? adapters_text(*adapters) : adapters.error().to_string()},
          {kSamples, samples_text(checkpoint, pool)}};
}

std::vector<Fact> facts_after_loading(const Model::State& state, const ReadRecord& record) {
  // Each pair once: how choices are grouped depends on how many experts a rank has of each layer.
  std::vector<std::string> plan;
  for (const Choice& choice : state.choices) {
    // Each rank's memory decides whether some of its experts lie in host memory.
    if (choice.part == kHostExperts || choice.part == kStreamedExperts) continue;
    const Plan& chosen = *choice.selection.plan;
    const bool bf16 = std::any_of(chosen.matrices.begin(), chosen.matrices.end(), in_bf16);
    std::string one = str(choice.part, " ", name(*chosen.backend), bf16 ? " in bf16" : "");
    if (std::find(plan.begin(), plan.end(), one) == plan.end()) plan.push_back(std::move(one));
  }
  if (state.bf16_attention) plan.emplace_back("attention in bf16");
  return {{"a plan", join(plan)}, {kCommonWeights, common_text(record)}};
}

std::vector<Fact> facts_of_reload(const Checkpoint& checkpoint, const Status& done,
                                  const ReadRecord& record, ThreadPool& pool) {
  return {{kConfig, config_text(checkpoint)},
          {kTensors, tensors_text(checkpoint.state().tensors)},
          {kCommonWeights, done ? common_text(record) : done.error().to_string()},
          {kSamples, samples_text(checkpoint, pool)}};
}

std::vector<Fact> facts_of_files(const Checkpoint& checkpoint, ThreadPool& pool) {
  return {{kConfig, config_text(checkpoint)},
          {kTensors, tensors_text(checkpoint.state().tensors)},
          {kSamples, samples_text(checkpoint, pool)}};
}

std::vector<Fact> facts_of_sequences(const Checkpoint& checkpoint, const ModelOptions& options,
                                     const Result<AdapterList>& adapters) {
  ThreadPool pool(options.threads);
  std::vector<Fact> facts = facts_of_files(checkpoint, pool);
  facts.push_back({"a Moracle version", MORACLE_LIBRARY_VERSION});
  facts.push_back({"options", str("quantization '", quantization_text(options.quantization),
                                  "', activations '", name(options.activations), "'")});
  facts.push_back({"adapters", adapters ? adapters_text(*adapters) : adapters.error().to_string()});
  return facts;
}

std::string identity_of(std::span<const Fact> facts) {
  std::string text;
  for (const Fact& fact : facts) {
    if (fact.what == kConfig || fact.what == kTensors || fact.what == kSamples)
      text += str(fact.what, ": ", fact.value, "\n");
  }
  return text;
}

Status join_ranks(Model::State& m, std::span<const ModuleChoice> modules,
                  const ModelOptions& options) {
  const std::shared_ptr<Device> device(m.workspace, &m.workspace->device());
  m.group = options.group;
  MORACLE_TRY(m.exchange, open_exchange(options.group, device, options.exchange));
  m.recorded.on = m.recorded.on && m.exchange->in_graphs();
  if (options.spread == Spread::kDispatched) {
    m.dispatch = std::make_unique<DispatchStep>(*options.group, *m.exchange, *device,
                                                options.deterministic && options.group->size() > 1);
    m.recorded.on = m.recorded.on && m.dispatch->gathers();
    return {};
  }
  m.ranks = {m.exchange.get(), needs_slots(options), nullptr, device.get()};
  if (!m.ranks.same_bits) return {};
  size_t bytes = 0;
  for (const ModuleChoice& module : modules) {
    if (module.part != "experts") continue;
    bytes =
        std::max(bytes, ReplicatedMoe::scratch_bytes(module.selection.plan->layer, m.max_num_tokens,
                                                     device->activation_dtype()));
  }
  MORACLE_TRY(m.slots, device->allocate(bytes));
  m.ranks.scratch = m.slots.as<std::byte>();
  return {};
}

}  // namespace moracle

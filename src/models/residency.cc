#include "models/residency.h"

#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "models/divide.h"
#include "models/host_experts/place_experts.h"
#include "models/modules.h"
#include "models/plan.h"
#include "oracle/kernel_plan.h"

namespace moracle {
namespace {

// The description in one residency, divided for this rank, with a choice for each module.
struct Considered {
  Description description;
  std::vector<ModuleChoice> modules;

  int64_t weight_bytes(Platform platform) const {
    int64_t bytes = description.embedding_bytes(platform) + description.ngram_bytes();
    for (const ModuleChoice& module : modules) bytes += module.selection.plan->weight_bytes;
    return bytes;
  }
};

Error refuse(std::string need, std::string fact) {
  return {ErrorKind::kUnsupported, "", "weights", std::move(need), std::move(fact)};
}

const DescribedMatrix& first_of(const DescribedMatrix& weights) {
  return weights;
}
const DescribedMatrix& first_of(const DescribedWeights& weights) {
  return weights.w13;
}

bool has_foldable(const Description& description) {
  bool found = false;
  const auto look = [&](const ModuleLabel&, const auto& weights) -> Status {
    found = found || has_residency(first_of(weights).scheme());
    return {};
  };
  return visit_modules(description, look) && found;
}

bool has_residency(const ModuleChoice& module) {
  return has_residency(module.selection.request.layer.scheme);
}

bool multiplies_fp8(const ModuleChoice& module) {
  const std::vector<MatrixPlan>& matrices = module.selection.plan->matrices;
  return std::all_of(matrices.begin(), matrices.end(), [](const MatrixPlan& matrix) {
    const auto& kernels = matrix.kernel->kernels;
    return std::any_of(kernels.begin(), kernels.end(), [](const PlannedKernel& kernel) {
      const auto* const form = std::get_if<CudaForm>(&kernel.form);
      return form != nullptr && (form->products == CudaProducts::kFp8Groups ||
                                 form->products == CudaProducts::kFp8Wide);
    });
  });
}

// The options under which folded weights serve.
Status check_options(const ModelOptions& options) {
  if (options.device.platform != Platform::kCuda)
    return refuse(
        "an NVIDIA GPU for folded: elsewhere no kernel multiplies fp8 by fp8, and 4-bit "
        "codes take half of the bytes",
        str("the device is ", name(options.device)));
  if (options.device_memory != 0)
    return refuse(
        "packed where experts may lie in host memory (device_memory): folded ones take "
        "twice the bytes there and on the bus",
        "the device's memory is limited");
  return {};
}

// Folded weights without fp8 products take memory for nothing.
Status check_gain(std::span<const ModuleChoice> packed, std::span<const ModuleChoice> folded) {
  const auto is_experts = [](const ModuleChoice& one) {
    return one.part == "experts" && has_residency(one);
  };
  const bool experts = std::any_of(packed.begin(), packed.end(), is_experts);
  const ModuleChoice* other = nullptr;
  for (size_t i = 0; i < packed.size(); ++i) {
    if (experts ? !is_experts(packed[i]) : !has_residency(packed[i])) continue;
    if (!multiplies_fp8(folded[i])) {
      other = &folded[i];
      continue;
    }
    if (!experts) return {};
  }
  if (other == nullptr) return {};
  return refuse(
      "kernels that multiply fp8 by fp8 for folded: cuda-sm90, many tokens per step, not "
      "deterministic, no adapters on experts",
      str(other->part, other->layer ? str(" of layer ", *other->layer) : "", " would run on ",
          name(*other->selection.plan->backend),
          ", which converts fp8 codes as it converts 4-bit codes"));
}

class Planner {
 public:
  Planner(const Checkpoint& checkpoint, const ModelOptions& options, const Machine& machine,
          const AdapterList& adapters)
      : checkpoint_(checkpoint), options_(options), machine_(machine), adapters_(adapters) {}

  Result<Description> described(WeightResidency weights) const {
    ModelOptions options = options_;
    options.weights = weights;
    return describe(checkpoint_, changes_of(options));
  }

  /// Errors: as choose.
  Result<Considered> consider(Description&& description) const {
    Considered considered{std::move(description), {}};
    MORACLE_CHECK(divide(considered.description, options_));
    MORACLE_TRY(considered.modules, choose(considered.description, options_, machine_, adapters_));
    return considered;
  }

  /// Errors: the reason why the weights cannot be folded.
  Result<Considered> folded(const Considered& packed) const {
    MORACLE_TRY(Description description, described(WeightResidency::kFolded));
    MORACLE_TRY(Considered folded, consider(std::move(description)));
    MORACLE_CHECK(check_gain(packed.modules, folded.modules));
    if (!options_.next_tokens) return folded;
    ModelOptions options = options_;
    options.weights = WeightResidency::kFolded;
    MORACLE_TRY(const Description next, describe_next_tokens(checkpoint_, changes_of(options)));
    return folded;
  }

  /// Errors: the free memory does not hold the model and its caches.
  Status check_memory(const Considered& folded) const {
    MORACLE_TRY(const int64_t free, free_memory(options_.device, machine_));
    MORACLE_TRY(const ModelPlan plan,
                plan_memory(folded.description, folded.modules, options_, machine_));
    ModelOptions within = options_;
    within.device_memory = free;
    const int64_t needed = plan.total_bytes() +
                           reserved_cache_bytes(plan, within, folded.description.spec.max_context);
    if (needed <= free) return {};
    return Error{ErrorKind::kOutOfMemory, "", "weights",
                 str(needed, " bytes of memory on ", name(options_.device), ", with caches"),
                 str(free, " are free")};
  }

  const ModelOptions& options() const { return options_; }

 private:
  const Checkpoint& checkpoint_;
  const ModelOptions& options_;
  const Machine& machine_;
  const AdapterList& adapters_;
};

std::string reason_of(const Error& error) {
  return str("needs ", error.need, "; ", error.fact);
}

const std::vector<TunedTime>& tuned_of(const Selection& selection) {
  static const std::vector<TunedTime> kNone;
  for (const Verdict& verdict : selection.considered)
    if (verdict.backend == selection.plan->backend) return verdict.tuned;
  return kNone;
}

// Times of the first experts in both residencies, where `moracle tune` measured both.
std::vector<ResidencyTime> times_of(const Considered& packed, const Considered& folded) {
  std::vector<ResidencyTime> times;
  for (size_t i = 0; i < packed.modules.size(); ++i) {
    if (!has_residency(packed.modules[i]) || packed.modules[i].part != "experts") continue;
    for (const TunedTime& one : tuned_of(packed.modules[i].selection)) {
      for (const TunedTime& other : tuned_of(folded.modules[i].selection))
        if (one.num_tokens == other.num_tokens) times.push_back({one.num_tokens, one.us, other.us});
    }
    break;
  }
  return times;
}

// Each scheme once: "int4-w4afp8-g128 as fp8-w8a8-g128-token".
std::string schemes_of(const Considered& packed, const Considered& folded) {
  std::vector<std::string> texts;
  for (size_t i = 0; i < packed.modules.size(); ++i) {
    if (!has_residency(packed.modules[i])) continue;
    std::string text = str(packed.modules[i].selection.request.layer.scheme_name(), " as ",
                           folded.modules[i].selection.request.layer.scheme_name());
    if (std::find(texts.begin(), texts.end(), text) == texts.end())
      texts.push_back(std::move(text));
  }
  return join(texts);
}

// Errors: the packed model has no plan; with kFolded also why the weights cannot be folded.
Result<ResidencyPlan> plan_both(const Planner& planner) {
  using enum WeightResidency;
  const ModelOptions& options = planner.options();
  const Platform platform = options.device.platform;
  ResidencyPlan plan;
  MORACLE_TRY(Description description, planner.described(kPacked));
  MORACLE_TRY(const Considered packed, planner.consider(std::move(description)));
  plan.packed_bytes = packed.weight_bytes(platform);
  const Result<Considered> folded = planner.folded(packed);
  if (!folded) {
    if (options.weights == kFolded) return folded.error();
    plan.reason = reason_of(folded.error());
    return plan;
  }
  plan.folded_bytes = folded->weight_bytes(platform);
  plan.schemes = schemes_of(packed, *folded);
  plan.times = times_of(packed, *folded);
  if (options.weights == kFolded) {
    plan.chosen = kFolded;
    plan.reason = "as requested";
    return plan;
  }
  if (options.weights == kPacked) {
    plan.reason = "the default: few tokens read fewer bytes";
    return plan;
  }
  const Status fits = planner.check_memory(*folded);
  if (fits) plan.chosen = kFolded;
  plan.reason = fits ? "the free memory holds them with caches" : reason_of(fits.error());
  return plan;
}

}  // namespace

SchemeChanges changes_of(const ModelOptions& options) {
  return {options.quantization, options.activations, options.weights};
}

Result<std::optional<ResidencyPlan>> plan_residency(const Checkpoint& checkpoint,
                                                    const Description& packed,
                                                    const ModelOptions& options,
                                                    const Machine& machine) {
  using enum WeightResidency;
  const bool asked = options.weights != kPacked;
  const auto stays = [&](const Error& error) -> Result<std::optional<ResidencyPlan>> {
    if (options.weights == kFolded) return error;
    if (!asked) return std::optional<ResidencyPlan>();
    return std::optional(ResidencyPlan{.reason = reason_of(error)});
  };
  if (const Status possible = check_options(options); !possible) return stays(possible.error());
  if (!has_foldable(packed))
    return stays(refuse("4-bit weights and fp8 activations for folded (activations)",
                        "no layer of the model has both"));
  MORACLE_TRY(const AdapterList adapters, open_adapters(checkpoint, options));
  Result<ResidencyPlan> plan = plan_both(Planner(checkpoint, options, machine, adapters));
  if (plan) return std::optional(*std::move(plan));
  if (options.weights == kFolded) return plan.error();
  // The model cannot run packed: its own plan says why.
  return std::optional<ResidencyPlan>();
}

Result<Description> describe_resident(const Checkpoint& checkpoint, const Machine& machine,
                                      ModelOptions& options,
                                      std::optional<ResidencyPlan>& residency) {
  const WeightResidency wanted = options.weights;
  options.weights = WeightResidency::kPacked;
  MORACLE_TRY(Description description, describe(checkpoint, changes_of(options)));
  ModelOptions asked = options;
  asked.weights = wanted;
  MORACLE_TRY(residency, plan_residency(checkpoint, description, asked, machine));
  if (residency) options.weights = residency->chosen;
  if (options.weights == WeightResidency::kFolded) MORACLE_CHECK(fold(description));
  return description;
}

}  // namespace moracle

#include "models/generation/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "base/text.h"
#include "base/threads/thread_pool.h"
#include "base/try.h"
#include "kernels/cpu/simd/vector_ops.h"
#include "kernels/kernel_device.h"
#include "models/decoder/model_state.h"

namespace moracle {

Status check(const SamplingOptions& options) {
  auto wrong = [](const char* option, const char* need, double fact) {
    return Error{ErrorKind::kInvalidArgument, "", option, need, str("it is ", fact)};
  };
  if (!(options.temperature >= 0) || !std::isfinite(options.temperature)) {
    return wrong("temperature", "a number of at least 0", options.temperature);
  }
  if (options.top_k < 0) return wrong("top_k", "at least 0", static_cast<double>(options.top_k));
  if (!(options.top_p > 0 && options.top_p <= 1))
    return wrong("top_p", "a number above 0, up to 1", options.top_p);
  if (!(options.min_p >= 0 && options.min_p <= 1))
    return wrong("min_p", "a number from 0 to 1", options.min_p);
  if (!(options.typical_p > 0 && options.typical_p <= 1))
    return wrong("typical_p", "a number above 0, up to 1", options.typical_p);
  if (!(options.xtc_probability >= 0 && options.xtc_probability <= 1))
    return wrong("xtc_probability", "a number from 0 to 1", options.xtc_probability);
  if (!(options.xtc_threshold >= 0 && options.xtc_threshold <= 1))
    return wrong("xtc_threshold", "a number from 0 to 1", options.xtc_threshold);
  const std::vector<int32_t>& excluded = options.excluded_ids;
  const auto next = std::adjacent_find(excluded.begin(), excluded.end(), std::greater_equal<>());
  if (next == excluded.end() && (excluded.empty() || excluded[0] >= 0)) return {};
  return wrong("excluded_ids", "ids of at least 0 in ascending order",
               next == excluded.end() ? excluded[0] : next[1]);
}

int64_t Sampler::candidates(int64_t vocab_size) const {
  if (options_.temperature == 0) return 1;
  return options_.top_k > 0 && options_.top_k < vocab_size ? options_.top_k : 0;
}

double Sampler::uniform() {
  return static_cast<double>(engine_() >> 11) * 0x1p-53;
}

// Draws the place of one of these logits, whose largest is finite.
size_t Sampler::pick(std::span<const float> logits, float largest) {
  const double share = uniform();
  weights_.start(logits, largest, options_.temperature);
  if (options_.top_p < 1) weights_.keep_top_p(options_.top_p);
  if (options_.min_p > 0) weights_.keep_min_p(options_.min_p);
  if (options_.typical_p < 1) weights_.keep_typical(options_.typical_p);
  if (options_.xtc_probability > 0 && uniform() < options_.xtc_probability)
    weights_.exclude_top(options_.xtc_threshold);
  return weights_.draw(share);
}

std::optional<int32_t> Sampler::draw(std::span<const int32_t> ids, std::span<const float> logits) {
  if (!std::isfinite(logits[0])) return {};  // NaN and infinity would come first
  return options_.temperature == 0 ? ids[0] : ids[pick(logits, logits[0])];
}

bool Sampler::has_excluded(std::span<const int32_t> ids) const {
  const std::vector<int32_t>& excluded = options_.excluded_ids;
  return !excluded.empty() && std::any_of(ids.begin(), ids.end(), [&](int32_t id) {
    return std::binary_search(excluded.begin(), excluded.end(), id);
  });
}

std::optional<int32_t> Sampler::draw(std::span<const float> all) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::span<const float> logits = all;
  if (!options_.excluded_ids.empty()) {
    allowed_.assign(all.begin(), all.end());
    for (const int32_t id : options_.excluded_ids) {
      if (static_cast<size_t>(id) >= all.size()) break;
      if (!(all[id] < kInfinity)) return {};
      allowed_[id] = -kInfinity;
    }
    logits = allowed_;
  }
  return draw_allowed(logits, candidates(static_cast<int64_t>(logits.size())));
}

// Negative infinity has the weight 0 and comes last in every order, so that leaving it out changes
// neither a sum nor a place.
std::optional<int32_t> Sampler::draw_among(std::span<const int32_t> ids,
                                           std::span<const float> logits, int64_t vocab_size) {
  if (has_excluded(ids)) {
    among_.clear();
    allowed_.clear();
    for (size_t i = 0; i < ids.size(); ++i) {
      if (!std::binary_search(options_.excluded_ids.begin(), options_.excluded_ids.end(), ids[i])) {
        among_.push_back(ids[i]);
        allowed_.push_back(logits[i]);
      } else if (!(logits[i] < std::numeric_limits<float>::infinity())) {
        return {};
      }
    }
    ids = among_;
    logits = allowed_;
  }
  if (ids.empty()) return {};
  const auto count = static_cast<int64_t>(ids.size());
  const auto at = draw_allowed(logits, std::min(candidates(vocab_size), count));
  if (!at) return {};
  return ids[static_cast<size_t>(*at)];
}

std::optional<int32_t> Sampler::draw_allowed(std::span<const float> logits,
                                             int64_t num_candidates) {
  if (num_candidates > 0) {
    ids_.resize(num_candidates);
    largest_.find(logits, ids_);
    logits_.clear();
    for (const int32_t id : ids_) logits_.push_back(logits[id]);
    return draw(ids_, logits_);
  }
  const float largest =
      cpu::vector_ops().largest(logits.data(), static_cast<int64_t>(logits.size()));
  if (!std::isfinite(largest)) return {};
  return static_cast<int32_t>(pick(logits, largest));
}

namespace {

class ModelLogits final : public LogitsSource {
 public:
  explicit ModelLogits(Model& model) : model_(model) {}
  Result<std::span<const float>> logits(int64_t first, int64_t count) override {
    return model_.logits(first, count);
  }
  Result<Model::TopKLogits> top_k_logits(int64_t first, int64_t count, int64_t k) override {
    return model_.top_k_logits(first, count, k);
  }

 private:
  Model& model_;
};

}  // namespace

Status draw(Model& model, int64_t first, std::span<Sampler> samplers, std::span<int32_t> ids) {
  ModelLogits source(model);
  return draw(model, source, first, samplers, ids);
}

Status draw(Model& model, LogitsSource& source, int64_t first, std::span<Sampler> samplers,
            std::span<int32_t> ids) {
  const auto count = static_cast<int64_t>(samplers.size());
  int64_t k = 1;
  bool all = false;  // all logits are needed
  for (const Sampler& sampler : samplers) {
    const int64_t needs = sampler.candidates(model.vocab_size());
    all = all || needs == 0 || needs > Model::kMaxTopK;
    k = std::max(k, needs);
  }
  Device& device = ModelAccess::state(model).workspace->device();
  const DeviceLock lock = device.lock();  // until the logits have been read
  if (all) {
    ThreadPool& threads = kernel_device(device).host_threads();
    MORACLE_TRY(const std::span<const float> logits, source.logits(first, count));
    const size_t vocab = logits.size() / samplers.size();
    threads.split(count, [&](int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; ++s)
        ids[s] = samplers[s].draw(logits.subspan(s * vocab, vocab)).value_or(kNothingDrawn);
    });
    return {};
  }
  MORACLE_TRY(const Model::TopKLogits largest, source.top_k_logits(first, count, k));
  std::vector<int64_t> again;  // rows with excluded ids among the largest logits
  for (int64_t s = 0; s < count; ++s) {
    const auto needs = static_cast<size_t>(samplers[s].candidates(model.vocab_size()));
    const std::span<const int32_t> candidates = largest.ids.subspan(s * k, needs);
    if (samplers[s].has_excluded(candidates)) {
      again.push_back(s);
      continue;
    }
    ids[s] =
        samplers[s].draw(candidates, largest.logits.subspan(s * k, needs)).value_or(kNothingDrawn);
  }
  for (const int64_t s : again) {
    MORACLE_TRY(const std::span<const float> logits, source.logits(first + s, 1));
    ids[s] = samplers[s].draw(logits).value_or(kNothingDrawn);
  }
  return {};
}

}  // namespace moracle

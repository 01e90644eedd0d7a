// Checks that a tiny model on several ranks matches one process.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/golden_model.h"
#include "models/logit_bounds.h"
#include "moracle/moracle.h"
#include "support/model_words.h"

namespace moracle::testing {

inline ModelOptions options_on(const std::shared_ptr<Group>& group, bool deterministic,
                               Placement placement) {
  ModelOptions options;
  options.threads = 1;
  options.deterministic = deterministic;
  if (group == nullptr) return options;
  options.group = group;
  options.parallel.ep_size = group->size();
  options.parallel.ep_rank = group->rank();
  options.parallel.placement = placement;
  return options;
}

struct Given {
  std::vector<float> logits;  // of all positions
  std::vector<int32_t> greedy, drawn;
  std::vector<Choice> choices;
};

inline Result<Given> run_model(const std::string& name, const ModelOptions& options,
                               const std::vector<int32_t>& ids) {
  MORACLE_TRY(const Checkpoint checkpoint, Checkpoint::open(golden_folder(name)));
  MORACLE_TRY(Model model, Model::load(checkpoint, options));
  Given given;
  given.choices = model.choices();
  MORACLE_TRY(given.logits, all_logits(model, ids));
  const std::span<const int32_t> prompt(ids.data(), ids.size() / 2);
  GenerateOptions greedy{.max_tokens = 4};
  MORACLE_TRY(Generation first, generate(model, prompt, greedy));
  given.greedy = first.ids;
  GenerateOptions drawn{.max_tokens = 4};
  drawn.sampling.temperature = 0.9f;
  drawn.sampling.seed = 7;
  MORACLE_TRY(Generation second, generate(model, prompt, drawn));
  given.drawn = second.ids;
  return given;
}

/// Errors: the first difference, in words. Every rank of the group calls it.
/// Weights that are quantized while loading are only compared bit for bit: where activations are
/// quantized, another order of additions may change a code.
inline Status check_on_ranks(const std::string& name, const std::shared_ptr<Group>& group,
                             Placement placement, const std::string& quantization = "") {
  const auto wrong = [&](std::string fact) {
    return Error{ErrorKind::kUnsupported, "", str(name, " on ", group->size(), " ranks"),
                 "what one process gives", std::move(fact)};
  };
  const std::vector<int32_t> ids = golden_reference(name).ids;
  for (const bool deterministic : {true, false}) {
    if (!deterministic && !quantization.empty()) break;
    ModelOptions alone = options_on(nullptr, deterministic, placement),
                 ranks = options_on(group, deterministic, placement);
    alone.quantization = ranks.quantization = testing::quantization(quantization);
    MORACLE_TRY(const Given want, run_model(name, alone, ids));
    MORACLE_TRY(const Given got, run_model(name, ranks, ids));
    const double difference = relative_difference(got.logits, want.logits);
    if (deterministic && (got.logits.size() != want.logits.size() ||
                          std::memcmp(got.logits.data(), want.logits.data(),
                                      want.logits.size() * sizeof(float)) != 0))
      return wrong(str("deterministic logits differ by ", difference));
    if (!(difference < logit_bound(got.choices, want.choices)))
      return wrong(str("logits differ by ", difference));
    if (deterministic && (got.greedy != want.greedy || got.drawn != want.drawn))
      return wrong("other tokens");
    // Every rank has the same bits.
    const uint64_t own = checksum(std::as_bytes(std::span(got.logits)));
    std::vector<uint64_t> all(group->size());
    MORACLE_CHECK(group->all_gather(std::as_bytes(std::span(&own, 1)),
                                    std::as_writable_bytes(std::span(all))));
    for (const uint64_t other : all)
      if (other != own) return wrong("the ranks have different logits");
  }
  return {};
}

}  // namespace moracle::testing

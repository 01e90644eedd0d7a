// Checks that a tiny model on ranks with their own sequences matches one process.
#pragma once

#include <functional>

#include "model_on_ranks.h"
#include "support/model_words.h"

namespace moracle::testing {

/// The sequences of a rank: other tokens and another number of them on each; rank 1 has none.
inline std::vector<std::vector<int32_t>> sequences_of(int64_t rank,
                                                      const std::vector<int32_t>& ids) {
  std::vector<std::vector<int32_t>> sequences;
  const int64_t count = rank == 0 ? 2 : (rank + 1) % 3 == 2 ? 0 : rank;
  for (int64_t s = 0; s < count; ++s) {
    std::vector<int32_t> sequence(ids.begin() + s, ids.end() - rank % 3);
    std::rotate(sequence.begin(), sequence.begin() + rank + s, sequence.end());
    sequences.push_back(std::move(sequence));
  }
  return sequences;
}

struct GivenSequences {
  std::vector<std::vector<float>> logits;  // of all positions of each
  std::vector<std::vector<int32_t>> drawn;
  double nll = 0;
  std::vector<Choice> choices;
};

/// All sequences of a rank side by side, the second half of each token by token; then one by one.
inline Result<GivenSequences> run_sequences(const std::string& name, const ModelOptions& options,
                                            const std::vector<std::vector<int32_t>>& sequences,
                                            const std::vector<int32_t>& text) {
  MORACLE_TRY(const Checkpoint checkpoint, Checkpoint::open(golden_folder(name)));
  MORACLE_TRY(Model model, Model::load(checkpoint, options));
  GivenSequences given;
  given.choices = model.choices();
  given.logits.resize(sequences.size());
  std::vector<KvCache> caches;
  size_t longest = 0;
  for (const std::vector<int32_t>& ids : sequences) {
    MORACLE_TRY(KvCache cache, model.make_cache(static_cast<int64_t>(ids.size())));
    caches.push_back(std::move(cache));
    longest = std::max(longest, ids.size());
  }
  const size_t half = longest / 2;
  for (size_t done = 0, count = half; done < longest; done += count, count = 1) {
    std::vector<Model::Step> steps;
    std::vector<size_t> of;
    for (size_t s = 0; s < sequences.size(); ++s) {
      if (done >= sequences[s].size()) continue;
      const std::span<const int32_t> ids = sequences[s];
      steps.push_back({ids.subspan(done, std::min(count, ids.size() - done)), &caches[s]});
      of.push_back(s);
    }
    if (steps.empty()) break;
    MORACLE_CHECK(model.forward(steps));
    int64_t first = 0;
    for (size_t i = 0; i < steps.size(); ++i) {
      const auto rows = static_cast<int64_t>(steps[i].tokens.size());
      MORACLE_TRY(const std::span<const float> logits, model.logits(first, rows));
      std::vector<float>& all = given.logits[of[i]];
      all.insert(all.end(), logits.begin(), logits.end());
      first += rows;
    }
  }
  for (const std::vector<int32_t>& ids : sequences) {
    GenerateOptions options_of{.max_tokens = 4};
    options_of.sampling.temperature = 0.9f;
    options_of.sampling.seed = 7;
    MORACLE_TRY(const Generation drawn, generate(model, std::span(ids).first(5), options_of));
    given.drawn.push_back(drawn.ids);
  }
  MORACLE_CHECK(model.rest());
  MORACLE_TRY(const Perplexity scored, perplexity(model, text, 5));
  given.nll = scored.nll;
  return given;
}

/// Errors: the first difference, in words. Every rank of the group calls it.
inline Status check_dispatched(const std::string& name, const std::shared_ptr<Group>& group,
                               Placement placement, const std::string& quantization = "",
                               const std::function<void(ModelOptions&)>& change = {}) {
  const auto wrong = [&](std::string fact) {
    return Error{ErrorKind::kUnsupported, "", str(name, " on ", group->size(), " ranks"),
                 "what one process gives", std::move(fact)};
  };
  const std::vector<int32_t> ids = golden_reference(name).ids;
  const auto sequences = sequences_of(group->rank(), ids);
  for (const bool deterministic : {true, false}) {
    if (!deterministic && !quantization.empty()) break;
    ModelOptions alone = options_on(nullptr, deterministic, placement),
                 ranks = options_on(group, deterministic, placement);
    alone.quantization = ranks.quantization = testing::quantization(quantization);
    ranks.spread = Spread::kDispatched;
    if (change) change(ranks);
    MORACLE_TRY(const GivenSequences want, run_sequences(name, alone, sequences, ids));
    MORACLE_TRY(const GivenSequences got, run_sequences(name, ranks, sequences, ids));
    const double bound = logit_bound(got.choices, want.choices);
    for (size_t s = 0; s < sequences.size(); ++s) {
      const std::vector<float>&a = got.logits[s], &b = want.logits[s];
      const double difference = relative_difference(a, b);
      if (!(difference < bound)) return wrong(str("logits differ by ", difference));
      if (!deterministic) continue;
      if (a.size() != b.size() || std::memcmp(a.data(), b.data(), b.size() * sizeof(float)) != 0)
        return wrong(str("deterministic logits differ by ", difference));
      if (got.drawn[s] != want.drawn[s]) return wrong("other tokens");
    }
    // Half the bound of logits of size 1: errors of some twenty tokens cancel in part.
    if (deterministic ? got.nll != want.nll : !(std::abs(got.nll - want.nll) < bound / 2))
      return wrong(str("the perplexity's nll is ", got.nll, ", not ", want.nll));
  }
  return {};
}

}  // namespace moracle::testing

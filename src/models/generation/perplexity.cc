#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/out_of_memory.h"
#include "base/text.h"
#include "base/try.h"
#include "models/decoder/model_state.h"

namespace moracle {
namespace {

// Returns -log softmax(logits)[id], in double. NaN if the logits give no probabilities: one is NaN
// or positive infinity, or all are negative infinity.
double negative_log_likelihood(std::span<const float> logits, int32_t id) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum) - logits[id];
}

// Scores the tokens of one window except its first. Holds the device, so that no other thread's
// step comes between.
Result<double> score(Model& model, std::span<const int32_t> window, KvCache& cache,
                     int32_t adapter) {
  const DeviceLock lock = ModelAccess::state(model).workspace->device().lock();
  MORACLE_CHECK(cache.truncate(0));
  double total = 0;
  const auto size = static_cast<int64_t>(window.size());
  for (int64_t done = 0, count = 0; done < size; done += count) {
    count = std::min(model.max_num_tokens(), size - done);
    const Model::Step step{window.subspan(done, count), &cache, adapter};
    MORACLE_CHECK(model.forward({&step, 1}));
    // The logits of position p score the token at p + 1; those of the last position score nothing.
    const int64_t scored = std::min(count, size - 1 - done);
    for (int64_t first = 0, rows = 0; first < scored; first += rows) {
      rows = std::min(Model::kMaxLogitRows, scored - first);
      MORACLE_TRY(const std::span<const float> logits, model.logits(first, rows));
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t position = done + first + r;
        const double nll = negative_log_likelihood(
            logits.subspan(r * model.vocab_size(), model.vocab_size()), window[position + 1]);
        if (std::isnan(nll))
          return explain_non_finite(model, window.first(position + 1), cache, adapter);
        total += nll;
      }
    }
  }
  return total;
}

// Window w is scored by rank w mod ranks. Each rank gets all scores.
Status share_scores(Model& model, std::vector<double>& scores) {
  MORACLE_CHECK(model.rest());
  Group& group = *model.group();
  std::vector<double> all(scores.size() * group.size());
  MORACLE_CHECK(
      group.all_gather(std::as_bytes(std::span(scores)), std::as_writable_bytes(std::span(all))));
  for (size_t w = 0; w < scores.size(); ++w) scores[w] = all[w % group.size() * scores.size() + w];
  return {};
}

Result<Perplexity> run(Model& model, std::span<const int32_t> ids, int64_t window,
                       const Progress& progress, int32_t adapter) {
  if (window < 2 || window > model.max_context()) {
    return Error{ErrorKind::kInvalidArgument, "", "window",
                 str("2 to ", model.max_context(), " tokens (the model's context)"),
                 str("it is ", window)};
  }
  const auto size = static_cast<int64_t>(ids.size());
  if (size < 2) {
    return Error{ErrorKind::kInvalidArgument, "", "text", "at least 2 tokens",
                 str("it has ", size)};
  }
  MORACLE_TRY(KvCache cache, model.make_cache(std::min(window, size)));
  const bool shares = ModelAccess::state(model).dispatch != nullptr;
  const int64_t ranks = shares ? model.group()->size() : 1,
                rank = shares ? model.group()->rank() : 0;
  std::vector<double> scores;  // of each window
  Perplexity result;
  for (int64_t first = 0; size - first >= 2; first += window) {
    const int64_t count = std::min(window, size - first);
    result.scored_tokens += count - 1;
    scores.push_back(0);
    if (static_cast<int64_t>(scores.size() - 1) % ranks != rank) continue;
    MORACLE_TRY(scores.back(), score(model, ids.subspan(first, count), cache, adapter));
    if (progress && !progress(first + count, size)) {
      return Error{ErrorKind::kCancelled, "", "perplexity", "", "stopped on request"};
    }
  }
  if (shares) MORACLE_CHECK(share_scores(model, scores));
  const double total = std::accumulate(scores.begin(), scores.end(), 0.0);
  result.nll = total / static_cast<double>(result.scored_tokens);
  result.perplexity = std::exp(result.nll);
  return result;
}

}  // namespace

Result<Perplexity> perplexity(Model& model, std::span<const int32_t> ids, int64_t window,
                              const Progress& progress, int32_t adapter) {
  return or_out_of_memory("perplexity", [&] { return run(model, ids, window, progress, adapter); });
}

}  // namespace moracle

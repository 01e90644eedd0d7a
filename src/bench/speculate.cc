#include "bench/speculate.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "base/try.h"
#include "models/decoder/model_state.h"
#include "models/speculation/draft_control.h"

namespace moracle::bench {
namespace speculate_file {
namespace {

class Speculating {
 public:
  Speculating(Model& model, std::vector<KvCache>& caches, const SpeculateOptions& options,
              double seconds)
      : model_(model),
        caches_(caches),
        options_(options),
        seconds_(seconds),
        replays_(ModelAccess::is_recurrent(model)),
        ids_(0, static_cast<int32_t>(model.vocab_size()) - 1) {}

  Result<Speculated> run() {
    Speculated all{.options = options_};
    MORACLE_TRY(all.us_plain, median_step(1, 1));
    MORACLE_TRY(all.us_verify, median_step(1, 1 + options_.drafts));
    MORACLE_TRY(all.us_batch, median_step(1 + options_.drafts, 1));
    MORACLE_TRY(all.us_fixed, text(caches_[0], false, all));
    MORACLE_TRY(all.us_adaptive, text(caches_[1], true, all));
    return all;
  }

 private:
  // Time of one step of random tokens in microseconds. Draws what follows the last rows.
  Result<double> step(std::span<KvCache> caches, int64_t tokens) {
    const auto all = static_cast<int64_t>(caches.size()) * tokens;
    std::vector<int32_t> ids(static_cast<size_t>(all));
    for (int32_t& id : ids) id = ids_(engine_);
    std::vector<Model::Step> steps;
    for (KvCache& cache : caches)
      steps.push_back({std::span(ids).subspan(steps.size() * tokens, tokens), &cache});
    const auto start = std::chrono::steady_clock::now();
    MORACLE_CHECK(model_.forward(steps));
    const int64_t rows = std::min(all, 1 + options_.drafts);
    MORACLE_TRY(const Model::TopKLogits drawn, model_.top_k_logits(all - rows, rows, 1));
    static_cast<void>(drawn);
    const auto end = std::chrono::steady_clock::now();
    return std::chrono::duration<double, std::micro>(end - start).count();
  }

  Result<double> median_step(int64_t sequences, int64_t tokens) {
    const std::span<KvCache> caches = std::span(caches_).first(sequences);
    const int64_t context = caches[0].length();
    std::vector<double> us;
    double spent = 0;
    for (int n = 0; n < 4 || spent < seconds_ * 1e6; ++n) {
      MORACLE_TRY(const double one, step(caches, tokens));
      for (KvCache& cache : caches) MORACLE_CHECK(cache.truncate(context));
      if (n == 0) continue;  // touches memory for the first time
      us.push_back(one);
      spent += one;
    }
    const auto middle = us.begin() + static_cast<ptrdiff_t>(us.size() / 2);
    std::nth_element(us.begin(), middle, us.end());
    return *middle;
  }

  // A text whose drafts are accepted as forced. Returns the time per token.
  Result<double> text(KvCache& cache, bool adaptive, Speculated& all) {
    StepCosts costs;
    DraftControl control;
    std::uniform_real_distribution<double> uniform;
    int64_t known = 1;  // tokens of the text that are not in the cache
    double spent = 0;
    all.tokens = all.last_draft = 0;
    while (cache.length() + known + options_.drafts < cache.capacity()) {
      int64_t drafts = known > Speculation::kMaxDrafts ? 0 : options_.drafts;
      if (adaptive) {
        drafts =
            control.wanted(costs, {.tokens = known, .known = known, .replays = replays_}, drafts);
      }
      const int64_t before = cache.length(), tokens = known + drafts;
      MORACLE_TRY(const double us, step({&cache, 1}, tokens));
      int64_t accepted = 0;
      while (accepted < drafts && uniform(engine_) < options_.acceptance) ++accepted;
      const bool again = accepted < drafts && replays_;
      if (accepted < drafts)
        MORACLE_CHECK(cache.truncate(again ? before : before + known + accepted));
      known = again ? known + accepted + 1 : 1;
      all.tokens += 1 + accepted;
      spent += us;
      if (drafts > 0) all.last_draft = all.tokens;
      costs.measured(tokens, us * 1e-6);
      control.stepped(drafts, accepted, costs.seconds(tokens) / costs.seconds(1) - 1);
    }
    return spent / static_cast<double>(all.tokens);
  }

  Model& model_;
  std::vector<KvCache>& caches_;
  const SpeculateOptions& options_;
  const double seconds_;
  const bool replays_;
  std::mt19937_64 engine_{1};
  std::uniform_int_distribution<int32_t> ids_;
};

}  // namespace
}  // namespace speculate_file

Result<Speculated> speculate(Model& model, std::vector<KvCache>& caches,
                             const SpeculateOptions& options, double seconds) {
  return speculate_file::Speculating(model, caches, options, seconds).run();
}

}  // namespace moracle::bench

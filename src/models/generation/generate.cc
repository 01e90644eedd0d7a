#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "base/out_of_memory.h"
#include "base/text.h"
#include "base/try.h"
#include "models/decoder/model_state.h"
#include "models/generation/logit_edits.h"
#include "models/generation/sampler.h"

namespace moracle {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Status check_generation(const Model& model, std::span<const int32_t> prompt,
                        const GenerateOptions& options) {
  MORACLE_CHECK(check(options.sampling));
  MORACLE_CHECK(check(options.edits));
  const auto prompt_size = static_cast<int64_t>(prompt.size());
  if (prompt.empty()) {
    return Error{ErrorKind::kInvalidArgument, "", "prompt", "at least one token", "it is empty"};
  }
  const std::vector<int32_t>& excluded = options.sampling.excluded_ids;
  for (const int32_t id : prompt) {
    if (!std::binary_search(excluded.begin(), excluded.end(), id)) continue;
    return Error{ErrorKind::kInvalidArgument, "", "prompt", "ids that are not excluded",
                 str("it has ", id)};
  }
  if (prompt_size >= model.max_context()) {
    return Error{ErrorKind::kInvalidArgument, "", "prompt",
                 str("fewer tokens than the model's context of ", model.max_context()),
                 str("it has ", prompt_size)};
  }
  if (options.kept && prompt_size > options.kept->cache.capacity()) {
    return Error{ErrorKind::kInvalidArgument, "", "prompt",
                 str("at most the ", options.kept->cache.capacity(),
                     " tokens that the kept sequence has space for"),
                 str("it has ", prompt_size)};
  }
  if (options.max_tokens < 1) {
    return Error{ErrorKind::kInvalidArgument, "", "max_tokens", "at least 1",
                 str("it is ", options.max_tokens)};
  }
  return {};
}

// Leaves in the sequence what it shares with the prompt, and returns the number of these tokens.
// The prompt's last token is computed again for its logits.
Result<int64_t> keep_beginning(KeptSequence& kept, std::span<const int32_t> prompt) {
  if (static_cast<int64_t>(kept.ids.size()) != kept.cache.length()) {
    return Error{ErrorKind::kInvalidArgument, "", "kept sequence",
                 str("the ids of the ", kept.cache.length(), " tokens in its cache"),
                 str("it has ", kept.ids.size())};
  }
  const std::span<const int32_t> before_last = prompt.first(prompt.size() - 1);
  const auto end =
      std::mismatch(kept.ids.begin(), kept.ids.end(), before_last.begin(), before_last.end());
  int64_t shared = end.first - kept.ids.begin();
  if (!kept.cache.truncate(shared)) {  // recurrent layers keep the state of few lengths
    shared = 0;
    MORACLE_CHECK(kept.cache.truncate(shared));
  }
  kept.ids.resize(static_cast<size_t>(shared));
  return shared;
}

// One sequence during generation.
class Continuation {
 public:
  Continuation(Model& model, KeptSequence& sequence, std::span<const int32_t> prompt,
               const GenerateOptions& options)
      : model_(model),
        cache_(sequence.cache),
        sampler_(options.sampling),
        editor_(options.edits, prompt, options.stop_ids),
        adapter_(options.adapter),
        run_(sequence.ids) {}

  bool is_full() const { return cache_.length() == cache_.capacity(); }

  /// Runs the next part of a prompt.
  Status run(std::span<const int32_t> tokens) {
    const Model::Step step{tokens, &cache_, adapter_};
    MORACLE_CHECK(model_.forward({&step, 1}));
    run_.insert(run_.end(), tokens.begin(), tokens.end());
    return {};
  }
  /// Appends a drawn token.
  void take(int32_t id) { editor_.add(id); }
  /// Returns the token that follows `tokens`, or kNothingDrawn; without `draws` only runs them.
  /// Holds the device, so that no other thread's step comes between.
  Result<int32_t> next(std::span<const int32_t> tokens, bool draws) {
    const DeviceLock lock = ModelAccess::state(model_).workspace->device().lock();
    MORACLE_CHECK(run(tokens));
    int32_t id = kNothingDrawn;
    const auto last = static_cast<int64_t>(tokens.size()) - 1;
    if (!draws) return id;
    if (editor_.changes_nothing()) {
      MORACLE_CHECK(draw(model_, last, {&sampler_, 1}, {&id, 1}));
      return id;
    }
    MORACLE_TRY(const std::span<const float> logits, model_.logits(last, 1));
    const auto is_finite = [](float logit) { return std::isfinite(logit); };
    were_finite_ = std::all_of(logits.begin(), logits.end(), is_finite);
    edited_.assign(logits.begin(), logits.end());
    if (were_finite_) editor_.apply(edited_);
    return sampler_.draw(edited_).value_or(kNothingDrawn);
  }
  /// The error for a draw without a result.
  Error explain_nothing() {
    if (were_finite_) {
      return Error{ErrorKind::kInvalidArgument, "", "suppress_tokens",
                   "at least one token that may follow",
                   str("this list, bad_words_ids, no_repeat_ngram_size and min_tokens forbid all "
                       "tokens at position ",
                       run_.size())};
    }
    const DeviceLock lock = model_.device().lock();
    return explain_non_finite(model_, run_, cache_, adapter_);
  }

 private:
  Model& model_;
  KvCache& cache_;
  Sampler sampler_;
  LogitEditor editor_;
  std::vector<float> edited_;
  bool were_finite_ = false;  // all logits, before edits
  const int32_t adapter_;
  std::vector<int32_t>& run_;  // all tokens so far
};

// Rank 0's decision after a token, for all ranks.
enum class End : int32_t { kNo, kEos, kLength, kCancelled };
struct Decision {
  int32_t id = kNothingDrawn;
  End end = End::kNo;
};
constexpr const char* kReasons[] = {"", "eos", "length", "cancelled"};

// Only rank 0 draws: ranks whose logits differ in bits must generate the same tokens.
Status follow_rank_0(Model& model, Decision& decision) {
  if (model.group() == nullptr || ModelAccess::state(model).dispatch) return {};
  return model.group()->broadcast(std::as_writable_bytes(std::span(&decision, 1)), 0);
}

Result<Generation> run(Model& model, std::span<const int32_t> prompt,
                       const GenerateOptions& options) {
  MORACLE_CHECK(check_generation(model, prompt, options));
  const auto prompt_size = static_cast<int64_t>(prompt.size());
  const int64_t capacity =
      prompt_size + std::min(model.max_context() - prompt_size, options.max_tokens);
  std::optional<KeptSequence> own;
  if (!options.kept) {
    MORACLE_TRY(KvCache cache, model.make_cache(capacity));
    own.emplace(KeptSequence{std::move(cache)});
  }
  KeptSequence& kept = own ? *own : *options.kept;
  Generation generation;
  MORACLE_TRY(generation.reused_tokens, keep_beginning(kept, prompt));
  Continuation sequence(model, kept, prompt, options);
  const bool decides =
      model.group() == nullptr || model.group()->rank() == 0 || ModelAccess::state(model).dispatch;
  // Logits of a divided output need every rank.
  const bool draws = decides || ModelAccess::state(model).output_shares.size > 1;

  auto start = std::chrono::steady_clock::now();
  Decision now;
  for (int64_t done = generation.reused_tokens; done < prompt_size;) {
    const int64_t count = std::min(model.max_num_tokens(), prompt_size - done);
    const std::span<const int32_t> chunk = prompt.subspan(done, count);
    done += count;
    if (done < prompt_size) {
      MORACLE_CHECK(sequence.run(chunk));
    } else {
      MORACLE_TRY(now.id, sequence.next(chunk, draws));
    }
    if (options.on_prompt && !options.on_prompt(done, prompt_size)) {
      generation.stop_reason = "cancelled";
      return generation;
    }
  }
  generation.prompt_seconds = seconds_since(start);

  start = std::chrono::steady_clock::now();
  std::vector<int32_t>& ids = generation.ids;
  // After the token `id`, which is part of `ids`.
  const auto end_after = [&](int32_t id) {
    const bool is_stop =
        std::find(options.stop_ids.begin(), options.stop_ids.end(), id) != options.stop_ids.end();
    const bool goes_on = !options.on_token || options.on_token(id);
    if (is_stop) return End::kEos;
    if (!goes_on) return End::kCancelled;
    const bool full = sequence.is_full();  // the end of the context
    return full || static_cast<int64_t>(ids.size()) >= options.max_tokens ? End::kLength : End::kNo;
  };
  for (;;) {
    if (decides && now.id != kNothingDrawn) {
      ids.push_back(now.id);
      now.end = end_after(now.id);
    }
    MORACLE_CHECK(follow_rank_0(model, now));
    if (now.id == kNothingDrawn) return sequence.explain_nothing();
    if (!decides) {
      ids.push_back(now.id);
      if (options.on_token) (void)options.on_token(now.id);
    }
    if (now.end != End::kNo) break;
    sequence.take(now.id);
    MORACLE_TRY(now.id, sequence.next({&ids.back(), 1}, draws));
  }
  generation.stop_reason = kReasons[static_cast<int>(now.end)];
  generation.generation_seconds = seconds_since(start);
  return generation;
}

}  // namespace

Result<Generation> generate(Model& model, std::span<const int32_t> prompt,
                            const GenerateOptions& options) {
  return or_out_of_memory("generation", [&] { return run(model, prompt, options); });
}

}  // namespace moracle

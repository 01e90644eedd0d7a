#include <algorithm>
#include <array>
#include <chrono>
#include <optional>

#include "base/out_of_memory.h"
#include "base/text.h"
#include "base/try.h"
#include "models/decoder/model_state.h"
#include "models/generation/continuation.h"
#include "models/state/sequence_file.h"

namespace moracle {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Status check_generation(const Model& model, std::span<const int32_t> prompt,
                        const GenerateOptions& options) {
  MORACLE_CHECK(check(options.sampling));
  MORACLE_CHECK(check(options.edits));
  MORACLE_CHECK(check(options.speculation));
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

// Rank 0's decision after a step, for all ranks.
enum class End : int32_t { kNo, kEos, kLength, kCancelled };
struct Decision {
  int32_t num_ids = 0, num_drafts = 0;  // drafts for the next step
  End end = End::kNo;
  bool fails = false;  // nothing may follow the ids
  std::array<int32_t, Speculation::kMaxDrafts + 1> ids{};
  std::array<int32_t, Speculation::kMaxDrafts> drafts{};

  void set_ids(std::span<const int32_t> from) {
    num_ids = static_cast<int32_t>(from.size());
    std::copy(from.begin(), from.end(), ids.begin());
  }
  void set_drafts(std::span<const int32_t> from) {
    num_drafts = static_cast<int32_t>(from.size());
    std::copy(from.begin(), from.end(), drafts.begin());
  }
  std::span<const int32_t> taken() const { return std::span(ids).first(num_ids); }
  std::span<const int32_t> next_drafts() const { return std::span(drafts).first(num_drafts); }
};
constexpr const char* kReasons[] = {"", "eos", "length", "cancelled"};

// Only rank 0 draws and drafts: ranks whose logits differ in bits must generate the same tokens.
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
  MORACLE_CHECK(sequence.begin());
  const bool decides =
      model.group() == nullptr || model.group()->rank() == 0 || ModelAccess::state(model).dispatch;
  // Logits of a divided output need every rank.
  const bool reads = decides || ModelAccess::state(model).output_shares.size > 1;

  auto start = std::chrono::steady_clock::now();
  std::vector<int32_t> drawn;
  for (int64_t done = generation.reused_tokens; done < prompt_size;) {
    const int64_t count = std::min(model.max_num_tokens(), prompt_size - done);
    const std::span<const int32_t> chunk = prompt.subspan(done, count);
    done += count;
    if (done < prompt_size) {
      MORACLE_CHECK(sequence.run_prompt(chunk));
    } else {
      MORACLE_TRY(drawn, sequence.next(chunk, {}, decides, reads));
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
    const auto generated = static_cast<int64_t>(ids.size());
    const bool full = sequence.is_full(generated);  // the end of the context
    return full || generated >= options.max_tokens ? End::kLength : End::kNo;
  };
  Decision now;
  for (;;) {
    if (decides) {
      now.fails = drawn.back() == kNothingDrawn;
      if (now.fails) drawn.pop_back();
      const size_t before = ids.size();
      now.end = End::kNo;
      for (size_t i = 0; i < drawn.size() && now.end == End::kNo; ++i) {
        ids.push_back(drawn[i]);
        now.end = end_after(drawn[i]);
      }
      now.set_ids(std::span(ids).subspan(before));
      now.fails = now.fails && now.end == End::kNo;
      if (!now.fails) MORACLE_CHECK(sequence.take(now.taken()));
      const int64_t left = options.max_tokens - static_cast<int64_t>(ids.size());
      if (!now.fails && now.end == End::kNo) {
        MORACLE_TRY(const std::vector<int32_t> drafts, sequence.drafts(left));
        now.set_drafts(drafts);
      }
    }
    MORACLE_CHECK(follow_rank_0(model, now));
    if (now.fails) return sequence.explain_nothing(now.taken());
    if (!decides) {
      for (const int32_t id : now.taken()) {
        ids.push_back(id);
        if (options.on_token) (void)options.on_token(id);
      }
      MORACLE_CHECK(sequence.take(now.taken()));
    }
    if (now.end != End::kNo) break;
    MORACLE_TRY(drawn, sequence.next(sequence.waiting(), now.next_drafts(), decides, reads));
  }
  generation.stop_reason = kReasons[static_cast<int>(now.end)];
  generation.generation_seconds = seconds_since(start);
  generation.speculation = sequence.counts();
  return generation;
}

}  // namespace

Result<Generation> generate(Model& model, std::span<const int32_t> prompt,
                            const GenerateOptions& options) {
  return or_out_of_memory("generation", [&] { return run(model, prompt, options); });
}

}  // namespace moracle

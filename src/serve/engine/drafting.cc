// Speculative decoding in the engine: drafts before a step, and what they gained after it.
#include <algorithm>

#include "base/try.h"
#include "models/decoder/model_state.h"
#include "serve/engine/engine.h"

namespace moracle::serve {

void Engine::request_drafts() {
  if (speculation_.drafter == Drafter::kNone) return;
  const int64_t sequences = scheduler_.num_decoding();
  for (auto& [id, sequence] : sequences_) {
    if (!scheduler_.decodes(id)) continue;
    sequence.drafts.clear();
    const auto text = static_cast<int64_t>(sequence.tokens.size());
    const int64_t known = scheduler_.known_tokens(id);
    const int64_t capacity =
        std::min(sequence.prompt_size() + sequence.job.max_tokens, model_.max_context());
    int64_t most =
        std::min({speculation_.max_drafts, sequence.job.max_tokens - sequence.num_new() - 1,
                  capacity - text, ModelAccess::most_drafts(model_, text)});
    // A step without drafts ends the replays of a recurrent state.
    if (known > Speculation::kMaxDrafts) most = 0;
    if (speculation_.adaptive) {
      most = sequence.drafting.wanted(costs_,
                                      {.tokens = sequences + known - 1,
                                       .sequences = sequences,
                                       .known = known,
                                       .replays = leader_.is_recurrent()},
                                      most);
    }
    if (most > 0) {
      sequence.ngrams.follow(sequence.tokens);
      sequence.ngrams.draft(most, sequence.drafts);
    }
    scheduler_.request_drafts(id, static_cast<int64_t>(sequence.drafts.size()));
  }
}

Engine::DecodeLoad Engine::decode_load(const StepPlan& plan) {
  DecodeLoad load;
  for (const Chunk& chunk : plan.chunks) {
    const auto at = sequences_.find(chunk.id);
    if (at == sequences_.end()) continue;
    at->second.decoded = scheduler_.decodes(chunk.id);
    if (!at->second.decoded) {
      load.is_all = false;
      continue;
    }
    ++load.sequences;
    load.tokens += chunk.num_rows();
  }
  return load;
}

// Rejected drafts leave the KV cache. Recurrent layers go back to the state from before the step,
// whose tokens the next step computes again.
Status Engine::settle_drafts(std::span<const Chunk> chunks) {
  for (const Chunk& chunk : chunks) {
    const auto at = sequences_.find(chunk.id);
    if (chunk.drafts == 0 || at == sequences_.end()) continue;
    const bool rejects = at->second.accepted < chunk.drafts;
    const int64_t length = rejects && leader_.is_recurrent()
                               ? chunk.first
                               : chunk.first + chunk.count + at->second.accepted;
    if (rejects) MORACLE_CHECK(leader_.truncate(chunk.id, length));
    scheduler_.settle_drafts(chunk.id, length);
  }
  return {};
}

// Charges each sequence the time of its drafts and of the tokens that it computed again, by the
// measured times of decode steps.
void Engine::note_drafts(const StepPlan& plan, const DecodeLoad& load, double seconds) {
  if (speculation_.drafter == Drafter::kNone || load.sequences == 0) return;
  if (load.is_all) costs_.measured(load.tokens, seconds);
  const double plain = costs_.seconds(load.sequences);
  if (!(plain > 0)) return;
  const double per_token = plain / static_cast<double>(load.sequences);
  const int64_t all_extra = load.tokens - load.sequences;
  const double extra = all_extra > 0 ? (costs_.seconds(load.tokens) - plain) / per_token /
                                           static_cast<double>(all_extra)
                                     : 0;
  int64_t drafted = 0, accepted = 0;
  for (const Chunk& chunk : plan.chunks) {
    drafted += chunk.drafts;
    const auto at = sequences_.find(chunk.id);
    if (at == sequences_.end() || !at->second.decoded) continue;
    Sequence& sequence = at->second;
    const int64_t taken = chunk.drafts > 0 ? sequence.accepted : 0;
    accepted += taken;
    const int64_t own = std::min(chunk.num_rows() - 1, all_extra);
    sequence.drafting.stepped(chunk.drafts, taken, extra * static_cast<double>(own));
  }
  if (all_extra > 0) {
    metrics_.drafts(
        drafted, accepted,
        static_cast<double>(accepted) * per_token - (costs_.seconds(load.tokens) - plain));
  }
}

}  // namespace moracle::serve

// Speculative decoding in the engine: drafts before a step, and what they gained after it.
#include <algorithm>

#include "base/try.h"
#include "models/decoder/model_state.h"
#include "models/speculation/next_tokens.h"
#include "serve/engine/engine.h"

namespace moracle::serve {

// The largest number of drafts that a sequence may use, and that gains.
int64_t Engine::wanted_drafts(SequenceId id, const Sequence& sequence, int64_t sequences) const {
  const auto text = static_cast<int64_t>(sequence.tokens.size());
  const int64_t known = scheduler_.known_tokens(id);
  const int64_t capacity =
      std::min(sequence.prompt_size() + sequence.job.max_tokens, model_.max_context());
  // A step without drafts ends the replays of a recurrent state.
  if (known > Speculation::kMaxDrafts) return 0;
  const int64_t most =
      std::min({speculation_.max_drafts, sequence.job.max_tokens - sequence.num_new() - 1,
                capacity - text, ModelAccess::most_drafts(model_, text)});
  if (!speculation_.adaptive) return std::max<int64_t>(most, 0);
  return sequence.drafting.wanted(costs_,
                                  {.tokens = sequences + known - 1,
                                   .sequences = sequences,
                                   .known = known,
                                   .replays = leader_.is_recurrent()},
                                  most);
}

Status Engine::request_drafts() {
  if (speculation_.drafter == Drafter::kNone) return {};
  const int64_t sequences = scheduler_.num_decoding();
  std::map<SequenceId, int64_t> wanted;
  for (auto& [id, sequence] : sequences_) {
    sequence.drafts.clear();
    if (scheduler_.decodes(id)) wanted[id] = wanted_drafts(id, sequence, sequences);
  }
  if (speculation_.drafter == Drafter::kMtp) MORACLE_CHECK(draft_by_layer(wanted));
  for (const auto& [id, most] : wanted) {
    Sequence& sequence = sequences_.at(id);
    if (speculation_.drafter == Drafter::kNgram && most > 0) {
      sequence.ngrams.follow(sequence.tokens);
      sequence.ngrams.draft(most, sequence.drafts);
    }
    scheduler_.request_drafts(id, static_cast<int64_t>(sequence.drafts.size()));
  }
  return {};
}

// The layer for multi-token prediction reads the hidden states of the last step. It also runs over
// prompts. A sequence that wants no drafts leaves a gap, after which the layer begins anew.
Status Engine::draft_by_layer(const std::map<SequenceId, int64_t>& wanted) {
  std::vector<NextTokenRows> rows;
  std::vector<SequenceId> ids;
  for (const StepRows& last : std::exchange(last_rows_, {})) {
    const auto at = sequences_.find(last.id);
    if (at == sequences_.end()) continue;
    Sequence& sequence = at->second;
    const auto wants = wanted.find(last.id);
    const int64_t drafts = wants == wanted.end() ? 0 : wants->second;
    if (wants != wanted.end() && drafts < 1) continue;
    if (!sequence.next_cache) {
      MORACLE_TRY(
          sequence.next_cache,
          make_next_token_cache(model_, std::min(sequence.prompt_size() +
                                                     std::max<int64_t>(sequence.job.max_tokens, 1),
                                                 model_.max_context())));
    }
    if (sequence.followed < last.position) {
      MORACLE_CHECK(sequence.next_cache->truncate(0));
      sequence.followed = last.position;
    }
    const int64_t end =
        std::min(last.position + last.count, static_cast<int64_t>(sequence.tokens.size()) - 1);
    if (end <= sequence.followed) continue;
    rows.push_back(
        {&*sequence.next_cache, last.row + sequence.followed - last.position,
         std::span(sequence.tokens).subspan(sequence.followed + 1, end - sequence.followed),
         drafts});
    ids.push_back(last.id);
    sequence.followed = end;
  }
  MORACLE_TRY(std::vector<std::vector<int32_t>> drafts, draft_next_tokens(model_, rows));
  for (size_t i = 0; i < ids.size(); ++i) sequences_.at(ids[i]).drafts = std::move(drafts[i]);
  profiler_.end("drafts");
  return {};
}

// For the layer's next run.
void Engine::keep_rows(std::span<const Chunk> chunks) {
  if (speculation_.drafter != Drafter::kMtp) return;
  last_rows_.clear();
  int64_t row = 0;
  for (const Chunk& chunk : chunks) {
    last_rows_.push_back({chunk.id, chunk.first, row, chunk.num_rows()});
    row += chunk.num_rows();
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
  const double extra_seconds = all_extra > 0 ? costs_.seconds(load.tokens) - plain : 0;
  int64_t drafted = 0, accepted = 0;
  for (const Chunk& chunk : plan.chunks) {
    drafted += chunk.drafts;
    const auto at = sequences_.find(chunk.id);
    if (at == sequences_.end() || !at->second.decoded) continue;
    Sequence& sequence = at->second;
    const int64_t taken = chunk.drafts > 0 ? sequence.accepted : 0;
    accepted += taken;
    const double share =
        all_extra > 0 ? static_cast<double>(chunk.num_rows() - 1) / static_cast<double>(all_extra)
                      : 0;
    sequence.drafting.stepped(chunk.drafts, taken, extra_seconds / per_token * share);
  }
  if (all_extra > 0)
    metrics_.drafts(drafted, accepted, static_cast<double>(accepted) * per_token - extra_seconds);
}

}  // namespace moracle::serve

#include "serve/engine/ranks/leader.h"

#include "base/out_of_memory.h"
#include "base/text.h"
#include "base/try.h"
#include "models/decoder/model_state.h"

namespace moracle::serve {
namespace {

// True for a communication or device error. The group is unusable after it.
bool is_of_ranks(const Error& error) {
  return error.kind == ErrorKind::kIo && error.file.empty();
}

}  // namespace

Status Leader::start(SequenceId id, int64_t capacity, std::span<const PageId> pages) {
  if (group_) {
    orders_.put(Order::kStart);
    orders_.put(static_cast<int64_t>(id));
    orders_.put(capacity);
    orders_.put(pages);
  }
  if (sequence_ranks_ && !sequence_ranks_->start(id)) return {};
  return pages_.start(id, capacity, pages);
}

void Leader::drop(SequenceId id) {
  if (group_) {
    orders_.put(Order::kDrop);
    orders_.put(static_cast<int64_t>(id));
  }
  if (sequence_ranks_) sequence_ranks_->drop(id);
  pages_.drop(id);
}

Status Leader::truncate(SequenceId id, int64_t length) {
  if (group_) {
    orders_.put(Order::kTruncate);
    orders_.put(static_cast<int64_t>(id));
    orders_.put(length);
  }
  return pages_.truncate(id, length);
}

void Leader::adopt(const Adoption& adoption) {
  if (group_) {
    orders_.put(Order::kAdopt);
    orders_.put(static_cast<int64_t>(adoption.id));
    orders_.put(adoption.index);
    orders_.put(adoption.page);
    orders_.put(int64_t{adoption.is_new});
  }
  pages_.adopt(adoption);
}

// Applies all moves, also after an error. Returns the first error.
Status Leader::move(std::span<const CacheMove> moves) {
  Status done;
  for (const CacheMove& move : moves) {
    if (group_) {
      orders_.put(Order::kMove);
      orders_.put(static_cast<int64_t>(move.kind));
      orders_.put(move.page);
      orders_.put(static_cast<int64_t>(move.sequence));
    }
    const Status moved = or_out_of_memory("prefix cache", [&] { return pages_.move(move); });
    if (done) done = moved;
  }
  return done;
}

Status Leader::reserve_ram(int64_t slots) {
  if (group_) {
    orders_.put(Order::kReserveRam);
    orders_.put(slots);
  }
  return pages_.reserve_ram(slots);
}

Status Leader::forward(std::span<const SequenceStep> steps) {
  if (!group_) return pages_.forward(steps);
  orders_.put(Order::kForward);
  orders_.put(static_cast<int64_t>(steps.size()));
  for (const SequenceStep& step : steps) {
    orders_.put(static_cast<int64_t>(step.id));
    orders_.put(int64_t{step.adapter});
    orders_.put(step.tokens);
  }
  MORACLE_CHECK(send());
  if (sequence_ranks_) return ending(pages_.forward(sequence_ranks_->own(steps)));
  return compared(pages_.forward(steps));
}

Result<std::span<const float>> Leader::logits(int64_t first, int64_t count) {
  if (!sequence_ranks_ && !divides_logits()) return model_.logits(first, count);
  orders_.put(Order::kLogits);
  orders_.put(first);
  orders_.put(count);
  MORACLE_CHECK(send());
  if (!sequence_ranks_) return noted(model_.logits(first, count));
  MORACLE_CHECK(ending(sequence_ranks_->collect(first, count, collected_)));
  return std::span<const float>(collected_);
}

Result<Model::TopKLogits> Leader::top_k_logits(int64_t first, int64_t count, int64_t k) {
  if (!divides_logits()) return model_.top_k_logits(first, count, k);
  orders_.put(Order::kTopKLogits);
  orders_.put(first);
  orders_.put(count);
  orders_.put(k);
  MORACLE_CHECK(send());
  return noted(model_.top_k_logits(first, count, k));
}

bool Leader::divides_logits() const {
  return ModelAccess::state(model_).output_shares.size > 1;
}

Status Leader::ending(Status outcome) {
  if (!outcome && !lost_) lost_ = outcome.error();
  return outcome;
}

Status Leader::reload(const std::string& folder) {
  if (!group_) return read_weights(model_, folder);
  orders_.put(Order::kReload);
  MORACLE_CHECK(send());
  return compared(read_weights(model_, folder));
}

Result<std::shared_ptr<const LoraAdapter>> Leader::load_again(const std::string& folder,
                                                              const ModelOptions& options,
                                                              const AdapterChange& change) {
  if (!group_) return serve::load_again(model_, folder, options, change);
  orders_.put(Order::kAdapters);
  orders_.put(change.kept);
  orders_.put(change.id);
  orders_.put(change.folder);
  orders_.put(change.inside);
  MORACLE_CHECK(send());
  auto adapter = serve::load_again(model_, folder, options, change);
  MORACLE_CHECK(compared(adapter ? Status() : adapter.error()));
  return adapter;
}

Result<RoutingStatistics> Leader::routing_statistics() {
  if (sequence_ranks_) {
    orders_.put(Order::kCountTokens);
    MORACLE_CHECK(send());
  }
  Result<RoutingStatistics> counted = routing_of_all_ranks(model_);
  if (!counted) MORACLE_CHECK(ending(counted.error()));
  return counted;
}

Status Leader::open_moves(const std::string& folder) {
  orders_.put(Order::kOpenMoves);
  MORACLE_CHECK(send());
  Result<ExpertMoves> moves = ExpertMoves::open(model_, folder);
  if (!moves) return compared(moves.error());
  moves_.emplace(*std::move(moves));
  return {};
}

Status Leader::move_experts(int64_t layer, std::span<const ExpertMap> ranks) {
  orders_.put(Order::kMoveExperts);
  orders_.put(layer);
  orders_.put(ranks[0].num_experts());
  for (const ExpertMap& rank : ranks) orders_.put(rank.global());
  MORACLE_CHECK(send());
  return compared(moves_->move(layer, ranks));
}

void Leader::end_moves() {
  orders_.put(Order::kEndMoves);
  moves_.reset();
}

void Leader::end() {
  if (!group_ || lost_) return;
  orders_.put(Order::kEnd);
  (void)send().ok();
}

void Leader::look() {
  if (group_ && !lost_) note(group_->look());
}

void Leader::note(const Status& outcome) {
  if (group_ && !lost_ && !outcome && is_of_ranks(outcome.error())) lost_ = outcome.error();
}

Status Leader::send() {
  if (lost_) return *lost_;
  const Status sent = orders_.send(*group_);
  if (!sent) lost_ = sent.error();
  return sent;
}

Status Leader::compared(Status outcome) {
  note(outcome);
  if (outcome || lost_) return outcome;
  // If another rank succeeded, it is in a different collective call by now. The size mismatch ends
  // both calls with an error.
  orders_.put(Order::kCompare);
  MORACLE_CHECK(send());
  const std::byte mine{1};
  std::vector<std::byte> failed(static_cast<size_t>(group_->size()));
  const Status gathered = group_->all_gather({&mine, 1}, failed);
  if (!gathered) {
    lost_ = gathered.error();
    return gathered;
  }
  for (size_t r = 0; r < failed.size(); ++r) {
    if (failed[r] == mine) continue;
    lost_ = Error{ErrorKind::kIo, "", str("rank ", r), "the same outcome as on rank 0",
                  "it succeeded; rank 0: " + outcome.error().to_string()};
    return *lost_;
  }
  return outcome;
}

}  // namespace moracle::serve

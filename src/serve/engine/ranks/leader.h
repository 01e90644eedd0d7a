// The engine's access to the model. Rank 0 of several sends each call to the other ranks as an
// order, so that all ranks run the same steps. A single process calls the model directly.
#pragma once

#include <optional>

#include "models/expert_moves.h"
#include "models/generation/allowed_logits.h"
#include "models/generation/sampler.h"
#include "serve/engine/page_store.h"
#include "serve/engine/ranks/model_changes.h"
#include "serve/engine/ranks/orders.h"
#include "serve/engine/ranks/sequence_ranks.h"

namespace moracle::serve {

class Leader final : public LogitsSource {
 public:
  explicit Leader(Model& model) : model_(model), group_(model.group()), pages_(model) {
    if (group_ && spreads_sequences(model)) sequence_ranks_.emplace(model);
  }

  int64_t page() const { return pages_.page(); }
  /// False for dispatched ranks: a page exists only on its sequence's rank.
  bool can_share() const { return !sequence_ranks_ && pages_.can_share(); }
  bool is_recurrent() const { return pages_.is_recurrent(); }
  /// True if sequences are spread over the ranks. logits() then gathers the rows.
  bool is_spread() const { return sequence_ranks_.has_value(); }

  /// As in PageStore. The orders reach the other ranks before their next step.
  Status start(SequenceId id, int64_t capacity, std::span<const PageId> pages);
  void drop(SequenceId id);
  Status truncate(SequenceId id, int64_t length);
  void adopt(const Adoption& adoption);
  Status move(std::span<const CacheMove> moves);
  Status reserve_ram(int64_t slots);
  const PageStore& pages() const { return pages_; }

  /// Runs a step on all ranks. Errors: those of Model::forward; see lost().
  Status forward(std::span<const SequenceStep> steps);
  /// As Model::logits, for the rows of all ranks.
  Result<std::span<const float>> logits(int64_t first, int64_t count) override;
  /// As Model::top_k_logits. Not for spread sequences.
  Result<Model::TopKLogits> top_k_logits(int64_t first, int64_t count, int64_t k) override;
  /// True if top_k_allowed_logits() can run: this rank has all logits.
  bool masks_logits() const { return !sequence_ranks_ && !divides_logits(); }
  /// As moracle::top_k_allowed_logits.
  Result<Model::TopKLogits> top_k_allowed_logits(int64_t first, int64_t count, int64_t k,
                                                 std::span<const uint32_t> allowed) {
    return moracle::top_k_allowed_logits(model_, first, count, k, allowed);
  }
  /// Reloads the weights or the model on all ranks (model_changes.h). No sequence may be running.
  Status reload(const std::string& folder);
  Result<std::shared_ptr<const LoraAdapter>> load_again(const std::string& folder,
                                                        const ModelOptions& options,
                                                        const AdapterChange& change);
  /// Token counts per expert, summed over all ranks.
  Result<RoutingStatistics> routing_statistics();
  /// Moves experts between ranks, between two steps (expert_moves.h). After an error each layer has
  /// the same placement on all ranks, the old or the new one.
  Status open_moves(const std::string& folder);
  Status move_experts(int64_t layer, std::span<const ExpertMap> ranks);
  void end_moves();
  /// Stops the other ranks; they exit without an error.
  void end();

  bool has_followers() const { return group_ != nullptr; }
  /// Polls for a lost rank without blocking.
  void look();
  /// Records a device error of the last step that reports a missing rank.
  void note(const Status& outcome);
  /// Fatal error of the group. The model is unusable after it.
  const std::optional<Error>& lost() const { return lost_; }

 private:
  Status send();
  /// True if lm_head is tensor-parallel: each rank computes some of the logits.
  bool divides_logits() const;
  /// Checks that all ranks had the same outcome. A difference is fatal.
  Status compared(Status outcome);
  template <class T>
  Result<T> noted(Result<T>&& logits) {
    if (!logits) note(logits.error());
    return std::move(logits);
  }
  /// Records an error that leaves dispatched ranks out of step.
  Status ending(Status outcome);

  Model& model_;
  const std::shared_ptr<Group> group_;  // null: a single process
  PageStore pages_;
  std::optional<SequenceRanks> sequence_ranks_;
  std::optional<ExpertMoves> moves_;
  std::vector<float> collected_;  // result of the last logits()
  OrderWriter orders_;
  std::optional<Error> lost_;
};

}  // namespace moracle::serve

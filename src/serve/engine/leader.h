// The model as the engine uses it. On rank 0 of several, every call is also an order to the others,
// so that all ranks run the same steps on the same sequences. A process alone only calls.
#pragma once

#include <optional>

#include "models/expert_moves.h"
#include "models/generation/sampler.h"
#include "serve/engine/model_changes.h"
#include "serve/engine/orders.h"
#include "serve/engine/page_store.h"
#include "serve/engine/sequence_ranks.h"

namespace moracle::serve {

class Leader final : public LogitsSource {
 public:
  explicit Leader(Model& model) : model_(model), group_(model.group()), pages_(model) {
    if (group_ && spreads_sequences(model)) sequence_ranks_.emplace(model);
  }

  int64_t page() const { return pages_.page(); }
  /// Dispatched ranks share no pages: a page is in the memory of one rank.
  bool can_share() const { return !sequence_ranks_ && pages_.can_share(); }
  /// True if sequences are spread over the ranks: the rows of a step are then read by logits().
  bool is_spread() const { return sequence_ranks_.has_value(); }

  /// As PageStore's. The others do it before their next step.
  Status start(SequenceId id, int64_t capacity, std::span<const PageId> pages);
  void drop(SequenceId id);
  void adopt(const Adoption& adoption);
  void drop_pages(std::span<const PageId> pages);

  /// Runs a step on all ranks. Errors: those of Model::forward; see lost().
  Status forward(std::span<const SequenceStep> steps);
  /// As Model::logits, of the rows of all ranks.
  Result<std::span<const float>> logits(int64_t first, int64_t count) override;
  /// As Model::top_k_logits, where sequences are not spread.
  Result<Model::TopKLogits> top_k_logits(int64_t first, int64_t count, int64_t k) override;
  /// Reads weights or loads the model again on all ranks (model_changes.h). No sequence may have
  /// started.
  Status reload(const std::string& folder);
  Result<std::shared_ptr<const LoraAdapter>> load_again(const std::string& folder,
                                                        const ModelOptions& options,
                                                        const AdapterChange& change);
  /// The tokens of all ranks that chose each expert.
  Result<RoutingStatistics> routing_statistics();
  /// Moves experts between the ranks (expert_moves.h), between two steps. After an error each layer
  /// is on all ranks as it was, or on all ranks as it should be.
  Status open_moves(const std::string& folder);
  Status move_experts(int64_t layer, std::span<const ExpertMap> ranks);
  void end_moves();
  /// The others end with success.
  void end();

  bool has_followers() const { return group_ != nullptr; }
  /// Looks whether a rank has ended, and waits for nothing.
  void look();
  /// Takes the outcome of reading the last step's results, where a device can report that a rank is
  /// missing.
  void note(const Status& outcome);
  /// Why the ranks cannot go on together. The model is not used any more.
  const std::optional<Error>& lost() const { return lost_; }

 private:
  Status send();
  /// True if the others must compute their part of the logits.
  bool divides_logits() const;
  /// Compares the outcome of work that all ranks do. Different outcomes end the job.
  Status compared(Status outcome);
  template <class T>
  Result<T> noted(Result<T>&& logits) {
    if (!logits) note(logits.error());
    return std::move(logits);
  }
  /// Keeps an error after which dispatched ranks are not at the same place any more.
  Status ending(Status outcome);

  Model& model_;
  const std::shared_ptr<Group> group_;  // null: a process alone
  PageStore pages_;
  std::optional<SequenceRanks> sequence_ranks_;
  std::optional<ExpertMoves> moves_;
  std::vector<float> collected_;  // the last logits()
  OrderWriter orders_;
  std::optional<Error> lost_;
};

}  // namespace moracle::serve

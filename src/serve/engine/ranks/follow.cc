#include "serve/engine/ranks/follow.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/out_of_memory.h"
#include "base/try.h"
#include "models/expert_moves.h"
#include "serve/engine/page_store.h"
#include "serve/engine/ranks/model_changes.h"
#include "serve/engine/ranks/orders.h"
#include "serve/engine/ranks/sequence_ranks.h"

namespace moracle::serve {
namespace {

class Follower {
 public:
  Follower(Model& model, const std::string& folder, const ModelOptions& options)
      : model_(model), folder_(folder), options_(options), group_(model.group()), pages_(model) {
    if (spreads_sequences(model)) sequence_ranks_.emplace(model);
    for (auto& adapter : std::exchange(options_.read_adapters, {}))
      adapters_.emplace(static_cast<int64_t>(adapters_.size()), std::move(adapter));
  }

  Status run() {
    while (!ended_) {
      Result<OrderReader> message = OrderReader::receive(*group_);
      // After a local failure the other ranks stop in mid-call. Report the local error: it is the
      // cause.
      if (!message) return work_ ? Status(message.error()) : work_;
      while (!message->empty()) MORACLE_CHECK(take(*message));
    }
    return {};
  }

 private:
  // Runs one order. Errors: the local error if rank 0 continued after it; errors of the group.
  Status take(OrderReader& message) {
    switch (message.order()) {
      case Order::kStart: {
        const auto id = static_cast<SequenceId>(message.word());
        const int64_t capacity = message.word();
        const std::vector<int64_t> pages = message.list();
        // Ignore failure here: if rank 0 fails too, it skips the sequence; otherwise the next step
        // fails.
        if (!sequence_ranks_ || sequence_ranks_->start(id))
          (void)pages_.start(id, capacity, pages).ok();
        return whole(message);
      }
      case Order::kDrop: {
        const auto id = static_cast<SequenceId>(message.word());
        if (sequence_ranks_) sequence_ranks_->drop(id);
        pages_.drop(id);
        return whole(message);
      }
      case Order::kTruncate: {
        const auto id = static_cast<SequenceId>(message.word());
        const int64_t length = message.word();
        MORACLE_CHECK(whole(message));
        return work([&] { return pages_.truncate(id, length); });
      }
      case Order::kAdopt: {
        Adoption adoption;
        adoption.id = static_cast<SequenceId>(message.word());
        adoption.index = message.word();
        adoption.page = message.word();
        adoption.is_new = message.word() != 0;
        MORACLE_CHECK(whole(message));
        pages_.adopt(adoption);
        return {};
      }
      case Order::kMove: {
        const int64_t kind = message.word();
        const CacheMove move{static_cast<CacheMove::Kind>(kind), message.word(),
                             static_cast<SequenceId>(message.word())};
        MORACLE_CHECK(
            whole(message, kind >= 0 && kind <= static_cast<int64_t>(CacheMove::Kind::kDropState)));
        // Ignore failure here: a sequence that needs the page then fails, as in kStart.
        (void)or_out_of_memory("prefix cache", [&] { return pages_.move(move); }).ok();
        return {};
      }
      case Order::kReserveRam: {
        const int64_t slots = message.word();
        MORACLE_CHECK(whole(message));
        return work([&] { return pages_.reserve_ram(slots); });
      }
      case Order::kForward:
        MORACLE_CHECK(work([&] { return forward(message); }));
        return sequence_ranks_ ? work_ : Status();  // the other ranks wait in this step
      case Order::kLogits:
        return collect(message);
      case Order::kTopKLogits: {
        const int64_t first = message.word(), count = message.word(), k = message.word();
        MORACLE_CHECK(whole(message));
        return work([&] { return done(model_.top_k_logits(first, count, k)); });
      }
      case Order::kReload:
        return work([&] { return read_weights(model_, folder_); });
      case Order::kAdapters:
        return work([&] { return change_adapters(message); });
      case Order::kCountTokens:
        return work([&] { return done(routing_of_all_ranks(model_)); });
      case Order::kOpenMoves:
        return work([&]() -> Status {
          MORACLE_TRY(ExpertMoves moves, ExpertMoves::open(model_, folder_));
          moves_.emplace(std::move(moves));
          return {};
        });
      case Order::kMoveExperts:
        return work([&] { return move_experts(message); });
      case Order::kEndMoves:
        moves_.reset();
        return whole(message);
      case Order::kCompare:
        return compare();
      case Order::kEnd:
        ended_ = true;
        return work_;
    }
    return whole(message, false);
  }

  template <class Work>
  Status work(const Work& does) {
    MORACLE_CHECK(work_);
    work_ = or_out_of_memory("step", [&]() -> Status { return does(); });
    return {};
  }

  Status forward(OrderReader& message) {
    std::vector<std::vector<int32_t>> ids;
    std::vector<SequenceStep> steps;
    for (int64_t left = message.word(); left > 0 && message.is_whole(); --left) {
      const auto id = static_cast<SequenceId>(message.word());
      const auto adapter = static_cast<int32_t>(message.word());
      ids.push_back(message.ids());
      steps.push_back({id, ids.back(), adapter});
    }
    MORACLE_CHECK(whole(message));
    MORACLE_CHECK(pages_.forward(sequence_ranks_ ? sequence_ranks_->own(steps) : steps));
    return model_.device().synchronize();  // report device errors now: this rank reads no logits
  }

  Status change_adapters(OrderReader& message) {
    AdapterChange change;
    change.kept = message.list();
    change.id = message.word();
    change.folder = message.text();
    change.inside = message.text();
    MORACLE_CHECK(whole(message));
    std::map<int64_t, std::shared_ptr<const LoraAdapter>> adapters;
    ModelOptions options = options_;
    for (const int64_t id : change.kept) {
      const auto kept = adapters_.find(id);
      MORACLE_CHECK(whole(message, kept != adapters_.end()));
      adapters.insert(*kept);
      options.read_adapters.push_back(kept->second);
    }
    MORACLE_TRY(adapters[change.id], load_again(model_, folder_, std::move(options), change));
    adapters_ = std::move(adapters);
    return {};
  }

  Status move_experts(OrderReader& message) {
    const int64_t layer = message.word(), num_experts = message.word();
    std::vector<ExpertMap> ranks;
    for (int64_t r = 0; r < group_->size() && message.is_whole(); ++r) {
      std::vector<int32_t> local(static_cast<size_t>(std::clamp<int64_t>(num_experts, 0, 1 << 20)),
                                 -1);
      int32_t count = 0;
      for (const int32_t expert : message.ids()) {
        if (expert >= 0 && expert < static_cast<int32_t>(local.size())) local[expert] = count++;
      }
      MORACLE_TRY(ExpertMap map, ExpertMap::from(std::move(local)));
      ranks.push_back(std::move(map));
    }
    MORACLE_CHECK(whole(message, moves_.has_value()));
    return moves_->move(layer, ranks);
  }

  Status collect(OrderReader& message) {
    const int64_t first = message.word(), count = message.word();
    MORACLE_CHECK(whole(message));
    std::vector<float> none;
    if (sequence_ranks_) return sequence_ranks_->collect(first, count, none);
    return work([&] { return done(model_.logits(first, count)); });
  }

  template <class T>
  static Status done(const Result<T>& logits) {
    return logits ? Status() : logits.error();
  }

  Status compare() {
    const std::byte mine{work_ ? uint8_t{0} : uint8_t{1}};
    std::vector<std::byte> failed(static_cast<size_t>(group_->size()));
    MORACLE_CHECK(group_->all_gather({&mine, 1}, failed));
    work_ = {};
    return {};
  }

  static Status whole(const OrderReader& message, bool known = true) {
    if (known && message.is_whole()) return {};
    return Error{ErrorKind::kIo, "", "rank 0", "the same build on all ranks",
                 "it sent an order that this build does not know"};
  }

  Model& model_;
  const std::string folder_;
  ModelOptions options_;  // options of the model, without adapters
  std::map<int64_t, std::shared_ptr<const LoraAdapter>> adapters_;  // by adapter number
  const std::shared_ptr<Group> group_;
  PageStore pages_;
  std::optional<SequenceRanks> sequence_ranks_;
  std::optional<ExpertMoves> moves_;
  Status work_;  // status of the last order
  bool ended_ = false;
};

}  // namespace

Status follow(Model& model, const std::string& folder, const ModelOptions& options) {
  return Follower(model, folder, options).run();
}

}  // namespace moracle::serve

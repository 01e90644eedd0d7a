#include "serve/engine/rebalancing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/text.h"
#include "base/try.h"
#include "models/decoder/model_state.h"

namespace moracle::serve {
namespace {

struct Load {
  double largest = 0, mean = 0;
};

Load load_of(std::span<const int64_t> tokens, std::span<const ExpertMap> ranks) {
  const std::vector<int64_t> loads = load_of_ranks(tokens, ranks);
  const auto sum = static_cast<double>(std::accumulate(loads.begin(), loads.end(), int64_t{0}));
  return {static_cast<double>(*std::max_element(loads.begin(), loads.end())),
          sum / static_cast<double>(loads.size())};
}

double imbalance_of(double largest, double mean) {
  return mean > 0 ? largest / mean : 0;
}

std::vector<int32_t> experts_only_in(const ExpertMap& map, const ExpertMap& other) {
  std::vector<int32_t> experts;
  for (const int32_t expert : map.global())
    if (other.local()[expert] < 0) experts.push_back(expert);
  return experts;
}

}  // namespace

Status Rebalancing::check() const {
  if (!is_on()) return {};
  const Model::State& m = ModelAccess::state(model_);
  if (m.group == nullptr || m.num_adapters > 0) {
    return Error{ErrorKind::kUnsupported, "", "rebalance_interval",
                 "several ranks (--parallel ep=N), and a model without adapters",
                 m.group == nullptr ? "this process is alone" : "it has adapters"};
  }
  MORACLE_TRY(const RoutingStatistics counted, model_.routing_statistics());
  for (const auto& [layer, tokens] : counted.tokens)
    MORACLE_CHECK(place_by_load(tokens, m.group->size(), options_.num_redundant_experts));
  return {};
}

void Rebalancing::step_done() {
  if (!is_on() || is_running() || ++steps_ < options_.interval) return;
  if (const Status decided = decide(); !decided) finish(decided.error());
}

void Rebalancing::request(Done done) {
  waiting_.push_back(std::move(done));
  if (!is_on()) {
    return finish(Error{ErrorKind::kUnsupported, "", "rebalance",
                        "a server with --parallel ep=N --rebalance-interval STEPS", "it has none"});
  }
  if (is_running()) return;
  if (const Status decided = decide(); !decided) finish(decided.error());
}

Result<Rebalancing::Loads> Rebalancing::loads_since_last() {
  MORACLE_TRY(RoutingStatistics counted, leader_.routing_statistics());
  Loads loads = counted.tokens;
  for (auto& [layer, tokens] : loads) {
    const auto last = counted_.find(layer);
    if (last == counted_.end()) continue;
    for (size_t e = 0; e < tokens.size(); ++e) tokens[e] -= last->second[e];
  }
  counted_ = std::move(counted.tokens);
  return loads;
}

Status Rebalancing::decide() {
  steps_ = 0;
  report_ = {};
  MORACLE_TRY(loads_, loads_since_last());
  MORACLE_TRY(placed_, placement(model_));
  Load before, after;
  std::deque<Move> moves;
  for (const auto& [layer, tokens] : loads_) {
    const std::vector<ExpertMap>& now = placed_.at(layer);
    MORACLE_TRY(std::vector<ExpertMap> next,
                rebalance(tokens, now, options_.num_redundant_experts));
    const Load old_load = load_of(tokens, now), new_load = load_of(tokens, next);
    before = {before.largest + old_load.largest, before.mean + old_load.mean};
    after = {after.largest + new_load.largest, after.mean + new_load.mean};
    if (next != now) moves.push_back({layer, std::move(next)});
  }
  report_.before = imbalance_of(before.largest, before.mean);
  report_.after = imbalance_of(after.largest, after.mean);
  if (before.mean > 0) metrics_.expert_load(report_.before);
  if (moves.empty()) {
    finish(report_);
    return {};
  }
  MORACLE_CHECK(leader_.open_moves(options_.folder));
  moves_ = std::move(moves);
  return {};
}

void Rebalancing::move_next() {
  if (moves_.empty()) return;
  const Move move = std::move(moves_.front());
  moves_.pop_front();
  const std::vector<ExpertMap>& old = placed_.at(move.layer);
  if (const Status moved = leader_.move_experts(move.layer, move.ranks); !moved) {
    moves_.clear();
    if (!leader_.lost()) leader_.end_moves();
    return finish(moved.error());
  }
  ++report_.layers;
  for (size_t r = 0; r < old.size(); ++r)
    report_.experts += static_cast<int64_t>(experts_only_in(move.ranks[r], old[r]).size());
  log(move, old, loads_.at(move.layer));
  if (!moves_.empty()) return;
  leader_.end_moves();
  finish(report_);
}

void Rebalancing::log(const Move& move, std::span<const ExpertMap> old,
                      std::span<const int64_t> tokens) {
  if (!options_.log) return;
  const auto text = [&](std::span<const ExpertMap> ranks) {
    const Load load = load_of(tokens, ranks);
    return str(std::round(imbalance_of(load.largest, load.mean) * 1000) / 1000);
  };
  std::string line = str("rebalance: layer ", move.layer, ": largest load over mean ", text(old),
                         " to ", text(move.ranks));
  for (size_t r = 0; r < old.size(); ++r) {
    const std::vector<int32_t> gets = experts_only_in(move.ranks[r], old[r]),
                               drops = experts_only_in(old[r], move.ranks[r]);
    if (!gets.empty()) line += str("; rank ", r, " gets ", join(gets));
    if (!drops.empty()) line += str(gets.empty() ? str("; rank ", r) : ",", " drops ", join(drops));
  }
  options_.log(line);
}

void Rebalancing::finish(const Result<RebalanceReport>& result) {
  if (is_on()) metrics_.rebalance_ended(result.ok(), report_.layers, report_.experts);
  if (!result && options_.log)
    options_.log(str("rebalance: ended after ", report_.layers,
                     " layers, the others stay: ", result.error().to_string()));
  if (leader_.lost()) return;  // end() answers with the engine's error
  for (const Done& done : std::exchange(waiting_, {})) done(result);
}

void Rebalancing::model_changed() {
  counted_.clear();
  steps_ = 0;
}

void Rebalancing::end(const Error& reason) {
  moves_.clear();
  for (const Done& done : std::exchange(waiting_, {})) done(reason);
}

}  // namespace moracle::serve

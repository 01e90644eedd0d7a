#include "models/expert_moves.h"

#include <optional>

#include "base/out_of_memory.h"
#include "base/text.h"
#include "base/try.h"
#include "kernels/kernel_device.h"
#include "models/decoder/model_state.h"
#include "models/ranks.h"
#include "moe/moe_access.h"

namespace moracle {
namespace {

Error wrong_move(std::string place, std::string need, std::string fact) {
  return {ErrorKind::kInvalidArgument, "", std::move(place), std::move(need), std::move(fact)};
}

// Equal on every rank, because maps and model are equal.
Status check_maps(const Model::State& m, int64_t layer, std::span<const ExpertMap> ranks) {
  const std::string place = str("layer ", layer);
  const auto request = m.expert_requests.find(layer);
  if (request == m.expert_requests.end())
    return wrong_move(place, "experts that ranks share", "it has none");
  const int64_t num_experts = request->second.layer.num_experts;
  if (static_cast<int64_t>(ranks.size()) != m.group->size())
    return wrong_move(place, str("a map for each of ", m.group->size(), " ranks"),
                      str("there are ", ranks.size()));
  for (const ExpertMap& map : ranks) {
    if (map.num_experts() != num_experts)
      return wrong_move(place, str("maps of ", num_experts, " experts"),
                        str("one is of ", map.num_experts()));
  }
  return {};
}

}  // namespace

Result<std::map<int64_t, std::vector<ExpertMap>>> placement(Model& model) {
  const Model::State& m = ModelAccess::state(model);
  std::map<int64_t, std::vector<ExpertMap>> all;
  for (const auto& [layer, request] : m.expert_requests) {
    const ExpertCopies& copies = m.layers[layer].feed_forward.routed.copies();
    MORACLE_TRY(all[layer], copies.maps(m.group->size()));
  }
  return all;
}

Result<RoutingStatistics> routing_of_all_ranks(Model& model) {
  const Model::State& m = ModelAccess::state(model);
  Result<RoutingStatistics> own = model.routing_statistics();
  if (m.dispatch == nullptr) return own;
  MORACLE_CHECK(all_succeed(*m.group, own ? Status() : own.error(), "counted tokens"));
  std::vector<int64_t> counts;
  for (const auto& [layer, tokens] : own->tokens)
    counts.insert(counts.end(), tokens.begin(), tokens.end());
  std::vector<int64_t> all(counts.size() * static_cast<size_t>(m.group->size()));
  MORACLE_CHECK(m.group->all_gather(std::as_bytes(std::span(counts)),
                                    std::as_writable_bytes(std::span(all))));
  size_t at = 0;
  for (auto& [layer, tokens] : own->tokens) {
    for (int64_t& sum : tokens) {
      sum = 0;
      for (size_t i = at; i < all.size(); i += counts.size()) sum += all[i];
      ++at;
    }
  }
  return own;
}

Result<ExpertMoves> ExpertMoves::open(Model& model, const std::string& folder) {
  const Model::State& m = ModelAccess::state(model);
  if (m.group == nullptr || m.group->size() == 1 || m.num_adapters > 0) {
    return Error{ErrorKind::kUnsupported, "", "moving experts",
                 "several ranks, and a model without adapters",
                 m.num_adapters > 0 ? "it has adapters" : "this process is alone"};
  }
  if (m.recorded.devices != nullptr) {
    return Error{ErrorKind::kUnsupported, "", "moving experts",
                 "experts that lie on the device (device_memory 0)",
                 "they lie in host memory, and slots follow what tokens use"};
  }
  std::optional<Checkpoint> checkpoint;
  std::optional<Description> description;
  const Status opened = or_out_of_memory(folder, [&]() -> Status {
    MORACLE_TRY(Checkpoint from, Checkpoint::open(folder));
    ThreadPool& pool = kernel_device(m.workspace->device()).host_threads();
    if (identity_of(facts_of_files(from, pool)) != m.weights_text) {
      return Error{ErrorKind::kInvalidArgument, folder, "", "the weights that the model has",
                   "they have changed"};
    }
    MORACLE_TRY(Description read, describe(from, m.changes));
    checkpoint.emplace(std::move(from));
    description.emplace(std::move(read));
    return {};
  });
  MORACLE_CHECK(all_succeed(*m.group, opened, "its checkpoint to move experts"));
  return ExpertMoves(model, *std::move(checkpoint), *std::move(description));
}

Result<FusedMoe> ExpertMoves::read(int64_t layer, const ExpertMap& own) {
  Model::State& m = ModelAccess::state(*model_);
  const FusedMoe& old = m.layers[layer].feed_forward.routed.experts();
  Request request = m.expert_requests.at(layer);
  request.parallel.expert_map = own;
  request.backend = name(*old.plan().backend);  // as all ranks have it
  DescribedWeights weights = std::move(*description_.layers[layer].mlp);
  return MoeAccess::make_moved(std::move(weights), select(request, machine_), old);
}

Status ExpertMoves::move(int64_t layer, std::span<const ExpertMap> ranks) {
  Model::State& m = ModelAccess::state(*model_);
  MORACLE_CHECK(check_maps(m, layer, ranks));
  MORACLE_TRY(ExpertCopies copies, ExpertCopies::from(ranks, /*one_each=*/false));
  if (!consumed_.insert(layer).second)
    return wrong_move(str("layer ", layer), "one move of its experts", "they have moved");
  Device& device = m.workspace->device();
  const DeviceLock lock = device.lock();
  std::optional<FusedMoe> fresh;
  const Status done = or_out_of_memory("moving experts", [&]() -> Status {
    MORACLE_TRY(FusedMoe read_here, read(layer, ranks[m.group->rank()]));
    fresh.emplace(std::move(read_here));
    MORACLE_CHECK(copies.upload(m.group->rank(), device));
    return device.synchronize();  // no step reads the old experts any more
  });
  MORACLE_CHECK(all_succeed(*m.group, done, str("its experts of layer ", layer)));
  m.recorded.forget();
  MoeStage& routed = m.layers[layer].feed_forward.routed;
  m.weight_bytes += fresh->weight_bytes() - routed.experts().weight_bytes();
  routed.replace(*std::move(fresh), std::move(copies));
  return {};
}

}  // namespace moracle

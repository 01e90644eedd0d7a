#include "models/routing_statistics.h"

#include "base/json/json_field.h"
#include "base/json/json_text.h"
#include "base/printable.h"
#include "base/small_file.h"
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"

namespace moracle {
namespace {

constexpr const char* kFormat = "moracle routing statistics 1";
// Sums over a layer stay below 2^63.
constexpr int64_t kMostExperts = int64_t{1} << 16, kMostTokens = int64_t{1} << 44;

Error of_another_model(const RoutingStatistics& statistics, std::string place, std::string need,
                       std::string fact) {
  return {ErrorKind::kInvalidArgument, statistics.file, std::move(place), std::move(need),
          std::move(fact)};
}

Status read_layer(const JsonField& from, RoutingStatistics& to) {
  MORACLE_TRY(const int64_t layer, from["layer"].integer(0, to.num_layers - 1));
  MORACLE_TRY(const int64_t num_experts, from["num_experts"].integer(1, kMostExperts));
  MORACLE_TRY(const std::vector<JsonField> items, from["tokens"].items());
  if (static_cast<int64_t>(items.size()) != num_experts) {
    return Error{ErrorKind::kBadFile, from.file(), from["tokens"].place(),
                 str("a number for each of ", num_experts, " experts"),
                 str("there are ", items.size())};
  }
  const auto [entry, is_new] = to.tokens.try_emplace(layer);
  if (!is_new) return from["layer"].bad("each layer once");
  for (const JsonField& item : items) {
    MORACLE_TRY(const int64_t tokens, item.integer(0, kMostTokens));
    entry->second.push_back(tokens);
  }
  return {};
}

}  // namespace

Result<RoutingStatistics> RoutingStatistics::open(const std::string& path) {
  MORACLE_TRY(const std::string text, read_small_file(path));
  MORACLE_TRY(const nlohmann::json json, parse_json(text, path));
  const JsonField file(json, path);
  if (!file.is_object() || !file["format"].value().is_string() ||
      file["format"].value() != kFormat) {
    return Error{ErrorKind::kBadFile, path, "format", str("\"", kFormat, "\""),
                 file["format"].fact()};
  }
  RoutingStatistics statistics;
  statistics.file = path;
  MORACLE_TRY(statistics.architecture, file["architecture"].text());
  MORACLE_TRY(statistics.num_layers, file["num_layers"].integer(1, kMostExperts));
  MORACLE_TRY(const std::vector<JsonField> layers, file["layers"].items());
  for (const JsonField& layer : layers) MORACLE_CHECK(read_layer(layer, statistics));
  return statistics;
}

std::string RoutingStatistics::json() const {
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (const auto& [layer, counts] : tokens)
    layers.push_back({{"layer", layer}, {"num_experts", counts.size()}, {"tokens", counts}});
  const nlohmann::ordered_json all = {{"format", kFormat},
                                      {"architecture", architecture},
                                      {"num_layers", num_layers},
                                      {"layers", layers}};
  return all.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

Status check_measured_load(const ModelOptions& options, const Checkpoint& checkpoint) {
  if (!options.measured_load) {
    if (options.num_redundant_experts == 0) return {};
    return Error{ErrorKind::kInvalidArgument, "", "redundant experts",
                 "a placement by measured load: it says which experts are hot", "there is none"};
  }
  const RoutingStatistics& statistics = *options.measured_load;
  if (statistics.architecture != checkpoint.architecture()) {
    return of_another_model(statistics, "architecture", checkpoint.architecture(),
                            str("it is ", quote(statistics.architecture)));
  }
  const int64_t num_layers =
      checkpoint.num_layers() * convention_of(checkpoint.state()).layers_of_each;
  if (statistics.num_layers != num_layers) {
    return of_another_model(statistics, "num_layers", str(num_layers, ", as in the model"),
                            str("it is ", statistics.num_layers));
  }
  return {};
}

Status check_layers(const RoutingStatistics& statistics, const std::set<int64_t>& with_experts) {
  for (const auto& [layer, tokens] : statistics.tokens) {
    if (with_experts.contains(layer)) continue;
    return of_another_model(statistics, str("layer ", layer), "a layer with experts in the model",
                            "it has none");
  }
  return {};
}

Result<ExpertMap> map_by_load(const RoutingStatistics& statistics, int64_t layer,
                              int64_t num_experts, const Parallelism& parallel, int64_t redundant) {
  const auto found = statistics.tokens.find(layer);
  if (found == statistics.tokens.end())
    return of_another_model(statistics, "layers", str("layer ", layer, ", which has experts"),
                            "it is missing");
  if (static_cast<int64_t>(found->second.size()) != num_experts) {
    return of_another_model(statistics, str("layer ", layer),
                            str(num_experts, " experts, as in the model"),
                            str("there are ", found->second.size()));
  }
  MORACLE_TRY(std::vector<ExpertMap> ranks,
              place_by_load(found->second, parallel.ep_size, redundant));
  if (parallel.ep_rank < 0 || parallel.ep_rank >= parallel.ep_size)
    return ExpertMap::place(num_experts, parallel.ep_size, parallel.ep_rank);
  return std::move(ranks[parallel.ep_rank]);
}

}  // namespace moracle

#include "ranks/placement_text.h"

#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "terminal.h"

namespace moracle::cli {
namespace {

constexpr const char* kMeasured = "measured load";
constexpr const char* kCopied = "with copies";
constexpr size_t kMostLayersShown = 8;
constexpr int64_t kMostRanksShown = 32;

// Load over all layers, if each layer waits for its slowest rank.
struct PlacedLoad {
  std::string name;
  std::vector<double> ranks;  // tokens per rank, over all layers
  double largest = 0, mean = 0, worst = 1;
  int64_t worst_layer = 0;
  double largest_over_mean() const { return mean > 0 ? largest / mean : 1; }
};

// Expert maps of all ranks; empty: one process.
std::vector<ExpertMap> maps_of_ranks(const std::vector<int64_t>& tokens, const std::string& how,
                                     int64_t size, int64_t redundant) {
  if (how == kMeasured || how == kCopied) {
    auto placed = place_by_load(tokens, size, how == kCopied ? redundant : 0);
    return placed ? *std::move(placed) : std::vector<ExpertMap>();
  }
  const Placement placement =
      how == name(Placement::kLinear) ? Placement::kLinear : Placement::kRoundRobin;
  std::vector<ExpertMap> ranks;
  for (int64_t rank = 0; rank < size; ++rank) {
    auto map = ExpertMap::place(static_cast<int64_t>(tokens.size()), size, rank, placement);
    if (map) ranks.push_back(std::move(*map));
  }
  return ranks;
}

PlacedLoad placed_load(const ModelOptions& options, std::string how) {
  const int64_t size = options.parallel.ep_size;
  PlacedLoad placed{std::move(how), std::vector<double>(size)};
  for (const auto& [layer, tokens] : options.measured_load->tokens) {
    const std::vector<int64_t> loads = load_of_ranks(
        tokens, maps_of_ranks(tokens, placed.name, size, options.num_redundant_experts));
    for (size_t rank = 0; rank < loads.size(); ++rank)
      placed.ranks[rank] += static_cast<double>(loads[rank]);
    const auto largest = static_cast<double>(*std::max_element(loads.begin(), loads.end()));
    const double mean =
        static_cast<double>(std::accumulate(loads.begin(), loads.end(), int64_t{0})) /
        static_cast<double>(size);
    placed.largest += largest;
    placed.mean += mean;
    if (mean <= 0 || largest / mean <= placed.worst) continue;
    placed.worst = largest / mean;
    placed.worst_layer = layer;
  }
  return placed;
}

std::vector<PlacedLoad> placed_loads(const ModelOptions& options) {
  std::vector<PlacedLoad> all;
  if (!options.measured_load) return all;
  for (const std::string_view how :
       {name(Placement::kLinear), name(Placement::kRoundRobin), std::string_view(kMeasured)})
    all.push_back(placed_load(options, std::string(how)));
  if (options.num_redundant_experts > 0) all.push_back(placed_load(options, kCopied));
  return all;
}

// Experts per rank in one layer.
std::vector<ExpertMap> placed_maps(const ModelOptions& options,
                                   const std::vector<int64_t>& tokens) {
  return maps_of_ranks(tokens, kCopied, options.parallel.ep_size, options.num_redundant_experts);
}

// "expert 5 on ranks 0, 2": experts of a layer on several ranks.
std::vector<std::string> copies_of(const std::vector<ExpertMap>& maps) {
  std::vector<std::string> copies;
  for (int64_t e = 0; !maps.empty() && e < maps[0].num_experts(); ++e) {
    std::vector<int64_t> ranks;
    for (size_t r = 0; r < maps.size(); ++r)
      if (maps[r].local()[e] >= 0) ranks.push_back(static_cast<int64_t>(r));
    if (ranks.size() > 1) copies.push_back(str("expert ", e, " on ranks ", join(ranks)));
  }
  return copies;
}

std::string copies_text(const ModelOptions& options) {
  if (options.num_redundant_experts == 0) return "";
  std::string text = "\ncopies of hot experts:\n";
  size_t shown = 0;
  for (const auto& [layer, tokens] : options.measured_load->tokens) {
    if (shown++ == kMostLayersShown)
      return text + str("  … ", options.measured_load->tokens.size() - kMostLayersShown,
                        " layers more (--json)\n");
    const std::vector<std::string> copies = copies_of(placed_maps(options, tokens));
    text +=
        str("  layer ", layer, ": ",
            copies.empty() ? "none, copies would not lower the load" : join(copies, "; "), "\n");
  }
  return text;
}

}  // namespace

std::string placement_name(const ModelOptions& options) {
  if (options.num_redundant_experts > 0)
    return str(kMeasured, " with ", options.num_redundant_experts, " redundant experts");
  return options.measured_load ? kMeasured : std::string(name(options.parallel.placement));
}

std::string load_text(const ModelOptions& options) {
  const std::vector<PlacedLoad> all = placed_loads(options);
  if (all.empty()) return "";
  Table table;
  const auto row = [&](std::string what, const auto& cell) {
    std::vector<std::string> cells = {std::move(what)};
    for (const PlacedLoad& placed : all) cells.push_back(cell(placed));
    table.row(std::move(cells));
  };
  row("measured load, as placed", [](const PlacedLoad& placed) { return placed.name; });
  const int64_t shown = std::min(options.parallel.ep_size, kMostRanksShown);
  for (int64_t rank = 0; rank < shown; ++rank) {
    row(str("rank ", rank, ", share of the mean"), [&](const PlacedLoad& placed) {
      const double mean = placed.mean;
      return rounded(mean > 0 ? placed.ranks[rank] / mean : 1, 3);
    });
  }
  if (shown < options.parallel.ep_size)
    row(str("… ", options.parallel.ep_size - shown, " ranks more (--json)"),
        [](const PlacedLoad&) { return ""; });
  row("largest rank of a layer over mean",
      [](const PlacedLoad& placed) { return rounded(placed.largest_over_mean(), 3); });
  row("largest rank over mean, worst layer",
      [](const PlacedLoad& placed) { return rounded(placed.worst, 3); });
  return table.text({1, 2, 3, 4}) + copies_text(options);
}

Json load_json(const ModelOptions& options) {
  Json json = Json::array();
  for (const PlacedLoad& placed : placed_loads(options)) {
    json.push_back({{"placement", placed.name},
                    {"tokens_of_ranks", placed.ranks},
                    {"largest_over_mean", placed.largest_over_mean()},
                    {"worst_layer", placed.worst_layer},
                    {"worst_layer_largest_over_mean", placed.worst}});
  }
  return json;
}

Json map_json(const ModelOptions& options) {
  Json json = Json::array();
  for (const auto& [layer, tokens] : options.measured_load->tokens) {
    Json ranks = Json::array();
    for (const ExpertMap& map : placed_maps(options, tokens)) ranks.push_back(map.global());
    json.push_back({{"layer", layer}, {"experts_of_ranks", ranks}});
  }
  return json;
}

}  // namespace moracle::cli

// Measured load of experts: how many tokens chose each of them, and a placement on ranks by it.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "moracle/base.h"
#include "moracle/oracle.h"

namespace moracle MORACLE_API {

/// The tokens that chose each expert of a model, as Model counts them. Stored as JSON.
struct RoutingStatistics {
  std::string architecture;  ///< model class from config.json
  int64_t num_layers = 0;    ///< of the model
  /// [num_experts] by layer, for each layer with experts.
  std::map<int64_t, std::vector<int64_t>> tokens;
  std::string file;  ///< of open(), for messages

  /// Errors: kIo; kBadFile for other content, with the place.
  static Result<RoutingStatistics> open(const std::string& path);
  std::string json() const;
};

/// Places a layer's experts on ranks so that the largest load is small, never larger than with a
/// placement by name: from the most chosen expert to the least chosen one, each goes to the rank
/// with the least load. A rank holds at most num_experts / ep_size experts, rounded up. Depends on
/// the arguments alone. `redundant`: up to so many further copies of hot experts, each where the
/// tokens of a copy are the most, on ranks without that expert; a rank then holds at most
/// (num_experts + redundant) / ep_size experts, rounded up. Half of them, a quarter and so on, or
/// none, where the largest load is then smaller. Returns the map of each rank. Errors: as
/// ExpertMap::place; a negative count; more copies than each rank can hold once.
Result<std::vector<ExpertMap>> place_by_load(std::span<const int64_t> tokens, int64_t ep_size,
                                             int64_t redundant = 0);

/// A placement by load of experts that are on ranks already. Returns `now` where place_by_load
/// lowers the largest load by less than 5 %, because a rank has to read the experts that it gets.
/// Else its maps, given to the ranks so that few experts move. Errors: as place_by_load.
Result<std::vector<ExpertMap>> rebalance(std::span<const int64_t> tokens,
                                         std::span<const ExpertMap> now, int64_t redundant = 0);

/// The load of each rank: the sum of `tokens` over its experts. Ranks with copies of an expert
/// share its tokens evenly.
std::vector<int64_t> load_of_ranks(std::span<const int64_t> tokens,
                                   std::span<const ExpertMap> ranks);

}  // namespace MORACLE_API

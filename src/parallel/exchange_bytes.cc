// How many bytes a layer's tokens send to other ranks.
#include <algorithm>
#include <cmath>

#include "moracle/parallel.h"
#include "quant/activation.h"

namespace moracle {
namespace {

// Bytes of a token's row on its way to the experts: codes and scales where these do not depend on
// the expert, else as it goes back.
int64_t row_there(const LayerSpec& layer, int64_t row_back) {
  const auto& key = layer.scheme.activation;
  if (!key || !key->dynamic || layer.routing.weight_on_input) return row_back;
  return layer.hidden_size * bits(key->dtype) / 8 +
         num_groups(*key, layer.hidden_size) * int64_t{sizeof(float)};
}

}  // namespace

std::string_view name(Spread spread) {
  return spread == Spread::kReplicated ? "replicated" : "dispatched";
}

Travel travel_bytes(const LayerSpec& layer, int64_t ranks, Spread spread, DType activation,
                    bool deterministic) {
  if (ranks <= 1 || layer.linear) return {};
  const auto n = static_cast<double>(ranks);
  const int64_t row = layer.hidden_size * bits(activation) / 8;
  if (spread == Spread::kReplicated) {
    // A sum over ranks: each rank sends (n - 1) / n of the rows to be summed, and the same of the
    // result. For one process's bits the row of each expert is summed by itself.
    const int64_t rows = deterministic ? layer.top_k : 1;
    const auto half =
        static_cast<int64_t>(std::llround(static_cast<double>(rows * row) * (n - 1) / n));
    return {half, half};
  }
  // A token's row goes once to each rank that holds any of its experts, with ids and weights. The
  // number of these ranks if experts are chosen evenly: n (1 - (1 - 1/n)^top_k), one of them its
  // own.
  const double holders = n * (1 - std::pow(1 - 1 / n, static_cast<double>(layer.top_k)));
  const double others = holders * (n - 1) / n;
  const int64_t ids = layer.top_k * 8;  // i32 id and f32 weight
  // For one process's bits the result of each slot comes back by itself.
  const double returned = deterministic ? static_cast<double>(layer.top_k) * (n - 1) / n : others;
  return {
      static_cast<int64_t>(std::llround(others * static_cast<double>(row_there(layer, row) + ids))),
      static_cast<int64_t>(std::llround(returned * static_cast<double>(row)))};
}

}  // namespace moracle

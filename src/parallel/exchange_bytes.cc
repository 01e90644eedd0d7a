// The bytes that a layer's tokens send to other ranks.
#include <algorithm>
#include <cmath>

#include "moracle/parallel.h"
#include "quant/activation.h"

namespace moracle {
namespace {

// Bytes of a dispatched row: codes and scales where these do not depend on the expert, else floats
// as in the combine.
int64_t dispatched_row(const LayerSpec& layer, int64_t float_row) {
  const auto& key = layer.scheme.activation;
  if (!key || !key->dynamic || layer.routing.weight_on_input) return float_row;
  return layer.hidden_size * bits(key->dtype) / 8 +
         num_groups(*key, layer.hidden_size) * int64_t{sizeof(float)};
}

int64_t rounded(double bytes) {
  return static_cast<int64_t>(std::llround(bytes));
}

}  // namespace

std::string_view name(Spread spread) {
  return spread == Spread::kReplicated ? "replicated" : "dispatched";
}

ExchangeBytes exchange_bytes(const LayerSpec& layer, int64_t ranks, Spread spread, DType activation,
                             bool deterministic) {
  if (ranks <= 1 || layer.linear) return {};
  const auto n = static_cast<double>(ranks), top_k = static_cast<double>(layer.top_k);
  const int64_t row = layer.hidden_size * bits(activation) / 8;
  const auto float_row = static_cast<double>(row);
  if (spread == Spread::kReplicated) {
    // An all-reduce: each rank sends (n - 1) / n of the rows to be summed, and as much of the sum.
    // For the bits of one process each expert's row is summed by itself.
    const double rows = deterministic ? top_k : 1;
    const int64_t half = rounded(rows * float_row * (n - 1) / n);
    return {half, half};
  }
  // A token's row goes once to each rank that holds any of its experts. If experts are chosen
  // evenly, these are n (1 - (1 - 1/n)^top_k) ranks, one of them possibly its own.
  const double holders = n * (1 - std::pow(1 - 1 / n, top_k));
  const double others = holders * (n - 1) / n;
  const int64_t ids = layer.top_k * 8;  // i32 id and f32 weight
  // For the bits of one process each slot's result returns by itself.
  const double returned = deterministic ? top_k * (n - 1) / n : others;
  return {rounded(others * static_cast<double>(dispatched_row(layer, row) + ids)),
          rounded(returned * float_row)};
}

}  // namespace moracle

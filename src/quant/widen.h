// Converts integer weights of different widths and groups to a common scheme without changing a
// value: a kernel multiplies matrices of one scheme.
#pragma once

#include <optional>

#include "moracle/quant.h"

namespace moracle {

/// The narrowest scheme that holds the weights of both exactly: the wider codes, groups that divide
/// those of both, zero points or minimums if one has them. nullopt: the activations differ, or the
/// schemes differ and one is not of integer weights with scales for each row.
std::optional<Scheme> common_scheme(const Scheme& a, const Scheme& b);

/// Changes the matrix to the weight key of a common scheme.
void widen(CanonicalMatrix& matrix, const QuantKey& key);

}  // namespace moracle

// Converts C arguments to library values.
#pragma once

#include "c_api/structs.h"
#include "moracle/layer.h"

namespace moracle::c_api {

/// Errors: not a dtype; the place is "<place>.dtype".
Result<DType> dtype_of(moracle_dtype dtype, const char* place);
/// Errors: those of read_struct; not a score function.
Result<Routing> routing_of(const moracle_routing* routing);
/// Error for a layer whose weights a moracle_moe has consumed.
Error used_up(const LayerSpec& spec);

}  // namespace moracle::c_api

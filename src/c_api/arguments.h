// Values of C as values of the library.
#pragma once

#include "c_api/structs.h"
#include "moracle/layer.h"

namespace moracle::c_api {

/// Errors: a number that is no dtype; the place is "<place>.dtype".
Result<DType> dtype_of(moracle_dtype dtype, const char* place);
/// Errors: those of read_struct; a number that is no score function.
Result<Routing> routing_of(const moracle_routing* routing);
/// The error of a layer that a moracle_moe has used up.
Error used_up(const LayerSpec& spec);

}  // namespace moracle::c_api

// This CPU as if it were another: its kernels in the way that they run there.
#pragma once

#include <string_view>

#include "moracle/oracle.h"

namespace moracle {

/// These features and all that build on them: no CPU has AVX-512 without AVX2.
Isa with_dependents(Isa features);

/// Machine::here() has none of these from now on, nor what builds on them. Call it before anything
/// asks for the machine.
void mask_isa(Isa without);

/// "amx_int8,avx512_bf16", as names(Isa) spells them. Errors: any other name.
Result<Isa> parse_isa(std::string_view text);

}  // namespace moracle

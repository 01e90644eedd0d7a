// Masks features of this CPU, so that its kernels run as on another CPU.
#pragma once

#include <string_view>

#include "moracle/oracle.h"

namespace moracle {

/// These features and all features that depend on them: no CPU has AVX-512 without AVX2.
Isa with_dependents(Isa features);

/// From now on Machine::here() reports none of these features and no dependent features. Call it
/// before the first use of the machine.
void mask_isa(Isa without);

/// Parses "amx_int8,avx512_bf16", in the spelling of names(Isa). Errors: any other name.
Result<Isa> parse_isa(std::string_view text);

}  // namespace moracle

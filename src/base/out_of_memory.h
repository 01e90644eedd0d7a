// Converts allocation failures to errors: the standard library throws, this library returns.
#pragma once

#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "moracle/base.h"

namespace moracle {

/// Runs `work` and returns its Result or Status. Errors: kOutOfMemory if the standard library threw
/// because the system refused memory, or because a size exceeds the possible maximum. `place` names
/// the user of the memory. Changes that `work` made before the failure stay.
template <class Work>
std::invoke_result_t<Work> or_out_of_memory(std::string_view place, Work&& work) {
  const char* fact = "the system refused it";
  try {
    return work();
  } catch (const std::bad_alloc&) {
  } catch (const std::length_error&) {
    fact = "the size exceeds any memory";
  }
  return Error{ErrorKind::kOutOfMemory, "", std::string(place), "memory of the host", fact};
}

}  // namespace moracle

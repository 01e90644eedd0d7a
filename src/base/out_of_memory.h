// Memory that the system refuses, as a value: the standard library throws, this library returns.
#pragma once

#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "moracle/base.h"

namespace moracle {

/// What `work` returns, a Result or a Status. Errors: kOutOfMemory where the standard library threw
/// because memory was refused, or because a size is beyond what memory can hold. `place` says whose
/// memory it was. What `work` changed before stays changed.
template <class Work>
std::invoke_result_t<Work> or_out_of_memory(std::string_view place, Work&& work) {
  const char* fact = "the system refused it";
  try {
    return work();
  } catch (const std::bad_alloc&) {
  } catch (const std::length_error&) {
    fact = "its size is beyond any memory";
  }
  return Error{ErrorKind::kOutOfMemory, "", std::string(place), "memory of the host", fact};
}

}  // namespace moracle

// Limits of a render. Checkpoints are untrusted: every template must end with a text or an Error,
// within bounded time, memory and stack.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/text.h"
#include "moracle/base.h"

namespace moracle::jinja {

constexpr size_t kMaxTemplateBytes = size_t{4} << 20;
constexpr size_t kMaxTextBytes = size_t{16} << 20;  ///< one string, and the rendered text
constexpr int64_t kMaxSteps = 10'000'000;           ///< evaluated nodes plus work on long values
constexpr int64_t kMaxBytes = int64_t{512} << 20;   ///< sum of all values that a render creates
constexpr int64_t kMaxRange = 100'000;              ///< as in Jinja's own sandbox
constexpr int kMaxNesting = 150;       ///< nesting of brackets, operators and blocks in the source
constexpr int kMaxRunningNodes = 500;  ///< nodes being evaluated at once: bounds the stack
constexpr int kMaxValueDepth = 100;    ///< nesting of lists in lists

/// `need` of every kUnsupported Error in this folder.
inline constexpr char kRenderable[] =
    "a construct that Moracle can render (the statements, filters, tests and methods that "
    "published chat templates use)";

/// Error for a construct that this renderer lacks. The caller adds the line if known.
inline Error unsupported(std::string construct) {
  return Error{ErrorKind::kUnsupported, "", "", kRenderable, std::move(construct)};
}

/// Error for a template that exceeds these limits.
inline Error limit_error(std::string what) {
  return Error{ErrorKind::kUnsupported, "", "", "a template within the renderer's limits",
               std::move(what)};
}

/// Counts down the remaining budget of one render.
class Budget {
 public:
  /// Errors: the steps are used up.
  Status spend(int64_t steps) {
    steps_ -= steps;
    if (steps_ < 0) return limit_error(str("more than ", kMaxSteps, " steps"));
    return {};
  }
  /// Charges for reading `bytes` of text.
  Status read(size_t bytes) { return spend(1 + static_cast<int64_t>(bytes / 64)); }
  /// Charges for creating `bytes` of text or elements. Errors: the bytes are used up.
  Status create(size_t bytes) {
    bytes_ -= static_cast<int64_t>(bytes);
    if (bytes_ < 0) return limit_error(str("more than ", kMaxBytes >> 20, " MiB of values"));
    return {};
  }

 private:
  int64_t steps_ = kMaxSteps;
  int64_t bytes_ = kMaxBytes;
};

}  // namespace moracle::jinja

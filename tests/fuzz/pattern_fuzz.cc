// libFuzzer: a line that is a pattern of modules, then a module's name. A pattern may be rejected;
// matching must not take long.
#include "checkpoint/producers/pattern.h"
#include "fuzz/read_all.h"

namespace moracle::testing::pattern_fuzz {

int run(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(size, text.find('\n'));
  const std::string module = text.substr(std::min(size, end + 1));
  for (const char* prefix : {"", "re:"}) {
    const auto pattern = Pattern::make(prefix + text.substr(0, end), "fuzz");
    if (!passes(pattern)) continue;
    require(pattern->matches(module) == pattern->matches(module));
  }
  return 0;
}

}  // namespace moracle::testing::pattern_fuzz

// Token ids of DRY's sequence breakers. Finding them reads the text of every token.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "moracle/text.h"

namespace moracle::serve {

/// Thread-safe. Keeps the ids of recent requests.
class BreakerCache {
 public:
  /// Errors: those of ids_of_breakers().
  Result<std::vector<int32_t>> find(const Tokenizer& tokenizer,
                                    const std::vector<std::string>& texts);

 private:
  static constexpr size_t kMaxLists = 64;
  std::mutex mutex_;
  std::map<std::vector<std::string>, std::vector<int32_t>> ids_;
};

}  // namespace moracle::serve

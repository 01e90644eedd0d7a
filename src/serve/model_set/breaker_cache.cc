#include "serve/model_set/breaker_cache.h"

#include "base/try.h"
#include "models/generation/dry.h"

namespace moracle::serve {

Result<std::vector<int32_t>> BreakerCache::find(const Tokenizer& tokenizer,
                                                const std::vector<std::string>& texts) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = ids_.find(texts); found != ids_.end()) return found->second;
  }
  MORACLE_TRY(std::vector<int32_t> ids, ids_of_breakers(tokenizer, texts));
  const std::lock_guard lock(mutex_);
  if (ids_.size() >= kMaxLists) ids_.clear();
  ids_[texts] = ids;
  return ids;
}

}  // namespace moracle::serve

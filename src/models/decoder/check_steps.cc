#include "models/decoder/check_steps.h"

#include "base/text.h"
#include "base/try.h"

namespace moracle {
namespace {

Error wrong(size_t step, const char* what, std::string need, std::string fact) {
  return {ErrorKind::kInvalidArgument, "", str("step ", step, ", ", what), std::move(need),
          std::move(fact)};
}

// `call` is unique: no earlier call had this number.
Status check_cache(const Model::Step& step, size_t s, uint64_t call, const Model::State& m) {
  if (step.cache == nullptr || !ModelAccess::has_state(*step.cache))
    return wrong(s, "cache", "a cache from make_cache", "it is null");
  KvCache::State& cache = ModelAccess::state(*step.cache);
  if (cache.pool != m.cache_pool)
    return wrong(s, "cache", "a cache of this model", "another model made it");
  if (cache.last_call == call)
    return wrong(s, "cache", "a cache that no other step of this call uses",
                 "an earlier step uses it");
  cache.last_call = call;
  const auto count = static_cast<int64_t>(step.tokens.size());
  if (count <= cache.capacity - cache.length) return {};
  return wrong(s, "context", str("space for ", count, " more tokens"),
               str("the cache has ", cache.length, " of at most ", cache.capacity));
}

Status check_step(const Model::Step& step, size_t s, const Model::State& m) {
  if (step.adapter < -1 || step.adapter >= m.num_adapters) {
    return wrong(s, "adapter",
                 m.num_adapters == 0 ? "-1, because the model has no adapters"
                                     : str("-1, or an adapter from 0 to ", m.num_adapters - 1),
                 str("it is ", step.adapter));
  }
  for (const int32_t id : step.tokens) {
    if (id >= 0 && id < m.spec.vocab_size) continue;
    return wrong(s, "token id", str("0 to ", m.spec.vocab_size - 1), str("it is ", id));
  }
  return {};
}

}  // namespace

Status check_steps(std::span<const Model::Step> steps, Model::State& m) {
  const uint64_t call = ++m.num_calls;
  int64_t total = 0;
  for (size_t s = 0; s < steps.size(); ++s) {
    MORACLE_CHECK(check_cache(steps[s], s, call, m));
    MORACLE_CHECK(check_step(steps[s], s, m));
    total += static_cast<int64_t>(steps[s].tokens.size());
  }
  if (total <= m.max_num_tokens) return {};
  return Error{ErrorKind::kInvalidArgument, "", "step",
               str("at most ", m.max_num_tokens, " tokens"), str("the steps have ", total)};
}

}  // namespace moracle

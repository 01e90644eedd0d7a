#include "serve/dialects/response_store.h"

#include <utility>

namespace moracle::serve {
namespace {

constexpr size_t kEntryBytes = 512;  // list node, map node, ids

}  // namespace

void ResponseStore::erase(std::list<Entry>::iterator entry) const {
  num_bytes_ -= entry->bytes;
  by_id_.erase(entry->id);
  entries_.erase(entry);
}

void ResponseStore::add(const std::string& id, StoredResponse response, Clock::time_point now) {
  const size_t bytes = response.items.size() + response.reply.size() + kEntryBytes;
  auto shared = std::make_shared<const StoredResponse>(std::move(response));
  const std::lock_guard lock(mutex_);
  if (const auto found = by_id_.find(id); found != by_id_.end()) erase(found->second);
  if (bytes > max_bytes_) return;
  entries_.push_front({id, std::move(shared), bytes, now});
  by_id_[id] = entries_.begin();
  num_bytes_ += bytes;
  while (num_bytes_ > max_bytes_ || now - entries_.back().used > lifetime_)
    erase(std::prev(entries_.end()));
}

std::shared_ptr<const StoredResponse> ResponseStore::find(const std::string& id,
                                                          Clock::time_point now) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return nullptr;
  if (now - found->second->used > lifetime_) {
    erase(found->second);
    return nullptr;
  }
  found->second->used = now;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->response;
}

bool ResponseStore::remove(const std::string& id, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return false;
  const bool is_alive = now - found->second->used <= lifetime_;
  erase(found->second);
  return is_alive;
}

size_t ResponseStore::num_bytes() const {
  const std::lock_guard lock(mutex_);
  return num_bytes_;
}

}  // namespace moracle::serve
